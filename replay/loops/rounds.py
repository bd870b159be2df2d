"""Recorded conversations as a closed loop: each round waits for the simulated reply before it, not for the recorded."""

import heapq
from collections import defaultdict
from collections.abc import Sequence
from itertools import pairwise

from blis_sim.engine.units import Micros
from blis_sim.engine.virtual import CHUNK_US
from replay.arrivals.arrival import Arrival
from replay.arrivals.recorded import Arrivals
from traces import TraceRow


class _Talk:
    """A conversation: its rounds from the next one on, the last first, and the pause before each."""

    __slots__ = ("rounds",)

    def __init__(self, rounds: list[tuple[Arrival, Micros]]) -> None:
        self.rounds = rounds


class RecordedRounds:
    """Rows without a session arrive when they did, sessions with their first round; later rounds are sent a pause after
    the reply before them.

    The pause is `think_time_us`, else that of the row, else the time from the recorded reply to the recorded request;
    where a conversation has no recorded pause and no times of a real server, the time between its arrivals. Deadlines
    keep their distance to the arrival.
    """

    def __init__(self, arrivals: Arrivals, *, is_real: bool, think_time_us: Micros | None = None) -> None:
        self.least_pause_us: Micros = CHUNK_US
        sessions: dict[str, list[Arrival]] = defaultdict(list)
        self._heap: list[tuple[Micros, int, Arrival, _Talk | None]] = []
        self._order = 0
        for arrival in arrivals.arrivals:
            if arrival.row.session_id:
                sessions[arrival.row.session_id].append(arrival)
            else:
                self._push(arrival, None)
        for rounds in sessions.values():
            rounds.sort(key=lambda arrival: arrival.row.round_index)
            pauses = _pauses(rounds, is_real, think_time_us)
            self.least_pause_us = min(self.least_pause_us, *pauses, CHUNK_US)
            self._push(rounds[0], _Talk(list(zip(rounds[1:], pauses, strict=True))[::-1]))

    def next_at(self) -> Micros | None:
        """When the next request arrives; None when nothing is known to come."""
        return self._heap[0][0] if self._heap else None

    def pop(self, _number: int) -> tuple[Arrival, _Talk | None]:
        """The next request, with its conversation if another round is to follow."""
        _, _, arrival, talk = heapq.heappop(self._heap)
        return arrival, talk

    def follow_up(self, talk: _Talk, replied_at: Micros, _num_replied_tokens: int) -> None:
        """Send the next round, a pause after the reply."""
        arrival, pause_us = talk.rounds.pop()
        at = replied_at + pause_us
        request, row = arrival.request, arrival.row
        if request.deadline_us and isinstance(row, TraceRow):
            request = request._replace(deadline_us=request.deadline_us - row.arrival_time_us + at)
        self._push(arrival._replace(at=at, request=request), talk)

    def _push(self, arrival: Arrival, talk: _Talk | None) -> None:
        self._order += 1
        talk = talk if talk is not None and talk.rounds else None
        heapq.heappush(self._heap, (arrival.at, self._order, arrival, talk))


def _pauses(rounds: Sequence[Arrival], is_real: bool, think_time_us: Micros | None) -> list[Micros]:
    """The pause before each round but the first, at least 1."""
    rows = [arrival.row for arrival in rounds if isinstance(arrival.row, TraceRow)]
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
