"""One schedule sent by several processes: the same requests at the same instants into the same files."""

import asyncio
import os
import pickle
import struct
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from time import perf_counter_ns
from typing import Any, BinaryIO

from observe.errors import RunError
from observe.event_loop import Clock, Interrupt, allow_many_connections, command_of, run_loop
from observe.figures import Progress, View, keep_showing, open_view, progress_of, total
from observe.live_page import with_live_page
from observe.recording import Recorder
from observe.requests import Dispatcher
from observe.sending import (
    BeginMessage,
    DoneMessage,
    ReadyMessage,
    ScheduleShard,
    connected_client,
    ready_dispatcher,
    shards_of,
)
from observe.workload import Workload
from traces import TraceError

_SIZE = struct.Struct(">Q")


def packed(value: Any) -> bytes:
    """The bytes that `receive` makes the value of."""
    data = pickle.dumps(value)
    return _SIZE.pack(len(data)) + data


def read_packed(stream: BinaryIO) -> Any:
    """Wait for the next value. Raises EOFError at the end."""
    head = stream.read(_SIZE.size)
    if len(head) < _SIZE.size:
        raise EOFError
    return pickle.loads(stream.read(_SIZE.unpack(head)[0]))


async def receive(stream: asyncio.StreamReader) -> Any:
    """The next value; None when there are no more."""
    try:
        (size,) = _SIZE.unpack(await stream.readexactly(_SIZE.size))
        return pickle.loads(await stream.readexactly(size))
    except asyncio.IncompleteReadError:
        return None


_PERIOD_S = 0.5

Send = Callable[[object], None]


def main() -> None:
    """Receive a share of the schedule, send its requests, report the outcome."""
    messages = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # nothing else gets among the messages

    def send(value: object) -> None:
        with suppress(BrokenPipeError):
            messages.write(packed(value))
            messages.flush()

    with open(sys.stdin.fileno(), "rb", buffering=0, closefd=False) as orders:
        share = read_packed(orders)
    allow_many_connections()
    send(run_loop(_send(share, send)))


async def _send(share: ScheduleShard, send: Send) -> DoneMessage:
    options = share.workload.options
    stop = asyncio.Event()
    try:
        client = await connected_client(share, share.clock)
    except (RunError, OSError) as error:
        return DoneMessage(problem=str(error))
    try:
        recorder = Recorder(
            share.clock,
            options.paths,
            None,
            options.warmup_requests,
            columns=share.columns,
            is_shared=True,
            redact=options.proxying.redact,
            failed=stop.set,
        )
    except (OSError, TraceError) as error:
        await client.close()
        return DoneMessage(problem=str(error))
    dispatcher = ready_dispatcher(share, client, recorder.record)
    send(ReadyMessage())
    try:
        await _send_until_done(dispatcher, recorder, stop, send)
    finally:
        num_not_sent = dispatcher.stop()
        client.cancel_all()
        recorder.close()
        await client.close()
    return DoneMessage(
        stats=recorder.stats, num_not_sent=num_not_sent, failure=recorder.failure, rescued=recorder.rescued
    )


async def _send_until_done(dispatcher: Dispatcher, recorder: Recorder, stop: asyncio.Event, send: Send) -> None:
    """Send after `BeginMessage`, until all is sent, a file cannot be written or the parent process is gone."""
    orders = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(orders), sys.stdin)
    begin: BeginMessage | None = await receive(orders)
    if begin is None:
        return
    sending = asyncio.create_task(dispatcher.run(begin.origin))
    reporting = asyncio.create_task(_keep_sending(dispatcher, recorder, send))
    others = [reporting, asyncio.create_task(receive(orders)), asyncio.create_task(stop.wait())]
    await asyncio.wait([sending, *others], return_when=asyncio.FIRST_COMPLETED)
    if sending.done():
        sending.result()
    for task in (sending, *others):
        task.cancel()


async def _keep_sending(dispatcher: Dispatcher, recorder: Recorder, send: Send) -> None:
    while True:
        await asyncio.sleep(_PERIOD_S)
        send(progress_of(dispatcher, recorder.stats))


if __name__ == "__main__":
    main()


_HEAD_START_NS = 100_000_000
_MAX_END_S = 30.0


class _Sender:
    """A process that sends a share, and its latest messages."""

    def __init__(self, process: asyncio.subprocess.Process, num_requests: int, failed: Callable[[], None]) -> None:
        self.progress = Progress()
        self.done: DoneMessage | None = None
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
            elif isinstance(message, DoneMessage):
                self.done = message
                self.progress = Progress(num_sent=self._num_requests - message.num_not_sent)
            if isinstance(message, ReadyMessage | DoneMessage):
                self.ready.set()
        self.ready.set()
        if self.done is None or self.done.failure:
            self._failed()

    def send(self, message: object) -> None:
        """Send a message to the process."""
        assert self.process.stdin is not None
        self.process.stdin.write(packed(message))

    def stop(self) -> None:
        """Stop the process's sending, and have it report its results."""
        assert self.process.stdin is not None
        self.process.stdin.close()

    async def end(self) -> DoneMessage:
        """Wait for the final message of the process."""
        await asyncio.wait([self.listening], timeout=_MAX_END_S)
        if self.process.returncode is None and not self.listening.done():
            self.process.kill()
        code = await self.process.wait()
        if self.done is not None:
            return self.done
        return DoneMessage(
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
        for share in shards_of(workload, clock, workload.options.processes or 1):
            # A session of its own: Ctrl-C reaches this process, which then lets the others write all they have.
            process = await asyncio.create_subprocess_exec(
                *command_of("observe.processes"),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                start_new_session=True,
            )
            sender = _Sender(process, len(share.workload.plan.requests), stop.set)
            sender.send(share)
            senders.append(sender)
        await _run(senders, workload, stop)
    except asyncio.CancelledError:
        if not interrupt.consume_cancellation():
            raise
    finally:
        for sender in senders:
            sender.stop()
        ended = await interrupt.run_to_completion(_ended(senders))
    for done in ended:
        if done.stats is not None:
            recorder.stats.merge(done.stats)
        recorder.failure = recorder.failure or done.failure
        recorder.rescued = "; ".join(each for each in (recorder.rescued, done.rescued) if each)
    return sum(done.num_not_sent for done in ended)


async def _run(senders: Sequence[_Sender], workload: Workload, stop: asyncio.Event) -> None:
    """Let all begin at once when the last is ready, and wait until they have ended or one of them has failed."""
    await asyncio.gather(*(sender.ready.wait() for sender in senders))
    for sender in senders:
        if sender.done is not None or sender.listening.done():
            raise RunError((sender.done or await sender.end()).problem or "a process that sends could not begin")
    view = await with_live_page(open_view(), workload.options.live_html, workload.options.servers[0].url)
    origin = perf_counter_ns() + _HEAD_START_NS
    for sender in senders:
        sender.send(BeginMessage(origin - workload.plan.starts_at_us * 1000))
    tasks = [
        asyncio.create_task(stop.wait()),
        asyncio.create_task(_all_ended(senders)),
        asyncio.create_task(_keep_showing(view, senders, workload, origin)),
    ]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()


async def _ended(senders: Sequence[_Sender]) -> list[DoneMessage]:
    return [await sender.end() for sender in senders]


async def _all_ended(senders: Sequence[_Sender]) -> None:
    await asyncio.wait([sender.listening for sender in senders])


async def _keep_showing(view: View, senders: Sequence[_Sender], workload: Workload, origin: int) -> None:
    try:
        await keep_showing(
            view,
            lambda: total(sender.progress for sender in senders),
            lambda: len(workload.plan.requests),
            origin=origin,
            requested_per_s=workload.requested_per_s,
        )
    finally:
        view.close()
