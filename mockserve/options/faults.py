"""Settings of fault injection: kinds of faults, their parameters, their flags.

All times are real seconds.
"""

import csv
import math
import typing
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from blis_sim.options import OptionError, check_options, option
from mockserve.protocol.errors import ApiError


@dataclass(frozen=True, slots=True)
class ErrorFault:
    """An error that replaces an answer."""

    status: int
    type: str
    message: str
    param: str | None = None
    sends_retry_after: bool = False
    """Whether the reply has a Retry-After header."""

    def error(self) -> ApiError:
        """The error as a reply."""
        return ApiError(self.message, status=self.status, kind=self.type, param=self.param)


def _errors() -> dict[str, ErrorFault]:
    with Path(__file__).with_name("faults.csv").open(encoding="utf-8", newline="") as file:
        return {
            row["fault"]: ErrorFault(
                int(row["status"]),
                row["type"],
                f"{row['message']} (a fault on purpose).",
                row["param"] or None,
                row["sends_retry_after"] == "yes",
            )
            for row in csv.DictReader(file)
        }


ERRORS: Mapping[str, ErrorFault] = _errors()

FAILURE_TYPES: Mapping[str, str] = {
    **{name: name for name in ("rate_limit", "invalid_api_key", "context_length")},
    "server_error": "overloaded",
    **{name: name for name in ("invalid_request", "model_not_found")},
}
"""Failure types of llm-d-inference-sim as faults here: its server error has status 503."""

SHAPES: Mapping[str, str] = {
    "slow_first_token": "nothing comes for a while, then everything that is due",
    "trickle": "what comes, comes in small pieces with a pause after each",
    "stall": "after some events nothing comes for a while",
    "disconnect": "after some events the connection is cut",
    "malformed": "after some events one is not JSON",
}
"""Faults of replies by kind, with their effect on the client."""

REPLY_FAULTS = (*ERRORS, *SHAPES)

ENGINE_FAULTS: Mapping[str, str] = {
    "hang": "no step is taken; requests are taken in and wait",
    "death": "the engine is gone for good: errors for all, and /health returns 503",
    "kv_exhaustion": "most of the KV cache is taken without a request",
    "slow": "steps take longer",
}
"""Engine faults by kind, with their effect."""


LONGEST_S = 1e9
"""Longest duration of a fault in seconds: 31 years, which timers can represent."""
LARGEST_FACTOR = 1e6
"""Largest slow-down, by which a step of 1 s takes 11 days. Larger factors overflow the instants of an engine."""
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
"""Minimum and maximum of each setting."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultSettings:
    """Parameters of faults. `rates` are fractions of requests, at most 1 in sum. Raises OptionError out of bounds."""

    rates: Mapping[str, float] = field(default_factory=dict)
    retry_after_s: int = 1
    """Seconds in the Retry-After header."""
    first_token_delay_s: float = 5.0
    stall_s: float = 30.0
    after_events: int = 3
    """Events of a stream before it stalls, is cut or is garbled; not used for a reply that is no stream."""
    trickle_pause_s: float = 0.02
    trickle_bytes: int = 16
    slow_factor: float = 4.0
    """Factor of the step times of a slow engine."""
    rank: int = -1
    """Data-parallel rank of engine faults; -1 means all. Death applies to all ranks, as in vLLM."""
    kv_fraction: float = 0.9
    """Fraction of the free KV blocks that exhaustion withholds."""

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
        """Return these settings with some replaced. Raises OptionError for an unknown name or a value of a wrong
        type."""
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


@dataclass(frozen=True, slots=True)
class TimedFault:
    """An engine fault that starts `after_s` real seconds after the start, for `for_s` seconds or without end."""

    kind: str
    after_s: float
    for_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultOptions:
    """Settings of fault injection: rates, parameters, scheduled engine faults."""

    fault_rates: tuple[str, ...] = option(
        (),
        "Faults and the fraction of requests that get them, such as rate_limit=0.05,stall=0.01.",
        heading="Faults on purpose",
    )
    fault_settings: tuple[str, ...] = option(
        (), "Figures of faults, such as retry_after_s=2,stall_s=10,after_events=5."
    )
    fault_engine: tuple[str, ...] = option(
        (),
        "What happens to the engine and when: hang@30+5 after 30 s for 5 s, death@60, kv_exhaustion@10+20, slow@10+20.",
    )
    fault_seed: int = option(0, "Seed of the chance by which requests get faults.")
    enable_fault_control: bool = option(False, "Offer /blis/faults, where faults are seen and changed while running.")

    def __post_init__(self) -> None:
        check_options(self)
        _ = self.timed, self.settings  # validates the values

    @property
    def settings(self) -> FaultSettings:
        """The fault settings of the flags."""
        try:
            rates = {kind: _rate(value) for kind, value in _pairs(self.fault_rates)}
        except OptionError as error:
            raise OptionError(f"--fault-rates: {error}") from error
        try:
            changed = FaultSettings().changed(dict(_pairs(self.fault_settings)))
        except OptionError as error:
            raise OptionError(f"--fault-settings: {error}") from error
        try:
            return changed.changed({"rates": rates})
        except OptionError as error:
            raise OptionError(f"--fault-rates: {error}") from error

    @property
    def timed(self) -> tuple[TimedFault, ...]:
        """The engine faults of `--fault-engine`, with their times."""
        return tuple(_timed_fault(text) for text in self.fault_engine)


def _pairs(texts: Iterable[str]) -> Iterable[tuple[str, str]]:
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals:
            raise OptionError(f"{text!r} must be name=value")
        yield name.strip(), value.strip()


def _rate(text: str) -> float:
    try:
        return float(text)
    except ValueError as error:
        raise OptionError(f"{text!r} is no number") from error


def _timed_fault(text: str) -> TimedFault:
    kind, at, times = text.partition("@")
    if kind not in ENGINE_FAULTS:
        raise OptionError(f"--fault-engine must name one of {', '.join(ENGINE_FAULTS)}, got {text!r}")
    after, plus, lasting = times.partition("+")
    try:
        found = TimedFault(kind, float(after), float(lasting) if plus else None)
    except ValueError as error:
        raise OptionError(f"--fault-engine must be kind@seconds or kind@seconds+seconds, got {text!r}") from error
    if not at or not all(0 <= each <= LONGEST_S for each in (found.after_s, found.for_s or 0.0)):
        raise OptionError(
            f"--fault-engine must be kind@seconds or kind@seconds+seconds, each from 0 to {LONGEST_S:g}, got {text!r}"
        )
    return found
