"""The requests of a generated workload as arrivals, and requests of a workload or recording that wait for replies."""

import dataclasses
import heapq
from array import array
from collections.abc import Callable, Collection, Container, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, count, islice, repeat
from operator import add
from typing import Any, Protocol, TypeVar

import numpy as np

from blis_sim.engine.config import EngineConfig
from blis_sim.engine.events import Finished
from blis_sim.engine.lora import LoraSettings
from blis_sim.engine.request import BlockIdentities, PrefixGroupBlocks, Request, UniqueBlocks
from blis_sim.engine.simulation import (
    CHECK_EVERY,
    CHUNK_US,
    Batch,
    ProgressWatch,
    Simulation,
    batch_size,
    run_in_batches,
)
from blis_sim.engine.units import Micros
from blis_sim.options import OptionError
from blis_sim.options.progress import NoteCallback
from replay.analysis.steady import LEAST_TIME_SCALES, Steadiness, steadiness, time_scales_so_far
from replay.arrivals import (
    Arrival,
    Arrivals,
    ConversationBlocks,
    arrivals_of_rows,
    known_labels,
    priority_as_served,
    takes_priorities,
)
from replay.simulation.record import COMPLETED, OnTokens, Record, replied_at
from replay.simulation.simulate import Simulated, check_run_ends, configs_of, simulate
from traces import TraceRow
from traces.collector import gc_disabled
from traces.graph import SessionPool, Waits, dependencies_of, restricted_to
from traces.load import SpeedOptions
from traces.workload.request import SessionProgress, Workload, WorkloadRequest
from traces.workload.spec import WorkloadSpec

# The requests of a generated workload as arrivals at an engine.

CHUNK_SIZE = 256
"""How many requests are made when it is the turn of the first: enough to be cheap, few enough to be forgotten soon."""

_DEFAULTS = Request._field_defaults


def labels_of(workload: Workload, name: str) -> set[str]:
    """The values of a field of all requests that are known before any reply, or of all rows."""
    others = (getattr(each, name) for each in chain((session.first for session in workload.sessions), workload.rows))
    known = known_labels(workload.requests, name)
    labels = (getattr(each, name) for each in workload.requests) if known is None else known[0]
    return set(labels).union(others)


@dataclass(frozen=True, slots=True)
class GeneratedArrivals:
    """Requests, ascending by arrival, as arrivals numbered in this order; they are made when it is their turn."""

    requests: Sequence[WorkloadRequest]
    config: EngineConfig

    def __iter__(self) -> Iterator[Arrival]:
        source, config = iter(self.requests), self.config
        chunks = iter(lambda: list(islice(source, CHUNK_SIZE)), [])
        return chain.from_iterable(
            arrivals_of_chunk(chunk, number * CHUNK_SIZE, config) for number, chunk in enumerate(chunks)
        )


def with_named_adapters(model: str, workload: Workload, lora: LoraSettings) -> Workload:
    """The workload with the adapter of each request that names one as its model, as clients of a server do."""
    adapters = {name for name in labels_of(workload, "model") if lora.serves(name)}
    adapters -= {"", *(each for each in adapters if each.lower() == model.lower())}
    if not adapters:
        return workload

    def named(request: WorkloadRequest) -> WorkloadRequest:
        return request._replace(adapter=request.model, model="") if request.model in adapters else request

    return replace(
        workload,
        requests=[named(request) for request in workload.requests],
        sessions=[replace(session, first=named(session.first)) for session in workload.sessions],
        rows=[replace(row, adapter=row.model, model="") if row.model in adapters else row for row in workload.rows],
    )


def requests_for_model(model: str, workload: Workload, on_note: NoteCallback) -> Workload:
    """The workload without requests that name another model, whatever the case of letters; a note says how many.

    Model names are in small letters then. Raises OptionError where no request is left.
    """
    if labels_of(workload, "model") <= {"", model.lower()}:
        return workload
    requests = [_in_small_letters(request) for request in workload.requests if _requests_model(model, request)]
    sessions = [
        replace(session, first=_in_small_letters(session.first))
        for session in workload.sessions
        if _requests_model(model, session.first)
    ]
    rows = [row for row in workload.rows if _requests_model(model, row)]
    num_left_out = len(workload.requests) - len(requests) + len(workload.sessions) - len(sessions)
    num_left_out += len(workload.rows) - len(rows)
    if num_left_out:
        on_note(f"left out {num_left_out} requests or conversations for another model than {model}")
    rows = [replace(row, model=row.model.lower()) for row in restricted_to(workload.rows, rows)]
    found = replace(workload, requests=requests, sessions=sessions, rows=rows)
    if found.is_empty:
        raise OptionError(f"no request of the workload is for {model}: all were left out")
    return found


def _requests_model(model: str, request: WorkloadRequest | TraceRow) -> bool:
    return request.model.lower() in ("", model.lower())


def _in_small_letters(request: WorkloadRequest) -> WorkloadRequest:
    return request if request.model.islower() or not request.model else request._replace(model=request.model.lower())


def arrival_of(request: WorkloadRequest, number: int, config: EngineConfig) -> Arrival:
    """A generated request as the engine takes it."""
    (arrival,) = arrivals_of_chunk([request], number, config)
    return arrival


def arrivals_of_chunk(requests: Sequence[WorkloadRequest], number: int, config: EngineConfig) -> Iterator[Arrival]:
    """Generated requests as the engine takes them, numbered from `number` on.

    There are millions, so this goes by columns, and no function is called for each.
    """
    given = dict(zip(WorkloadRequest._fields, zip(*requests, strict=True), strict=True))
    ids = [f"request_{each}" for each in range(number, number + len(requests))]
    if any(given["prefix_group"]) or any(given["keeps_context"]):
        blocks = iter(
            [_prompt_blocks(request, request_id, config) for request, request_id in zip(requests, ids, strict=True)]
        )
    else:
        blocks = map(partial(tuple.__new__, UniqueBlocks), zip(ids, strict=True))
    columns: dict[str, Iterable[Any]] = {
        "id": ids,
        "input_tokens": map(add, given["prefix_tokens"], given["input_tokens"]),
        "output_tokens": given["output_tokens"],
        "blocks": blocks,
        "max_output_tokens": given["output_tokens"],
        "deadline_us": given["deadline_us"],
        "slo_class": given["slo_class"],
        "adapter": given["adapter"],
        "tenant": given["tenant_id"],
        "slo_target_us": given["slo_target_us"],
        "slo_e2e_us": given["slo_e2e_us"],
    }
    if takes_priorities(config) and set(given["priority"]) != {None}:
        columns["priority"] = map(priority_as_served, given["priority"], given["slo_class"])
    rows = zip(*(columns.get(name) or repeat(_DEFAULTS[name]) for name in Request._fields), strict=False)
    # What _make does, without its call per request.
    simulated = map(partial(tuple.__new__, Request), rows)
    return map(partial(tuple.__new__, Arrival), zip(given["arrival_us"], simulated, requests, strict=True))


def _prompt_blocks(request: WorkloadRequest, request_id: str, config: EngineConfig) -> BlockIdentities:
    group = request.prefix_group
    if not group and not request.keeps_context:
        return UniqueBlocks(request_id)
    shared_blocks = config.num_identified_blocks(request.prefix_tokens) if group else 0
    if request.keeps_context:
        num_tokens = request.prefix_tokens + request.input_tokens + max(0, request.output_tokens - 1)
        num_blocks = num_tokens // config.block_size_tokens
        return ConversationBlocks(
            request_id,
            num_shareable=num_blocks,
            owners=(request.session_id,),
            ends=(num_blocks,),
            group=group,
            shared_blocks=shared_blocks,
        )
    return PrefixGroupBlocks(request_id, group, shared_blocks)


# The closed loop in virtual time: requests of a workload or of a recording that wait for earlier replies.

Conversation = TypeVar("Conversation")


class WaitingQueue(Protocol[Conversation]):
    """Requests in order of arrival, to which conversations add as their replies come."""

    least_pause_us: Micros
    """No conversation sends sooner after a reply than this; at least 1."""

    def next_at(self) -> Micros | None:
        """When the next request arrives; None when nothing is known to come."""
        ...

    def pop(self, number: int) -> tuple[Arrival, Conversation | None]:
        """Return the next request, with this number, and its conversation if another request is to follow."""
        ...

    def on_reply(self, conversation: Conversation, replied_at: Micros, num_replied_tokens: int) -> None:
        """Send the next request of a conversation, a pause after its reply."""
        ...

    def on_failure(self, conversation: Conversation, at: Micros) -> None:
        """Take note of a request that was not answered, which ends its conversation."""
        ...


@gc_disabled()
def run_closed_loop(
    simulation: Simulation,
    queue: WaitingQueue[Conversation],
    horizon_us: Micros | None = None,
    on_finished: Callable[[], None] | None = None,
    on_tokens: OnTokens | None = None,
    replied: Callable[[Simulation, Finished], Micros] = replied_at,
) -> Simulated:
    """Send what is in the queue through a fresh simulation. A conversation ends with a request that was not answered.

    `on_finished` is called once for each request that ends, `on_tokens` for each that completes. `replied` computes
    when the reply of a completed request has reached its client.
    """
    record = Record(simulation, on_tokens)
    waiting: dict[str, Conversation] = {}
    watch = ProgressWatch(simulation, every=CHECK_EVERY)
    while (next_at := _earlier(queue.next_at(), simulation.next_event_at())) is not None:
        if horizon_us is not None and next_at > horizon_us:
            break
        # Arrivals at an instant are submitted before the simulation advances to that instant.
        while queue.next_at() == next_at:
            arrival, conversation = queue.pop(len(record))
            if conversation is not None:
                waiting[arrival.request.id] = conversation
            record.arrived([simulation.submit(arrival.request, arrival.at)], [arrival.row])
        until = next_at + (queue.least_pause_us if waiting else CHUNK_US) - 1
        for finished in record.note(simulation.advance(_horizon(until, horizon_us, queue.next_at()))):
            if on_finished is not None:
                on_finished()
            conversation = waiting.pop(finished.sequence.request.id, None)
            if conversation is None:
                continue
            if finished.outcome in COMPLETED:
                queue.on_reply(conversation, replied(simulation, finished), finished.sequence.num_output_tokens)
            else:
                queue.on_failure(conversation, finished.at)
        if horizon_us is None:
            watch.check()
    record.close()
    return Simulated(simulation, record)


def _earlier(one: Micros | None, other: Micros | None) -> Micros | None:
    if one is None or other is None:
        return one if other is None else other
    return min(one, other)


def _horizon(until: Micros, horizon_us: Micros | None, next_arrival_at: Micros | None) -> Micros:
    """Return the instant to which the engine may advance: up to the horizon, and before the next arrival."""
    if horizon_us is not None:
        until = min(until, horizon_us)
    return until if next_arrival_at is None else min(until, next_arrival_at - 1)


class RecordedRounds:
    """Rows arrive as recorded, or wait for replies to other rows, as `traces.graph` derives it.

    Deadlines keep their distance to the arrival. A request is never sent where a reply that it waits for does not come,
    or where it would arrive after the horizon. With `keeps_times` none is sent before its recorded time, and pauses are
    those that this leaves. With a `pool_size` so many sessions are under way at a time, from the first arrival on.
    """

    def __init__(
        self,
        arrivals: Arrivals,
        *,
        is_real: bool,
        think_time_us: Micros | Iterator[Micros] | None = None,
        fixed_sessions: Container[str] = frozenset(),
        horizon_us: Micros | None = None,
        speed: SpeedOptions | None = None,
        keeps_times: bool = False,
        pool_size: int = 0,
    ) -> None:
        self.least_pause_us: Micros = 1 if keeps_times or pool_size else CHUNK_US
        self._horizon_us = horizon_us
        self._keeps_times = keeps_times
        think_time_us = 1 if keeps_times else think_time_us
        speed = speed or SpeedOptions()
        rows, instants = arrivals.arrivals.rows, arrivals.arrivals.instants
        self._made = arrivals.arrivals.maker()
        self._waits = speed.waits(
            dependencies_of(
                rows, is_real=is_real, think_time_us=think_time_us, fixed_sessions=fixed_sessions, with_lag=is_real
            )
        )
        self._dependents = _Dependents(self._waits, len(rows))
        self.least_pause_us = min(self.least_pause_us, self._dependents.least_pause_us)
        self._ready_at = array("q", [0]) * len(rows)
        """The latest arrival of a reply that each request waits for."""
        self._pool = SessionPool(rows, self._waits, pool_size) if pool_size else None
        first_at = int(instants.min()) if len(instants) else 0
        self._at = array("q", (speed.instant_us(at, first_at) for at in instants.tolist()))
        """When each request arrives, if it waits for no other."""
        if self._pool is not None:
            for place, session in enumerate(rows.values("session_id")):
                if session:
                    self._at[place] = first_at
        pool = self._pool
        begins = [
            place
            for place in range(len(rows))
            if place not in self._waits and (pool is None or pool.begins_at_once(place))
        ]
        self._begins = iter(array("q", sorted(begins, key=self._at.__getitem__)))
        """Requests that wait for no reply, in order of arrival."""
        self._next = next(self._begins, None)
        self._heap: list[tuple[Micros, int, int]] = []
        """Instants, an order where they are equal, and places of requests whose replies have come."""
        self._order = 0

    def next_at(self) -> Micros | None:
        """When the next request arrives; None when nothing is known to come."""
        first = None if self._next is None else self._at[self._next]
        return _earlier(first, self._heap[0][0] if self._heap else None)

    def pop(self, _number: int) -> tuple[Arrival, int | None]:
        """Return the next request, and its place if other requests wait for its reply."""
        if self._next is not None and (not self._heap or self._at[self._next] <= self._heap[0][0]):
            place, at = self._next, self._at[self._next]
            self._next = next(self._begins, None)
        else:
            at, _, place = heapq.heappop(self._heap)
        arrival = self._made(place)
        if at != arrival.at or place in self._waits:
            arrival = arrival.sent_at(at)
        return arrival, place if self._dependents.has_any(place) or self._pool is not None else None

    def on_reply(self, place: int, replied_at: Micros, _num_replied_tokens: int) -> None:
        """Send the requests whose last missing reply this is, each after its pause."""
        following = []
        for each in self._dependents.of(place):
            self._ready_at[each] = max(self._ready_at[each], replied_at)
            at = self._ready_at[each] + self._waits[each].pause_us
            if self._keeps_times:
                at = max(at, self._at[each])
            if self._dependents.has_all(each) and (self._horizon_us is None or at <= self._horizon_us):
                self._push(each, at)
                following.append(each)
        self._begin_sessions(place, replied_at, following)

    def on_failure(self, place: int, at: Micros) -> None:
        """Begin the next session of the pool where this request was the last of its own."""
        self._begin_sessions(place, at, ())

    def _begin_sessions(self, place: int, at: Micros, following: Collection[int]) -> None:
        for begun in () if self._pool is None else self._pool.ended(place, following):
            self._push(begun, at + 1)

    def _push(self, place: int, at: Micros) -> None:
        self._order += 1
        heapq.heappush(self._heap, (at, self._order, place))


class _Dependents:
    """The requests that wait for each request, in order, and how many replies each of them still lacks."""

    def __init__(self, waits: Waits, num_rows: int) -> None:
        befores, afters = array("q"), array("q")
        self._num_pending = array("i", [0]) * num_rows
        self.least_pause_us: Micros = CHUNK_US
        for place, wait in waits.items():
            befores.extend(wait.places)
            afters.extend([place] * len(wait.places))
            self._num_pending[place] += len(wait.places)
            self.least_pause_us = min(self.least_pause_us, wait.pause_us)
        order = np.argsort(np.array(befores), kind="stable")
        self._afters = array("q", np.array(afters, np.int64)[order].tobytes())
        counts = np.bincount(np.array(befores, np.int64), minlength=num_rows)
        self._ends = array("q", np.cumsum(counts).astype(np.int64).tobytes())

    def has_any(self, place: int) -> bool:
        """Return whether a request waits for the one at a place."""
        return self._ends[place] > (self._ends[place - 1] if place else 0)

    def of(self, place: int) -> Sequence[int]:
        """Return the places of the requests that wait for the one at a place."""
        return self._afters[self._ends[place - 1] if place else 0 : self._ends[place]]

    def has_all(self, place: int) -> bool:
        """Note one reply to what a request waits for, and return whether it was the last."""
        self._num_pending[place] -= 1
        return not self._num_pending[place]


def simulate_workload(
    simulation: Simulation,
    workload: Workload,
    horizon_us: Micros | None = None,
    on_finished: Callable[[], None] | None = None,
    on_tokens: OnTokens | None = None,
) -> Simulated:
    """Run a workload through a fresh simulation until it is drained or the horizon is reached.

    Requests are numbered in order of arrival, those of rows as the rows are. A session ends with its rounds, or with a
    request that was not answered.
    `on_finished` is called once for each request that ends, `on_tokens` for each that completes.
    """
    config = simulation.instances[0].config
    if workload.rows:
        rounds = RecordedRounds(
            Arrivals(arrivals_of_rows(workload.rows, config), 0, 0),
            is_real=False,
            fixed_sessions=workload.fixed_sessions,
            horizon_us=workload.horizon_us,
        )
        return run_closed_loop(simulation, rounds, horizon_us, on_finished, on_tokens)
    if workload.sessions:
        queue = _SessionQueue(workload, config)
        return run_closed_loop(simulation, queue, horizon_us, on_finished, on_tokens)
    arrivals = GeneratedArrivals(workload.requests, config)
    return simulate(simulation, arrivals, horizon_us, on_finished, on_tokens, workload.requests)


class _SessionQueue:
    """Requests in order of arrival, in order of entry where equal; sessions add to it as their replies come."""

    def __init__(self, workload: Workload, config: EngineConfig) -> None:
        self._config = config
        self.least_pause_us: Micros = CHUNK_US
        """No session sends sooner after a reply than this; at least 1."""
        self._numbers = count()
        self._remaining = workload.max_requests
        self._horizon_us = workload.horizon_us
        self._heap: list[tuple[Micros, int, WorkloadRequest, SessionProgress | None]] = []
        for request in workload.requests:
            self._push(request, None)
        for session in workload.sessions:
            self._push(session.first, SessionProgress(session))

    def next_at(self) -> Micros | None:
        """When the next request arrives; None when nothing is known to come."""
        return self._heap[0][0] if self._heap and self._remaining != 0 else None

    def pop(self, number: int) -> tuple[Arrival, SessionProgress | None]:
        """The next request, with its session if another round is to follow."""
        if self._remaining is not None:
            self._remaining -= 1
        _, _, request, conversation = heapq.heappop(self._heap)
        return arrival_of(request, number, self._config), conversation

    def on_reply(self, conversation: SessionProgress, replied_at: Micros, num_replied_tokens: int) -> None:
        """Send the next request of a session, a pause after its reply, unless that is after the workload's end."""
        assert conversation.next_round is not None
        arrival_us = replied_at + max(1, conversation.next_round.think_time_us)
        if self._horizon_us is None or arrival_us <= self._horizon_us:
            self._push(conversation.next_request(arrival_us, num_replied_tokens), conversation)

    def on_failure(self, conversation: SessionProgress, at: Micros) -> None:
        """Do nothing: no other session waits for the end of this one."""

    def _push(self, request: WorkloadRequest, conversation: SessionProgress | None) -> None:
        if conversation is not None and conversation.next_round is not None:
            self.least_pause_us = min(self.least_pause_us, max(1, conversation.next_round.think_time_us))
        else:
            conversation = None
        heapq.heappush(self._heap, (request.arrival_us, next(self._numbers), request, conversation))


# How many requests a load needs, by the time scale of its queue, and what longer runs say of a short one.

FIRST_LENGTH = 1_000
"""Requests that a percentile of 99 needs, ten of which are beyond it."""
_MOST_CHOSEN = 16_000
_MOST_TO_JUDGE = 24_000
_MOST_JUDGED = 16
"""A run is judged by runs of up to so many times its length."""
_GROWTH = 2


def is_endless(spec: WorkloadSpec) -> bool:
    """Return whether a load at a rate goes on in the same way for as long as requests are drawn.

    Agents do, too, but so many requests of theirs are that four times as many are too much to simulate by the way.
    """
    clients = spec.clients
    return (
        bool(clients)
        and not spec.cohorts
        and not spec.horizon
        and all(not each.concurrency and each.windows is None and each.agent is None for each in clients)
    )


def chosen_lengths() -> Iterator[int]:
    """Yield numbers of requests to try, until a run is long enough to know its steady state."""
    length = FIRST_LENGTH
    while length <= _MOST_CHOSEN:
        yield length
        length *= _GROWTH


class GrowingRun:
    """A run of generated requests that goes on until its steady state is known, instead of beginning anew."""

    def __init__(self, simulation: Simulation, workload: Workload) -> None:
        self._simulation = simulation
        self._arrivals: Iterator[Arrival] = iter(GeneratedArrivals(workload.requests, simulation.instances[0].config))
        self._arrived_at: list[Micros] = []
        self._left_at: list[Micros] = []
        self._all_complete = not (workload.sessions or workload.rows)

    @gc_disabled()
    def time_scales(self, num_requests: int) -> float | None:
        """Go on up to the arrival of so many requests, and return the time scales of the queue until then.

        None where it may be an overload, where a request did not complete, and where requests wait for replies.
        """
        found = list(islice(self._arrivals, max(0, num_requests - len(self._arrived_at)))) if self._all_complete else []
        if not found:
            return None
        # What arrives at the same instant comes along: the simulation has passed that instant afterwards.
        for each in self._arrivals:
            if each.at > found[-1].at:
                self._arrivals = chain((each,), self._arrivals)
                break
            found.append(each)
        check_run_ends(configs_of(self._simulation), (each.request for each in found), None)
        self._arrived_at += [each.at for each in found]
        source, size = iter(found), batch_size(self._simulation)
        batches = iter(lambda: list(islice(source, size)), [])
        submitted = (Batch([each.at for each in batch], [each.request for each in batch]) for batch in batches)
        for events in run_in_batches(self._simulation, submitted, self._arrived_at[-1]):
            ended = [event for event in events if isinstance(event, Finished)]
            self._left_at += [event.at for event in ended]
            self._all_complete = self._all_complete and all(event.outcome in COMPLETED for event in ended)
        if not self._all_complete:
            return None
        self._left_at.sort()
        return time_scales_so_far(np.array(self._arrived_at[:num_requests]), np.array(self._left_at))


def judged_by_longer(
    first: Steadiness,
    spec: WorkloadSpec,
    simulate: Callable[[WorkloadSpec], Simulated],
    begin: Callable[[WorkloadSpec], GrowingRun] | None = None,
) -> Steadiness:
    """Return the judgement of a run that may be too short to tell an overload, from longer runs of its load.

    Their overload is the one of this load; a steady state of theirs leaves this run too short, with the requests that
    would be enough. One run that grows finds a steady state, and whole runs judge where there may be an overload.
    """
    if first.is_known:
        return first
    length = spec.num_requests
    longest = min(_MOST_TO_JUDGE, _MOST_JUDGED * length)
    growing: GrowingRun | None = None
    while (length := _GROWTH * length) <= longest:
        if growing is None and begin is not None:
            growing = begin(dataclasses.replace(spec, num_requests=longest))
        so_far = None if growing is None else growing.time_scales(length)
        if so_far is None:
            found = steadiness(simulate(dataclasses.replace(spec, num_requests=length)).requests)
            if found.overload is not None:
                return found
            so_far = found.num_time_scales
        if so_far >= LEAST_TIME_SCALES:
            return dataclasses.replace(first, num_requests_enough=length)
    return first
