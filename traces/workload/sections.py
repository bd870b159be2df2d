"""Sections of a workload spec that name the generator of another program, and bounds of its values."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, TypeAlias

from blis_sim.options.limits import LEAST_RATE, MOST_RATE, MOST_TOKENS
from traces.text_file import number_text


@dataclass(frozen=True, slots=True)
class Bounds:
    """Bounds of a value. `at_least` and `at_most` include their limit, `above` does not."""

    at_least: float | None = None
    at_most: float | None = None
    above: float | None = None
    choices: tuple[str, ...] = ()

    def allow(self, value: float | str) -> bool:
        """Whether a number or text is within the bounds."""
        if isinstance(value, str):
            return not self.choices or value in self.choices
        return (
            (self.at_least is None or value >= self.at_least)
            and (self.at_most is None or value <= self.at_most)
            and (self.above is None or value > self.above)
        )

    @property
    def words(self) -> str:
        """The bounds of a number as an error names them, with a space before; empty without any."""
        if self.at_least is not None and self.at_most is not None:
            return f" between {number_text(self.at_least)} and {number_text(self.at_most)}"
        if self.above is not None and self.at_most is not None:
            return f" above {number_text(self.above)} and at most {number_text(self.at_most)}"
        if self.at_least is not None:
            return f" of at least {number_text(self.at_least)}"
        return "" if self.above is None else f" above {number_text(self.above)}"


SCENARIO_NAMES = ("steady", "burst", "mixed-priority", "mixed_priority")


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """A scenario at a rate in requests per second, for some seconds."""

    name: Annotated[str, Bounds(choices=SCENARIO_NAMES)]
    rate: Annotated[float, Bounds(at_least=LEAST_RATE, at_most=MOST_RATE)] = 30.0
    duration_s: Annotated[float, Bounds(above=0, at_most=1_000_000)] = 20.0


_Positive: TypeAlias = Annotated[float, Bounds(above=0)]
_Tokens: TypeAlias = Annotated[int, Bounds(at_least=1, at_most=MOST_TOKENS)]

INTERVALS: Mapping[str, tuple[str, ...]] = {
    "poisson": ("qps",),
    "gamma": ("qps", "cv"),
    "static": (),
    "trace": ("trace_file", "start_time", "end_time", "time_scale_factor"),
}
"""Settings of each kind of interval."""
LENGTHS: Mapping[str, tuple[str, ...]] = {
    "fixed": ("prefill_tokens", "decode_tokens"),
    "uniform": ("min_tokens", "max_tokens", "prefill_to_decode_ratio"),
    "zipf": ("min_tokens", "max_tokens", "prefill_to_decode_ratio", "theta"),
    "trace": ("trace_file", "prefill_scale_factor", "decode_scale_factor", "max_tokens"),
}
"""Settings of each kind of length."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VidurInterval:
    """How the gaps between requests come about. None takes the default of the kind."""

    type: Annotated[str, Bounds(choices=tuple(INTERVALS))]
    qps: Annotated[float, Bounds(at_least=LEAST_RATE, at_most=MOST_RATE)] | None = None
    cv: Annotated[float, Bounds(at_least=1e-6, at_most=1e6)] | None = None
    trace_file: str | None = None
    start_time: str | None = None
    end_time: str | None = None
    time_scale_factor: _Positive | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class VidurLength:
    """How many tokens prompts and outputs have. None takes the default of the kind."""

    type: Annotated[str, Bounds(choices=tuple(LENGTHS))]
    prefill_tokens: _Tokens | None = None
    decode_tokens: _Tokens | None = None
    min_tokens: _Tokens | None = None
    max_tokens: _Tokens | None = None
    prefill_to_decode_ratio: _Positive | None = None
    theta: Annotated[float, Bounds(above=0, at_most=10)] | None = None
    trace_file: str | None = None
    prefill_scale_factor: _Positive | None = None
    decode_scale_factor: _Positive | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Vidur:
    """Requests as Vidur's `synthetic` request generator makes them from the seed of the spec."""

    interval: VidurInterval
    length: VidurLength


def problem_of_vidur(section: Vidur) -> str | None:
    """The key that is wrong, what is expected and what was found; None if nothing is."""
    for name, part, known in (("interval", section.interval, INTERVALS), ("length", section.length, LENGTHS)):
        takes = known[part.type]
        for key in part.__dataclass_fields__:
            if key != "type" and key not in takes and getattr(part, key) is not None:
                expected = ", ".join(takes) or "no other key"
                return f"{name}.{key}: expected {expected} with {part.type}, got {key}"
        if part.type == "trace" and not part.trace_file:
            return f"{name}.trace_file: expected the path of a CSV file with trace, but the key is missing"
    return _problem_of_length(section.length)


def _problem_of_length(length: VidurLength) -> str | None:
    if length.theta == 1:
        return "length.theta: expected a number other than 1, got 1"
    least, most = length.min_tokens or 1024, length.max_tokens or 4096
    if length.type in ("uniform", "zipf") and least > most:
        return f"length.min_tokens: expected at most max_tokens ({most}), got {least}"
    return None
