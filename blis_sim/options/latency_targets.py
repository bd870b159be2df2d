"""Targets for percentiles of latencies, in the spelling of all commands, and their verdicts."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from blis_sim.options.durations import duration_ms
from blis_sim.options.option import option

LATENCIES = ("ttft", "itl", "e2e")
PERCENTILES = ("p90", "p95", "p99")


def _target(latency: str, percentile: str) -> Any:
    text = f"Longest {latency} at the {percentile.removeprefix('p')}th percentile, such as 40ms or 1s."
    return option(None, text, metavar="DURATION", heading="Targets")


@dataclass(frozen=True, slots=True, kw_only=True)
class LatencyTargets:
    """Durations that percentiles of latencies may not exceed."""

    ttft_p90: str | None = _target("time to first token", "p90")
    ttft_p95: str | None = _target("time to first token", "p95")
    ttft_p99: str | None = _target("time to first token", "p99")
    itl_p90: str | None = _target("time between tokens", "p90")
    itl_p95: str | None = _target("time between tokens", "p95")
    itl_p99: str | None = _target("time between tokens", "p99")
    e2e_p90: str | None = _target("time of a request", "p90")
    e2e_p95: str | None = _target("time of a request", "p95")
    e2e_p99: str | None = _target("time of a request", "p99")

    @property
    def targets_ms(self) -> Mapping[str, float]:
        """The limits in milliseconds by the figure that they hold for, such as `ttft_p99_ms`. Raises OptionError."""
        return {
            f"{latency}_{percentile}_ms": duration_ms(f"--{latency}-{percentile}", text)
            for latency in LATENCIES
            for percentile in PERCENTILES
            if (text := getattr(self, f"{latency}_{percentile}")) is not None
        }


def figure_words(figure: str) -> str:
    """Return the name of a figure such as `ttft_p99_ms` in words, `TTFT p99`."""
    latency, percentile, _ = figure.split("_")
    return f"{latency.upper()} {percentile}"


class TargetCheck(NamedTuple):
    """A percentile of a latency beside its target."""

    name: str
    """The figure, such as `ttft_p99_ms`."""
    found_ms: float | None
    """None where no request was completed."""
    limit_ms: float

    @property
    def is_met(self) -> bool:
        """Whether the figure is within its target; an absent figure is not."""
        return self.found_ms is not None and self.found_ms <= self.limit_ms

    @property
    def line(self) -> str:
        """The verdict in words."""
        found = "none" if self.found_ms is None else _shown(self.found_ms)
        verdict = "met" if self.is_met else "MISSED"
        return f"{verdict}: {figure_words(self.name)} {found}, at most {_shown(self.limit_ms)} asked"


def _shown(value_ms: float) -> str:
    return f"{value_ms:,.1f} ms" if value_ms >= 1 or not value_ms else f"{value_ms:.3g} ms"


def checks_of(targets_ms: Mapping[str, float], figures: Mapping[str, Any] | None) -> list[TargetCheck]:
    """Return the figures beside their targets; `figures` is None where no request was completed."""
    known: Mapping[str, Any] = figures or {}
    return [TargetCheck(name, known.get(name), limit_ms) for name, limit_ms in targets_ms.items()]


def percentiles_ms(summary: Mapping[str, Any]) -> dict[str, float]:
    """The percentiles of a summary of `blis observe` that are known, by names such as `ttft_p99_ms`."""
    return {
        f"{latency}_{percentile}_ms": figures[percentile]
        for latency in LATENCIES
        if (figures := summary[f"{latency}_ms"]) is not None
        for percentile in PERCENTILES
    }


def checks_json(checks: Iterable[TargetCheck]) -> list[dict[str, Any]]:
    """Return verdicts ready for JSON."""
    return [{**each._asdict(), "is_met": each.is_met} for each in checks]


def checks_in(summary: Mapping[str, Any]) -> list[TargetCheck]:
    """Return the verdicts that a summary has as JSON; none without targets."""
    return [TargetCheck(each["name"], each["found_ms"], each["limit_ms"]) for each in summary.get("targets", ())]


def checks_columns(checks: Iterable[TargetCheck]) -> dict[str, Any]:
    """Return targets and verdicts as columns of a table."""
    known: dict[str, Any] = {}
    for each in checks:
        known |= {f"{each.name}_limit": each.limit_ms, f"{each.name}_is_met": each.is_met}
    return known
