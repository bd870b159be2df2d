"""Runs of arrivals through an engine or a cluster, at recorded times or by the rules of the recorded client.

By the rules of a client, requests are sent when due, but never more at once than the client's cap. A load generator
with a cap sends late when the server is slow. Its recorded send times are then a result of the server's speed. A replay
that repeats them gives a simulated server the outcome that it should predict.
"""

import heapq
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from collections.abc import Sequence as SequenceOf
from itertools import islice
from typing import NamedTuple, TypeAlias

from blis_sim.engine.config import EngineConfig, refusal_reason
from blis_sim.engine.core import Engine
from blis_sim.engine.events import Event, Finished
from blis_sim.engine.request import Request
from blis_sim.engine.sequence import Sequence
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
from replay.arrivals import Arrival, Origin, RowArrivals
from replay.simulation.record import COMPLETED, OnTokens, Record, replied_at
from traces.collector import gc_disabled


class Simulated(NamedTuple):
    """A finished run: the simulation in its final state, and the record of all requests."""

    simulation: Simulation
    requests: Record

    @property
    def engine(self) -> Engine:
        """The only engine of a run without a cluster."""
        (engine,) = self.simulation.instances
        return engine


def check_run_ends(configs: Iterable[EngineConfig], requests: Iterable[Request], horizon_us: Micros | None) -> None:
    """Raise OptionError for a run that would never end.

    With BLIS's scheduling a request whose prompt and output outgrow the whole KV cache preempts itself again and again,
    until its deadline or the horizon.
    """
    unlimited = [config for config in configs if config.engine == "blis" and not config.max_model_len]
    if horizon_us is not None or not unlimited:
        return
    for request in requests:
        for config in unlimited:
            served = refusal_reason(config, request.input_tokens, request.max_output_tokens) is None
            outgrows = request.input_tokens + request.output_tokens - 1 > config.kv_capacity_tokens
            if served and outgrows and not request.deadline_us:
                raise OptionError(
                    f"{request.id} needs {request.input_tokens} + {request.output_tokens} tokens, the KV cache holds "
                    f"{config.kv_capacity_tokens}: it would be preempted forever; give --horizon or --max-model-len"
                )


def configs_of(simulation: Simulation) -> list[EngineConfig]:
    """The limits within which instances schedule, each once."""
    return list({id(engine.config): engine.config for engine in simulation.instances}.values())


@gc_disabled()
def simulate(
    simulation: Simulation,
    arrivals: Iterable[Arrival],
    horizon_us: Micros | None = None,
    on_finished: Callable[[], None] | None = None,
    on_tokens: OnTokens | None = None,
    given: SequenceOf[Origin] | None = None,
) -> Simulated:
    """Feed `arrivals`, ascending, to a fresh simulation; they are iterated over more than once.

    `given` are the origins of all arrivals where `Record` need not keep them; those of rows are known.
    `on_finished` is called once for each request that ends, `on_tokens` for each that completes. Raises OptionError for
    a run that would never end.
    """
    check_run_ends(configs_of(simulation), (arrival.request for arrival in arrivals), horizon_us)
    given = arrivals.rows if isinstance(arrivals, RowArrivals) else given
    record = Record(simulation, on_tokens, given)
    rows: deque[Origin] = deque()

    def batches() -> Iterator[Batch]:
        source, size = iter(arrivals), batch_size(simulation)
        while batch := list(islice(source, size)):
            instants, requests, batch_rows = zip(*batch, strict=True)
            if given is None:
                rows.extend(batch_rows)
            yield Batch(instants, requests)

    def submitted(sequences: list[Sequence]) -> None:
        record.arrived(sequences, [rows.popleft() for _ in sequences] if given is None else ())

    for events in run_in_batches(simulation, batches(), horizon_us, submitted):
        ended = record.note(events)
        if on_finished is not None:
            for _ in ended:
                on_finished()
    record.close()
    return Simulated(simulation, record)


OnSent: TypeAlias = Callable[[Sequence, Origin], None]
"""Called with a submitted sequence and the origin of its request."""


def simulate_reissued(
    simulation: Simulation,
    due: SequenceOf[Arrival],
    max_concurrency: int = 0,
    horizon_us: Micros | None = None,
    on_finished: Callable[[], None] | None = None,
    on_tokens: OnTokens | None = None,
) -> Simulated:
    """Send each of `due`, ascending, at its instant, or in that order as soon as fewer than `max_concurrency` are under
    way (0: no cap).

    The record has each request at the instant it was sent. A request that waits for its turn is sent a microsecond
    after a reply has reached the client. `on_finished` is called once for each request that ends, `on_tokens` for each
    that completes. Raises OptionError for a run that would never end.
    """
    record = Record(simulation, on_tokens)

    def sent(sequence: Sequence, row: Origin) -> None:
        record.arrived([sequence], [row])

    for events in reissued(simulation, due, max_concurrency, horizon_us, sent):
        ended = record.note(events)
        if on_finished is not None:
            for _ in ended:
                on_finished()
    record.close()
    return Simulated(simulation, record)


def reissued(
    simulation: Simulation,
    due: SequenceOf[Arrival],
    max_concurrency: int,
    horizon_us: Micros | None,
    on_sent: OnSent,
) -> Iterator[list[Event]]:
    """Yield events in portions while `due` are sent by schedule and cap; `on_sent` is called with each sent request."""
    check_run_ends(configs_of(simulation), (arrival.request for arrival in due), horizon_us)
    client = _Client(simulation, due, max_concurrency, on_sent)
    while (next_at := client.next_at()) is not None and (horizon_us is None or next_at <= horizon_us):
        yield client.advance(next_at, horizon_us)


class _Client:
    """The sender: requests that are due, that wait for the cap, and that are in flight."""

    def __init__(self, simulation: Simulation, due: SequenceOf[Arrival], max_concurrency: int, on_sent: OnSent) -> None:
        self._simulation = simulation
        self._due = iter(due)
        self._next = next(self._due, None)
        self._cap = max_concurrency or len(due)
        self._on_sent = on_sent
        self._line: deque[Arrival] = deque()
        self._replies: list[Micros] = []
        """When the replies to ended requests have reached the client: a heap."""
        self._num_in_flight = 0
        self._watch = ProgressWatch(self._simulation, every=CHECK_EVERY)

    def next_at(self) -> Micros | None:
        """The next instant of the client or of the engine; None when both are done."""
        candidates = (self._next_send_at(), self._simulation.next_event_at())
        return min((at for at in candidates if at is not None), default=None)

    def advance(self, next_at: Micros, horizon_us: Micros | None) -> list[Event]:
        """Send the requests of `next_at`, or advance the engine up to the next action of the client."""
        send_at = self._next_send_at()
        if send_at == next_at:
            while self._replies and self._replies[0] < next_at:
                heapq.heappop(self._replies)
                self._num_in_flight -= 1
            while self._next is not None and self._next.at == next_at:
                self._line.append(self._next)
                self._next = next(self._due, None)
            while self._line and self._num_in_flight < self._cap:
                arrival = self._line.popleft()
                self._num_in_flight += 1
                self._on_sent(self._simulation.submit(arrival.request, next_at), arrival.row)
            return []
        # While requests wait for the cap, the end of any step may free a place for the next request.
        until = next_at if self._line else next_at + CHUNK_US
        limits = [
            until,
            *(at - 1 for at in (send_at,) if at is not None),
            *(at for at in (horizon_us,) if at is not None),
        ]
        events = self._simulation.advance(min(limits))
        if horizon_us is None:
            self._watch.check()
        for event in events:
            if isinstance(event, Finished):
                answered = event.outcome in COMPLETED
                heapq.heappush(self._replies, replied_at(self._simulation, event) if answered else event.at)
        return events

    def _next_send_at(self) -> Micros | None:
        """When the client sends next, or is allowed to."""
        due_at = None if self._next is None else self._next.at
        reply_at = self._replies[0] + 1 if self._line and self._replies else None
        return min((at for at in (due_at, reply_at) if at is not None), default=None)
