"""Workloads that need no file: a rate or a number of users, lengths from a bell curve, and their flags."""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import NamedTuple

from blis_sim.options import ExclusionError, OptionError, option, options_of
from blis_sim.options.durations import parse_duration_ms
from blis_sim.options.option import LATEST_US, LEAST_RATE, MOST_RATE, MOST_TOKENS
from traces.workload.spec import (
    PROCESSES,
    SCENARIO_NAMES,
    Arrival,
    Client,
    Distribution,
    Lifecycle,
    Scenario,
    Window,
    WorkloadSpec,
    problem_of_cv,
)

# The normal distribution that has a mean and a standard deviation after its draws are kept within bounds.
#
# Draws below the lower bound become the bound, and those above the upper bound become that, as in BLIS. Both moments
# then differ from those of the normal distribution, so its parameters are solved for.

_HALVINGS = 80
_MOST_SIGMA_RATIO = 1e4
_REACHABLE_SHARE = 0.95
"""Share of the largest deviation that two bounds allow; at the whole of it all draws are at a bound."""


class BellCurve(NamedTuple):
    """Mean and standard deviation of a normal distribution."""

    mu: float
    sigma: float


def largest_deviation(mean: float, low: float, high: float) -> float:
    """Return the largest standard deviation that draws with this mean are given.

    Beyond the distance from the mean to the lower bound most draws would be that bound.
    """
    return min(mean - low, _REACHABLE_SHARE * math.sqrt(max(0.0, (mean - low) * (high - mean))))


def solved(mean: float, deviation: float, low: float, high: float) -> BellCurve:
    """Return the curve whose draws within bounds have this mean, and this deviation up to `largest_deviation`."""
    deviation = min(deviation, largest_deviation(mean, low, high))
    if deviation <= 0:
        return BellCurve(mean, 0.0)
    reach = min(high - mean, mean - low)
    if reach > 9 * deviation:
        return BellCurve(mean, deviation)
    least, most = deviation, deviation * _MOST_SIGMA_RATIO
    for _ in range(_HALVINGS):
        middle = math.sqrt(least * most)
        is_wide = _moments(_centre(mean, middle, low, high), middle, low, high)[1] > deviation
        least, most = (least, middle) if is_wide else (middle, most)
    sigma = math.sqrt(least * most)
    return BellCurve(_centre(mean, sigma, low, high), sigma)


def _centre(mean: float, sigma: float, low: float, high: float) -> float:
    """Return the centre of the curve of this width whose draws have the mean."""
    least, most = low - 40 * sigma, high + 40 * sigma
    for _ in range(_HALVINGS):
        middle = (least + most) / 2
        is_above = _moments(middle, sigma, low, high)[0] > mean
        least, most = (least, middle) if is_above else (middle, most)
    return (least + most) / 2


def _moments(mu: float, sigma: float, low: float, high: float) -> tuple[float, float]:
    """Return mean and standard deviation of draws that are kept within bounds."""
    below, above = (low - mu) / sigma, (high - mu) / sigma
    share_low, share_high = _tail(-below), _tail(above)
    inside = 1 - share_low - share_high if below < 0 < above else abs(_tail(below) - _tail(above))
    density_low, density_high = _density(below), _density(above)
    # Measured from the lower bound, which keeps digits where most draws are at it.
    offset, width = mu - low, high - low
    slope = sigma * (density_low - density_high)
    mean = width * share_high + offset * inside + slope
    square = (
        width * width * share_high
        + (offset * offset + sigma * sigma) * inside
        + sigma * (2 * offset * (density_low - density_high) + sigma * (below * density_low - above * density_high))
    )
    return low + mean, math.sqrt(max(0.0, square - mean * mean))


def _tail(z: float) -> float:
    """Return the share of a standard normal distribution above `z`."""
    return math.erfc(z / math.sqrt(2)) / 2


def _density(z: float) -> float:
    return math.exp(-z * z / 2) / math.sqrt(2 * math.pi) if abs(z) < 40 else 0.0


# Workloads that need no file: one client at a rate or a number of users, with lengths from a bell curve.

DISTRIBUTION = "distribution"
SHARED_PREFIX = "shared"


@dataclass(frozen=True, slots=True)
class Lengths:
    """Token counts from a normal distribution, kept within bounds.

    With `keeps_mean` mean and deviation are those of the counts within bounds, else those of the distribution before.
    """

    mean: int
    stdev: float
    least: int
    most: int
    keeps_mean: bool = False

    def distribution(self) -> Distribution:
        """Return the distribution in the form of a spec."""
        curve = BellCurve(self.mean, self.stdev)
        if self.keeps_mean:
            curve = solved(self.mean, self.stdev, self.least, self.most)
        params = {"mean": curve.mu, "std_dev": curve.sigma, "min": self.least, "max": self.most}
        return Distribution(type="gaussian", params={name: float(value) for name, value in params.items()})


@dataclass(frozen=True, slots=True)
class Preset:
    """The requests of one kind of application."""

    prompt: Lengths
    output: Lengths


# BLIS's defaults.yaml.
PRESETS: Mapping[str, Preset] = {
    "chatbot": Preset(Lengths(256, 100, 2, 800), Lengths(256, 100, 1, 1024)),
    "summarization": Preset(Lengths(4096, 500, 100, 8192), Lengths(512, 150, 10, 2048)),
    "contentgen": Preset(Lengths(1024, 150, 10, 2048), Lengths(1024, 200, 10, 2048)),
    "multidoc": Preset(Lengths(10240, 1200, 500, 20480), Lengths(1536, 300, 50, 4096)),
}


def rate_spec(
    lengths: Preset,
    *,
    rate: float,
    num_requests: int,
    seed: int,
    arrival: Arrival,
    prefix_tokens: int = 0,
    client_id: str = DISTRIBUTION,
) -> WorkloadSpec:
    """One client that sends at `rate` requests per second."""
    client = replace(_client(lengths, prefix_tokens), id=client_id, rate_fraction=1.0, arrival=arrival)
    return _spec(client, num_requests=num_requests, seed=seed, rate=rate)


class Stage(NamedTuple):
    """A stretch of a load whose rate, in requests per second, changes evenly from one value to another."""

    first_per_s: float
    last_per_s: float
    duration_us: int


_STAGE = re.compile(r"([0-9.e+]+)(?:-([0-9.e+]+))?:(.+)")


def parse_stages(texts: Sequence[str]) -> list[Stage]:
    """Return stages such as `1-20:60s` and `20:5m`, in their order. Raises OptionError."""
    return [_parse_stage(text) for text in texts]


def _parse_stage(text: str) -> Stage:
    problem = f"--stages must be like 1-20:60s,20:5m with rates from {LEAST_RATE:g} to {MOST_RATE:g}, got {text!r}"
    found = _STAGE.fullmatch(text)
    try:
        if found is None:
            raise ValueError
        first, last = float(found[1]), float(found[2] or found[1])
        duration_us = round(parse_duration_ms(found[3]) * 1000)
    except ValueError:
        raise OptionError(problem) from None
    if not (min(first, last) >= LEAST_RATE and max(first, last) <= MOST_RATE and 0 < duration_us <= LATEST_US):
        raise OptionError(problem)
    return Stage(first, last, duration_us)


def staged_spec(spec: WorkloadSpec, stages: Sequence[Stage]) -> WorkloadSpec:
    """Return the spec of `rate_spec` with the rates of these stages, one after the other, in place of its rate."""
    ends_us = list(accumulate(each.duration_us for each in stages))
    windows = tuple(
        Window(
            start_us=end_us - stage.duration_us,
            end_us=end_us,
            trace_rate=stage.first_per_s,
            end_rate=None if stage.last_per_s == stage.first_per_s else stage.last_per_s,
        )
        for stage, end_us in zip(stages, ends_us, strict=True)
    )
    (client,) = spec.clients
    return replace(spec, aggregate_rate=0.0, clients=(replace(client, lifecycle=Lifecycle(windows=windows)),))


def users_spec(
    lengths: Preset,
    *,
    num_users: int,
    think_time_us: int,
    num_requests: int,
    seed: int,
    prefix_tokens: int = 0,
) -> WorkloadSpec:
    """Return the spec of a number of users, each of which waits for the reply and thinks before the next request."""
    client = replace(_client(lengths, prefix_tokens), concurrency=num_users, think_time_us=think_time_us)
    return _spec(client, num_requests=num_requests, seed=seed)


def _client(lengths: Preset, prefix_tokens: int) -> Client:
    return Client(
        id=DISTRIBUTION,
        input_distribution=lengths.prompt.distribution(),
        output_distribution=lengths.output.distribution(),
        prefix_group=SHARED_PREFIX if prefix_tokens else "",
        prefix_length=prefix_tokens,
    )


def _spec(client: Client, *, num_requests: int, seed: int, rate: float = 0.0) -> WorkloadSpec:
    return WorkloadSpec(
        version="2",
        seed=seed,
        category="language",
        clients=(client,),
        aggregate_rate=rate,
        num_requests=num_requests,
    )


# The flags of a load without a file, which `run`, `sweep`, `plan` and `observe` share: a rate, a preset, lengths.

DEFAULT_RATE = 1.0
DEFAULT_SEED = 42
_BLIS_STDEV = 256
_BLIS_LEAST, _BLIS_MOST = 2, 7000
"""The shortest and the longest prompt or output of BLIS where none is given."""

_LENGTH_FLAGS = tuple(
    f"{side}_tokens{part}" for side in ("prompt", "output") for part in ("", "_stdev", "_min", "_max")
)


def _stdev(side: str) -> str:
    return (
        f"Standard deviation of {side} lengths, as far as their mean and bounds allow it (default: 0; with --engine "
        f"blis {_BLIS_STDEV})."
    )


def _shortest(side: str) -> str:
    return f"Shortest {side} (default: 1; with --engine blis {_BLIS_LEAST})."


def _longest(side: str) -> str:
    return f"Longest {side} (default: no limit; with --engine blis {_BLIS_MOST})."


@dataclass(frozen=True, slots=True, kw_only=True)
class SyntheticOptions:
    """The settings of a load that no file describes. Equal settings and seeds give equal requests."""

    workload: str | None = option(
        None,
        "Kind of workload without a spec: a preset, or the lengths of --prompt-tokens and --output-tokens "
        f"(default: {DISTRIBUTION}). steady, burst and mixed-priority are scenarios of 20 seconds with priorities and "
        "deadlines.",
        choices=(DISTRIBUTION, *PRESETS, *SCENARIO_NAMES),
        heading="Workload",
    )
    rate: float | None = option(
        None,
        "Requests per second. A workload spec is scaled to this rate. Its shape and the shares of its clients stay "
        f"(default: the spec's or the scenario's, without one {DEFAULT_RATE:g}).",
        above=0,
        at_least=LEAST_RATE,
        at_most=MOST_RATE,
    )
    stages: tuple[str, ...] = option(
        (),
        "In place of --rate, rates one after the other, each for a while. 1-20:60s,20:5m rises evenly from 1 to 20 "
        "requests per second in a minute and stays there for five.",
        metavar="RATE:DURATION,...",
    )
    arrival: str | None = option(
        None, "Gaps between requests at --rate (default: poisson; with --engine blis constant).", choices=PROCESSES
    )
    arrival_cv: float | None = option(
        None, "Coefficient of variation of gamma or weibull gaps (default: 1).", above=0, metavar="CV"
    )
    prefix_tokens: int = option(
        0, "Tokens of a prefix that all prompts share, beside --prompt-tokens.", at_least=0, at_most=MOST_TOKENS
    )
    prompt_tokens: int = option(512, "Mean prompt length.", at_least=1, at_most=MOST_TOKENS)
    prompt_tokens_stdev: float | None = option(None, _stdev("prompt"), at_least=0, at_most=MOST_TOKENS)
    prompt_tokens_min: int | None = option(None, _shortest("prompt"), at_least=1, at_most=MOST_TOKENS)
    prompt_tokens_max: int | None = option(None, _longest("prompt"), at_least=1, at_most=MOST_TOKENS)
    output_tokens: int = option(512, "Mean output length.", at_least=1, at_most=MOST_TOKENS)
    output_tokens_stdev: float | None = option(None, _stdev("output"), at_least=0, at_most=MOST_TOKENS)
    output_tokens_min: int | None = option(None, _shortest("output"), at_least=1, at_most=MOST_TOKENS)
    output_tokens_max: int | None = option(None, _longest("output"), at_least=1, at_most=MOST_TOKENS)

    def check_load(self) -> None:
        """Raise OptionError for settings that do not fit together."""
        _ = self.lengths, parse_stages(self.stages)  # making them checks them
        if self.stages and self.rate is not None:
            raise ExclusionError("--rate", "--stages")
        if self.stages and self.workload in SCENARIO_NAMES:
            raise ExclusionError("--stages", f"--workload {self.workload}", ": both are rates over time")
        if self.arrival_cv is None:
            return
        if self.arrival not in ("gamma", "weibull"):
            raise OptionError(f"--arrival-cv needs --arrival gamma or weibull, got {self.arrival or 'poisson'}")
        problem = problem_of_cv(Arrival(process=self.arrival, cv=self.arrival_cv))
        if problem is not None:
            raise OptionError(f"--arrival-cv must be {problem}, got {self.arrival_cv:g}")

    @property
    def draws_as_blis(self) -> bool:
        """Whether lengths are drawn as BLIS draws them, whose bounds shift their means."""
        return False

    @property
    def lengths(self) -> Preset:
        """The lengths of prompts and outputs without a spec. Raises OptionError."""
        preset = PRESETS.get(self.workload or DISTRIBUTION)
        if preset is not None:
            return preset
        return Preset(prompt=self._lengths("prompt"), output=self._lengths("output"))

    def synthetic_spec(self, *, num_requests: int, seed: int) -> WorkloadSpec:
        """Return the spec of requests at the rate. Raises OptionError."""
        if self.workload in SCENARIO_NAMES:
            scenario = Scenario(name=self.workload, rate=self.rate)
            return WorkloadSpec(version="2", seed=seed, scenario=scenario, num_requests=num_requests)
        process = self.arrival or ("constant" if self.draws_as_blis else "poisson")
        spec = rate_spec(
            self.lengths,
            rate=DEFAULT_RATE if self.rate is None else self.rate,
            num_requests=num_requests,
            seed=seed,
            arrival=Arrival(process=process, cv=self.arrival_cv),
            prefix_tokens=self.prefix_tokens,
        )
        return staged_spec(spec, parse_stages(self.stages)) if self.stages else spec

    def unused_flags(self, has_spec: bool, has_users: bool = False) -> list[str]:
        """Return the given flags that a workload spec, a preset or users say already."""
        if has_spec:
            unused = ("workload", "stages", "arrival", "arrival_cv", "prefix_tokens", *_LENGTH_FLAGS)
        else:
            unused = _LENGTH_FLAGS if self.workload in PRESETS else ()
            unused += ("stages", "arrival", "arrival_cv") if has_users else ()
        settings = {setting.name: setting for setting in options_of(SyntheticOptions)}
        return [settings[name].label for name in unused if getattr(self, name) != settings[name].default]

    def _lengths(self, side: str) -> Lengths:
        mean, stdev, least, most = (getattr(self, f"{side}_tokens{part}") for part in ("", "_stdev", "_min", "_max"))
        flag, as_blis = f"--{side}-tokens", self.draws_as_blis
        if least is None:
            least = _BLIS_LEAST if as_blis else 1
        if most is None:
            most = _BLIS_MOST if as_blis else MOST_TOKENS
        if least > most:
            raise OptionError(f"{flag}-min must be at most {flag}-max ({most}), got {least}")
        if not least <= mean <= most:
            raise OptionError(f"{flag} must be between {flag}-min ({least}) and {flag}-max ({most}), got {mean}")
        if as_blis:
            stdev = _BLIS_STDEV if stdev is None else stdev
            if stdev and not least <= stdev <= most:
                raise OptionError(
                    f"{flag}-stdev must be 0, or between {flag}-min ({least}) and {flag}-max ({most}), got {stdev:g}"
                )
        return Lengths(mean=mean, stdev=stdev or 0, least=least, most=most, keeps_mean=not as_blis)
