"""The answer of a run: tables, a line for each remark on it, pictures, and the texts that BLIS prints."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from blis_sim.options.latency_targets import checks_columns
from blis_sim.options.printing import BLIS
from blis_sim.report.report import Report, Section, with_origin
from blis_sim.report.tables import TextTable, duration, flat, number
from replay.analysis.breakdown import ClassLatencies, ModelFigures, SessionFigures, jain_index
from replay.analysis.clusters import DecisionFigures, DisaggregationFigures, GatewayFigures, ScalingFigures
from replay.analysis.result import ClassAttainment, InstanceResult, Latency, RunResult
from replay.analysis.steady import Overload, SteadyState
from replay.output.findings import Findings, FinishedRun, as_json, judgements
from replay.simulation.record import Distribution
from traces import SloTargets, dump_json
from traces.load import load_text

if TYPE_CHECKING:
    from blis_sim.report.figures import Panel


# The printed summary of a run in BLIS's format: metrics as JSON, then sections of text.


def summary(found: Findings, summarizes_decisions: bool = False) -> str:
    """Return the whole summary, with a newline at the end. Empty sections are left out."""
    metrics = {**found.metrics, **judgements(found)}
    lines = []
    for figures in (*found.instances, metrics):
        lines += ["=== Simulation Metrics ===", dump_json(figures)]
    sections = {
        "Fitness Evaluation": _fitness_lines(found),
        "Anomaly Counters": _anomaly_counters(found),
        "Gateway Queue": _gateway_lines(found.routing_summary.gateway),
        "Autoscaler": _scaling_lines(found.routing_summary.scaling),
        "KV Cache Metrics": _kv_cache(found),
        "Per-SLO Metrics": _class_lines(found),
        "Per-Model Metrics": _model_lines(found),
        "Per-Tenant Metrics": _tenant_lines(found),
        "Session Metrics": _session_lines(found.sessions),
        "PD Metrics": _pool_lines(found.separated),
        "Trace Summary": _decision_lines(found.routing_summary.decisions if summarizes_decisions else None),
    }
    for title, section in sections.items():
        section_lines = list(section)
        if section_lines:
            lines += [f"=== {title} ===", *section_lines]
    return "\n".join(lines) + "\n"


def _fitness_lines(found: Findings) -> Iterator[str]:
    if found.fitness is not None:
        yield f"Score: {found.fitness.score:.6f}"
        for metric, score in found.fitness.components.items():
            yield f"  {metric}: {score:.6f}"


def _anomaly_counters(found: Findings) -> Iterator[str]:
    counters = {
        "Priority Inversions": found.num_priority_inversions,
        "HOL Blocking Events": found.num_blocked_lines,
        "Rejected Requests (Admission)": found.routing_summary.num_rejected_at_admission,
        **{f"  Shed ({name})": count for name, count in found.routing_summary.rejected_by_class.items()},
        "Rejected Requests (Routing)": found.routing_summary.num_rejected_at_routing,
        "Dropped Unservable": found.metrics["dropped_unservable"],
        "Timed Out Requests": found.metrics["timed_out_requests"],
        "Length-Capped Requests": found.metrics["length_capped_requests"],
    }
    if any(counters.values()):
        for name, count in counters.items():
            yield f"{name}: {count}"


def _gateway_lines(figures: GatewayFigures | None) -> Iterator[str]:
    """Return no lines while all requests have passed."""
    if figures is None:
        return
    counters = {
        "Still Waiting": figures.num_waiting,
        "Rejected": figures.num_rejected,
        "Shed": figures.num_shed,
        "Expired": figures.num_expired,
        "Evicted from Instances": figures.num_evicted,
    }
    if any(counters.values()):
        for name, count in {"Dispatched": figures.num_dispatched, **counters}.items():
            yield f"{name}: {count}"


def _scaling_lines(figures: ScalingFigures | None) -> Iterator[str]:
    if figures is not None:
        yield f"Instances Started: {figures.num_started}"
        yield f"Instances Drained: {figures.num_drained}"
        yield f"Instances Without Room: {figures.num_without_room}"


def _kv_cache(found: Findings) -> Iterator[str]:
    thrashing_rate = found.cpu_tier.thrashing_rate if found.cpu_tier else 0.0
    if found.preemption_rate or found.cache_hit_rate or thrashing_rate:
        yield f"Preemption Rate: {found.preemption_rate:.4f}"
        yield f"Cache Hit Rate: {found.cache_hit_rate:.4f}"
        yield f"KV Thrashing Rate: {thrashing_rate:.4f}"


def _class_lines(found: Findings) -> Iterator[str]:
    if len(found.classes) < 2 and found.goodput is None:
        return
    for name, latencies in found.classes.items():
        yield f"  {name}:"
        for label, each in (("TTFT:", latencies.ttft), ("ITL: ", latencies.itl), ("E2E: ", latencies.e2e)):
            yield f"    {label} mean={each.mean:.2f} p99={each.percentile(99):.2f} (n={len(each)})"


def _model_lines(found: Findings) -> Iterator[str]:
    for name, figures in found.models.items():
        yield f"  {name}:"
        for label, each in (("TTFT:", figures.ttft), ("E2E: ", figures.e2e)):
            yield f"    {label} p50={each.percentile(50):.2f} p99={each.percentile(99):.2f} (n={len(each)})"
        yield f"    Throughput: {figures.requests_per_s:.4f} req/s, {figures.tokens_per_s:.4f} tok/s"


def _tenant_lines(found: Findings) -> Iterator[str]:
    for name, figures in found.tenants.items():
        yield f"  {name}: requests={figures.num_requests}, tokens={figures.num_tokens}"
    if found.tenants:
        fairness = jain_index([figures.num_tokens for figures in found.tenants.values()])
        yield f"  Jain Fairness Index: {fairness:.4f}"


def _session_lines(figures: SessionFigures | None) -> Iterator[str]:
    if figures is None:
        return
    yield f"  Sessions: {figures.num_sessions}"
    for label, each in (
        ("TTFT cold (round 0):", figures.ttft_cold),
        ("TTFT warm (round≥1):", figures.ttft_warm),
        ("Session duration:   ", figures.duration),
    ):
        if len(each):
            yield f"  {label} {_spread_text(each)} ms (n={len(each)})"


def _decision_lines(figures: DecisionFigures | None) -> Iterator[str]:
    if figures is None:
        return
    yield f"Total Decisions: {figures.num_admitted + figures.num_rejected}"
    yield f"  Admitted: {figures.num_admitted}"
    yield f"  Rejected: {figures.num_rejected}"
    yield f"Unique Targets: {len(figures.num_by_instance)}"
    if figures.num_by_instance:
        yield "Target Distribution:"
        for name, count in figures.num_by_instance.items():
            yield f"  {name}: {count}"
    yield f"Mean Regret: {figures.mean_regret:.6f}"
    yield f"Max Regret: {figures.max_regret:.6f}"


def _pool_lines(figures: DisaggregationFigures | None) -> Iterator[str]:
    if figures is None:
        return
    yield f"Disaggregated Requests: {figures.num_separated}"
    yield "Dropped at Decode KV: 0"  # BLIS counts them among the unservable ones only
    yield f"Prefill Throughput: {figures.prompts_per_s:.4f} sub-req/s"
    yield f"Decode Throughput: {figures.answers_per_s:.4f} sub-req/s"
    yield f"Load Imbalance Ratio: {figures.imbalance:.4f}"
    for label, each in (("Parent TTFT", figures.ttft), ("KV Transfer Duration", figures.transfer)):
        percentiles = " ".join(f"p{percent}={each.percentile(percent):.1f}" for percent in (50, 95, 99))
        yield f"{label} (us): mean={each.mean:.1f} {percentiles}"


def _spread_text(each: Distribution) -> str:
    percentiles = " ".join(f"p{percent}={each.percentile(percent):.2f}" for percent in (50, 95, 99))
    return f"mean={each.mean:.2f} {percentiles}"


# The answer of a run: tables, a line for each remark on it, pictures, and the texts that BLIS prints.


def remarks(result: RunResult, found: Findings) -> Iterator[str]:
    """Yield the remarks on a run that stand beside its tables."""
    yield _counts_line(result)
    yield from _load_lines(result)
    if result.attainment is not None and result.meets_targets is not None:
        verdict = "met" if result.meets_targets else "MISSED"
        yield f"targets {verdict}: {result.attainment:.1%} within all, goodput {number(result.goodput_per_s or 0.0)}/s"
    yield from (check.line for check in found.checks)
    if result.preemptions or result.cache_hit_rate:
        yield f"KV cache: {number(result.preemptions)} preemptions, {result.cache_hit_rate:.1%} of prompt tokens found"
    if found.cpu_tier is not None and found.cpu_tier.thrashing_rate:
        yield f"CPU tier of the KV cache: {found.cpu_tier.thrashing_rate:.1%} of its blocks thrashed"
    yield from _anomaly_lines(found)
    if found.metrics.get("spec_decode_num_drafts"):
        num_drafts, num_tokens = found.metrics["spec_decode_num_drafts"], found.metrics["spec_decode_num_draft_tokens"]
        num_accepted = found.metrics["spec_decode_num_accepted_tokens"]
        yield (
            f"speculative decoding: {number(num_drafts)} drafts, {num_accepted / max(1, num_tokens):.1%} of "
            f"{number(num_tokens)} draft tokens accepted, {number(1 + num_accepted / num_drafts)} tokens a step"
        )
    if "requests_with_deadline" in found.metrics:
        missed, count = found.metrics["slo_violations"], found.metrics["requests_with_deadline"]
        yield f"deadlines: missed by {number(missed)} of {number(count)} requests"
    if found.separated is not None:
        num_prompts = found.separated.num_separated + found.separated.num_dropped
        yield (
            f"prefill/decode: {number(num_prompts)} of {number(result.requests.arrived)} prompts "
            "computed by prefill instances"
        )
    if found.tenants:
        fairness = jain_index([each.num_tokens for each in found.tenants.values()])
        yield f"fairness between tenants (Jain): {fairness:.3f}"
    if found.routing_summary.scaling is not None:
        scaling = found.routing_summary.scaling
        yield (
            f"autoscaler: {scaling.num_started} instances started, {scaling.num_drained} drained, "
            f"{scaling.num_without_room} without room; {scaling.num_nodes_bought} nodes bought, "
            f"{scaling.num_nodes_given_back} given back, {scaling.node_hours:.2f} node hours"
            + (f" for {scaling.cost:.2f}" if scaling.cost else "")
        )
    if found.fitness is not None:
        yield f"fitness: {found.fitness.score:.6f}"
    yield from (f"saturation by {detector}: {label}" for detector, label in found.labels.items())


def _anomaly_lines(found: Findings) -> Iterator[str]:
    """Yield a line for each anomaly of a run: rejections, the gateway's queue, the order of service."""
    routing_summary, gateway = found.routing_summary, found.routing_summary.gateway
    if routing_summary.rejected_by_class:
        yield f"rejected at admission: {_counts_text(routing_summary.rejected_by_class)}"
    if routing_summary.num_rejected_at_routing:
        yield f"rejected at routing: {number(routing_summary.num_rejected_at_routing)}"
    if gateway is not None:
        left = {
            "still waiting": gateway.num_waiting,
            "rejected": gateway.num_rejected,
            "shed": gateway.num_shed,
            "expired": gateway.num_expired,
            "evicted from instances": gateway.num_evicted,
        }
        if any(left.values()):
            yield f"gateway queue: {_counts_text({'dispatched': gateway.num_dispatched, **left})}"
    if found.num_priority_inversions:
        yield f"priority inversions: {number(found.num_priority_inversions)}"
    if found.num_blocked_lines:
        yield f"instances with a queue more than twice as long as the mean: {number(found.num_blocked_lines)}"


def _counts_text(members: Mapping[str, int]) -> str:
    """Return the counts that are not 0, each before its name."""
    return ", ".join(f"{number(count)} {name}" for name, count in members.items() if count)


def _counts_line(result: RunResult) -> str:
    counts = result.requests
    others = {
        "waiting": counts.waiting,
        "running": counts.running,
        "timed out": counts.timed_out,
        "refused": counts.dropped,
        "rejected": counts.rejected,
        "failed with their instance": counts.failed,
        "evicted": counts.evicted,
        "not at an instance yet": counts.on_the_way,
    }
    rest = [f"{number(count)} {name}" for name, count in others.items() if count]
    capped = f", {number(counts.length_capped)} of them cut at the context's end" if counts.length_capped else ""
    return ", ".join(
        [f"requests: {number(counts.arrived)} arrived", f"{number(counts.completed)} completed", *rest]
    ) + (capped)


def _load_lines(result: RunResult) -> Iterator[str]:
    """Yield the load, and whether it is too much or too short to judge by."""
    yield load_text(result.load)
    if result.overload is not None:
        yield overload_text(result.overload)
    elif result.is_steady is False:
        yield _too_short_text(result)


def _too_short_text(result: RunResult) -> str:
    enough = result.num_requests_enough
    advice = "" if enough is None else f", {enough:,} requests would be enough"
    return f"too short for a steady state: the figures depend on the length of the run{advice}"


def overload_text(overload: Overload) -> str:
    """Return the line about an offered load above the served load."""
    return (
        f"overloaded: served {overload.served_per_s:.3g} of {overload.offered_per_s:.3g} requests/s, "
        f"the queue grows by {overload.queue_growth_per_min:,.0f}/min"
    )


_LATENCIES = {
    "TTFT": "ttft",
    "ITL": "itl",
    "mean ITL per request": "mean_itl_per_request",
    "E2E": "e2e",
    "scheduling delay": "scheduling_delay",
}
_FIGURES = ("mean", "p50", "p90", "p95", "p99")
_US_PER_MS = 1000
_OPTIONAL = {"steady": SteadyState.__dataclass_fields__, "overload": Overload.__dataclass_fields__}
"""Figures of a result that may be absent."""


def run_report(
    outcome: FinishedRun, found: Findings, result: Callable[[], RunResult], summarizes: bool = False
) -> Report:
    """Return the answer of a run. `summarizes` adds a summary of the decisions of a cluster."""

    def in_full() -> str:
        metrics = as_json(found)
        return (
            dump_json(with_origin({"result": _plain_result(result()), "metrics": metrics}, outcome.describe())) + "\n"
        )

    def csv_rows() -> Iterator[dict[str, object]]:
        whole = result()
        known = {name: value for name, value in asdict(outcome.describe()).items() if name != "inputs"}
        yield {**flat_result("cluster", whole), **checks_columns(found.checks), **known}
        yield from ({**flat_result(each.name, each), **known} for each in whole.instances)

    def panels() -> "Sequence[Panel]":
        from replay.output.figures import panels_of

        return panels_of((outcome.runs or (outcome.simulated,))[0], outcome.analysis_config.targets)

    return Report(
        title="Run of",
        origin=outcome.describe,
        data=lambda: as_json(found),
        headline=outcome.title,
        sections=lambda: [*sections(result()), *breakdowns(found, summarizes)],
        remarks=lambda: remarks(result(), found),
        rows=csv_rows,
        panels=panels,
        texts={"report": in_full, BLIS: lambda: summary(found, summarizes)},
    )


def _plain_result(result: RunResult) -> dict[str, object]:
    """Return a result as JSON has it, with the judgement of each verdict."""
    figures = asdict(result)
    verdicts = [{**asdict(each), "is_met": each.is_met} for each in result.verdicts]
    return {**figures, "verdicts": verdicts, "meets_targets": result.meets_targets}


def flat_result(name: str, figures: RunResult | InstanceResult) -> dict[str, Any]:
    """Return the figures of a run, or of one of its instances, as a row: names of nested ones are joined."""
    known = {key: each for key, each in asdict(figures).items() if key not in ("name", "verdicts", "instances")}
    known |= {key: known[key] or dict.fromkeys(fields_of) for key, fields_of in _OPTIONAL.items() if key in known}
    return flat({"instance": name, **known.pop("requests", {}), **known})


def sections(result: RunResult) -> Iterator[Section]:
    """Yield the tables of a result."""
    yield Section(table=_rate_table(result))
    yield Section(table=_latency_table({label: getattr(result, name) for label, name in _LATENCIES.items()}))
    if result.verdicts:
        yield Section(table=_target_table(result.verdicts))
    if result.instances:
        yield Section(table=_instance_table(result.instances))
    if result.custom_metrics:
        rows = [[name, number(value)] for name, value in result.custom_metrics.items()]
        yield Section(table=TextTable(("custom metric", "value"), rows))


def _rate_table(result: RunResult) -> TextTable:
    steady, duration_s = result.steady, result.duration_s
    whole = [
        number(result.offered_per_s),
        number(result.requests_per_s),
        number(result.output_tokens_per_s),
    ]
    rows = [[f"whole run, {duration_s:,.1f} s", *whole]]
    if steady is not None:
        figures = (steady.offered_per_s, steady.requests_per_s, steady.output_tokens_per_s)
        span = f"{steady.start_s:,.1f} to {steady.end_s:,.1f} s"
        label = "steady state" if result.is_steady else "after the warm-up"
        rows.append([f"{label}, {span}", *(number(each) for each in figures)])
    return TextTable(("rates", "arrived/s", "completed/s", "output tokens/s"), rows)


def _latency_table(latencies: Mapping[str, Latency]) -> TextTable:
    rows = [
        [
            label,
            *(number(getattr(each, f"{figure}_ms")) if each.count else "-" for figure in _FIGURES),
            number(each.count),
        ]
        for label, each in latencies.items()
    ]
    return TextTable(("latency, ms", *_FIGURES, "samples"), rows)


def _target_table(verdicts: Sequence[ClassAttainment]) -> TextTable:
    rows = []
    for each in verdicts:
        shares = ", ".join(f"{name.upper()} {share:.1%}" for name, share in each.attainment_by_target.items())
        verdict = (
            "no requests"
            if not each.count
            else "met"
            if each.is_met
            else f"MISSED, {100 * each.least_attainment:.4g}% needed"
        )
        rows.append(
            [each.slo_class, targets_text(each.targets), shares, number(each.count), f"{each.attainment:.1%}", verdict]
        )
    return TextTable(("class", "targets", "within each", "requests", "within all", "verdict"), rows, num_left_aligned=3)


def targets_text(targets: SloTargets) -> str:
    """Return targets in words, such as `TTFT 100 ms, E2E 5 s`."""
    limits = {"TTFT": targets.ttft_ms, "mean ITL per request": targets.itl_ms, "E2E": targets.e2e_ms}
    return ", ".join(f"{name} {duration(limit_ms)}" for name, limit_ms in limits.items() if limit_ms)


def _instance_table(instances: Sequence[InstanceResult]) -> TextTable:
    has_roles = any(each.role for each in instances)
    titles = (
        *("instance", *(["role"] if has_roles else [])),
        *("completed", "left", "tokens/s", "busy", "TTFT p50 ms", "TTFT p99 ms", "ITL p50 ms", "ITL p99 ms"),
        *("E2E p99 ms", "preempted", "cache hits"),
    )
    rows = [
        [
            *(each.name, *([each.role or "any"] if has_roles else [])),
            *(number(each.completed), number(each.waiting + each.running), number(each.output_tokens_per_s, 1)),
            f"{each.busy_fraction:.0%}",
            *(_figure_cell(each.ttft, "p50_ms"), _figure_cell(each.ttft, "p99_ms"), _figure_cell(each.itl, "p50_ms")),
            *(_figure_cell(each.itl, "p99_ms"), _figure_cell(each.e2e, "p99_ms")),
            *(number(each.preemptions), f"{each.cache_hit_rate:.0%}"),
        ]
        for each in instances
    ]
    num_labels = 2 if has_roles else 1
    return TextTable(titles, rows, num_labels, num_labels)


def _figure_cell(each: Latency, figure: str) -> str:
    return number(getattr(each, figure), 1) if each.count else "-"


def breakdowns(found: Findings, summarizes_decisions: bool = False) -> Iterator[Section]:
    """Yield the figures by class, model and tenant where there are several, and those of conversations and transfers.

    Routing decisions follow where they are to be summarized.
    """
    groups: dict[str, Mapping[str, ClassLatencies | ModelFigures]] = {"class": {**found.classes}}
    if len(found.classes) < 2 and found.goodput is None:
        groups = {}
    for what, members in {**groups, "model": found.models}.items():
        rows = [[name, *_latency_cells(each)] for name, each in members.items()]
        if rows:
            itl = ("ITL mean", "ITL p50", "ITL p99") if what == "class" else ()
            titles = (what, "TTFT mean", "TTFT p50", "TTFT p99", *itl, "E2E mean", "E2E p50", "E2E p99")
            yield Section(f"by {what}, latencies in ms", TextTable(titles, rows))
    if found.tenants:
        rows = [[name, number(each.num_requests), number(each.num_tokens)] for name, each in found.tenants.items()]
        yield Section("by tenant", TextTable(("tenant", "completed", "output tokens"), rows))
    spreads: dict[str, list[str]] = {}
    if found.sessions is not None:
        spreads |= {
            "TTFT of first rounds": _spread_cells(found.sessions.ttft_cold),
            "TTFT of later rounds": _spread_cells(found.sessions.ttft_warm),
            f"duration of {found.sessions.num_sessions:,} conversations": _spread_cells(found.sessions.duration),
        }
    if found.separated is not None:
        spreads["TTFT of separated prompts"] = _spread_cells(found.separated.ttft, _US_PER_MS)
        spreads["transfer of KV blocks"] = _spread_cells(found.separated.transfer, _US_PER_MS)
    if spreads:
        rows = [[label, *figures] for label, figures in spreads.items()]
        yield Section("conversations and transfers", TextTable(("ms", "mean", "p50", "p99"), rows))
    if summarizes_decisions and found.routing_summary.decisions is not None:
        yield _decision_section(found.routing_summary.decisions)


def _latency_cells(each: ClassLatencies | ModelFigures) -> list[str]:
    itl = _spread_cells(each.itl, _US_PER_MS) if isinstance(each, ClassLatencies) else []
    return [*_spread_cells(each.ttft, _US_PER_MS), *itl, *_spread_cells(each.e2e, _US_PER_MS)]


def _decision_section(figures: DecisionFigures) -> Section:
    """Return how many requests were sent to each instance, below a line about admission and regret."""
    heading = (
        f"decisions: {number(figures.num_admitted)} admitted, {number(figures.num_rejected)} rejected, "
        f"regret {figures.mean_regret:.6f} on average, {figures.max_regret:.6f} at most"
    )
    rows = [[name, number(count)] for name, count in figures.num_by_instance.items()]
    return Section(heading, TextTable(("instance", "requests"), rows))


def _spread_cells(each: Distribution, units_per_ms: int = 1) -> list[str]:
    figures = (each.mean, each.percentile(50), each.percentile(99))
    return [number(value / units_per_ms) for value in figures]
