"""Recorded conversations and graphs as a closed loop: requests wait for simulated replies, not for recorded ones."""

import heapq
from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import pairwise

from blis_sim.engine.units import Micros
from blis_sim.engine.virtual import CHUNK_US
from replay.arrivals.arrival import Arrival
from replay.arrivals.recorded import Arrivals
from traces import TraceRow
from traces.graph import ids_in


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
    """Rows arrive when they did, unless they wait for others: those with `parents` for all of these, and without them
    the later rounds of a session for the round before.

    The pause after the last of the replies is `think_time_us`, else that of the row. Where a session without parents
    has none recorded it is the time from the recorded reply to the recorded request, and without times of a real server
    the time between its arrivals. Deadlines keep their distance to the arrival. A request waits for ever where one
    that it awaits is not answered.
    """

    def __init__(self, arrivals: Arrivals, *, is_real: bool, think_time_us: Micros | None = None) -> None:
        self.least_pause_us: Micros = CHUNK_US
        self._heap: list[tuple[Micros, int, _Sent]] = []
        self._order = 0
        all_sent = [_Sent(arrival) for arrival in arrivals.arrivals]
        _link_parents(all_sent, think_time_us)
        _link_rounds(all_sent, is_real, think_time_us)
        for sent in all_sent:
            if sent.num_awaited:
                self.least_pause_us = min(self.least_pause_us, sent.pause_us)
            else:
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
            if not each.num_awaited:
                each.arrival = _moved(each.arrival, each.ready_at + each.pause_us)
                self._push(each)

    def _push(self, sent: _Sent) -> None:
        self._order += 1
        heapq.heappush(self._heap, (sent.arrival.at, self._order, sent))


def _moved(arrival: Arrival, at: Micros) -> Arrival:
    request, row = arrival.request, arrival.row
    if request.deadline_us and isinstance(row, TraceRow):
        request = request._replace(deadline_us=request.deadline_us - row.arrival_time_us + at)
    return arrival._replace(at=at, request=request)


def _link_parents(all_sent: Sequence[_Sent], think_time_us: Micros | None) -> None:
    by_id = {_row(sent).request_id: sent for sent in all_sent}
    for sent in all_sent:
        row = _row(sent)
        if row.parents:
            pause_us = row.think_time_us if think_time_us is None else think_time_us
            sent.awaits([by_id[each] for each in ids_in(row.parents)], max(1, pause_us))


def _link_rounds(all_sent: Sequence[_Sent], is_real: bool, think_time_us: Micros | None) -> None:
    """Let each round wait for the one before, in sessions that have no parents."""
    sessions: dict[str, list[_Sent]] = defaultdict(list)
    for sent in all_sent:
        if session_id := _row(sent).session_id:
            sessions[session_id].append(sent)
    for rounds in sessions.values():
        if not any(_row(sent).parents for sent in rounds):
            rounds.sort(key=lambda sent: _row(sent).round_index)
            pauses = _pauses([_row(sent) for sent in rounds], is_real, think_time_us)
            for (before, sent), pause_us in zip(pairwise(rounds), pauses, strict=True):
                sent.awaits([before], pause_us)


def _row(sent: _Sent) -> TraceRow:
    assert isinstance(sent.arrival.row, TraceRow)
    return sent.arrival.row


def _pauses(rows: Sequence[TraceRow], is_real: bool, think_time_us: Micros | None) -> list[Micros]:
    """The pause before each round but the first, at least 1."""
    recorded = any(row.think_time_us for row in rows[1:])
    pauses = []
    for before, row in pairwise(rows):
        if think_time_us is not None:
            pause = think_time_us
        elif recorded:
            pause = row.think_time_us
        elif is_real and before.last_chunk_time_us and row.send_time_us:
            pause = row.send_time_us - before.last_chunk_time_us
        else:
            pause = row.arrival_time_us - before.arrival_time_us
        pauses.append(max(1, pause))
    return pauses
