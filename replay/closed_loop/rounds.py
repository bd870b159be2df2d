"""Recorded conversations and graphs as a closed loop: requests wait for simulated replies, not for recorded ones."""

import heapq
from collections.abc import Container, Iterable

from blis_sim.engine.units import Micros
from blis_sim.engine.virtual import CHUNK_US
from replay.arrivals.arrival import Arrival
from replay.arrivals.recorded import Arrivals
from traces import TraceRow
from traces.waiting import awaited


class _Sent:
    """A request and those that wait for it; `ready_at` is when the last of the replies that it awaits itself came."""

    __slots__ = ("arrival", "followers", "num_awaited", "pause_us", "ready_at")

    def __init__(self, arrival: Arrival) -> None:
        self.arrival = arrival
        self.pause_us: Micros = 0
        self.num_awaited = 0
        self.ready_at: Micros = 0
        self.followers: list[_Sent] = []

    def awaits(self, others: Iterable["_Sent"], pause_us: Micros) -> None:
        """Send it this pause after the last reply to the others."""
        self.pause_us = pause_us
        for other in others:
            other.followers.append(self)
            self.num_awaited += 1


class RecordedRounds:
    """Rows arrive when they did, or wait for others as `traces.waiting` finds it.

    Deadlines keep their distance to the arrival. A request waits for ever where one that it awaits is not answered, or
    where it would arrive after the horizon.
    """

    def __init__(
        self,
        arrivals: Arrivals,
        *,
        is_real: bool,
        think_time_us: Micros | None = None,
        fixed_sessions: Container[str] = frozenset(),
        horizon_us: Micros | None = None,
    ) -> None:
        self.least_pause_us: Micros = CHUNK_US
        self._horizon_us = horizon_us
        self._heap: list[tuple[Micros, int, _Sent]] = []
        self._order = 0
        all_sent = [_Sent(arrival) for arrival in arrivals.arrivals]
        rows = [arrival.row for arrival in arrivals.arrivals if isinstance(arrival.row, TraceRow)]
        waits = awaited(
            rows, is_real=is_real, think_time_us=think_time_us, fixed_sessions=fixed_sessions, with_lag=is_real
        )
        for place, its in waits.items():
            all_sent[place].awaits([all_sent[each] for each in its.places], its.pause_us)
            self.least_pause_us = min(self.least_pause_us, its.pause_us)
        for place, sent in enumerate(all_sent):
            if place not in waits:
                self._push(sent)

    def next_at(self) -> Micros | None:
        """When the next request arrives; None when nothing is known to come."""
        return self._heap[0][0] if self._heap else None

    def pop(self, _number: int) -> tuple[Arrival, _Sent | None]:
        """The next request, with itself again if others wait for it."""
        _, _, sent = heapq.heappop(self._heap)
        return sent.arrival, sent if sent.followers else None

    def follow_up(self, sent: _Sent, replied_at: Micros, _num_replied_tokens: int) -> None:
        """Send the requests that have waited for this reply alone, each after its pause."""
        for each in sent.followers:
            each.ready_at = max(each.ready_at, replied_at)
            each.num_awaited -= 1
            at = each.ready_at + each.pause_us
            if not each.num_awaited and (self._horizon_us is None or at <= self._horizon_us):
                each.arrival = _moved(each.arrival, at)
                self._push(each)

    def _push(self, sent: _Sent) -> None:
        self._order += 1
        heapq.heappush(self._heap, (sent.arrival.at, self._order, sent))


def _moved(arrival: Arrival, at: Micros) -> Arrival:
    request, row = arrival.request, arrival.row
    if request.deadline_us and isinstance(row, TraceRow):
        request = request._replace(deadline_us=request.deadline_us - row.arrival_time_us + at)
    return arrival._replace(at=at, request=request)
