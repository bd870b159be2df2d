"""One schedule sent by several processes: the same requests at the same instants into the same files."""

import asyncio
from collections.abc import Callable, Sequence
from time import perf_counter_ns

from observe.clock import Clock
from observe.errors import RunError
from observe.event_loop import Interrupt
from observe.live.table import Progress, keep_showing, open_view, total
from observe.own_process import command_of
from observe.processes.sender import packed, receive
from observe.recording import Recorder
from observe.sending import Begin, Done, Ready, Share, shares_of
from observe.workloads.workload import Workload

_HEAD_START_NS = 100_000_000
_MOST_END_S = 30.0


class _Sender:
    """A process that sends a share, and its latest messages."""

    def __init__(self, process: asyncio.subprocess.Process, num_requests: int, failed: Callable[[], None]) -> None:
        self.progress = Progress()
        self.done: Done | None = None
        self.ready = asyncio.Event()
        """Set when it is ready, or never will be."""
        self.process = process
        self.listening = asyncio.create_task(self._listen())
        self._num_requests = num_requests
        self._failed = failed

    async def _listen(self) -> None:
        assert self.process.stdout is not None
        while (message := await receive(self.process.stdout)) is not None:
            if isinstance(message, Progress):
                self.progress = message
            elif isinstance(message, Done):
                self.done = message
                self.progress = Progress(num_sent=self._num_requests - message.num_not_sent)
            if isinstance(message, Ready | Done):
                self.ready.set()
        self.ready.set()
        if self.done is None or self.done.failure:
            self._failed()

    def send(self, message: object) -> None:
        """Hand an order over."""
        assert self.process.stdin is not None
        self.process.stdin.write(packed(message))

    def stop(self) -> None:
        """Stop the process's sending, and have it report its results."""
        assert self.process.stdin is not None
        self.process.stdin.close()

    async def end(self) -> Done:
        """Wait for its last words."""
        await asyncio.wait([self.listening], timeout=_MOST_END_S)
        if self.process.returncode is None and not self.listening.done():
            self.process.kill()
        code = await self.process.wait()
        if self.done is not None:
            return self.done
        return Done(
            num_not_sent=self._num_requests - self.progress.num_sent,
            failure=f"a process that sends has ended with code {code}; --resume sends what has no row",
        )


async def send_from_processes(workload: Workload, clock: Clock, recorder: Recorder, interrupt: Interrupt) -> int:
    """Send everything, or until the interrupt, and put what was measured into `recorder`, which has made the files.

    Returns the number of requests that were not sent. Raises RunError when a process cannot begin.
    """
    stop = asyncio.Event()
    senders: list[_Sender] = []
    try:
        for share in shares_of(workload, clock, workload.options.processes or 1):
            sender = await _started(share, stop.set)
            senders.append(sender)
        await _run(senders, workload, stop)
    except asyncio.CancelledError:
        if not interrupt.taken():
            raise
    finally:
        for sender in senders:
            sender.stop()
        ended = await interrupt.see_through(_ended(senders))
    for done in ended:
        if done.stats is not None:
            recorder.stats.absorb(done.stats)
        recorder.failure = recorder.failure or done.failure
        recorder.rescued = "; ".join(each for each in (recorder.rescued, done.rescued) if each)
    return sum(done.num_not_sent for done in ended)


async def _started(share: Share, failed: Callable[[], None]) -> _Sender:
    # A session of its own: Ctrl-C reaches this process, which then lets the others write all they have.
    process = await asyncio.create_subprocess_exec(
        *command_of("observe.processes.sender"),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        start_new_session=True,
    )
    sender = _Sender(process, len(share.plan), failed)
    sender.send(share)
    return sender


async def _run(senders: Sequence[_Sender], workload: Workload, stop: asyncio.Event) -> None:
    """Let all begin at once when the last is ready, and wait until they have ended or one of them has failed."""
    await asyncio.gather(*(sender.ready.wait() for sender in senders))
    for sender in senders:
        if sender.done is not None or sender.listening.done():
            raise RunError((sender.done or await sender.end()).problem or "a process that sends could not begin")
    origin = perf_counter_ns() + _HEAD_START_NS
    for sender in senders:
        sender.send(Begin(origin - workload.request_schedule.starts_at_us * 1000))
    tasks = [
        asyncio.create_task(stop.wait()),
        asyncio.create_task(_all_ended(senders)),
        asyncio.create_task(_keep_showing(senders, workload, origin)),
    ]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()


async def _ended(senders: Sequence[_Sender]) -> list[Done]:
    return [await sender.end() for sender in senders]


async def _all_ended(senders: Sequence[_Sender]) -> None:
    await asyncio.wait([sender.listening for sender in senders])


async def _keep_showing(senders: Sequence[_Sender], workload: Workload, origin: int) -> None:
    view = open_view()
    try:
        await keep_showing(
            view,
            lambda: total(sender.progress for sender in senders),
            lambda: len(workload.request_schedule.plan),
            origin=origin,
            asked_per_s=workload.asked_per_s,
        )
    finally:
        view.close()
