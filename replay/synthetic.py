"""A generated workload through one engine: requests known up front, and sessions that wait for their replies."""

import heapq
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from itertools import count

from engine.core import Engine
from engine.delivery import output_delay
from engine.events import Event, Finished, Scheduled
from engine.request import BlockIdentities, PrefixGroupBlocks, Request, UniqueBlocks
from engine.sequence import Sequence
from engine.units import Micros
from replay.arrivals import Arrival
from replay.measure import COMPLETED
from replay.simulate import Simulated, simulate
from traces import TraceRow
from traces.workload import Round, Session, Workload, WorkloadRequest


def simulate_workload(
    engine: Engine,
    workload: Workload,
    horizon_us: Micros | None = None,
    on_finished: Callable[[], None] | None = None,
) -> Simulated:
    """Run a workload through a fresh engine until it is drained or the horizon is reached.

    Requests are numbered in order of arrival. `on_finished` is called once for each request that ends.
    """
    if workload.sessions:
        return run_sessions(engine, workload, horizon_us, on_finished)
    block_size = engine.config.block_size_tokens
    arrivals = [arrival_of(request, number, block_size) for number, request in enumerate(workload.requests)]
    return simulate(engine, arrivals, horizon_us, on_finished)


def run_sessions(
    engine: Engine,
    workload: Workload,
    horizon_us: Micros | None = None,
    on_finished: Callable[[], None] | None = None,
) -> Simulated:
    """The same for a workload with sessions: each request of a session is sent when its client has thought about the
    reply before it. A session ends with its rounds, or with a request that was not answered.
    """
    queue = _Queue(workload)
    arrivals: list[Arrival] = []
    sequences: dict[str, Sequence] = {}
    talks: dict[str, _Talk] = {}
    horizon = float("inf") if horizon_us is None else horizon_us
    while True:
        due_at = engine.next_event_at()
        next_at = queue.next_at()
        # What arrives at an instant is there before anything is done at that instant.
        if next_at is not None and (due_at is None or next_at <= due_at):
            if next_at > horizon:
                break
            request, talk = queue.pop()
            arrival = arrival_of(request, len(arrivals), engine.config.block_size_tokens)
            arrivals.append(arrival)
            if talk is not None:
                talks[arrival.request.id] = talk
            engine.submit(arrival.request, arrival.at)
            continue
        if due_at is None or due_at > horizon:
            break
        for finished in _finished(engine.advance(due_at), sequences):
            if on_finished is not None:
                on_finished()
            talk = talks.pop(finished.sequence.request.id, None)
            if talk is not None:
                queue.follow_up(talk, finished, engine)
    return Simulated(engine, [(arrival, sequences.get(arrival.request.id)) for arrival in arrivals])


def _finished(events: Iterable[Event], sequences: dict[str, Sequence]) -> Iterator[Finished]:
    """The requests that ended; all that got anywhere are noted in `sequences`."""
    for event in events:
        if isinstance(event, Scheduled | Finished):
            sequences[event.sequence.request.id] = event.sequence
            if isinstance(event, Finished):
                yield event


def replied_at(engine: Engine, sequence: Sequence, finished_at: Micros) -> Micros:
    """When the last token of a completed request reaches its client."""
    num_tokens = sequence.num_output_tokens
    return finished_at + output_delay(engine.config, engine.latency, max(1, num_tokens), is_last=num_tokens > 0)


@dataclass(slots=True)
class _Talk:
    """A session under way: the request that was sent last, and the rounds to come."""

    session: Session
    previous: WorkloadRequest
    later: Iterator[Round] = field(init=False)

    def __post_init__(self) -> None:
        self.later = iter(self.session.later)


class _Queue:
    """Requests in order of arrival, in order of entry where equal; sessions add to it as their replies come."""

    def __init__(self, workload: Workload) -> None:
        self._numbers = count()
        self._remaining = workload.max_requests
        self._horizon_us = workload.horizon_us
        self._heap: list[tuple[Micros, int, WorkloadRequest, _Talk | None]] = [
            (request.arrival_us, next(self._numbers), request, None) for request in workload.requests
        ]
        for session in workload.sessions:
            self._heap.append(
                (session.first.arrival_us, next(self._numbers), session.first, _Talk(session, session.first))
            )
        heapq.heapify(self._heap)

    def next_at(self) -> Micros | None:
        """When the next request arrives; None when nothing is known to come."""
        return self._heap[0][0] if self._heap and self._remaining != 0 else None

    def pop(self) -> tuple[WorkloadRequest, _Talk | None]:
        """The next request, with its session if it has one."""
        if self._remaining is not None:
            self._remaining -= 1
        _, _, request, talk = heapq.heappop(self._heap)
        return request, talk

    def follow_up(self, talk: _Talk, finished: Finished, engine: Engine) -> None:
        """Send the next request of a session, if its last one was answered and there is another one."""
        if finished.outcome not in COMPLETED:
            return
        next_round = next(talk.later, None)
        if next_round is None:
            return
        reply_at = replied_at(engine, finished.sequence, finished.at)
        arrival_us = reply_at + max(1, next_round.think_time_us)
        if self._horizon_us is not None and arrival_us > self._horizon_us:
            return
        num_replied_tokens = finished.sequence.num_output_tokens
        talk.previous = talk.session.next_request(talk.previous, num_replied_tokens, next_round, arrival_us)
        heapq.heappush(self._heap, (arrival_us, next(self._numbers), talk.previous, talk))


def served_by(model: str, workload: Workload) -> tuple[Workload, int]:
    """The workload without requests that name another model, whatever the case of letters, and how many those are."""
    requests = [request for request in workload.requests if _asks_for(model, request)]
    sessions = [session for session in workload.sessions if _asks_for(model, session.first)]
    num_left_out = len(workload.requests) - len(requests) + len(workload.sessions) - len(sessions)
    return replace(workload, requests=requests, sessions=sessions), num_left_out


def _asks_for(model: str, request: WorkloadRequest) -> bool:
    return request.model.lower() in ("", model.lower())


def arrival_of(request: WorkloadRequest, number: int, block_size_tokens: int) -> Arrival:
    """A generated request as the engine takes it, with the row of a trace that it would be."""
    request_id = f"request_{number}"
    simulated = Request(
        id=request_id,
        input_tokens=request.prefix_tokens + request.input_tokens,
        output_tokens=request.output_tokens,
        max_output_tokens=request.output_tokens,
        blocks=_blocks(request, request_id, block_size_tokens),
        deadline_us=request.deadline_us,
        slo_class=request.slo_class,
    )
    return Arrival(at=request.arrival_us, request=simulated, row=_row(request, number))


def _blocks(request: WorkloadRequest, request_id: str, block_size_tokens: int) -> BlockIdentities:
    """Prompts of a session that keeps its context continue one text, so their blocks bear the session's name."""
    owner = request.session_id if request.keeps_context else request_id
    if request.prefix_group:
        return PrefixGroupBlocks(owner, request.prefix_group, request.prefix_tokens // block_size_tokens)
    return UniqueBlocks(owner)


def _row(request: WorkloadRequest, number: int) -> TraceRow:
    return TraceRow(
        request_id=number,
        client_id=request.client_id,
        tenant_id=request.tenant_id,
        slo_class=request.slo_class,
        session_id=request.session_id,
        round_index=request.round_index,
        prefix_group=request.prefix_group,
        prefix_length=request.prefix_tokens,
        streaming=request.streaming,
        input_tokens=request.input_tokens,
        output_tokens=request.output_tokens,
        text_tokens=request.text_tokens,
        image_tokens=request.image_tokens,
        audio_tokens=request.audio_tokens,
        video_tokens=request.video_tokens,
        reason_ratio=request.reason_ratio,
        model=request.model.lower(),
        deadline_us=request.deadline_us,
        slo_target_us=request.slo_target_us,
        arrival_time_us=request.arrival_us,
        send_time_us=request.arrival_us,
        adapter=request.adapter,
        think_time_us=request.think_time_us,
    )
