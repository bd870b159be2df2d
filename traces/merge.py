"""Several traces as one workload: all requests at their own times, from a common start."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import chain

from traces.errors import TraceError
from traces.graph import renumbered
from traces.header import TraceHeader
from traces.rows import TraceRow
from traces.slo import SloTargets
from traces.trace_v2 import Trace


def merged(traces: Sequence[Trace]) -> tuple[TraceHeader, list[TraceRow], list[str]]:
    """Header and rows of one trace, and notes on what it could not take over. Raises TraceError.

    Each trace begins at 0. Sessions and prefix groups of one name in several traces stay separate: they get new names.
    What servers did with the requests is left out: no server has had all of them at once.
    """
    names = {field: _shared_names(traces, field) for field in ("session_id", "prefix_group")}
    rows: list[tuple[int, TraceRow]] = []
    for number, trace in enumerate(traces):
        start_us = min((row.arrival_time_us for row in trace.rows), default=0)
        rows += [(number, _moved(row, number, start_us, names)) for row in trace.rows]
    rows.sort(key=lambda each: each[1].arrival_time_us)
    ids: list[dict[int, int]] = [{} for _ in traces]
    for place, (number, row) in enumerate(rows):
        ids[number][row.request_id] = place
    notes = [
        f"{field} of one name in several traces are kept apart: {len(found)}" for field, found in names.items() if found
    ]
    num_measured = sum(bool(row.send_time_us) for trace in traces for row in trace.rows)
    if num_measured:
        notes.append(
            f"send times, answers and errors of {num_measured} requests are left out, the result is a workload"
        )
    growth = {trace.header.session_context_growth for trace in traces}
    if len(growth) > 1:
        raise TraceError(f"{traces[0].header_path}: session_context_growth is not the same in all traces")
    header = TraceHeader(
        mode="generated",
        workload_spec=" + ".join(str(trace.header_path) for trace in traces),
        session_context_growth=growth.pop(),
        goodput_slo_targets=_targets(traces),
    )
    return header, [renumbered(row, place, ids[number]) for place, (number, row) in enumerate(rows)], notes


def _moved(row: TraceRow, number: int, start_us: int, names: Mapping[str, set[str]]) -> TraceRow:
    def own(field: str) -> str:
        name: str = getattr(row, field)
        return f"{number}-{name}" if name in names[field] else name

    return replace(
        row,
        session_id=own("session_id"),
        prefix_group=own("prefix_group"),
        deadline_us=row.deadline_us - start_us if row.deadline_us else 0,
        arrival_time_us=row.arrival_time_us - start_us,
        send_time_us=0,
        first_chunk_time_us=0,
        last_chunk_time_us=0,
        num_chunks=0,
        status="",
        error_message="",
        finish_reason="",
        x_request_id="",
    )


def _shared_names(traces: Sequence[Trace], field: str) -> set[str]:
    by_trace = [{getattr(row, field) for row in trace.rows} for trace in traces]
    return {name for name, count in Counter(chain(*by_trace)).items() if name and count > 1}


def _targets(traces: Sequence[Trace]) -> dict[str, SloTargets]:
    targets: dict[str, SloTargets] = {}
    for trace in traces:
        for slo_class, limits in trace.header.goodput_slo_targets.items():
            if targets.setdefault(slo_class, limits) != limits:
                raise TraceError(f"{trace.header_path}: another trace has other goodput targets for {slo_class}")
    return targets
