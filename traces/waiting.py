"""Which requests of a trace wait for the replies to others in a closed loop, and how long they pause after these."""

from collections import defaultdict
from collections.abc import Container, Sequence
from itertools import pairwise
from typing import NamedTuple

from traces.graph import context_of, ids_in
from traces.rows import TraceRow


class Awaited(NamedTuple):
    """The places of the rows that a row waits for, and its pause after the last reply to them, at least 1."""

    places: tuple[int, ...]
    pause_us: int


def awaited(
    rows: Sequence[TraceRow],
    *,
    is_real: bool,
    think_time_us: int | None = None,
    fixed_sessions: Container[str] = frozenset(),
    with_lag: bool = False,
) -> dict[int, Awaited]:
    """The rows that each row waits for, by its place; rows that arrive when they did are not in it, as are those of
    `fixed_sessions`.

    Rows with `parents` wait for all of these, others for the round before them in a session without parents. The pause
    is `think_time_us`, else that of the row; `with_lag` it is the time from the recorded reply to the recorded request,
    by which the client was late included. Where a session without parents has none recorded it is that time, too, and
    without times of a real server the time between its arrivals.
    """
    found: dict[int, Awaited] = {}
    place_of = {row.request_id: place for place, row in enumerate(rows)}
    sessions: dict[str, list[int]] = defaultdict(list)
    for place, row in enumerate(rows):
        if row.session_id in fixed_sessions:
            continue
        if row.parents:
            named = ids_in(row.parents)
            parents = tuple(place_of[each] for each in named if each in place_of)
            if parents:
                is_measured = with_lag and think_time_us is None and len(parents) == len(named)
                measured_us = _measured(row, [rows[each] for each in parents]) if is_measured else None
                pause_us = row.think_time_us if think_time_us is None else think_time_us
                found[place] = Awaited(parents, max(1, pause_us if measured_us is None else measured_us))
        if row.session_id:
            sessions[row.session_id].append(place)
    for places in sessions.values():
        if not any(rows[place].parents for place in places):
            in_turn = sorted(places, key=lambda place: rows[place].round_index)
            pauses_us = _pauses([rows[place] for place in in_turn], is_real, think_time_us, with_lag)
            for (before, place), pause_us in zip(pairwise(in_turn), pauses_us, strict=True):
                found[place] = Awaited((before,), pause_us)
    return found


def _measured(row: TraceRow, parents: Sequence[TraceRow]) -> int | None:
    """The time from the last recorded reply to the recorded request, by which the client was late included."""
    ended_us = [each.last_chunk_time_us for each in parents]
    return row.send_time_us - max(ended_us) if row.send_time_us and all(ended_us) else None


def repeated_places(rows: Sequence[TraceRow]) -> dict[int, int]:
    """For each row with `context_tokens` the place of the row whose text it repeats, where that is there."""
    place_of: dict[int | None, int] = {row.request_id: place for place, row in enumerate(rows)}
    rounds = {(row.session_id, row.round_index): place for place, row in enumerate(rows) if row.session_id}
    found: dict[int, int] = {}
    for place, row in enumerate(rows):
        if row.context_tokens:
            named = context_of(row)
            key = (row.session_id, row.round_index - 1)
            before = rounds.get(key) if named is None else place_of.get(named)
            if before is not None and before != place:
                found[place] = before
    return found


def _pauses(rows: Sequence[TraceRow], is_real: bool, think_time_us: int | None, with_lag: bool) -> list[int]:
    """The pause before each round but the first, at least 1."""
    recorded = any(row.think_time_us for row in rows[1:])
    pauses = []
    for before, row in pairwise(rows):
        measured_us = _measured(row, [before])
        if think_time_us is not None:
            pause = think_time_us
        elif with_lag and measured_us is not None:
            pause = measured_us
        elif recorded:
            pause = row.think_time_us
        elif is_real and measured_us is not None:
            pause = measured_us
        else:
            pause = row.arrival_time_us - before.arrival_time_us
        pauses.append(max(1, pause))
    return pauses
