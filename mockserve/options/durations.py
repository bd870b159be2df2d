"""Durations with units, or as bare milliseconds."""

import re

from blis_sim.options import OptionError
from blis_sim.options.addition import added_up

_UNITS_MS = {"ns": 1e-6, "us": 1e-3, "µs": 1e-3, "ms": 1.0, "s": 1000.0, "m": 60_000.0, "h": 3_600_000.0}
_PART = re.compile(r"(\d+(?:\.\d*)?|\.\d+)(ns|us|µs|ms|s|m|h)")


def milliseconds(flag: str, text: str) -> float:
    """`text` such as 100, 100ms or 1m30s in milliseconds. Raises OptionError for anything else, and below 0."""
    try:
        bare = float(text)
    except ValueError:
        parts = _PART.findall(text)
        if not parts or "".join(map("".join, parts)) != text:
            raise OptionError(f"{flag} must be a duration, such as 100, 100ms or 1.5s, got {text!r}") from None
        return added_up(float(number) * _UNITS_MS[unit] for number, unit in parts)
    if not 0 <= bare < float("inf"):
        raise OptionError(f"{flag} must be at least 0, got {text!r}")
    return bare
