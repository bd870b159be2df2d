"""The breakdowns of a run as JSON, in milliseconds throughout."""

from replay.analysis.breakdown import jain_index
from replay.analysis.clusters import Door, SeparatedFigures
from replay.analysis.distribution import Distribution
from replay.output.findings import Findings
from replay.output.metrics import JsonObject, judgements

_US_PER_MS = 1000


def as_json(found: Findings) -> JsonObject:
    """The metrics, their judgement, and `breakdown` with the content of all text sections."""
    return {**found.metrics, **judgements(found.labels, found.goodput), "breakdown": _breakdown(found)}


def _breakdown(found: Findings) -> JsonObject:
    content: JsonObject = {
        "cache_hit_rate": found.cache_hit_rate,
        "preemption_rate": found.preemption_rate,
        "priority_inversions": found.num_priority_inversions,
        "slo_classes": {
            name: {
                "ttft_ms": _figures(each.ttft, _US_PER_MS),
                "itl_ms": _figures(each.itl, _US_PER_MS),
                "e2e_ms": _figures(each.e2e, _US_PER_MS),
            }
            for name, each in found.classes.items()
        },
        "models": {
            name: {
                "ttft_ms": _figures(each.ttft, _US_PER_MS),
                "e2e_ms": _figures(each.e2e, _US_PER_MS),
                "responses_per_sec": each.requests_per_s,
                "tokens_per_sec": each.tokens_per_s,
            }
            for name, each in found.models.items()
        },
        "tenants": {
            name: {"completed_requests": each.num_requests, "output_tokens": each.num_tokens}
            for name, each in found.tenants.items()
        },
    }
    if found.cpu_tier is not None:
        content["kv_cpu_tier"] = {
            "blocks_stored": found.cpu_tier.num_stored,
            "blocks_evicted": found.cpu_tier.num_evicted,
            "blocks_brought_back": found.cpu_tier.num_fetched,
            "blocks_thrashed": found.cpu_tier.num_thrashed,
            "thrashing_rate": found.cpu_tier.thrashing_rate,
        }
    if found.tenants:
        content["jain_fairness_index"] = jain_index([each.num_tokens for each in found.tenants.values()])
    if found.sessions is not None:
        content["sessions"] = {
            "count": found.sessions.num_sessions,
            "ttft_cold_ms": _figures(found.sessions.ttft_cold),
            "ttft_warm_ms": _figures(found.sessions.ttft_warm),
            "duration_ms": _figures(found.sessions.duration),
        }
    if found.instances:
        content["instances"] = list(found.instances)
        content["hol_blocking_events"] = found.num_blocked_lines
    content |= _door(found.door)
    if found.separated is not None:
        content["pd"] = _separated(found.separated)
    if found.fitness is not None:
        content["fitness"] = {"score": found.fitness.score, **found.fitness.components}
    return content


def _door(door: Door) -> JsonObject:
    content: JsonObject = {}
    if door.num_rejected_at_admission or door.num_rejected_at_routing:
        content["rejected_at_admission"] = door.num_rejected_at_admission
        content["rejected_at_admission_by_class"] = dict(door.rejected_by_class)
        content["rejected_at_routing"] = door.num_rejected_at_routing
    if door.gateway is not None:
        content["gateway"] = {
            "dispatched": door.gateway.num_dispatched,
            "still_waiting": door.gateway.num_waiting,
            "rejected": door.gateway.num_rejected,
            "shed": door.gateway.num_shed,
            "expired": door.gateway.num_expired,
            "evicted": door.gateway.num_evicted,
        }
    if door.scaling is not None:
        content["autoscaler"] = {
            "started": door.scaling.num_started,
            "drained": door.scaling.num_drained,
            "without_room": door.scaling.num_without_room,
        }
    if door.decisions is not None:
        content["decisions"] = {
            "admitted": door.decisions.num_admitted,
            "rejected": door.decisions.num_rejected,
            "routed": dict(door.decisions.num_by_instance),
            "mean_regret": door.decisions.mean_regret,
            "max_regret": door.decisions.max_regret,
        }
    return content


def _separated(separated: SeparatedFigures) -> JsonObject:
    return {
        "disaggregated_requests": separated.num_separated,
        "dropped_at_decode": separated.num_dropped,
        "prefill_per_sec": separated.prompts_per_s,
        "decode_per_sec": separated.answers_per_s,
        "load_imbalance": separated.imbalance,
        "ttft_ms": _figures(separated.ttft, _US_PER_MS),
        "transfer_ms": _figures(separated.transfer, _US_PER_MS),
    }


def _figures(each: Distribution, units_per_ms: int = 1) -> JsonObject:
    figures = {"mean": each.mean, **{f"p{percent}": each.percentile(percent) for percent in (50, 95, 99)}}
    return {"count": len(each), **{name: value / units_per_ms for name, value in figures.items()}}
