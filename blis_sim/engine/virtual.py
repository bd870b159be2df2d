"""The virtual-time driver: jump from event to event, as fast as the engine can."""

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from collections.abc import Sequence as SequenceOf
from itertools import chain, islice
from typing import NamedTuple

from blis_sim.engine.events import Event
from blis_sim.engine.progress_watch import ProgressWatch
from blis_sim.engine.request import Request
from blis_sim.engine.sequence import Sequence
from blis_sim.engine.simulation import Simulation
from blis_sim.engine.units import Micros

CHUNK_US: Micros = 60_000_000
"""How far to advance at a time once everything has arrived: far enough to be cheap, and events do not pile up."""

ARRIVALS_AHEAD = 64
"""How many arrivals per instance the simulation is told of before it is advanced to the next."""


class Batch(NamedTuple):
    """Requests that the simulation is told of at once, at least one, and the instants at which they arrive."""

    instants: SequenceOf[Micros]
    """Ascending."""
    requests: SequenceOf[Request]


def run_virtual(
    simulation: Simulation, arrivals: Iterable[tuple[Micros, Request]], horizon_us: Micros | None = None
) -> Iterator[Event]:
    """Feed `arrivals`, ascending by instant, and yield what happens until nothing is left to do.

    With a horizon, nothing after it is done; arrivals after it are never submitted.
    """
    source, size = iter(arrivals), batch_size(simulation)
    batches = iter(lambda: list(islice(source, size)), [])
    return chain.from_iterable(
        run_in_batches(simulation, (Batch(*zip(*each, strict=True)) for each in batches), horizon_us)
    )


def batch_size(simulation: Simulation) -> int:
    """How many requests a fresh simulation is best told of at once."""
    return ARRIVALS_AHEAD * len(simulation.instances)


def run_in_batches(
    simulation: Simulation,
    batches: Iterable[Batch],
    horizon_us: Micros | None = None,
    submitted: Callable[[list[Sequence]], None] | None = None,
) -> Iterator[list[Event]]:
    """`run_virtual` for arrivals in batches, which ascend; what happens comes in portions.

    `submitted` is told of the requests of each batch that the simulation has been told of. Raises EngineError for a run
    without a horizon that does not end.
    """
    is_first = True
    for batch in batches:
        instants, requests = batch
        now = simulation.now
        num_wanted = len(instants) if horizon_us is None else bisect_right(instants, horizon_us)
        if not is_first and num_wanted and (now is None or instants[0] > now + 1):
            yield simulation.advance(instants[0] - 1)
        is_first = False
        sequences = simulation.submit_all(requests[:num_wanted], instants[:num_wanted])
        if submitted is not None:
            submitted(sequences)
        if num_wanted < len(instants):
            break
    yield from _run_out(simulation, horizon_us)


def _run_out(simulation: Simulation, horizon_us: Micros | None) -> Iterator[list[Event]]:
    """Everything has arrived."""
    watch = ProgressWatch(simulation)
    while (due_at := simulation.next_event_at()) is not None:
        until = due_at + CHUNK_US
        if horizon_us is not None:
            if due_at > horizon_us:
                break
            until = min(until, horizon_us)
        yield simulation.advance(until)
        if horizon_us is None:
            watch.look()
