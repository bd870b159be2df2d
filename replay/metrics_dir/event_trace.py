"""event_trace.json: every event of a run in order of time, as one JSON array with an object on each line."""

from collections import deque

from blis_sim.engine.units import Micros
from replay.metrics_dir.tables import JsonItems, RowFile


class EventTrace:
    """The events of one run. Arrivals are known before their instants and wait for those of other events."""

    def __init__(self, file: RowFile) -> None:
        self._items = JsonItems(file)
        self._arrivals: deque[tuple[Micros, int]] = deque()

    def arrives(self, at: Micros, number: int) -> None:
        """Note an arrival, which is not before those noted so far."""
        self._arrivals.append((at, number))

    def happens(self, at: Micros, event_type: str, **details: object) -> None:
        """Write an event, after the arrivals up to its instant."""
        self._let_arrive(at)
        self._items.add({"time": at / 1e6, "event_type": event_type, **details})

    def end(self, until: Micros) -> None:
        """Write the arrivals up to the end of the run, and close the array."""
        self._let_arrive(until)
        self._items.end()

    def _let_arrive(self, until: Micros) -> None:
        arrivals = self._arrivals
        while arrivals and arrivals[0][0] <= until:
            at, number = arrivals.popleft()
            self._items.add({"time": at / 1e6, "event_type": "request_arrival", "request_id": number})
