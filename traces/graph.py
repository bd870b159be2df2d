"""The graph that requests of a trace form: which of them wait for others, and whose text their prompts begin with."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from graphlib import CycleError, TopologicalSorter

from traces.errors import TraceError
from traces.rows import TraceRow
from traces.table import Table

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


def without_others(rows: Sequence[TraceRow], kept: Sequence[TraceRow]) -> Sequence[TraceRow]:
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
