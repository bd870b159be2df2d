"""Durations as users write them: `40ms`, `1.5s`, `1m30s`."""

import math
import re

from blis_sim.options.addition import sequential_sum
from blis_sim.options.option import OptionError

_UNITS_MS = {"ns": 1e-6, "us": 1e-3, "µs": 1e-3, "μs": 1e-3, "ms": 1.0, "s": 1e3, "m": 6e4, "h": 3.6e6}
_PART = re.compile(r"(\d+\.?\d*|\.\d+)(ns|us|µs|μs|ms|s|m|h)")


def parse_duration_ms(text: str) -> float:
    """Milliseconds of a duration such as `100ms`, `1.5s` or `1m30s`. Raises ValueError for a bare number."""
    parts = _PART.findall(text)
    if not parts or "".join(number + unit for number, unit in parts) != text:
        raise ValueError(f"not a duration: {text!r}")
    found_ms = sequential_sum(float(number) * _UNITS_MS[unit] for number, unit in parts)
    if math.isinf(found_ms * 1e6):  # nor may its nanoseconds be infinite
        raise ValueError(f"too long a duration: {text[:60]!r}")
    return found_ms


def duration_ms(label: str, text: str) -> float:
    """Milliseconds above 0 of a duration such as `40ms` or `1s`. Raises OptionError."""
    try:
        limit_ms = parse_duration_ms(text)
    except ValueError:
        raise OptionError(f"{label} must be a duration such as 40ms or 1s, got {text!r}") from None
    if limit_ms <= 0:
        raise OptionError(f"{label} must be above 0, got {text!r}")
    return limit_ms
