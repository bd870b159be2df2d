"""Several traces, or several workload specs, as one workload."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import TypeVar

from blis_sim.options.addition import sequential_sum
from traces.graph import renumbered
from traces.rows import TraceRow
from traces.slo import SloTargets
from traces.text_file import TraceError
from traces.trace_v2 import Trace, TraceHeader
from traces.workload.spec import Client, Cohort, Traffic, WorkloadSpec

T = TypeVar("T", Client, Cohort)


def merge_specs(named: Sequence[tuple[str, WorkloadSpec]]) -> tuple[WorkloadSpec, list[str]]:
    """One spec, and notes on what it could not take over. Raises TraceError for specs that do not go together."""
    for source, spec in named:
        if spec.scenario is not None:
            raise TraceError(f"{source}: has a section scenario, whose requests cannot be mixed with those of clients")
        if spec.vidur is not None:
            raise TraceError(f"{source}: has a section vidur, whose requests cannot be mixed with those of clients")
        if spec.inference_perf is not None:
            raise TraceError(f"{source}: has a section inference_perf, write it out with blis convert inference-perf")
    with_total = [source for source, spec in named if spec.aggregate_rate]
    without = [source for source, spec in named if not spec.aggregate_rate and _at_a_rate(spec)]
    if with_total and without:
        raise TraceError(
            f"{without[0]}: has rates in its windows and {with_total[0]} an aggregate_rate, expected one kind of them"
        )
    total = sequential_sum(spec.aggregate_rate for _, spec in named)
    notes = [*_notes(named)]
    result = WorkloadSpec(
        version="2",
        seed=named[0][1].seed,
        category=next((spec.category for _, spec in named if spec.category), ""),
        clients=tuple(_scaled(client, spec, total) for _, spec in named for client in spec.clients),
        cohorts=tuple(_scaled(cohort, spec, total) for _, spec in named for cohort in spec.cohorts),
        aggregate_rate=total,
        horizon=max(spec.horizon for _, spec in named) if all(spec.horizon for _, spec in named) else 0,
        num_requests=sum(spec.num_requests for _, spec in named) if all(spec.num_requests for _, spec in named) else 0,
        goodput_slo_targets=_common_targets((source, spec.goodput_slo_targets) for source, spec in named),
    )
    return result, notes


def _at_a_rate(spec: WorkloadSpec) -> list[Traffic]:
    return [*(client for client in spec.clients if not client.concurrency), *spec.cohorts]


def _scaled(traffic: T, spec: WorkloadSpec, total: float) -> T:
    """With its share of the sum of all rates; where all have rates of their own, as it is."""
    if not total or not traffic.rate_fraction:
        return traffic
    fractions = sequential_sum(each.rate_fraction for each in _at_a_rate(spec))
    return replace(traffic, rate_fraction=traffic.rate_fraction / fractions * (spec.aggregate_rate / total))


def _common_targets(named: Iterable[tuple[object, Mapping[str, SloTargets]]]) -> dict[str, SloTargets]:
    """Return the targets of files by class. Raises TraceError where two files differ about a class."""
    targets: dict[str, SloTargets] = {}
    for source, found in named:
        for slo_class, limits in found.items():
            if targets.setdefault(slo_class, limits) != limits:
                raise TraceError(f"{source} key goodput_slo_targets.{slo_class}: another file has other targets for it")
    return targets


def _notes(named: Sequence[tuple[str, WorkloadSpec]]) -> list[str]:
    notes = []
    for name in ("seed", "category"):
        values = dict.fromkeys(getattr(spec, name) for _, spec in named)
        if len(values) > 1:
            notes.append(f"of the {name}s {', '.join(map(str, values))} the first that is given is kept")
    notes += [
        f"{name} is left out, as not all files have it"
        for name in ("num_requests", "horizon")
        if len({bool(getattr(spec, name)) for _, spec in named}) > 1
    ]
    by_file = [{each.prefix_group for each in chain(spec.clients, spec.cohorts)} for _, spec in named]
    shared = sorted(group for group, count in Counter(chain(*by_file)).items() if group and count > 1)
    if shared:
        notes.append(f"prefix groups of one name in several files become one group: {', '.join(shared)}")
    if any(client.lifecycle is not None for _, spec in named for client in spec.clients):
        notes.append("clients with windows share the rate with those active at the same time, now of all files")
    return notes


def merge_traces(traces: Sequence[Trace]) -> tuple[TraceHeader, list[TraceRow], list[str]]:
    """Header and rows of one trace, and notes on what it could not take over. Raises TraceError.

    Each trace begins at 0. Sessions and prefix groups of one name in several traces stay separate: they get new names.
    What servers did with the requests is left out: no server has had all of them at once.
    """
    names = {field: _shared_names(traces, field) for field in ("session_id", "prefix_group")}
    rows: list[tuple[int, TraceRow]] = []
    for number, trace in enumerate(traces):
        start_us = min((row.arrival_time_us for row in trace.rows), default=0)
        rows += [(number, _shifted(row, number, start_us, names)) for row in trace.rows]
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
        goodput_slo_targets=_common_targets((trace.header_path, trace.header.goodput_slo_targets) for trace in traces),
    )
    return header, [renumbered(row, place, ids[number]) for place, (number, row) in enumerate(rows)], notes


def _shifted(row: TraceRow, number: int, start_us: int, names: Mapping[str, set[str]]) -> TraceRow:
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
        first_event_time_us=0,
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
