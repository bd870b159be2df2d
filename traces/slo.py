"""Latency targets per service class, and the durations they are written in."""

import re
from dataclasses import dataclass, replace

from blis_sim.options import OptionError
from blis_sim.options.addition import sequential_sum

_UNITS_MS = {"ns": 1e-6, "us": 1e-3, "µs": 1e-3, "μs": 1e-3, "ms": 1.0, "s": 1e3, "m": 6e4, "h": 3.6e6}
_PART = re.compile(r"(\d+\.?\d*|\.\d+)(ns|us|µs|μs|ms|s|m|h)")


@dataclass(frozen=True, slots=True)
class SloTargets:
    """The latencies a request of a class should stay within, in milliseconds; 0 means no limit."""

    ttft_ms: float = 0.0
    itl_ms: float = 0.0
    e2e_ms: float = 0.0


def parse_duration_ms(text: str) -> float:
    """Milliseconds of a duration such as `100ms`, `1.5s` or `1m30s`. A bare number is a ValueError."""
    parts = _PART.findall(text)
    if not parts or "".join(number + unit for number, unit in parts) != text:
        raise ValueError(f"not a duration: {text!r}")
    return sequential_sum(float(number) * _UNITS_MS[unit] for number, unit in parts)


def slo_targets_from_flags(slo_ttft: str, slo_itl: str, slo_e2e: str) -> dict[str, SloTargets]:
    """Targets per class from the flags `--slo-ttft`, `--slo-itl` and `--slo-e2e`, empty when none is given.

    Each holds `class=duration[,class=duration]`. Raises OptionError.
    """
    targets: dict[str, SloTargets] = {}
    for name, text in (("ttft", slo_ttft), ("itl", slo_itl), ("e2e", slo_e2e)):
        for slo_class, limit_ms in _limits(f"--slo-{name}", text).items():
            known = targets.get(slo_class, SloTargets())
            targets[slo_class] = replace(known, **{f"{name}_ms": limit_ms})
    return dict(sorted(targets.items()))


def _limits(flag: str, text: str) -> dict[str, float]:
    limits: dict[str, float] = {}
    for pair in text.split(",") if text.strip() else []:
        slo_class, _, duration = (part.strip() for part in pair.partition("="))
        try:
            limit_ms = parse_duration_ms(duration)
        except ValueError:
            limit_ms = 0.0
        if not slo_class or limit_ms <= 0:
            raise OptionError(f"{flag} must be class=duration[,class=duration] such as default=100ms, got {pair!r}")
        if slo_class in limits:
            raise OptionError(f"{flag} names the class {slo_class!r} twice")
        limits[slo_class] = limit_ms
    return limits


def class_name(slo_class: str) -> str:
    """The class under which a request is reported and finds its targets: `default` without one."""
    return slo_class or "default"
