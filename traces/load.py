"""The load of a run as every command states it: rate, lengths, speed of a recording, and think times."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from math import inf
from random import Random
from typing import TYPE_CHECKING

from blis_sim.options import OptionError, check_options, option
from traces.graph import Waits

if TYPE_CHECKING:
    import numpy.typing as npt

# The load of a run as every command states it: its rate, and mean and standard deviation of prompts and outputs.


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """The requests of a run: their rate, and mean and standard deviation of their lengths."""

    arrived_per_s: float
    """Infinite where all come at once."""
    prompt_tokens_mean: float
    """Shared prefixes included."""
    prompt_tokens_stdev: float
    output_tokens_mean: float
    """Outputs as asked for, whether they were reached or not."""
    output_tokens_stdev: float


def load_of(arrived_per_s: float, prompt_tokens: "npt.ArrayLike", output_tokens: "npt.ArrayLike") -> Load:
    """Return the load of requests with these lengths; lengths are 0 without any."""
    import numpy as np  # not for the help of a command

    prompts, outputs = np.asarray(prompt_tokens), np.asarray(output_tokens)
    has_any = bool(prompts.size)
    return Load(
        arrived_per_s=arrived_per_s,
        prompt_tokens_mean=float(prompts.mean()) if has_any else 0.0,
        prompt_tokens_stdev=float(prompts.std()) if has_any else 0.0,
        output_tokens_mean=float(outputs.mean()) if has_any else 0.0,
        output_tokens_stdev=float(outputs.std()) if has_any else 0.0,
    )


def load_text(load: Load) -> str:
    """Return the line about a load."""
    arrivals = "all requests at once" if load.arrived_per_s == inf else f"{load.arrived_per_s:.3g} requests/s"
    return (
        f"load: {arrivals}, "
        f"prompts of {_tokens(load.prompt_tokens_mean, load.prompt_tokens_stdev)} and "
        f"outputs of {_tokens(load.output_tokens_mean, load.output_tokens_stdev)} tokens (means)"
    )


def _tokens(mean: float, stdev: float) -> str:
    return f"{mean:,.0f}" + (f" ± {stdev:,.0f}" if stdev >= 0.5 else "")


# The flags by which the conversations of a recording are sent.

FIXED, CLOSED_LOOP, FIXED_ACCUMULATE = "fixed", "closed-loop", "fixed-accumulate"
SESSION_MODES = (FIXED, CLOSED_LOOP, FIXED_ACCUMULATE)


def has_deltas(session_mode: str, context_growth: str) -> bool:
    """Return whether prompts of rounds are taken as what they add to their session: BLIS's closed loop goes by the
    header of the trace."""
    return session_mode == FIXED_ACCUMULATE or (session_mode == CLOSED_LOOP and context_growth == "accumulate")


SESSION_POOL_HELP = (
    "With --session-mode closed-loop: so many conversations at a time; each begins when an earlier one is over, in the "
    "order of the trace. 0: at their own times."
)

# The flags that send a recording faster or slower than it was recorded.

_MOST_SPEEDUP = 1e6


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeedOptions:
    """How much faster the requests of a recording come."""

    speedup: float = option(
        1.0,
        "Requests of the trace come so many times as fast: 1.3 is the same traffic, 30 % more of it.",
        above=0,
        at_most=_MOST_SPEEDUP,
        metavar="X",
    )
    scale_pauses: bool = option(
        False, "With --session-mode closed-loop: the pauses after replies are that much shorter, too."
    )

    def __post_init__(self) -> None:
        check_options(self)

    def check_mode(self, session_mode: str) -> None:
        """Raise OptionError where no pause is to be scaled."""
        if self.scale_pauses and session_mode != "closed-loop":
            raise OptionError("--scale-pauses needs --session-mode closed-loop: else requests come at their own times")

    def instant_us(self, at_us: int, first_us: int) -> int:
        """Return when a request comes whose recorded instant this is, that of the first one staying as it is."""
        return at_us if self.speedup == 1 else first_us + round((at_us - first_us) / self.speedup)

    def waits(self, recorded: Waits) -> Waits:
        """Return the waits of requests for replies, with shorter pauses where these are scaled."""
        return recorded.shortened(self.speedup) if self.scale_pauses else recorded


# Distributions of pauses between a reply and the next request, as `--think-time-dist` describes them.

FLAG = "--think-time-dist"
FORMS = "constant:value=500ms or lognormal:mu=2.0,sigma=0.6[,min=3s,max=30s]"
_LONGEST_US = 10**15
_UNITS_US = {"us": 1.0, "ms": 1000.0, "s": 1_000_000.0}
_KEYS = {"constant": ({"value"}, {"value"}), "lognormal": ({"mu", "sigma"}, {"mu", "sigma", "min", "max"})}
"""Keys that a distribution needs, and those that it takes."""


@dataclass(frozen=True, slots=True)
class ThinkTime:
    """Pauses of exp(mu + sigma * Z) seconds within bounds; `sigma` is 0 for a constant."""

    mu: float
    sigma: float
    least_us: float = 0.0
    most_us: float = float(_LONGEST_US)

    def draws(self, random: Random) -> Iterator[int]:
        """Yield pauses in microseconds without end."""
        while True:
            exponent = min(self.mu + self.sigma * random.gauss(0, 1), 700.0) if self.sigma else 0.0
            drawn_us = math.exp(exponent) * 1e6 if self.sigma else self.least_us
            yield int(min(max(drawn_us, self.least_us), self.most_us))


def parse_think_time(text: str) -> ThinkTime:
    """Return the distribution that a text describes. Raises OptionError."""
    kind, _, rest = text.partition(":")
    if kind.strip() not in _KEYS:
        raise OptionError(f"{FLAG} must be {FORMS}, got {text!r}")
    needed, known = _KEYS[kind.strip()]
    values = _pairs(rest, known, text)
    for key in sorted(needed - values.keys()):
        raise OptionError(f"{FLAG} {kind.strip()} needs {key}, got {text!r}")
    if kind.strip() == "constant":
        value_us = _duration_us("value", values["value"])
        return ThinkTime(0.0, 0.0, value_us, value_us)
    mu, sigma = _number("mu", values["mu"]), _number("sigma", values["sigma"])
    if sigma <= 0:
        raise OptionError(f"{FLAG}: sigma must be above 0, got {values['sigma']}")
    least_us = _duration_us("min", values["min"]) if "min" in values else 0.0
    most_us = _duration_us("max", values["max"]) if "max" in values else float(_LONGEST_US)
    if least_us > most_us:
        raise OptionError(f"{FLAG}: min must be at most max, got {values['min']} and {values['max']}")
    return ThinkTime(mu, sigma, least_us, most_us)


def _pairs(text: str, known: set[str], whole: str) -> dict[str, str]:
    values: dict[str, str] = {}
    for pair in text.split(","):
        key, is_there, value = (part.strip() for part in pair.partition("="))
        if not is_there or key not in known:
            raise OptionError(f"{FLAG} must be {FORMS}, got {pair.strip()!r} in {whole!r}")
        if key in values:
            raise OptionError(f"{FLAG} names {key} twice, in {whole!r}")
        values[key] = value
    return values


def _number(key: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise OptionError(f"{FLAG}: {key} must be a number, got {text!r}")
    return value


def _duration_us(key: str, text: str) -> float:
    """Microseconds of a duration with the unit us, ms or s; a bare number is milliseconds."""
    unit = next((each for each in ("us", "ms", "s") if text.endswith(each)), "")
    value = _number(key, text.removesuffix(unit)) * _UNITS_US[unit or "ms"]
    if not 0 <= value <= _LONGEST_US:
        raise OptionError(f"{FLAG}: {key} must be at least 0, up to 31 years, got {text!r}")
    return value
