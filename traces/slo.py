"""Latency targets per service class."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from blis_sim.options import ExclusionError, OptionError
from blis_sim.options.durations import duration_ms, parse_duration_ms
from blis_sim.options.file_fields import Amount


@dataclass(frozen=True, slots=True)
class SloTargets:
    """The latencies a request of a class should stay within, in milliseconds; 0 means no limit."""

    ttft_ms: Amount = 0.0
    itl_ms: Amount = 0.0
    e2e_ms: Amount = 0.0


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


LIMITED = {"ttft": "ttft", "itl": "itl", "tpot": "itl", "e2e": "e2e", "e2el": "e2e"}
"""Names of latencies in --goodput, those of vLLM's benchmark included, to ours."""


def slo_targets(
    goodput: Sequence[str], slo_ttft: str = "", slo_itl: str = "", slo_e2e: str = ""
) -> dict[str, SloTargets]:
    """Targets per class from --goodput, or from the flags with a class of BLIS. Raises OptionError."""
    of_blis = slo_targets_from_flags(slo_ttft, slo_itl, slo_e2e)
    if goodput and of_blis:
        raise ExclusionError("--goodput", "--slo-ttft, --slo-itl or --slo-e2e", ": they mean the same")
    return goodput_targets(goodput) if goodput else of_blis


def goodput_targets(limits: Sequence[str]) -> dict[str, SloTargets]:
    """Targets per class from `[CLASS/]NAME:DURATION`, such as `ttft:1s` or `batch/e2e:30s`. Raises OptionError."""
    targets: dict[str, SloTargets] = {}
    for limit in limits:
        name, _, text = limit.strip().rpartition(":")
        slo_class, _, latency = name.rpartition("/")
        if latency not in LIMITED:
            raise OptionError(
                f"--goodput must be [CLASS/]NAME:DURATION with a name of ttft, itl, e2e, such as ttft:1s, got {limit!r}"
            )
        key = f"{LIMITED[latency]}_ms"
        known = targets.get(slo_class or "default", SloTargets())
        if getattr(known, key):
            raise OptionError(f"--goodput names {name} twice")
        targets[slo_class or "default"] = replace(known, **{key: duration_ms(f"--goodput {name}", text)})
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
