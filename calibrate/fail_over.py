"""Limits on the errors of a calibration, for builds that must fail when a prediction gets worse."""

from collections.abc import Mapping

from blis_sim.options import OptionError
from calibrate.compare import Comparison

METRICS = ("ttft", "e2e", "itl")
EXIT_CODE = 3


def parse_limits(text: str) -> dict[str, float]:
    """Limits on MAPE in percent, such as `ttft=15,e2e=5`, as fractions. Raises OptionError."""
    limits = {}
    for part in filter(None, (each.strip() for each in text.split(","))):
        name, _, value = part.partition("=")
        name = name.strip().lower()
        try:
            percent = float(value)
        except ValueError:
            percent = -1.0
        if name not in METRICS or not 0 <= percent < float("inf"):
            allowed = f"{', '.join(METRICS)} with a percentage, such as ttft=15,e2e=5"
            raise OptionError(f"--fail-over takes {allowed}; got {part!r}")
        if name in limits:
            raise OptionError(f"--fail-over names {name} twice")
        limits[name] = percent / 100
    return limits


def exceeded(metrics: Mapping[str, Comparison], limits: Mapping[str, float]) -> list[str]:
    """A line for each limit that the errors exceed. Raises OptionError for a limit on what was not compared."""
    lines = []
    for name, limit in limits.items():
        if name not in metrics:
            raise OptionError(
                f"--fail-over {name} has nothing to judge: no pair has a time between tokens on both sides"
            )
        if metrics[name].mape > limit:
            lines.append(f"{name.upper()} MAPE {metrics[name].mape:.1%} is over the limit of {limit:.1%}")
    return lines
