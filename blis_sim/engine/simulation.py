"""A simulation, one engine or a cluster of them, and the virtual-time driver that jumps from event to event."""

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from collections.abc import Sequence as SequenceOf
from itertools import chain, islice
from typing import NamedTuple, Protocol

from blis_sim.engine.core import Engine
from blis_sim.engine.errors import EngineError
from blis_sim.engine.events import Event
from blis_sim.engine.request import Request
from blis_sim.engine.sequence import Sequence
from blis_sim.engine.units import Micros


class Simulation(Protocol):
    """A simulation takes the time as an argument and returns the events. How often or how far it is advanced changes no
    instant."""

    @property
    def instances(self) -> SequenceOf[Engine]:
        """The engines, by `Sequence.instance`."""
        ...

    @property
    def now(self) -> Micros | None:
        """The instant up to which the simulation has been advanced; None before the first time."""
        ...

    @property
    def clock(self) -> Micros:
        """Instant of the last event: the end of the simulated run."""
        ...

    @property
    def vain_kills(self) -> SequenceOf[Micros]:
        """When an instance was to be killed that there was not, or not any more."""
        ...

    def submit(self, request: Request, at: Micros) -> Sequence:
        """Let `request` arrive at `at`. Returns its sequence, for reading.

        Raises ValueError when `at` is too early, and for an id still in use.
        """
        ...

    def submit_all(self, requests: SequenceOf[Request], instants: SequenceOf[Micros]) -> list[Sequence]:
        """Let each of `requests` arrive at its instant, which ascend; as `submit`, at less cost for each."""
        ...

    def abort(self, request_id: str, at: Micros) -> None:
        """Let the client of `request_id` hang up at `at`; ids without a live request are ignored."""
        ...

    def queueing_time(self, request: Request) -> Micros:
        """Return the time after the arrival of a request during which it can still be submitted."""
        ...

    def next_event_at(self) -> Micros | None:
        """The next instant at which something is due; None when idle."""
        ...

    def advance(self, until: Micros) -> list[Event]:
        """Do everything due up to and including `until`; return the events in the order they happened."""
        ...


class WrappedSimulation:
    """A simulation that leaves to another one all that a subclass does not change."""

    def __init__(self, simulation: Simulation) -> None:
        self._simulation = simulation

    @property
    def instances(self) -> SequenceOf[Engine]:
        return self._simulation.instances

    @property
    def now(self) -> Micros | None:
        return self._simulation.now

    @property
    def clock(self) -> Micros:
        return self._simulation.clock

    @property
    def vain_kills(self) -> SequenceOf[Micros]:
        return self._simulation.vain_kills

    def submit(self, request: Request, at: Micros) -> Sequence:
        return self._simulation.submit(request, at)

    def submit_all(self, requests: SequenceOf[Request], instants: SequenceOf[Micros]) -> list[Sequence]:
        return self._simulation.submit_all(requests, instants)

    def abort(self, request_id: str, at: Micros) -> None:
        self._simulation.abort(request_id, at)

    def queueing_time(self, request: Request) -> Micros:
        return self._simulation.queueing_time(request)

    def next_event_at(self) -> Micros | None:
        return self._simulation.next_event_at()

    def advance(self, until: Micros) -> list[Event]:
        return self._simulation.advance(until)


CHECK_EVERY = 64
"""Calls of `advance` per check in runs that advance by short stretches."""
MAX_PREEMPTIONS = 1000
"""Preemptions per unfinished request, plus one, between two ends: more show that the run will not end."""


class ProgressWatch:
    """Detects a run that never ends, by the number of preemptions between two ends of requests.

    Requests that take each other's KV blocks in turn compute the same tokens again and again, as they would in the real
    scheduler. BLIS's rules allow it for a request that outgrows the whole cache. vLLM's allow it where prompts are
    admitted before all of their blocks are free and victims are chosen among equals.
    """

    def __init__(self, simulation: Simulation, every: int = 1) -> None:
        """`every` is the number of calls of `check` for one check."""
        self._simulation = simulation
        self._every = every
        self._num_calls = 0
        self._num_ended = -1
        self._num_preemptions = 0
        """Number of preemptions when a request ended last."""

    def check(self) -> None:
        """Raise EngineError if the run will not end."""
        self._num_calls += 1
        if self._num_calls % self._every:
            return
        engines = self._simulation.instances
        num_ended = sum(sum(engine.counters.ended.values()) for engine in engines)
        num_preemptions = sum(engine.counters.num_preemptions for engine in engines)
        if num_ended != self._num_ended:
            self._num_ended, self._num_preemptions = num_ended, num_preemptions
            return
        num_live = sum(len(engine.live) for engine in engines)
        num_new = num_preemptions - self._num_preemptions
        if num_new > MAX_PREEMPTIONS * (1 + num_live):
            now_us = self._simulation.now
            raise EngineError(
                f"the run does not end: {num_live} requests were preempted {num_new} times since one ended. At "
                f"{now_us} us they take KV blocks from each other for ever. Give more KV blocks or a horizon"
            )


CHUNK_US: Micros = 60_000_000
"""Span of one call of `advance` after the last arrival: long enough to be cheap, short enough to keep events few."""

ARRIVALS_AHEAD = 64
"""Arrivals per instance that are submitted before the simulation is advanced."""


class Batch(NamedTuple):
    """Requests that are submitted together, at least one, and the instants of their arrivals."""

    instants: SequenceOf[Micros]
    """Ascending."""
    requests: SequenceOf[Request]


def run_virtual(
    simulation: Simulation, arrivals: Iterable[tuple[Micros, Request]], horizon_us: Micros | None = None
) -> Iterator[Event]:
    """Submit `arrivals`, ascending by instant, and yield the events until the simulation is idle.

    With a horizon, nothing after it is done; arrivals after it are never submitted.
    """
    source, size = iter(arrivals), batch_size(simulation)
    batches = iter(lambda: list(islice(source, size)), [])
    return chain.from_iterable(
        run_in_batches(simulation, (Batch(*zip(*each, strict=True)) for each in batches), horizon_us)
    )


def batch_size(simulation: Simulation) -> int:
    """Return the best number of requests to submit together."""
    return ARRIVALS_AHEAD * len(simulation.instances)


def run_in_batches(
    simulation: Simulation,
    batches: Iterable[Batch],
    horizon_us: Micros | None = None,
    submitted: Callable[[list[Sequence]], None] | None = None,
) -> Iterator[list[Event]]:
    """`run_virtual` for arrivals in ascending batches; events are yielded in lists.

    `submitted` is called with the sequences of each submitted batch. Raises EngineError for a run that never ends.
    """
    is_first = True
    for batch in batches:
        instants, requests = batch
        now = simulation.now
        num_due = len(instants) if horizon_us is None else bisect_right(instants, horizon_us)
        if not is_first and num_due and (now is None or instants[0] > now + 1):
            yield simulation.advance(instants[0] - 1)
        is_first = False
        sequences = simulation.submit_all(requests[:num_due], instants[:num_due])
        if submitted is not None:
            submitted(sequences)
        if num_due < len(instants):
            break
    yield from _run_out(simulation, horizon_us)


def _run_out(simulation: Simulation, horizon_us: Micros | None) -> Iterator[list[Event]]:
    """Advance until idle, or up to the horizon, after the last arrival."""
    watch = ProgressWatch(simulation)
    while (due_at := simulation.next_event_at()) is not None:
        until = due_at + CHUNK_US
        if horizon_us is not None:
            if due_at > horizon_us:
                break
            until = min(until, horizon_us)
        yield simulation.advance(until)
        if horizon_us is None:
            watch.check()
