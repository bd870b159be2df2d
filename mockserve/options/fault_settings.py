"""How often replies go wrong, and the figures of each kind of fault. All times are real seconds."""

import math
import typing
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

from blis_sim.options import OptionError
from mockserve.options.fault_kinds import REPLY_FAULTS

LONGEST_S = 1e9
"""No fault lasts longer, in seconds: it is 31 years, and a server's timers can still tell it."""
LARGEST_FACTOR = 1e6
"""A step of a second takes 11 days then. A larger factor leads beyond the last instant that an engine can count."""
BOUNDS: Mapping[str, tuple[float, float]] = {
    "retry_after_s": (0, LONGEST_S),
    "first_token_delay_s": (0, LONGEST_S),
    "stall_s": (0, LONGEST_S),
    "after_events": (0, 1e9),
    "trickle_pause_s": (0, LONGEST_S),
    "trickle_bytes": (1, 1e9),
    "rank": (-1, 1e9),
    "slow_factor": (1, LARGEST_FACTOR),
}
"""Least and largest value of each setting."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultSettings:
    """Raises OptionError for values out of bounds; `rates` are fractions of requests, together at most 1."""

    rates: Mapping[str, float] = field(default_factory=dict)
    retry_after_s: int = 1
    """What Retry-After says."""
    first_token_delay_s: float = 5.0
    stall_s: float = 30.0
    after_events: int = 3
    """Events of a stream that come before it stalls, breaks off or is garbled; a reply that is no stream has none."""
    trickle_pause_s: float = 0.02
    trickle_bytes: int = 16
    slow_factor: float = 4.0
    """How many times as long the steps of a slow engine take."""
    rank: int = -1
    """The data-parallel rank that engine faults hit; -1 is all. Death takes all, as it does in vLLM."""
    kv_fraction: float = 0.9
    """Share of the free KV blocks that exhaustion takes away."""

    def __post_init__(self) -> None:
        for kind, rate in self.rates.items():
            if kind not in REPLY_FAULTS:
                raise OptionError(f"unknown fault {kind!r}, known are {', '.join(REPLY_FAULTS)}")
            if isinstance(rate, bool) or not isinstance(rate, int | float) or not 0 <= rate <= 1:
                raise OptionError(f"the rate of {kind} must be from 0 to 1, got {rate!r}")
        if sum(self.rates.values()) > 1 + 1e-9:
            raise OptionError(f"the rates of faults must add up to at most 1, got {sum(self.rates.values()):g}")
        for name, (least, most) in BOUNDS.items():
            value = getattr(self, name)
            if value < least:
                raise OptionError(f"{name} must be at least {least:g}, got {value:g}")
            if value > most:
                raise OptionError(f"{name} must be at most {most:g}, got {value:g}")
        if not 0 <= self.kv_fraction <= 1:
            raise OptionError(f"kv_fraction must be from 0 to 1, got {self.kv_fraction}")

    def changed(self, changes: Mapping[str, Any]) -> "FaultSettings":
        """These settings with some replaced. Raises OptionError for an unknown name or a value of a wrong type."""
        types = typing.get_type_hints(FaultSettings)
        checked: dict[str, Any] = {}
        for name, value in changes.items():
            if name not in types:
                known = ", ".join(each.name for each in fields(FaultSettings))
                raise OptionError(f"unknown setting {name!r}, known are {known}")
            checked[name] = value if name == "rates" else _number(name, value, types[name])
        if not isinstance(checked.get("rates", {}), Mapping):
            raise OptionError(f"rates must map faults to fractions, got {checked['rates']!r}")
        return replace(self, **checked)


def _number(name: str, value: Any, kind: type) -> int | float:
    if isinstance(value, str):
        try:
            value = float(value)
        except ValueError as error:
            raise OptionError(f"{name} must be a number, got {value!r}") from error
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise OptionError(f"{name} must be a number, got {value!r}")
    if kind is int and value != int(value):
        raise OptionError(f"{name} must be a whole number, got {value!r}")
    return int(value) if kind is int else float(value)
