"""The graph that requests of a trace form: which wait for which, how long, and whose text their prompts repeat."""

import re
from array import array
from collections import defaultdict
from collections.abc import Collection, Container, Iterable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import replace
from graphlib import CycleError, TopologicalSorter
from itertools import islice, pairwise, repeat
from typing import TYPE_CHECKING, NamedTuple

from traces.packed import PackedRows
from traces.rows import TraceRow
from traces.table import Table
from traces.text_file import TraceError

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

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
    return named_context(row.context_of, row.parents)


def named_context(context: str, parents: str) -> int | None:
    """The request that these cells of a row name as the one whose text its prompt begins with."""
    if context:
        return int(context)
    return ids_in(parents)[0] if parents else None


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


def check_graph(table: Table, rows: PackedRows[TraceRow], *, is_whole: bool) -> None:
    """Raise TraceError where a row waits for itself, or where one of a whole trace names rows that are not there.

    A recording may lack rows: those of a warm-up, and of requests that were under way when it was cut short.
    """
    if not (any(rows.distinct("parents")) or any(rows.distinct("context_of"))):
        return
    ids = rows.ints("request_id").tolist()
    known = set(ids)
    edges: dict[int, set[int]] = {}
    for name, form, expected in (
        ("parents", _IDS, "request ids of other rows with a blank between them"),
        ("context_of", _ID, "the request id of another row"),
    ):
        for row, cell in enumerate(rows.values(name)):
            if not cell:
                continue
            request_id = ids[row]
            named = set(ids_in(cell)) if form.fullmatch(cell) else set()
            if not named or request_id in named or (is_whole and not named <= known):
                raise table.cell_error(row, name, expected, cell)
            edges.setdefault(request_id, set()).update(named)
    try:
        TopologicalSorter(edges).prepare()
    except CycleError as error:
        # The list of the cycle begins and ends with the same request, each waiting for the one before it.
        circle = error.args[1]
        row = next(place for place, each in enumerate(ids) if each in circle)
        name = "parents" if rows[row].parents else "context_of"
        expected = f"requests that do not wait for this one, which {ids_text(circle)} do in a circle"
        raise table.cell_error(row, name, expected, getattr(rows[row], name)) from error


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


class Waits(Mapping[int, Dependencies]):
    """The rows that others wait for, by the places of those that wait: those that name parents first."""

    def __init__(self, num_rows: int) -> None:
        self._before = array("q", [-1]) * num_rows
        """The only place that each row waits for."""
        self._pauses_us = array("q", [0]) * num_rows
        self._parents: dict[int, tuple[int, ...]] = {}
        """The places that rows with parents wait for."""
        self._num_in_turn = 0

    def name_parents(self, place: int, parents: tuple[int, ...], pause_us: int) -> None:
        """Let a row wait for those that it names."""
        self._parents[place] = parents
        self._pauses_us[place] = pause_us

    def follow(self, place: int, before: int, pause_us: int) -> None:
        """Let a row wait for the round before it."""
        self._before[place], self._pauses_us[place] = before, pause_us
        self._num_in_turn += 1

    def shortened(self, speedup: float) -> "Waits":
        """Return the waits with pauses shorter by that factor."""
        other = copy(self)
        other._pauses_us = array("q", (max(1, round(each / speedup)) for each in self._pauses_us))
        return other

    def __getitem__(self, place: int) -> Dependencies:
        parents = self._parents.get(place)
        if parents is None:
            if not self.__contains__(place):
                raise KeyError(place)
            parents = (self._before[place],)
        return Dependencies(parents, self._pauses_us[place])

    def __contains__(self, place: object) -> bool:
        return place in self._parents or (isinstance(place, int) and self._before[place] >= 0)

    def __iter__(self) -> Iterator[int]:
        yield from self._parents
        if self._num_in_turn:
            yield from (place for place, before in enumerate(self._before) if before >= 0)

    def __len__(self) -> int:
        return len(self._parents) + self._num_in_turn


def dependencies_of(
    rows: Sequence[TraceRow],
    *,
    is_real: bool,
    think_time_us: int | Iterator[int] | None = None,
    fixed_sessions: Container[str] = frozenset(),
    with_lag: bool = False,
) -> Waits:
    """The rows that each row waits for, by its place; rows that arrive when they did are not in it, as are those of
    `fixed_sessions`.

    Rows with `parents` wait for all of these, others for the round before them in a session without parents. The pause
    is `think_time_us`, or the next of these, else that of the row. `with_lag` it is the time from the recorded reply to
    the recorded request, with the lateness of the client. Where a session without parents has none recorded it is that
    time, too, and without times of a real server the time between its arrivals.
    """
    packed = PackedRows.of(TraceRow, rows)
    found = Waits(len(packed))
    times = _Times(packed)
    thinks = repeat(think_time_us) if isinstance(think_time_us, int) else think_time_us
    has_parents = any(packed.distinct("parents"))
    place_of = {each: place for place, each in enumerate(packed.values("request_id"))} if has_parents else {}
    sessions: dict[str, array[int]] = {}
    of_graphs: set[str] = set()
    """Sessions with a row that has parents."""
    for place, (session, parents) in enumerate(zip(packed.values("session_id"), packed.values("parents"), strict=True)):
        if session in fixed_sessions:
            continue
        if parents:
            of_graphs.add(session)
            named = ids_in(parents)
            places = tuple(place_of[each] for each in named if each in place_of)
            if places:
                is_measured = with_lag and thinks is None and len(places) == len(named)
                measured_us = times.measured_us(place, places) if is_measured else None
                pause_us = times.think_us[place] if thinks is None else next(thinks)
                found.name_parents(place, places, max(1, pause_us if measured_us is None else measured_us))
        if session:
            sessions.setdefault(session, array("q")).append(place)
    rounds = array("q", packed.values("round_index"))
    for session, in_file in sessions.items():
        if session not in of_graphs:
            in_turn = sorted(in_file, key=rounds.__getitem__)
            pauses_us = _pauses(times, in_turn, is_real, thinks, with_lag)
            for (before, place), pause_us in zip(pairwise(in_turn), pauses_us, strict=True):
                found.follow(place, before, pause_us)
    return found


class _Times:
    """Instants and pauses of rows, by their places."""

    def __init__(self, rows: PackedRows[TraceRow]) -> None:
        self.think_us, self.arrival_us, self.send_us, self.last_chunk_us = (
            array("q", rows.values(name))
            for name in ("think_time_us", "arrival_time_us", "send_time_us", "last_chunk_time_us")
        )

    def measured_us(self, place: int, parents: Sequence[int]) -> int | None:
        """The time from the last recorded reply to the recorded request, by which the client was late included."""
        ended_us = [self.last_chunk_us[each] for each in parents]
        return self.send_us[place] - max(ended_us) if self.send_us[place] and all(ended_us) else None


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
        packed = PackedRows.of(TraceRow, rows)
        self._names = list(packed.values("session_id"))
        arrival_us = array("q", packed.values("arrival_time_us"))
        self._under_way: dict[str, int] = defaultdict(int)
        begins: dict[str, list[int]] = defaultdict(list)
        for place in sorted(range(len(rows)), key=arrival_us.__getitem__):
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


def repeated_places(rows: Sequence[TraceRow]) -> dict[int, int]:
    """For each row with `context_tokens` the place of the row whose text it repeats, where that is there."""
    before = places_repeated(PackedRows.of(TraceRow, rows)).tolist()
    return {place: each for place, each in enumerate(before) if each >= 0}


def places_repeated(rows: PackedRows[TraceRow]) -> "npt.NDArray[np.int64]":
    """The place of the row whose text each row repeats, -1 for rows without `context_tokens` and where it is not there.

    That is the row that it names, else the round before it.
    """
    import numpy as np  # most readers and writers of a trace do not need numpy

    repeats = rows.ints("context_tokens") > 0
    before = np.full(len(rows), -1, np.int64)
    if not repeats.any():
        return before
    _, sessions = rows.labels_of("session_id")
    known, rounds = np.unique(rows.ints("round_index"), return_inverse=True)
    wanted = np.searchsorted(known, known - 1)
    is_there = known[wanted] == known - 1
    keys = sessions * len(known) + rounds
    order = np.argsort(keys, kind="stable")
    last = np.searchsorted(keys[order], sessions * len(known) + wanted[rounds], side="right") - 1
    found = order[np.maximum(last, 0)]
    in_session = np.fromiter(map(bool, rows.values("session_id")), np.bool_, len(rows))
    is_found = (
        repeats & in_session & is_there[rounds] & (sessions[found] == sessions) & (rounds[found] == wanted[rounds])
    )
    before[is_found] = found[is_found]
    if any(rows.distinct("parents")) or any(rows.distinct("context_of")):
        place_of: dict[int | None, int] = {each: place for place, each in enumerate(rows.values("request_id"))}
        cells = zip(rows.values("context_of"), rows.values("parents"), strict=True)
        for place, (context, parents) in enumerate(cells):
            if repeats[place] and (named := named_context(context, parents)) is not None:
                before[place] = place_of.get(named, -1)
    before[before == np.arange(len(rows))] = -1
    return before


def _pauses(
    times: _Times, places: Sequence[int], is_real: bool, thinks: Iterator[int] | None, with_lag: bool
) -> Iterator[int]:
    """Yield the pause before each round but the first, at least 1."""
    recorded = any(times.think_us[place] for place in places[1:])
    for before, place in pairwise(places):
        measured_us = times.measured_us(place, [before])
        if thinks is not None:
            pause = next(thinks)
        elif with_lag and measured_us is not None:
            pause = measured_us
        elif recorded:
            pause = times.think_us[place]
        elif is_real and measured_us is not None:
            pause = measured_us
        else:
            pause = times.arrival_us[place] - times.arrival_us[before]
        yield max(1, pause)
