"""The closed loop in virtual time: requests that are sent when their client has thought about the reply before."""

from collections.abc import Callable
from typing import Protocol, TypeVar

from blis_sim.engine.events import Finished
from blis_sim.engine.simulation import Simulation
from blis_sim.engine.units import Micros
from blis_sim.engine.virtual import CHUNK_US, LOOK_EVERY, ProgressWatch
from replay.arrivals.arrival import Arrival
from replay.simulation.measure import COMPLETED, replied_at
from replay.simulation.record import OnTokens, Record
from replay.simulation.simulate import Simulated
from traces.collector import no_cycle_search

Talk = TypeVar("Talk")


class WaitingQueue(Protocol[Talk]):
    """Requests in order of arrival, to which conversations add as their replies come."""

    least_pause_us: Micros
    """No conversation sends sooner after a reply than this; at least 1."""

    def next_at(self) -> Micros | None:
        """When the next request arrives; None when nothing is known to come."""
        ...

    def pop(self, number: int) -> tuple[Arrival, Talk | None]:
        """The next request, the so manyth of all, with its conversation if another one is to follow."""
        ...

    def follow_up(self, talk: Talk, replied_at: Micros, num_replied_tokens: int) -> None:
        """Send the next request of a conversation, a pause after its reply."""
        ...


@no_cycle_search()
def run_closed_loop(
    simulation: Simulation,
    queue: WaitingQueue[Talk],
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
    waiting: dict[str, Talk] = {}
    watch = ProgressWatch(simulation, every=LOOK_EVERY)
    while (next_at := _earliest(queue.next_at(), simulation.next_event_at())) is not None:
        if horizon_us is not None and next_at > horizon_us:
            break
        # What arrives at an instant is there before anything is done at that instant.
        while queue.next_at() == next_at:
            arrival, talk = queue.pop(len(record))
            if talk is not None:
                waiting[arrival.request.id] = talk
            record.arrived([simulation.submit(arrival.request, arrival.at)], [arrival.row])
        until = next_at + (queue.least_pause_us if waiting else CHUNK_US) - 1
        for finished in record.note(simulation.advance(_least(until, horizon_us, queue.next_at()))):
            if on_finished is not None:
                on_finished()
            talk = waiting.pop(finished.sequence.request.id, None)
            if talk is not None and finished.outcome in COMPLETED:
                queue.follow_up(talk, replied(simulation, finished), finished.sequence.num_output_tokens)
        if horizon_us is None:
            watch.look()
    record.close()
    return Simulated(simulation, record)


def _earliest(one: Micros | None, other: Micros | None) -> Micros | None:
    if one is None or other is None:
        return one if other is None else other
    return min(one, other)


def _least(until: Micros, horizon_us: Micros | None, next_arrival_at: Micros | None) -> Micros:
    """How far the engine may go: to the horizon, but not to the next arrival."""
    if horizon_us is not None:
        until = min(until, horizon_us)
    return until if next_arrival_at is None else min(until, next_arrival_at - 1)
