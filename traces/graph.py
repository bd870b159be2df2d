"""The graph that requests of a trace form: which wait for which, how long, and whose text their prompts repeat."""

import re
from collections import defaultdict
from collections.abc import Collection, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from graphlib import CycleError, TopologicalSorter
from itertools import islice, pairwise, repeat
from typing import NamedTuple

from traces.rows import TraceRow
from traces.table import Table
from traces.text_file import TraceError

_IDS = re.compile(r"-?\d{1,19}( -?\d{1,19})*")
_ID = re.compile(r"-?\d{1,19}")


def ids_in(text: str) -> tuple[int, ...]:
    """The request ids of a cell, each once."""
    return tuple(dict.fromkeys(map(int, text.split())))


def ids_text(ids: Iterable[int]) -> str:
    """The cell that has these request ids."""
    return " ".join(map(str, ids))


def context_of(row: TraceRow) -> int | None:
    """The request that a row names as the one whose prompt and reply its prompt begins with: else its first parent."""
    if row.context_of:
        return int(row.context_of)
    return ids_in(row.parents)[0] if row.parents else None


def renumbered(row: TraceRow, request_id: int, ids: Mapping[int, int]) -> TraceRow:
    """The row with another id, and with those of other rows replaced; rows without a new id are named no more."""
    if not (row.parents or row.context_of):
        return replace(row, request_id=request_id)
    named = context_of(row) if row.context_of or row.context_tokens else None
    context = None if named is None else ids.get(named)
    return replace(
        row,
        request_id=request_id,
        parents=ids_text(ids[each] for each in ids_in(row.parents) if each in ids),
        context_of="" if context is None else str(context),
        context_tokens=0 if context is None else row.context_tokens,
    )


def restricted_to(rows: Sequence[TraceRow], kept: Sequence[TraceRow]) -> Sequence[TraceRow]:
    """The kept rows, with what rows that are not kept stood for: their parents, and what they repeat of others.

    Returns `kept` itself where no row of a graph is missing.
    """
    if len(rows) == len(kept) or not any(row.parents or row.context_of for row in kept):
        return kept
    there = {row.request_id for row in kept}
    by_id = {row.request_id: row for row in rows}
    parents: dict[int, tuple[int, ...]] = {}
    contexts: dict[int, tuple[int | None, int]] = {}
    for row in (by_id[each] for each in _in_order(rows) if each in by_id):
        each = row.request_id
        named = ids_in(row.parents)
        parents[each] = tuple(
            dict.fromkeys(up for one in named for up in ((one,) if one in there else parents.get(one, ())))
        )
        context, tokens = context_of(row), row.context_tokens
        if context is not None and context not in there:
            further, most = contexts.get(context, (None, 0))
            context, tokens = further, min(tokens, most)
        contexts[each] = context, tokens
    return [_with(row, parents[row.request_id], *contexts[row.request_id]) for row in kept]


def check_graph(table: Table, *, is_whole: bool) -> None:
    """Raise TraceError where a row waits for itself, or where one of a whole trace names rows that are not there.

    A recording may lack rows: those of a warm-up, and of requests that were under way when it was cut short.
    """
    columns = table.columns
    if not (any(columns["parents"]) or any(columns["context_of"])):
        return
    known = set(columns["request_id"])
    edges: dict[int, set[int]] = {}
    for name, form, expected in (
        ("parents", _IDS, "request ids of other rows with a blank between them"),
        ("context_of", _ID, "the request id of another row"),
    ):
        for row, cell in enumerate(columns[name]):
            if not cell:
                continue
            request_id = columns["request_id"][row]
            named = set(ids_in(cell)) if form.fullmatch(cell) else set()
            if not named or request_id in named or (is_whole and not named <= known):
                raise table.cell_error(row, name, expected, cell)
            edges.setdefault(request_id, set()).update(named)
    try:
        TopologicalSorter(edges).prepare()
    except CycleError as error:
        # The list of the cycle begins and ends with the same request, each waiting for the one before it.
        circle = error.args[1]
        row = next(place for place, each in enumerate(columns["request_id"]) if each in circle)
        name = "parents" if columns["parents"][row] else "context_of"
        expected = f"requests that do not wait for this one, which {ids_text(circle)} do in a circle"
        raise table.cell_error(row, name, expected, columns[name][row]) from error


def _in_order(rows: Iterable[TraceRow]) -> list[int]:
    edges = {row.request_id: (*ids_in(row.parents), *(ids_in(row.context_of))) for row in rows}
    try:
        return list(TopologicalSorter(edges).static_order())
    except CycleError as error:
        raise TraceError(f"requests {ids_text(error.args[1])} wait for each other in a circle") from error


def _with(row: TraceRow, parents: Sequence[int], context: int | None, tokens: int) -> TraceRow:
    named = ids_text(parents)
    if named == row.parents and context == context_of(row):
        return row
    known = context is not None and tokens > 0
    return replace(row, parents=named, context_of=str(context) if known else "", context_tokens=tokens if known else 0)


class Dependencies(NamedTuple):
    """The places of the rows that a row waits for, and its pause after the last reply to them, at least 1."""

    places: tuple[int, ...]
    pause_us: int


def dependencies_of(
    rows: Sequence[TraceRow],
    *,
    is_real: bool,
    think_time_us: int | Iterator[int] | None = None,
    fixed_sessions: Container[str] = frozenset(),
    with_lag: bool = False,
) -> dict[int, Dependencies]:
    """The rows that each row waits for, by its place; rows that arrive when they did are not in it, as are those of
    `fixed_sessions`.

    Rows with `parents` wait for all of these, others for the round before them in a session without parents. The pause
    is `think_time_us`, or the next of these, else that of the row. `with_lag` it is the time from the recorded reply to
    the recorded request, with the lateness of the client. Where a session without parents has none recorded it is that
    time, too, and without times of a real server the time between its arrivals.
    """
    found: dict[int, Dependencies] = {}
    thinks = repeat(think_time_us) if isinstance(think_time_us, int) else think_time_us
    place_of = {row.request_id: place for place, row in enumerate(rows)}
    sessions: dict[str, list[int]] = defaultdict(list)
    for place, row in enumerate(rows):
        if row.session_id in fixed_sessions:
            continue
        if row.parents:
            named = ids_in(row.parents)
            parents = tuple(place_of[each] for each in named if each in place_of)
            if parents:
                is_measured = with_lag and thinks is None and len(parents) == len(named)
                measured_us = _measured(row, [rows[each] for each in parents]) if is_measured else None
                pause_us = row.think_time_us if thinks is None else next(thinks)
                found[place] = Dependencies(parents, max(1, pause_us if measured_us is None else measured_us))
        if row.session_id:
            sessions[row.session_id].append(place)
    for places in sessions.values():
        if not any(rows[place].parents for place in places):
            in_turn = sorted(places, key=lambda place: rows[place].round_index)
            pauses_us = _pauses([rows[place] for place in in_turn], is_real, thinks, with_lag)
            for (before, place), pause_us in zip(pairwise(in_turn), pauses_us, strict=True):
                found[place] = Dependencies((before,), pause_us)
    return found


def accumulated(rows: Sequence[TraceRow]) -> list[TraceRow]:
    """The rows with whole prompts: that of a round holds all earlier prompts and replies of its session.

    Sessions whose rows say already what their prompts repeat, and those of graphs, stay as they are.
    """
    sessions: dict[str, list[int]] = defaultdict(list)
    for place, row in enumerate(rows):
        if row.session_id:
            sessions[row.session_id].append(place)
    whole = list(rows)
    for places in sessions.values():
        if any(rows[place].context_tokens or rows[place].parents for place in places):
            continue
        said_tokens = 0
        for place in sorted(places, key=lambda place: rows[place].round_index):
            row = rows[place]
            prefix_tokens = row.prefix_length if row.prefix_group else 0
            if said_tokens:
                whole[place] = replace(
                    row,
                    input_tokens=said_tokens + row.input_tokens,
                    context_tokens=prefix_tokens + said_tokens,
                    server_input_tokens=0,
                )
            said_tokens += row.input_tokens + row.output_tokens
    return whole


class SessionPool:
    """At most so many sessions at a time: in order of their first row, each begins when an earlier one is over."""

    def __init__(self, rows: Sequence[TraceRow], waits: Container[int], size: int) -> None:
        """`waits` has the places of rows that wait for others."""
        self._names = [row.session_id for row in rows]
        self._under_way: dict[str, int] = defaultdict(int)
        begins: dict[str, list[int]] = defaultdict(list)
        for place in sorted(range(len(rows)), key=lambda place: rows[place].arrival_time_us):
            if self._names[place] and place not in waits:
                begins[self._names[place]].append(place)
        self._left = iter(list(begins.values()))
        self._first = {place for places in islice(self._left, size) for place in places}
        for place in self._first:
            self._under_way[self._names[place]] += 1
        self.num_waiting = sum(len(places) for places in begins.values()) - len(self._first)

    def begins_at_once(self, place: int) -> bool:
        """Return whether a row that waits for no other belongs to no session, or to one of the first."""
        return not self._names[place] or place in self._first

    def ended(self, place: int, following: Collection[int]) -> list[int]:
        """The rows that begin a session now that this row has ended and these follow it."""
        for each in following:
            self._under_way[self._names[each]] += 1
        name = self._names[place]
        if not name:
            return []
        self._under_way[name] -= 1
        begun = [] if self._under_way[name] else next(self._left, [])
        for each in begun:
            self._under_way[self._names[each]] += 1
        self.num_waiting -= len(begun)
        return begun


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


def _pauses(rows: Sequence[TraceRow], is_real: bool, thinks: Iterator[int] | None, with_lag: bool) -> list[int]:
    """The pause before each round but the first, at least 1."""
    recorded = any(row.think_time_us for row in rows[1:])
    pauses = []
    for before, row in pairwise(rows):
        measured_us = _measured(row, [before])
        if thinks is not None:
            pause = next(thinks)
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
