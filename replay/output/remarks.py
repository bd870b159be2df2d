"""Remarks on a run, a line each: what has become of its requests, overload, verdicts, and trouble it had."""

from collections.abc import Iterator, Mapping

from blis_sim.options.text_table import number
from replay.analysis.breakdown import jain_index
from replay.analysis.result import RunResult
from replay.analysis.steady import Overload
from replay.output.findings import Findings
from replay.output.metrics import JsonObject


def remarks(result: RunResult, found: Findings) -> Iterator[str]:
    """Yield what is to be said of a run beside its tables."""
    yield _counts_line(result)
    if result.overload is not None:
        yield overload_text(result.overload)
    if result.attainment is not None and result.meets_targets is not None:
        verdict = "met" if result.meets_targets else "MISSED"
        yield f"targets {verdict}: {result.attainment:.1%} within all, goodput {number(result.goodput_per_s or 0.0)}/s"
    if result.preemptions or result.cache_hit_rate:
        yield f"KV cache: {number(result.preemptions)} preemptions, {result.cache_hit_rate:.1%} of prompt tokens found"
    if found.cpu_tier is not None and found.cpu_tier.thrashing_rate:
        yield f"CPU tier of the KV cache: {found.cpu_tier.thrashing_rate:.1%} of its blocks thrashed"
    yield from _anomalies(found)
    yield from _speculation(found.metrics)
    if "requests_with_deadline" in found.metrics:
        missed, count = found.metrics["slo_violations"], found.metrics["requests_with_deadline"]
        yield f"deadlines: missed by {number(missed)} of {number(count)} requests"
    if found.separated is not None:
        yield (
            f"prefill/decode: {number(found.separated.num_separated)} of {number(result.requests.arrived)} prompts "
            "computed by prefill instances"
        )
    if found.tenants:
        fairness = jain_index([each.num_tokens for each in found.tenants.values()])
        yield f"fairness between tenants (Jain): {fairness:.3f}"
    if found.door.scaling is not None:
        scaling = found.door.scaling
        yield (
            f"autoscaler: {scaling.num_started} instances started, {scaling.num_drained} drained, "
            f"{scaling.num_without_room} without room"
        )
    if found.fitness is not None:
        yield f"fitness: {found.fitness.score:.6f}"
    yield from (f"saturation by {detector}: {label}" for detector, label in found.labels.items())


def _anomalies(found: Findings) -> Iterator[str]:
    """Yield a line for each kind of trouble that a run had: at the door, in the gateway, in the order of service."""
    door, gateway = found.door, found.door.gateway
    if door.rejected_by_class:
        yield f"rejected at admission: {_counts(door.rejected_by_class)}"
    if door.num_rejected_at_routing:
        yield f"rejected at routing: {number(door.num_rejected_at_routing)}"
    if gateway is not None:
        left = {
            "still waiting": gateway.num_waiting,
            "rejected": gateway.num_rejected,
            "shed": gateway.num_shed,
            "expired": gateway.num_expired,
            "evicted from instances": gateway.num_evicted,
        }
        if any(left.values()):
            yield f"gateway queue: {_counts({'dispatched': gateway.num_dispatched, **left})}"
    if found.num_priority_inversions:
        yield f"priority inversions: {number(found.num_priority_inversions)}"
    if found.num_blocked_lines:
        yield f"instances with a queue more than twice as long as the mean: {number(found.num_blocked_lines)}"


def _speculation(metrics: JsonObject) -> Iterator[str]:
    """Yield a line about drafts and how many of their tokens held, where the run had any."""
    if metrics.get("spec_decode_num_drafts"):
        num_drafts, num_tokens = metrics["spec_decode_num_drafts"], metrics["spec_decode_num_draft_tokens"]
        num_accepted = metrics["spec_decode_num_accepted_tokens"]
        yield (
            f"speculative decoding: {number(num_drafts)} drafts, {num_accepted / max(1, num_tokens):.1%} of "
            f"{number(num_tokens)} draft tokens accepted, {number(1 + num_accepted / num_drafts)} tokens a step"
        )


def _counts(members: Mapping[str, int]) -> str:
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
    }
    rest = [f"{number(count)} {name}" for name, count in others.items() if count]
    capped = f", {number(counts.length_capped)} of them cut at the context's end" if counts.length_capped else ""
    return ", ".join(
        [f"requests: {number(counts.arrived)} arrived", f"{number(counts.completed)} completed", *rest]
    ) + (capped)


def overload_text(overload: Overload) -> str:
    """Return the line about a load that is beyond what is served."""
    return (
        f"overloaded: served {overload.served_per_s:.3g} of {overload.offered_per_s:.3g} requests/s, "
        f"the queue grows by {overload.queue_growth_per_min:,.0f}/min"
    )
