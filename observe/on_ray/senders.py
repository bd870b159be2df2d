"""One schedule sent from the machines of a Ray cluster: the same requests at the same instants, written down here."""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from time import perf_counter_ns
from typing import Any

from observe.clock import Clock, Nanos
from observe.errors import RunError
from observe.interrupt import Interrupt
from observe.live.table import Progress, keep_showing, open_view, recent_durations
from observe.messages import say
from observe.on_ray.cluster import Node, nodes_of_cluster, seats
from observe.on_ray.sender import Batch, Ended, RemoteSender
from observe.plans.workload import Workload
from observe.recording.recorder import Recorder
from observe.sending import Share, shares_of

PACKAGES = ("blis_sim", "observe", "traces")
"""Packages that the senders import."""

_HEAD_START_NS = 500_000_000
_NUM_CLOCK_READINGS = 20
_MOST_START_S = 120.0
_MOST_END_S = 30.0
_MOST_NAMED = 5


class _Sender:
    """A sender on some machine, and what is known here of its share."""

    def __init__(self, node: Node, share: Share, record: Callable[[Ended], None]) -> None:
        self.node = node
        self.num_sent = 0
        self.num_in_flight = 0
        self.clock_error_ns = 0
        self.taking: asyncio.Task[None] | None = None
        self._record = record
        self._request_ids = share.request_ids
        self._ended_ids: set[int] = set()
        self._actor = _actor(node, share)

    async def get_ready(self) -> None:
        """Wait until it could begin. Raises RunError when it cannot."""
        ahead_ns, self.clock_error_ns = await self._clock_difference()
        problem = await self._call("get_ready", ahead_ns)
        if problem:
            raise RunError(f"on {self.node.address}: {problem}")

    def begin(self, origin: Nanos) -> None:
        """Let it send, and take over what has ended from then on."""
        self.taking = asyncio.create_task(self._keep_taking(origin))

    async def end(self) -> str:
        """Let it stop, and wait for its last words. Says what is wrong if it has died, or does not answer."""
        import ray

        failure = ""
        if self.taking is not None:
            if not self.taking.done():
                self._actor.stop.remote()
                await asyncio.wait([self.taking], timeout=_MOST_END_S)
            failure = self._failure()
        ray.kill(self._actor)
        return failure

    @property
    def num_not_sent(self) -> int:
        """Return the number of unsent requests as of the latest report."""
        return len(self._not_sent())

    def _failure(self) -> str:
        assert self.taking is not None
        if not self.taking.done():
            self.taking.cancel()
            reason = f"has given no answer for {_MOST_END_S:g} s"
        elif (error := self.taking.exception()) is not None:
            reason = str(error)
        else:
            return ""
        cut = [each for each in self._request_ids[: self.num_sent] if each not in self._ended_ids]
        lost = f"{_named(cut)} cut, {_named(self._not_sent())} not sent"
        return f"the sender on {self.node.address} {reason}: {lost}; --resume sends what has no row"

    def _not_sent(self) -> list[int]:
        return [each for each in self._request_ids[self.num_sent :] if each not in self._ended_ids]

    async def _keep_taking(self, origin: Nanos) -> None:
        await self._call("begin", origin)
        is_over = False
        while not is_over:
            batch: Batch = await self._call("take")
            self.num_sent, self.num_in_flight = batch.num_sent, batch.num_in_flight
            for ended in batch.ended:
                self._ended_ids.add(ended.request_id)
                self._record(ended)
            is_over = batch.is_over

    async def _clock_difference(self) -> tuple[int, int]:
        """How far its clock is ahead of this one, and how wrong that may be, by the quickest of some round trips."""
        tries = []
        for _ in range(_NUM_CLOCK_READINGS):
            before = perf_counter_ns()
            there = await self._call("counter")
            after = perf_counter_ns()
            tries.append(((after - before) // 2, there - (before + after) // 2))
        error_ns, ahead_ns = min(tries)
        return ahead_ns, error_ns

    async def _call(self, method: str, *given: Any) -> Any:
        """Call one of its methods. Raises RunError when it has died."""
        from ray.exceptions import RayActorError, RayError, RayTaskError

        try:
            return await getattr(self._actor, method).remote(*given)
        except RayTaskError as error:
            raise RunError(f"has failed ({' '.join(str(error.cause or error).split())})") from error
        except RayActorError as error:
            raise RunError("has died") from error
        except RayError as error:
            raise RunError(f"is lost ({' '.join(str(error).split())[:200]})") from error


async def send_from_ray(workload: Workload, clock: Clock, recorder: Recorder, interrupt: Interrupt) -> int:
    """Send everything, or until the interrupt, and write down what ends as the senders hand it over.

    Returns the number of requests that were not sent. Raises RunError when a sender cannot begin.
    """
    senders: list[_Sender] = []
    try:
        senders += _seated(workload, clock, recorder)
        await _begin_together(senders, workload, recorder)
    except asyncio.CancelledError:
        if not interrupt.taken():
            raise
    finally:
        failures = await interrupt.see_through(_ended(senders))
    recorder.failure = recorder.failure or "; ".join(filter(None, failures))
    return sum(sender.num_not_sent for sender in senders)


async def _ended(senders: Sequence[_Sender]) -> list[str]:
    return await asyncio.gather(*(sender.end() for sender in senders))


def _seated(workload: Workload, clock: Clock, recorder: Recorder) -> Iterator[_Sender]:
    planned = dict(zip(workload.agenda.request_ids, workload.agenda.plan, strict=True))

    def record(ended: Ended) -> None:
        recorder.record(ended.as_sent(planned[ended.request_id]))

    nodes = seats(nodes_of_cluster(), workload.options.processes)
    for node, share in zip(nodes, shares_of(workload, clock, len(nodes)), strict=False):
        yield _Sender(node, share, record)


async def _begin_together(senders: Sequence[_Sender], workload: Workload, recorder: Recorder) -> None:
    """Let all begin at once when the last is ready, and wait until they have ended or one of them has failed."""
    try:
        async with asyncio.timeout(_MOST_START_S):
            await asyncio.gather(*(sender.get_ready() for sender in senders))
    except TimeoutError:
        raise RunError(
            f"the Ray cluster has not started {len(senders)} senders within {_MOST_START_S:g} s: each needs a free CPU"
        ) from None
    error_ms = max(sender.clock_error_ns for sender in senders) / 1e6
    say(
        f"sending from {len(senders)} processes on {len({each.node for each in senders})} Ray nodes,"
        f" whose clocks are known to within {error_ms:.1f} ms"
    )
    origin = perf_counter_ns() + _HEAD_START_NS
    for sender in senders:
        sender.begin(origin - workload.agenda.starts_at_us * 1000)
    showing = asyncio.create_task(_keep_showing(senders, workload, recorder, origin))
    try:
        taking = [sender.taking for sender in senders if sender.taking is not None]
        await asyncio.wait(taking, return_when=asyncio.FIRST_EXCEPTION)
    finally:
        showing.cancel()


async def _keep_showing(senders: Sequence[_Sender], workload: Workload, recorder: Recorder, origin: Nanos) -> None:
    view, stats = open_view(), recorder.stats

    def progress() -> Progress:
        return replace(
            recent_durations(stats),
            num_sent=sum(sender.num_sent for sender in senders),
            num_in_flight=sum(sender.num_in_flight for sender in senders),
            num_ok=stats.num_ok,
            num_ended=stats.num_ended,
        )

    try:
        planned = len(workload.agenda.plan)
        await keep_showing(view, progress, lambda: planned, origin=origin, asked_per_s=workload.asked_per_s)
    finally:
        view.close()


def _actor(node: Node, share: Share) -> Any:
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    here = NodeAffinitySchedulingStrategy(node.node_id, soft=False)
    return ray.remote(RemoteSender).options(num_cpus=1, scheduling_strategy=here).remote(share)


def _named(request_ids: Sequence[int]) -> str:
    """Return text with the number of requests and the numbers of the first ones."""
    if not request_ids:
        return "no request"
    first = ", ".join(map(str, request_ids[:_MOST_NAMED]))
    more = ", ..." if len(request_ids) > _MOST_NAMED else ""
    return f"{len(request_ids)} requests ({first}{more})"
