"""The result of an importer, and how rows from elsewhere become a trace."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from traces.graph import renumbered
from traces.header import TraceHeader
from traces.rows import TraceRow

if TYPE_CHECKING:
    from traces.importers.settings import ConvertOptions
    from traces.workload import WorkloadSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Imported:
    """A workload spec, or a header with rows and perhaps chunk times per request (Unix microseconds).

    `left_out` counts what has no place in the result, by reason; `notes` name what else is not as it was.
    """

    spec: "WorkloadSpec | None" = None
    header: TraceHeader = field(default_factory=TraceHeader)
    rows: Sequence[TraceRow] = ()
    chunks: Mapping[int, Sequence[int]] = field(default_factory=dict)
    left_out: Mapping[str, int] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


def in_order(rows: Iterable[TraceRow]) -> list[TraceRow]:
    """The rows by arrival, the first at 0, numbered from 0."""
    by_arrival = sorted(rows, key=lambda row: row.arrival_time_us)
    start_us = by_arrival[0].arrival_time_us if by_arrival else 0
    ids = {row.request_id: number for number, row in enumerate(by_arrival)}
    return [
        replace(renumbered(row, number, ids), arrival_time_us=row.arrival_time_us - start_us)
        for number, row in enumerate(by_arrival)
    ]


def recording(
    options: "ConvertOptions",
    requests: Iterable[tuple[TraceRow, Sequence[int]]],
    notes: tuple[str, ...] = (),
    **left_out: int,
) -> Imported:
    """A recording of requests with their chunk times, in order of arrival; a time of arrival of 0 is that of sending.

    `left_out` counts by reason, with `_` for a blank. At most --num-requests are taken.
    """
    found = [(replace(row, arrival_time_us=row.arrival_time_us or row.send_time_us), times) for row, times in requests]
    found.sort(key=lambda each: each[0].arrival_time_us)
    kept = found[: options.num_requests]
    start_us = kept[0][0].arrival_time_us if kept else 0
    counts = {reason.replace("_", " "): count for reason, count in left_out.items()}
    return Imported(
        header=TraceHeader(time_unit="us", mode="real", workload_spec=options.path.name),
        rows=[
            replace(row, request_id=number, arrival_time_us=row.arrival_time_us - start_us)
            for number, (row, _) in enumerate(kept)
        ],
        chunks={number: times for number, (_, times) in enumerate(kept) if times},
        left_out={**counts, "requests beyond --num-requests": len(found) - len(kept)},
        notes=notes,
    )


def workload_header(source: str) -> TraceHeader:
    """Return the header of rows without recorded replies."""
    return TraceHeader(mode="generated", workload_spec=source)
