"""Data-parallel ranks: engines behind one endpoint, vLLM's choice of a rank for each request, and ranks in lockstep."""

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Container, Generator, Iterable
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass, replace
from enum import Enum, auto
from functools import partial
from heapq import heappop, heappush
from itertools import count, groupby
from typing import ClassVar

from blis_sim.engine.config import EngineConfig
from blis_sim.engine.core import Engine
from blis_sim.engine.events import Event, Finished
from blis_sim.engine.latency.model import LatencyModel
from blis_sim.engine.latency.wrapped import JointSteps, dummy_shape, with_joint_steps
from blis_sim.engine.request import Request
from blis_sim.engine.sequence import NOWHERE, Outcome, Sequence
from blis_sim.engine.stats import EngineStats
from blis_sim.engine.units import Micros

# The choice of a data-parallel rank for each request, as vLLM 0.33's internal load balancer makes it.
#
# Each front end scores the ranks by the latest reported loads, which are up to 100 ms old, and by the requests that
# it has sent itself since. Facts: vllm/v1/engine/core_client.py `DPLBAsyncMPClient`, vllm/v1/engine/coordinator.py.

REPORT_INTERVAL_US: Micros = 100_000
"""Least time between two reports of loads."""
IDLE_REPORT_INTERVAL_US: Micros = 5_000_000
"""Time after which loads that have not changed are reported again."""
STEP_REPORTS_US: Micros = 50_000
"""Ranks in lockstep are waited for this long, so that the loads of one forward pass are all there."""
PRESSURE_FROM = 0.5
"""KV cache usage up to which a queue counts for its length alone."""
PRESSURE_WEIGHT = 6.0


@dataclass(frozen=True, slots=True)
class RankLoad:
    """The load of a rank, reported at each change of its numbers of requests."""

    num_waiting: int = 0
    num_running: int = 0
    kv_usage_fraction: float = 0.0


def load_of(stats: EngineStats) -> RankLoad:
    """Return the current load of an engine, its cache usage rounded as vLLM rounds it, for scores may be equal."""
    total = stats.kv_blocks_total
    return RankLoad(stats.num_waiting, stats.num_running, 1.0 - (total - stats.kv_blocks_used) / total)


class LoadReports:
    """The coordinator: collects the loads of all ranks and computes when they are reported to the front ends.

    This is vLLM's rule for ranks that step independently, as those of models without experts do.
    """

    def __init__(self, num_ranks: int) -> None:
        self._loads = [RankLoad()] * num_ranks
        self._changed_at: Micros | None = None
        self._reported_at: Micros = -REPORT_INTERVAL_US

    def report(self, rank: int, load: RankLoad, at: Micros) -> None:
        """Set the load of `rank` from `at` on. Nothing is reported unless the numbers of requests change."""
        known = self._loads[rank]
        if (load.num_waiting, load.num_running) == (known.num_waiting, known.num_running):
            return
        self._loads[rank] = load
        if self._changed_at is None:
            self._changed_at = at

    def due_at(self) -> Micros:
        """Return when the next report to the front ends is due, unless a report of a rank comes before."""
        if self._changed_at is None:
            return self._reported_at + IDLE_REPORT_INTERVAL_US
        return max(self._changed_at, self._reported_at + REPORT_INTERVAL_US)

    def loads_due(self, at: Micros) -> tuple[RankLoad, ...]:
        """Return the loads reported to the front ends at `at`."""
        self._reported_at, self._changed_at = at, None
        return tuple(self._loads)


class LockstepReports:
    """The coordinator of ranks in lockstep: front ends get the loads as they were before the latest forward pass.

    Loads of a rank are stamped with the number of its forward pass. The loads of one pass are kept when the first
    report of the next arrives, and are those that front ends get.
    """

    def __init__(self, num_ranks: int) -> None:
        self._loads = [RankLoad()] * num_ranks
        self._before: tuple[RankLoad, ...] | None = None
        """The loads before the latest forward pass that a rank reported from; None once they were passed on."""
        self._stamp = (0, 0)
        self._has_changed = False
        self._changed_at: Micros = -REPORT_INTERVAL_US
        """Instant of the latest report, or of the latest beginning or end of a wave."""
        self._reported_at: Micros = -REPORT_INTERVAL_US

    def report(self, rank: int, load: RankLoad, stamp: tuple[int, int], at: Micros) -> None:
        """Take the load of `rank` from `at` on; `stamp` has its wave and how many forward passes that has had."""
        known = self._loads[rank]
        if (load.num_waiting, load.num_running) == (known.num_waiting, known.num_running):
            return
        if stamp > self._stamp:
            if self._has_changed:
                self._before = tuple(self._loads)
            self._stamp = stamp
        self._loads[rank] = load
        self._has_changed = True
        self._changed_at = at

    def heard(self, at: Micros) -> None:
        """Note that a wave has begun or ended at `at`, with which the wait for more reports begins anew."""
        self._changed_at = at

    def due_at(self) -> Micros:
        """Return when the next report to the front ends is due, unless a report of a rank comes before."""
        if self._before is not None:
            return max(self._changed_at, self._reported_at + REPORT_INTERVAL_US)
        interval = REPORT_INTERVAL_US if self._has_changed else IDLE_REPORT_INTERVAL_US
        return max(max(self._changed_at, self._reported_at) + STEP_REPORTS_US, self._reported_at + interval)

    def loads_due(self, at: Micros) -> tuple[RankLoad, ...]:
        """Return the loads reported to the front ends at `at`."""
        self._reported_at = at
        if self._before is not None:
            loads, self._before = self._before, None
            return loads
        self._has_changed = False
        return tuple(self._loads)


class RankBalancer:
    """The load balancer of one of `num_front_ends` front ends, which decide independently."""

    def __init__(self, num_ranks: int, num_front_ends: int = 1, front_end: int = 0) -> None:
        self._num_front_ends = num_front_ends
        self._loads: SequenceOf[RankLoad] = [RankLoad()] * num_ranks
        self._num_sent = [0] * num_ranks
        """Requests sent to each rank since its load was reported, as if all front ends had sent as many."""
        self._num_unfinished = [0] * num_ranks
        self._start = num_ranks * front_end // num_front_ends

    def update_loads(self, loads: SequenceOf[RankLoad]) -> None:
        """Take the loads of a coordinator's report, which replace all assumptions made since the last report."""
        self._loads = loads
        self._num_sent = [0] * len(loads)

    def choose(self) -> int:
        """Return the rank with the lowest score for the next request. Each scan starts one rank further."""
        num_ranks = len(self._loads)
        order = [(self._start + offset) % num_ranks for offset in range(num_ranks)]
        rank = min(order, key=self.score)
        self._num_sent[rank] += self._num_front_ends
        self._start = (self._start + 1) % num_ranks
        self._num_unfinished[rank] += 1
        return rank

    def send_to(self, rank: int) -> None:
        """Count a request whose client chose the rank as unfinished there; nothing else changes."""
        self._num_unfinished[rank] += 1

    def finished(self, rank: int) -> None:
        """Count a request sent to `rank` as ended, with any outcome."""
        self._num_unfinished[rank] -= 1

    def score(self, rank: int) -> float:
        """Return the estimated requests of a rank, with a surcharge for a queue before a KV cache over half full."""
        load = self._loads[rank]
        num_waiting = load.num_waiting + self._num_sent[rank]
        score: float = max(self._num_front_ends * self._num_unfinished[rank], num_waiting + load.num_running)
        if num_waiting:
            score += num_waiting * PRESSURE_WEIGHT * max(0.0, load.kv_usage_fraction - PRESSURE_FROM)
        return score


# Data-parallel ranks: engines with queues and KV caches of their own behind one endpoint.
#
# Ranks of a model without experts step independently; `lockstep_ranks` has those that share experts.


class AnyOf:
    """A container with the content of several."""

    def __init__(self, parts: SequenceOf[Container[object]]) -> None:
        self._parts = parts

    def __contains__(self, each: object) -> bool:
        return any(each in part for part in self._parts)


class RankGroup(ABC):
    """All ranks of one deployment. A group takes the time as one engine does, and passes it to every engine.

    A cluster takes a group as it takes an engine: its figures are those of all ranks together.
    """

    vain_kills: ClassVar[tuple[Micros, ...]] = ()
    """Only a cluster kills instances."""

    def __init__(self, engines: SequenceOf[Engine]) -> None:
        self.now: Micros | None = None
        """The instant up to which the group has been advanced; None before the first time."""
        self.first_number = 0
        """Number of the first rank's engine among all of a cluster; `Sequence.instance` is the number of an engine."""
        self.live: dict[str, Sequence] = {}
        """Requests that have entered the group and not ended, by id."""
        self._engines = tuple(engines)
        one, number = engines[0].config, len(engines)
        self.config = replace(
            one,
            max_num_seqs=one.max_num_seqs * number,
            max_num_batched_tokens=one.max_num_batched_tokens * number,
            total_kv_blocks=one.total_kv_blocks * number,
        )
        """The configuration of a rank, with the limits of all ranks together."""
        self._balancer = RankBalancer(len(engines))
        self._arriving: list[tuple[Micros, Micros, int, Sequence, int | None]] = []
        """Requests without a rank: instant of the assignment, arrival, number, sequence, and the rank they name."""
        self._aborts: list[tuple[Micros, int, str, Outcome]] = []
        self._numbers = count()
        self._leader: tuple[str, Micros] = ("", 0)
        """The latest request that begins a message, and the instant of its assignment."""
        self._rank_of: dict[str, int] = {}
        """The rank of each request that has not ended, `NOWHERE` before it is assigned."""
        self._events: list[tuple[int, Event]] = []
        self._unseen: list[list[Sequence]] = [[] for _ in engines]
        """Requests that have come to each rank since it took in requests last."""
        self._unheard: list[list[str]] = [[] for _ in engines]
        """Requests on each rank whose ends reach the front end with the next outputs only."""
        self._heard_elsewhere: set[str] = set()
        """Requests that have ended whose ends reach the front end apart from their events."""

    @property
    def instances(self) -> tuple[Engine, ...]:
        """The engines of all ranks."""
        return self._engines

    @property
    def clock(self) -> Micros:
        """Instant of the last event: the end of the simulated run."""
        passed = [at for at, *_ in self._arriving if self.now is not None and at <= self.now]
        return max([*(engine.clock for engine in self._engines), *passed])

    @property
    def stats(self) -> EngineStats:
        """Current gauges of all ranks together; a request without a rank is in none of them."""
        found = [engine.stats for engine in self._engines]
        return EngineStats(
            num_running=sum(each.num_running for each in found),
            num_waiting=sum(each.num_waiting for each in found),
            kv_blocks_total=sum(each.kv_blocks_total for each in found),
            kv_blocks_used=sum(each.kv_blocks_used for each in found),
            num_preemptions=sum(each.num_preemptions for each in found),
            prefix_hit_tokens=sum(each.prefix_hit_tokens for each in found),
            num_deferred=sum(each.num_deferred for each in found),
        )

    @property
    def num_ended(self) -> int:
        """Number of requests that have ended on any rank."""
        return sum(engine.num_ended for engine in self._engines)

    def cached_identities(self) -> Container[object]:
        """The identities of the blocks that can be found on any rank: a view, which changes with the caches."""
        return AnyOf([engine.cached_identities() for engine in self._engines])

    def cached_identities_now(self) -> Container[object]:
        """The identities of the blocks that can be found on any rank at this instant."""
        return AnyOf([engine.cached_identities_now() for engine in self._engines])

    @property
    def takes_only_empty_steps(self) -> bool:
        """False: ranks step together, or each reports its load at the end of a step."""
        return False

    def next_change_at(self) -> Micros | None:
        """The next instant at which something is due; None when idle."""
        return self.next_event_at()

    def queueing_time(self, request: Request) -> Micros:
        """Return the time from the arrival of a request until it joins the wait queue of a rank."""
        return self._engines[0].queueing_time(request)

    def submit(self, request: Request, at: Micros, rank: int | None = None) -> Sequence:
        """Let `request` arrive at `at`; without a `rank` it is assigned to the least loaded rank.

        Raises ValueError if it would have been assigned by now, and for an id still in use.
        """
        sequence = Sequence(request, at, NOWHERE)
        self.enter(sequence, at, rank)
        return sequence

    def enter(self, sequence: Sequence, at: Micros, rank: int | None = None) -> Micros:
        """Let a request that arrived elsewhere enter the group at `at`; otherwise as `submit`.

        Returns the instant at which it is assigned to a rank.
        """
        request_id = sequence.request.id
        queueing_us = self.queueing_time(sequence.request)
        queued_at = at + queueing_us
        leader_id, leader_queued_at = self._leader
        if not sequence.request.follows:
            self._leader = (request_id, queued_at)
        elif sequence.request.follows == leader_id and (self.now is None or leader_queued_at > self.now):
            # Requests of one message reach the load balancer together, in their order, whatever their lengths.
            queued_at, at = leader_queued_at, leader_queued_at - queueing_us
        self._check_is_ahead(queued_at)
        if request_id in self.live:
            raise ValueError(f"request {request_id!r} is still in the engine")
        self._rank_of[request_id] = NOWHERE
        self.live[request_id] = sequence
        heappush(self._arriving, (queued_at, at, next(self._numbers), sequence, rank))
        return queued_at

    def enter_all(self, sequences: SequenceOf[Sequence]) -> Micros | None:
        """Let requests enter the group at the instants of their arrivals.

        Returns the instant at which the first of them is assigned to a rank.
        """
        return min([self.enter(each, each.arrived_at) for each in sequences], default=None)

    def submit_all(self, requests: SequenceOf[Request], instants: SequenceOf[Micros]) -> list[Sequence]:
        """Let each of `requests` arrive at its instant."""
        return [self.submit(request, at) for request, at in zip(requests, instants, strict=True)]

    def abort(self, request_id: str, at: Micros, outcome: Outcome = Outcome.ABORTED) -> None:
        """Let the client of `request_id` hang up at `at`; ids without a live request are ignored."""
        self._check_is_ahead(at)
        rank = self._rank_of.get(request_id)
        if rank is None:
            return
        if rank == NOWHERE:
            heappush(self._aborts, (at, next(self._numbers), request_id, outcome))
        else:
            self._engines[rank].abort(request_id, at, outcome)

    def rank_of(self, request_id: str) -> int:
        """Return the rank of a request that has not ended; `NOWHERE` before it is assigned, and for unknown ids."""
        return self._rank_of.get(request_id, NOWHERE)

    def next_event_at(self) -> Micros | None:
        """The next instant at which something is due; None when idle."""
        dues = [engine.next_event_at() for engine in self._engines]
        dues += [line[0][0] for line in (self._arriving, self._aborts) if line]
        dues.append(self._next_loop_at())
        return min((due for due in dues if due is not None), default=None)

    def advance(self, until: Micros) -> list[Event]:
        """Do everything due up to and including `until`; return the events in the order they happened."""
        return [event for _, event in self.advance_each(until)]

    def advance_each(self, until: Micros) -> list[tuple[int, Event]]:
        """Return the events of `advance`, each behind the number of its rank."""
        while (at := self.next_event_at()) is not None and at <= until:
            self._do_due(at)
        if self.now is None or until > self.now:
            self.now = until
        events, self._events = self._events, []
        events.sort(key=_instant_of)
        return events

    def advance_numbered(self, until: Micros) -> list[tuple[int, list[Event]]]:
        """Return the events of `advance` in stretches of one rank, each behind the number of its engine."""
        stretches = groupby(self.advance_each(until), key=_rank_of)
        return [(self.first_number + rank, [event for _, event in events]) for rank, events in stretches]

    def release(self) -> None:
        """Free the step logs of an idle group that does nothing more."""
        for engine in self._engines:
            engine.release()

    def _next_loop_at(self) -> Micros | None:
        """Return the next instant at which the loops of ranks go on, whatever engines have due; None without one."""
        return None

    @abstractmethod
    def _do_due(self, at: Micros) -> None:
        """Do all of one instant."""

    @abstractmethod
    def _update_loads(self, at: Micros) -> None:
        """Pass the reports that are due by `at` to the balancer."""

    def _note(self, rank: int, events: Iterable[Event]) -> None:
        for event in events:
            if isinstance(event, Finished):
                self._rank_of.pop(event.sequence.request.id, None)
                self.live.pop(event.sequence.request.id, None)
                if event.sequence.request.id in self._heard_elsewhere:
                    self._heard_elsewhere.remove(event.sequence.request.id)
                else:
                    self._balancer.finished(rank)
            self._events.append((rank, event))

    def took_in(self, rank: int) -> None:
        """Note that a rank has taken in the requests that have come.

        vLLM's core adds one whose client is gone by then, and reports its end with the outputs of the next step.
        """
        unseen = self._unseen[rank]
        for sequence in unseen:
            if sequence.outcome in (Outcome.ABORTED, Outcome.TIMED_OUT):
                self._heard_elsewhere.add(sequence.request.id)
                self._unheard[rank].append(sequence.request.id)
        unseen.clear()

    def load_seen(self, rank: int) -> RankLoad:
        """Return the load of a rank without the requests that have come since it took in requests last."""
        load = load_of(self._engines[rank].stats)
        num_unseen = sum(each.queued_at is not None and each.outcome is None for each in self._unseen[rank])
        return replace(load, num_waiting=load.num_waiting - num_unseen) if num_unseen else load

    def has_missed(self, rank: int) -> bool:
        """Whether requests have come to a rank since it took in requests last, and ended before it saw them."""
        return any(each.queued_at is not None and each.outcome is not None for each in self._unseen[rank])

    def processed(self, rank: int) -> None:
        """Note that a rank has processed outputs, with which its front end learns of ends."""
        for _ in self._unheard[rank]:
            self._balancer.finished(rank)
        self._unheard[rank].clear()

    def _process_arrivals(self, at: Micros) -> None:
        """Assign the requests that are due to their ranks, and process the hang-ups that are due."""
        arriving, hang_ups = self._arriving, self._aborts
        while arriving and arriving[0][0] <= at:
            _, arrived_at, _, sequence, named = heappop(arriving)
            if sequence.outcome is not None:
                continue
            self._update_loads(at)
            if named is None:
                named = self._balancer.choose()
            else:
                self._balancer.send_to(named)
            request_id = sequence.request.id
            self._rank_of[request_id] = named
            sequence.instance = self.first_number + named
            self._unseen[named].append(sequence)
            self._engines[named].enter(sequence, arrived_at)
        while hang_ups and hang_ups[0][0] <= at:
            _, _, request_id, outcome = heappop(hang_ups)
            self._execute_abort(request_id, outcome, at)

    def _execute_abort(self, request_id: str, outcome: Outcome, at: Micros) -> None:
        rank = self._rank_of.get(request_id)
        if rank == NOWHERE:
            sequence = self.live[request_id]
            if at < sequence.arrived_at:
                return
            self._rank_of[request_id] = 0  # it came to no rank, yet it ends on one, in the order of its events
            self._heard_elsewhere.add(request_id)
            self._engines[0].abort_elsewhere(sequence, at, outcome)
        elif rank is not None:
            self._engines[rank].abort(request_id, at, outcome)

    def _check_is_ahead(self, at: Micros) -> None:
        if self.now is not None and at <= self.now:
            raise ValueError(f"the engine has already done everything up to {self.now} us, so not at {at} us")


class IndependentRanks(RankGroup):
    """Ranks that step independently, as those of a model without experts do.

    A rank reports its load where vLLM's busy loop does. It does so when it has processed the outputs of a step, and
    again when it has taken in the requests that came meanwhile. It also does so between two steps that it composes in
    a row. Cost of an instant: O(ranks).
    """

    def __init__(self, engines: SequenceOf[Engine]) -> None:
        """Raises ValueError for engines that do not report their steps."""
        super().__init__(engines)
        if not all(engine.reports_steps for engine in engines):
            raise ValueError("a rank reports its load at the end of a step, so its engine must report steps")
        self._reports = LoadReports(len(engines))
        for number, engine in enumerate(engines):
            engine.note_load_by(partial(self._note_load, number))

    def _note_load(self, number: int, at: Micros, is_processed: bool) -> None:
        """Report the load of a rank. After the outputs of a step that of the requests it knew comes first."""
        if is_processed:
            self.processed(number)
            self._report(number, self.load_seen(number), at)
        self.took_in(number)
        load = self.load_seen(number)
        if not load.num_waiting and not load.num_running:  # it composes an empty batch, whose outputs have the ends
            self.processed(number)
        self._report(number, load, at)

    def _report(self, number: int, load: RankLoad, at: Micros) -> None:
        self._update_loads(at - 1)
        self._reports.report(number, load, at)

    def _do_due(self, at: Micros) -> None:
        self._process_arrivals(at)
        for number, engine in enumerate(self._engines):
            due_at = engine.next_event_at()
            if due_at is None or due_at > at:
                continue
            self._note(number, engine.advance(at))

    def _update_loads(self, at: Micros) -> None:
        while (due_at := self._reports.due_at()) <= at:
            self._balancer.update_loads(self._reports.loads_due(due_at))


def _instant_of(numbered: tuple[int, Event]) -> Micros:
    return numbered[1].at


def _rank_of(numbered: tuple[int, Event]) -> int:
    return numbered[0]


# Data-parallel ranks that share experts: engines with queues and KV caches of their own whose steps begin together.
#
# Each forward pass is one of all ranks, because experts wait for the tokens of all; a rank without work takes part
# with a dummy batch. A wave of forward passes begins with a request on any rank and ends at an all-reduce that finds no
# request anywhere, after the first pass and every `SYNC_INTERVAL` passes. A core that composed no step while a request
# is left, or has just ended, sleeps before its dummy batch, and all others wait for it. Facts: vllm/v1/engine/core.py,
# `DPEngineCoreProc`; vllm/config/parallel.py, `dp_sync_interval`.

SYNC_INTERVAL = 16
"""Forward passes between two all-reduces that may end a wave."""
SLEEP_US: Micros = 1_000
"""How long a core sleeps that has composed no step while requests are left, or have ended since."""
_MAX_EMPTY_FORWARDS = 4 * SYNC_INTERVAL
"""Empty forward passes in a row after which nothing changes until something other than a forward pass is due."""


class _Wait(Enum):
    """Kinds of ends of the wait of a rank's loop."""

    WORK = auto()
    """A request, or a wave that begins on another rank."""
    END = auto()
    """The end of a forward pass."""
    HANDED_OVER = auto()
    """All ranks handing over a forward pass, without which none of them can begin."""
    REDUCED = auto()
    """All ranks coming to an all-reduce."""
    INSTANT = auto()
    """An instant up to which the core sleeps."""


class _Rank:
    """A rank in lockstep: the busy loop of vLLM's engine core."""

    def __init__(self, group: "LockstepRanks", number: int, engine: Engine) -> None:
        self.engine = engine
        self.scheduler = engine.lockstep_scheduler()
        self.waits: tuple[_Wait, int] = (_Wait.WORK, 0)
        """The end of the loop's wait: its kind, and the number of a forward pass or an all-reduce, or an instant."""
        self.is_woken = False
        """Whether a wave has begun on another rank."""
        self._num_left = 0
        """Requests that had left at the latest composition."""
        self.handed_over: list[bool] = []
        """For each forward pass that has not ended whether the rank computes a step of its own in it."""
        self.num_handed_over = self.num_reduced = 0
        self._group, self._number = group, number
        self._is_async = engine.config.async_scheduling
        self._runs = False
        """Whether a wave is under way."""
        self._wave = 0
        self._num_forwards = 0
        """Forward passes of this wave."""
        self._batches: deque[int] = deque()
        """The queue of batches: the number of the forward pass of each, -1 for an empty one."""
        self.loop = self._loop()
        next(self.loop)

    def can_go_on(self) -> bool:
        """Whether the loop need not wait any more."""
        kind, number = self.waits
        if kind is _Wait.WORK:
            return self._has_work()
        if kind is _Wait.END:
            return number < self._group.num_ended_forwards
        if kind is _Wait.INSTANT:
            return number <= self._group.instant
        return number < (self._group.num_handed_over if kind is _Wait.HANDED_OVER else self._group.num_reduced)

    def _has_work(self) -> bool:
        scheduler = self.scheduler
        if self.is_woken or self._runs or scheduler.has_requests or scheduler.has_leaving or self._batches:
            return True
        if scheduler.has_transfers:
            return True
        return self._group.has_missed(self._number)

    def _loop(self) -> Generator[None, Micros, None]:  # noqa: C901 - vLLM's loop, in its order
        """Go on whenever something that the loop waits for has come; each time the instant is sent."""
        group, scheduler = self._group, self.scheduler
        at = yield
        while True:
            if not self._has_work():
                self.waits = (_Wait.WORK, 0)
                at = yield
            did_run = self._runs
            self._take_in(at)
            self._report(at)
            executed, num_left = False, scheduler.num_left
            if scheduler.has_requests or scheduler.has_transfers or num_left > self._num_left:
                self._num_left = num_left
                executed = scheduler.compose_forward(at, self._num_forwards)
                self._batches.append(self._hand_over(executed) if executed else -1)
            has_room = self._is_async and len(self._batches) < 2
            if not (has_room and (executed or scheduler.has_requests or scheduler.has_transfers)):
                forward = self._batches.popleft() if self._batches else None
                if forward == -1:
                    scheduler.end_empty(at)
                elif forward is not None:
                    self.waits = (_Wait.END, forward)
                    if not self.can_go_on():
                        at = yield
                    scheduler.end_forward(at)
                group.processed(self._number)
            load = group.load_seen(self._number)  # without requests that have come since, which keep no wave up
            has_requests = scheduler.has_requests and bool(load.num_waiting or load.num_running)
            is_left = has_requests or scheduler.has_transfers or scheduler.num_left > self._num_left
            if not executed and is_left:
                self.waits = (_Wait.INSTANT, at + SLEEP_US)
                at = yield
            self._report(at)
            if not executed:
                if not has_requests and not self._runs:
                    continue
                self.waits = (_Wait.HANDED_OVER, self._hand_over(False))
                if not self.can_go_on():
                    at = yield
            self._num_forwards += 1
            if self._num_forwards == 1 or self._num_forwards % SYNC_INTERVAL == 0:
                reduction = group.join(self._number, has_requests)
                self.waits = (_Wait.REDUCED, reduction)
                if not self.can_go_on():
                    at = yield
                self._runs = group.found_requests(reduction)
            if not self._runs:
                self._wave += 1
                self._num_forwards = 0
            if self._number == 0 and not (did_run and self._runs):
                group.coordinator_hears(at)

    def _take_in(self, at: Micros) -> None:
        """Take in what has come: requests, hang-ups, and that a wave has begun on another rank."""
        scheduler = self.scheduler
        has_come = scheduler.has_requests or self._group.has_missed(self._number)
        begins = has_come and not self._runs and not self.is_woken
        self._runs |= self.is_woken or begins
        self.is_woken = False
        if begins:
            self._group.wake_others(self._number, at)
        if scheduler.has_leaving and not scheduler.in_flight:
            scheduler.take_out_leaving(at)
        self._group.took_in(self._number)

    def _hand_over(self, has_step: bool) -> int:
        """Hand over a forward pass. Returns its number."""
        if not has_step:
            self.scheduler.dummy_handed_over()
        self.handed_over.append(has_step)
        self.num_handed_over += 1
        return self.num_handed_over - 1

    def _report(self, at: Micros) -> None:
        """Report the load of the requests that have been taken in."""
        load = self._group.load_seen(self._number)
        self._group.report(self._number, load, (self._wave, self._num_forwards), at)


class LockstepRanks(RankGroup):
    """Ranks whose forward passes begin together."""

    def __init__(self, engines: SequenceOf[Engine], steps: JointSteps) -> None:
        """`steps` is the part of the latency models that all engines share."""
        super().__init__(engines)
        self._steps = steps
        speculation = self.config.speculation
        self._dummy = dummy_shape(0 if speculation is None else speculation.num_tokens)
        """The shape of a dummy batch."""
        self._reports = LockstepReports(len(engines))
        self.num_ended_forwards = 0
        """Forward passes that have ended."""
        self.instant: Micros = 0
        """The instant of what is done now."""
        self._num_begun = 0
        self._ends_at: Micros | None = None
        """Instant at which the forward pass under way ends; None without one."""
        self._num_empty = 0
        """Forward passes in a row while no rank has a step to compute or awaits a transfer."""
        self._sums: list[list[bool]] = []
        """For each all-reduce whether the ranks that have joined it have requests."""
        self._ranks = [_Rank(self, number, engine) for number, engine in enumerate(engines)]

    def _do_due(self, at: Micros) -> None:
        """Do all of one instant: arrivals, what engines have due, and what ranks can go on with."""
        self.instant = at
        if at == self._ends_at:
            self._ends_at = None
            self.num_ended_forwards += 1
        elif (_Wait.INSTANT, at) not in [each.waits for each in self._ranks]:
            self._num_empty = 0
        self._process_arrivals(at)
        for number, engine in enumerate(self._engines):
            due_at = engine.next_event_at()
            if due_at is not None and due_at <= at:
                self._note(number, engine.advance(at))
        while (able := next((each for each in self._ranks if each.can_go_on()), None)) is not None:
            able.loop.send(at)
        self._begin_forward(at)
        for number, engine in enumerate(self._engines):
            self._note(number, engine.advance(at))

    def _next_loop_at(self) -> Micros | None:
        instants = [number for kind, number in (each.waits for each in self._ranks) if kind is _Wait.INSTANT]
        if self._ends_at is not None:
            instants.append(self._ends_at)
        return min(instants, default=None)

    def _update_loads(self, at: Micros) -> None:
        while (due_at := self._reports.due_at()) <= at:
            self._balancer.update_loads(self._reports.loads_due(due_at))

    # --- what ranks tell each other and the coordinator ---

    @property
    def num_handed_over(self) -> int:
        """Forward passes that all ranks have handed over."""
        return min(each.num_handed_over for each in self._ranks)

    @property
    def num_reduced(self) -> int:
        """All-reduces that all ranks have joined."""
        return min(each.num_reduced for each in self._ranks)

    def join(self, number: int, has_requests: bool) -> int:
        """Let a rank join its next all-reduce. Returns the number of that."""
        rank = self._ranks[number]
        rank.num_reduced += 1
        if rank.num_reduced > len(self._sums):
            self._sums.append([])
        self._sums[rank.num_reduced - 1].append(has_requests)
        return rank.num_reduced - 1

    def found_requests(self, reduction: int) -> bool:
        """Whether any rank has joined an all-reduce with requests."""
        return any(self._sums[reduction])

    def wake_others(self, number: int, at: Micros) -> None:
        """Let all other ranks know of a wave that begins on one."""
        self.coordinator_hears(at)
        for other, rank in enumerate(self._ranks):
            rank.is_woken |= other != number

    def coordinator_hears(self, at: Micros) -> None:
        """Let the coordinator know that a wave has begun or ended."""
        self._update_loads(at - 1)
        self._reports.heard(at)

    def report(self, number: int, load: RankLoad, stamp: tuple[int, int], at: Micros) -> None:
        """Report the load of a rank; `stamp` has its wave and how many forward passes that has had."""
        self._update_loads(at - 1)
        self._reports.report(number, load, stamp, at)

    # --- forward passes ---

    def _begin_forward(self, at: Micros) -> None:
        """Begin the next forward pass if all ranks have handed it over and none is under way.

        It ends when the slowest rank is done.
        """
        if self._ends_at is not None or self.num_handed_over <= self._num_begun:
            return
        executing = [each.handed_over[0] for each in self._ranks]
        is_useful = any(True in each.handed_over or each.scheduler.has_transfers for each in self._ranks)
        self._num_empty = 0 if is_useful else self._num_empty + 1
        if self._num_empty > _MAX_EMPTY_FORWARDS:
            return
        self._num_begun += 1
        ranks = list(zip(self._ranks, self._engines, executing, strict=True))
        self._steps.shapes = [
            rank.scheduler.forward_shape(at) if has_step else self._dummy for rank, _, has_step in ranks
        ]
        ends_at = at + 1
        for rank, engine, has_step in ranks:
            own_end = rank.scheduler.begin_forward(at) if has_step else at + engine.latency.step_time(self._dummy)
            ends_at = max(ends_at, own_end)
        for rank, _, has_step in ranks:
            del rank.handed_over[0]
            if has_step:
                rank.scheduler.record_forward(at, ends_at)
            rank.scheduler.forward_began(ends_at)
        self._ends_at = ends_at


def new_ranks(
    config: EngineConfig,
    latency: LatencyModel,
    num_ranks: int,
    new_engine: Callable[[EngineConfig, LatencyModel], Engine] = Engine,
    shares_experts: bool = True,
) -> RankGroup:
    """Return `num_ranks` engines of one configuration. If they share experts, their steps are timed together."""
    if not shares_experts:
        return IndependentRanks([new_engine(config, latency) for _ in range(num_ranks)])
    shared, steps = with_joint_steps(latency)
    return LockstepRanks([new_engine(config, shared) for _ in range(num_ranks)], steps)
