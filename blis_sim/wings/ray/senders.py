"""One schedule sent from the machines of a Ray cluster: same requests, same instants, one recording here."""

import asyncio
import logging
import sys
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from socket import create_connection
from time import perf_counter_ns
from typing import Any, Concatenate, ParamSpec, TypeVar

from blis_sim.options import BlisError, OptionError
from observe.balancer import Balancer
from observe.client import Client
from observe.errors import RunError, print_message
from observe.event_loop import Clock, Interrupt, Nanos, allow_many_connections
from observe.figures import Progress, View, keep_showing, open_view, recent_durations
from observe.live_page import with_live_page
from observe.recording import Recorder
from observe.requests import Dispatcher, PlannedRequest, SentRequest
from observe.responses import Reply
from observe.sending import ScheduleShard, connected_client, ready_dispatcher, shards_of
from observe.workload import Workload

_PLANNED_THERE = PlannedRequest(at_us=0, input_tokens=0, output_tokens=0)
"""In place of the plan of a request, which the receiving process has."""


def seen_from_run(sent: SentRequest, clock_offset_ns: int) -> SentRequest:
    """A request that was allowed when it was due, for a process whose counter is behind this one by so much.

    It has neither its plan nor bytes and words.
    """

    def there(instant: Nanos) -> Nanos:
        return instant - clock_offset_ns if instant else 0

    outcome, reply = sent.outcome, Reply(streaming=sent.prepared.streaming)
    for name in ("carries_tokens", "finish_reason", "prompt_tokens", "completion_tokens"):
        setattr(reply, name, getattr(outcome.reply, name))
    reply.chunk_times = [there(at) for at in outcome.reply.chunk_times]
    reply.first_event = there(outcome.reply.first_event)
    return SentRequest(
        prepared=replace(sent.prepared, planned=_PLANNED_THERE, request=b"", turn=""),
        due=there(sent.due),
        allowed=there(sent.due),
        outcome=replace(outcome, sent=there(outcome.sent), ended=there(outcome.ended), reply=reply),
    )


_BATCH_S = 0.5
_MAX_POLL_GAP_S = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Requests ended since the last report, and the progress of the share."""

    ended: Sequence[SentRequest]
    num_sent: int
    num_in_flight: int
    is_over: bool


class RemoteSender:
    """Sender of a share of the requests; the run calls its methods in this order: `counter`, `prepare`, `begin`,
    `take` until it is over. The sender writes no files. A sender stops by itself when its run has died, because `take`
    is no longer called.
    """

    def __init__(self, share: ScheduleShard) -> None:
        self._share = share
        self._clock_offset_ns = 0
        self._client: Client | Balancer | None = None
        self._dispatcher: Dispatcher | None = None
        self._sending: asyncio.Task[None] | None = None
        self._stop_requested = asyncio.Event()
        self._ended: list[SentRequest] = []
        self._polled_at: Nanos = 0

    async def counter(self) -> Nanos:
        """Return the reading of this machine's clock."""
        return perf_counter_ns()

    async def prepare(self, clock_offset_ns: int) -> str:
        """Connect and build requests; the clock here is ahead of that of the run by so much. Returns the reason if that
        fails."""
        self._clock_offset_ns = clock_offset_ns
        clock = self._share.clock
        try:
            allow_many_connections()
            self._client = await connected_client(
                self._share, replace(clock, counter_ns=clock.counter_ns + self._clock_offset_ns)
            )
        except (RunError, BlisError, OSError) as error:
            return str(error)
        self._dispatcher = ready_dispatcher(self._share, self._client, self._keep)
        return ""

    async def begin(self, origin: Nanos) -> None:
        """Send by a schedule that counts from this instant, of the clock of the run."""
        assert self._client is not None
        assert self._dispatcher is not None
        self._polled_at = perf_counter_ns()
        self._sending = asyncio.create_task(self._send(self._client, self._dispatcher, origin + self._clock_offset_ns))

    async def take(self) -> Batch:
        """Return a report after a short wait; at once when all requests have ended."""
        assert self._sending is not None
        assert self._dispatcher is not None
        self._polled_at = perf_counter_ns()
        await asyncio.wait([self._sending], timeout=_BATCH_S)
        is_over = self._sending.done()
        if is_over:
            self._sending.result()
        ended, self._ended = self._ended, []
        return Batch(
            ended=ended,
            num_sent=self._dispatcher.num_sent,
            num_in_flight=self._dispatcher.num_in_flight,
            is_over=is_over,
        )

    async def stop(self) -> None:
        """Send no more, and cut what is under way."""
        self._stop_requested.set()

    def _keep(self, sent: SentRequest) -> None:
        self._ended.append(seen_from_run(sent, self._clock_offset_ns))

    async def _send(self, client: Client | Balancer, dispatcher: Dispatcher, origin: Nanos) -> None:
        tasks = [
            asyncio.create_task(dispatcher.run(origin)),
            asyncio.create_task(self._stop_requested.wait()),
            asyncio.create_task(self._stop_when_not_polled()),
        ]
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in tasks:
            task.cancel()
        dispatcher.stop()
        client.cancel_all()
        await client.close()
        if tasks[0].done() and not tasks[0].cancelled():
            tasks[0].result()

    async def _stop_when_not_polled(self) -> None:
        while perf_counter_ns() - self._polled_at < _MAX_POLL_GAP_S * 1e9:  # noqa: ASYNC110 - a report that is not fetched signals no event
            await asyncio.sleep(1)


Given = ParamSpec("Given")
Found = TypeVar("Found")

_MAX_CONNECT_S = 10.0


@contextmanager
def ray_cluster(address: str | None, packages: Sequence[str], num_cpus: int | None = None) -> Iterator[None]:
    """While open, calls go to the cluster at this address, which gets these packages of ours.

    What Ray prints on its own goes to standard error, as standard output is kept for results.
    Without an address it is one of its own on this machine, with `num_cpus` if given, else its cores. Raises
    OptionError when there is no such cluster, or it does not take this client.
    """
    import ray

    with redirect_stdout(sys.stderr):
        _connect(address, packages, num_cpus)
        try:
            yield
        finally:
            ray.shutdown()


def _connect(address: str | None, packages: Sequence[str], num_cpus: int | None) -> None:
    import ray

    if address is not None:
        _check_port_is_open(address)
    paths = [str(Path(import_module(name).__path__[0])) for name in packages]
    try:
        ray.init(
            address=address or "local",
            num_cpus=None if address else num_cpus,
            runtime_env={"py_modules": paths},
            log_to_driver=False,
            logging_level=logging.ERROR,
        )
    except (ConnectionError, RuntimeError, ValueError) as error:
        asked = "--ray" if address is None else f"--ray-address {address}"
        raise OptionError(f"{asked}: {' '.join(str(error).split())}") from error


def _check_port_is_open(address: str) -> None:
    """Raise OptionError when no server listens on an address; Ray itself would retry for minutes."""
    host, colon, port = address.rpartition("://")[2].rpartition(":")
    if not (colon and port.isdecimal()):
        return
    try:
        create_connection((host.strip("[]"), int(port)), _MAX_CONNECT_S).close()
    except (OSError, OverflowError) as error:
        reason = (getattr(error, "strerror", None) or str(error)).lower()
        raise OptionError(f"--ray-address {address}: {reason}") from error


@dataclass(frozen=True, slots=True)
class Node:
    """A machine of the cluster, with the CPUs that it gives to work."""

    node_id: str
    address: str
    num_cpus: int


def nodes_of_cluster() -> list[Node]:
    """The machines that are there now, in the order of their addresses."""
    import ray

    listed: Callable[[], list[dict[str, Any]]] = ray.nodes
    nodes = [
        Node(each["NodeID"], each["NodeManagerAddress"], int(each["Resources"].get("CPU", 0)))
        for each in listed()
        if each["Alive"]
    ]
    return sorted(nodes, key=lambda node: (node.address, node.node_id))


def assign_nodes(nodes: Iterable[Node], num_senders: int | None) -> Sequence[Node]:
    """The machine of each sender: so many in turn, else one per machine; each takes a CPU.

    Raises OptionError when there are not so many CPUs.
    """
    able = [node for node in nodes if node.num_cpus > 0]
    if not able:
        raise OptionError("--ray: no machine of the cluster has a CPU for a sender")
    rounds = range(max(node.num_cpus for node in able) if num_senders is not None else 1)
    found = [node for turn in rounds for node in able if node.num_cpus > turn]
    if num_senders is not None and num_senders > len(found):
        raise OptionError(f"--processes {num_senders}: the Ray cluster has {len(found)} CPUs, one per sender")
    return found[:num_senders]


_PACKAGES = ("blis_sim", "observe", "traces")
"""Packages that the senders import."""

_HEAD_START_NS = 500_000_000
_NUM_CLOCK_READINGS = 20
_MAX_START_S = 120.0
_MAX_END_S = 30.0
_MAX_NAMED = 5


class _Sender:
    """A sender on some machine, and the latest state of its share."""

    def __init__(self, node: Node, share: ScheduleShard, record: Callable[[SentRequest], None]) -> None:
        self.node = node
        self.num_sent = 0
        self.num_in_flight = 0
        self.clock_error_ns = 0
        self.polling: asyncio.Task[None] | None = None
        self._record = record
        self._request_ids = share.workload.plan.request_ids
        self._ended_ids: set[int] = set()
        self._actor = _actor(node, share)

    async def prepare(self) -> None:
        """Wait until it could begin. Raises RunError when it cannot."""
        clock_offset_ns, self.clock_error_ns = await self._clock_difference()
        problem = await self._call(RemoteSender.prepare, clock_offset_ns)
        if problem:
            raise RunError(f"on {self.node.address}: {problem}")

    def begin(self, origin: Nanos) -> None:
        """Let it send, and take over what has ended from then on."""
        self.polling = asyncio.create_task(self._keep_polling(origin))

    async def end(self) -> str:
        """Stop the sender, and wait for its last results. Returns the failure if it has died, or does not answer."""
        import ray

        failure = ""
        if self.polling is not None:
            if not self.polling.done():
                self._actor.stop.remote()
                await asyncio.wait([self.polling], timeout=_MAX_END_S)
            failure = self._failure()
        ray.kill(self._actor)
        return failure

    @property
    def num_not_sent(self) -> int:
        """Return the number of unsent requests as of the latest report."""
        return len(self._not_sent())

    def _failure(self) -> str:
        assert self.polling is not None
        if not self.polling.done():
            self.polling.cancel()
            reason = f"has given no answer for {_MAX_END_S:g} s"
        elif (error := self.polling.exception()) is not None:
            reason = str(error)
        else:
            return ""
        cut = [each for each in self._request_ids[: self.num_sent] if each not in self._ended_ids]
        lost = f"{_named(cut)} cut, {_named(self._not_sent())} not sent"
        return f"the sender on {self.node.address} {reason}: {lost}; --resume sends what has no row"

    def _not_sent(self) -> list[int]:
        return [each for each in self._request_ids[self.num_sent :] if each not in self._ended_ids]

    async def _keep_polling(self, origin: Nanos) -> None:
        await self._call(RemoteSender.begin, origin)
        is_over = False
        while not is_over:
            batch = await self._call(RemoteSender.take)
            self.num_sent, self.num_in_flight = batch.num_sent, batch.num_in_flight
            for ended in batch.ended:
                self._ended_ids.add(ended.prepared.request_id)
                self._record(ended)
            is_over = batch.is_over

    async def _clock_difference(self) -> tuple[int, int]:
        """Return the offset of the sender's clock to this one and the error bound, by the quickest of some round
        trips."""
        tries = []
        for _ in range(_NUM_CLOCK_READINGS):
            before = perf_counter_ns()
            there = await self._call(RemoteSender.counter)
            after = perf_counter_ns()
            tries.append(((after - before) // 2, there - (before + after) // 2))
        error_ns, clock_offset_ns = min(tries)
        return clock_offset_ns, error_ns

    async def _call(
        self,
        method: Callable[Concatenate[RemoteSender, Given], Coroutine[Any, Any, Found]],
        *given: Given.args,
        **named: Given.kwargs,
    ) -> Found:
        """Call a method of the sender where that is. Raises RunError when it has died."""
        from ray.exceptions import RayActorError, RayError, RayTaskError

        try:
            found: Found = await getattr(self._actor, method.__name__).remote(*given, **named)
        except RayTaskError as error:
            raise RunError(f"has failed ({' '.join(str(error.cause or error).split())})") from error
        except RayActorError as error:
            raise RunError("has died") from error
        except RayError as error:
            raise RunError(f"is lost ({' '.join(str(error).split())[:200]})") from error
        return found


@contextmanager
def connect(address: str | None, num_senders: int | None) -> Iterator[None]:
    """While open, the cluster at this address, else one here, is there for senders.

    Raises OptionError when there is no such cluster, or it has no CPU for each sender.
    """
    with ray_cluster(address, _PACKAGES, num_senders):
        assign_nodes(nodes_of_cluster(), num_senders)
        yield


async def send(workload: Workload, clock: Clock, recorder: Recorder, interrupt: Interrupt) -> int:
    """Send everything, or until the interrupt, and record ended requests as the senders report them.

    Returns the number of requests that were not sent. Raises RunError when a sender cannot begin.
    """
    senders: list[_Sender] = []
    try:
        senders += _assigned_senders(workload, clock, recorder)
        await _begin_together(senders, workload, recorder)
    except asyncio.CancelledError:
        if not interrupt.consume_cancellation():
            raise
    finally:
        failures = await interrupt.run_to_completion(_ended(senders))
    recorder.failure = recorder.failure or "; ".join(filter(None, failures))
    return sum(sender.num_not_sent for sender in senders)


async def _ended(senders: Sequence[_Sender]) -> list[str]:
    return await asyncio.gather(*(sender.end() for sender in senders))


def _assigned_senders(workload: Workload, clock: Clock, recorder: Recorder) -> Iterator[_Sender]:
    planned = dict(zip(workload.plan.request_ids, workload.plan.requests, strict=True))

    def record(ended: SentRequest) -> None:
        prepared = replace(ended.prepared, planned=planned[ended.prepared.request_id])
        recorder.record(replace(ended, prepared=prepared))

    nodes = assign_nodes(nodes_of_cluster(), workload.options.processes)
    for node, share in zip(nodes, shards_of(workload, clock, len(nodes)), strict=False):
        yield _Sender(node, share, record)


async def _begin_together(senders: Sequence[_Sender], workload: Workload, recorder: Recorder) -> None:
    """Let all begin at once when the last is ready, and wait until they have ended or one of them has failed."""
    try:
        async with asyncio.timeout(_MAX_START_S):
            await asyncio.gather(*(sender.prepare() for sender in senders))
    except TimeoutError:
        raise RunError(
            f"the Ray cluster has not started {len(senders)} senders within {_MAX_START_S:g} s: each needs a free CPU"
        ) from None
    error_ms = max(sender.clock_error_ns for sender in senders) / 1e6
    print_message(
        f"sending from {len(senders)} processes on {len({each.node for each in senders})} Ray nodes,"
        f" whose clocks are known to within {error_ms:.1f} ms"
    )
    view = await with_live_page(open_view(), workload.options.live_html, workload.options.servers[0].url)
    origin = perf_counter_ns() + _HEAD_START_NS
    for sender in senders:
        sender.begin(origin - workload.plan.starts_at_us * 1000)
    showing = asyncio.create_task(_keep_showing(view, senders, workload, recorder, origin))
    try:
        polling = [sender.polling for sender in senders if sender.polling is not None]
        await asyncio.wait(polling, return_when=asyncio.FIRST_EXCEPTION)
    finally:
        showing.cancel()


async def _keep_showing(
    view: View, senders: Sequence[_Sender], workload: Workload, recorder: Recorder, origin: Nanos
) -> None:
    stats = recorder.stats

    def progress() -> Progress:
        return replace(
            recent_durations(stats),
            num_sent=sum(sender.num_sent for sender in senders),
            num_in_flight=sum(sender.num_in_flight for sender in senders),
            num_ok=stats.num_ok,
            num_ended=stats.num_ended,
        )

    try:
        planned = len(workload.plan.requests)
        await keep_showing(view, progress, lambda: planned, origin=origin, requested_per_s=workload.requested_per_s)
    finally:
        view.close()


def _actor(node: Node, share: ScheduleShard) -> Any:
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    here = NodeAffinitySchedulingStrategy(node.node_id, soft=False)
    return ray.remote(RemoteSender).options(num_cpus=1, scheduling_strategy=here).remote(share)


def _named(request_ids: Sequence[int]) -> str:
    """Return text with the number of requests and the numbers of the first ones."""
    if not request_ids:
        return "no request"
    first = ", ".join(map(str, request_ids[:_MAX_NAMED]))
    more = ", ..." if len(request_ids) > _MAX_NAMED else ""
    return f"{len(request_ids)} requests ({first}{more})"
