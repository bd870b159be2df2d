"""The printed summary of a run in BLIS's format: metrics as JSON, then sections of text."""

from collections.abc import Iterator

from replay.analysis.breakdown import SessionFigures, jain_index
from replay.analysis.clusters import DecisionFigures, DisaggregationFigures, GatewayFigures, ScalingFigures
from replay.output.findings import Findings, judgements
from replay.simulation.record import Distribution
from traces import dump_json


def summary(found: Findings, summarizes_decisions: bool = False) -> str:
    """Return the whole summary, with a newline at the end. Empty sections are left out."""
    metrics = {**found.metrics, **judgements(found)}
    lines = []
    for figures in (*found.instances, metrics):
        lines += ["=== Simulation Metrics ===", dump_json(figures)]
    sections = {
        "Fitness Evaluation": _fitness_lines(found),
        "Anomaly Counters": _anomaly_lines(found),
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


def _anomaly_lines(found: Findings) -> Iterator[str]:
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
