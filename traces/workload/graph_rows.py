"""The requests of a workload with agents as rows of a trace, which say what each request waits for and repeats."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from traces.rows import TraceRow
from traces.workload.agents import DrawnAgents, Link
from traces.workload.arrivals import Ints
from traces.workload.drawn import Drawn
from traces.workload.request import WorkloadRequest, row_of

AnyDrawn: TypeAlias = Drawn | DrawnAgents


@dataclass(frozen=True, slots=True)
class Chosen:
    """Requests of one source, by their places there, and how long each may take (0: forever)."""

    drawn: AnyDrawn
    places: Ints
    timeout_us: int


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows by arrival, numbered by their place, and the sessions whose rows are sent at their own times."""

    rows: list[TraceRow]
    fixed_sessions: frozenset[str]


def rows_of(chosen: Sequence[Chosen]) -> Rows:
    """The rows of these requests, with those that closed-loop sessions send later."""
    found: list[tuple[int, int, int, WorkloadRequest, Link]] = []
    for number, each in enumerate(chosen):
        places = each.drawn.sessions_begun(each.places) if each.drawn.is_closed_loop else each.places
        requests = each.drawn.requests(places, each.timeout_us)
        links = each.drawn.links(places.tolist())
        found += (
            (request.arrival_us, number, place, request, link)
            for place, request, link in zip(places.tolist(), requests, links, strict=True)
        )
    found.sort(key=lambda each: each[:3])
    ids = {(source, place): number for number, (_, source, place, _, _) in enumerate(found)}
    return Rows(
        rows=[_linked(row_of(each[3], number), each[1], each[4], ids) for number, each in enumerate(found)],
        fixed_sessions=frozenset(_fixed_sessions(chosen, found)),
    )


def _linked(row: TraceRow, source: int, link: Link, ids: dict[tuple[int, int], int]) -> TraceRow:
    context = None if link.context is None else ids[source, link.context]
    if not link.parents and context is None:
        return row
    return replace(
        row,
        parents=" ".join(str(ids[source, each]) for each in link.parents),
        context_of="" if context is None else str(context),
        context_tokens=link.context_tokens,
    )


def _fixed_sessions(
    chosen: Sequence[Chosen], found: Iterable[tuple[int, int, int, WorkloadRequest, Link]]
) -> Iterator[str]:
    for _, source, _, request, _ in found:
        if request.session_id and not chosen[source].drawn.is_closed_loop:
            yield request.session_id
