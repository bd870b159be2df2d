"""How many requests of a run met the targets of their class, under the names that simulations have for it."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from observe.figures.distribution import distribution_ms
from observe.figures.request_log import RequestLog
from traces import SloTargets
from traces.goodput import goodput_of, members_of


def goodput_summary(log: RequestLog, targets: Mapping[str, SloTargets], duration_s: float) -> dict[str, Any]:
    """Goodput over all classes with targets and for each of them, ready for JSON; empty without targets.

    A request that failed met no target. A limit for ITL leaves requests alone that have none: those with one token, or
    that were not streamed.
    """
    if not targets:
        return {}
    latencies = log.latencies
    values_us = {name: column / 1000 for name, column in latencies.items()}
    is_answered = ~np.isnan(latencies["e2e"])
    found = goodput_of(values_us, log.slo_classes, is_answered, targets, duration_s)
    per_class = {}
    for name, each in found.classes.items():
        members = members_of(name, log.slo_classes)
        per_class[name] = {
            "count": each.count,
            "goodput_rps": round(each.attained.per_s, 6),
            "slo_attainment": round(each.attained.share, 6),
            "slo_attainment_by_dim": {limit: round(met, 6) for limit, met in each.attained.by_limit.items()},
            **{f"{kind}_ms": distribution_ms(column[members]) for kind, column in latencies.items()},
        }
    return {"goodput_rps": round(found.per_s, 6), "slo_attainment": round(found.share, 6), "per_class": per_class}


def goodput_lines(summary: Mapping[str, Any]) -> list[str]:
    """The same for people: a line for all, and one for each class."""
    if "goodput_rps" not in summary:
        return []
    lines = [f"goodput {summary['goodput_rps']:.2f} requests/s, {summary['slo_attainment']:.1%} of all"]
    for name, each in summary["per_class"].items():
        limits = "".join(f", {limit.upper()} {met:.1%}" for limit, met in each["slo_attainment_by_dim"].items())
        lines.append(f"  {name}: {each['slo_attainment']:.1%} of {each['count']}{limits}")
    return lines
