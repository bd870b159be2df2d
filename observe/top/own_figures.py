"""The figures that a mock server has of its own observations: percentiles that no bucket makes coarse, and settings."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from observe.top.figures import ALL, Figures, Percentile


@dataclass(frozen=True, slots=True)
class OwnFigures:
    """A server's settings in words, and percentiles by engine, where `ALL` stands for all of them."""

    settings: str
    ttft: Mapping[str, Sequence[Percentile]] = field(default_factory=dict)
    itl: Mapping[str, Sequence[Percentile]] = field(default_factory=dict)


def read_own_figures(text: str) -> OwnFigures:
    """Read the reply to /dashboard/figures. Raises ValueError, KeyError or TypeError for anything else."""
    found = json.loads(text)
    server, figures = found["server"], found["figures"]
    ttft = {str(each["engine"]): _percentiles(each["ttft_ms"]) for each in figures["engines"]}
    itl = {str(each["engine"]): _percentiles(each["itl_ms"]) for each in figures["engines"]}
    now = figures["now"]
    if now:
        ttft[ALL] = _percentiles([now[f"ttft_{name}_ms"][0] for name in ("p50", "p90", "p99")])
        itl[ALL] = _percentiles([now[f"itl_{name}_ms"][0] for name in ("p50", "p90", "p99")])
    return OwnFigures(_settings(server, figures["errors_by_status"]), ttft, itl)


def _percentiles(values_ms: Sequence[float | None] | None) -> Sequence[Percentile]:
    return [Percentile(each / 1000) for each in values_ms or () if each is not None]


def _settings(server: Mapping[str, Any], errors: Mapping[str, int]) -> str:
    gpus = server["tp"] * server["dp"]
    faults = [*(f"{kind} {rate:.0%}" for kind, rate in server["faults"].items()), *server["engine_faults"]]
    parts = [
        f"{server['gpu'] or 'no GPU'}{f' x {gpus}' if gpus > 1 else ''}, tp {server['tp']}",
        "no speed limit" if server["speed"] is None else f"speed {server['speed']:g}x",
        f"faults {', '.join(faults) or 'none'}",
        errors_in_words(errors),
    ]
    return "; ".join(parts)


def errors_in_words(errors: Mapping[str, float]) -> str:
    """Return the number of replies for each status of error."""
    return f"errors {', '.join(f'{status}: {number:,.0f}' for status, number in errors.items()) or 'none'}"


def with_own(figures: Mapping[str, Figures], own: OwnFigures | None) -> Mapping[str, Figures]:
    """Return the figures with the server's own percentiles, where it has some."""
    if own is None:
        return figures
    return {
        name: replace(each, ttft=own.ttft.get(name, each.ttft), itl=own.itl.get(name, each.itl))
        for name, each in figures.items()
    }
