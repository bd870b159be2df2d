"""The draws of a workload: streams of random numbers, lengths in tokens, and gaps between arrivals in microseconds."""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import IntEnum
from hashlib import blake2b
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from blis_sim.options.option import LEAST_RATE, MOST_DRAWN, MOST_TOKENS
from traces.text_file import TraceError
from traces.workload.request import Round
from traces.workload.spec import Arrival, Client, Distribution, Multimodal, Params

# Where random numbers come from: a stream of its own for each quantity of each client, derived from one seed.
#
# The draws of a client depend on the seed and its id, never on how many other clients there are, nor on how many
# requests are generated: more requests continue the same streams.

_MASK = 2**64 - 1


class Quantity(IntEnum):
    """Quantities that are drawn. Values are part of the seeds, so they keep their meaning."""

    ARRIVALS = 0
    INPUT_TOKENS = 1
    OUTPUT_TOKENS = 2
    REASON_RATIO = 3
    TEXT_TOKENS = 4
    IMAGE_COUNT = 5
    IMAGE_TOKENS = 6
    AUDIO_COUNT = 7
    AUDIO_TOKENS = 8
    VIDEO_COUNT = 9
    VIDEO_TOKENS = 10
    AGENT_TURNS = 11
    HELPERS = 12
    HELPER_TURNS = 13
    TASK_TOKENS = 14
    TOOL_TIME = 15


@dataclass(frozen=True, slots=True)
class Streams:
    """The streams of one client, or of a part of it."""

    seed: int
    path: tuple[int, ...] = ()

    def of(self, quantity: Quantity) -> np.random.Generator:
        """A generator at the beginning of the stream of `quantity`."""
        sequence = np.random.SeedSequence(self.seed & _MASK, spawn_key=(*self.path, quantity))
        return np.random.Generator(np.random.PCG64(sequence))

    def part(self, number: int) -> "Streams":
        """The streams of part `number`: one of a client's users or windows."""
        return Streams(self.seed, (*self.path, number))


def client_streams(seed: int, client_id: str, occurrence: int) -> Streams:
    """Return the streams of a client; `occurrence` distinguishes clients of the same id."""
    digest = int.from_bytes(blake2b(client_id.encode(), digest_size=8).digest(), "little")
    return Streams(seed, (digest, occurrence))


# Lengths of requests in tokens: the distributions, and draws from them in columns.
#
# Rules and rounding are those of BLIS (sim/workload/distribution.go): whole numbers of at least 1, except for
# empirical ones and for a gaussian whose bounds coincide.

Floats: TypeAlias = npt.NDArray[np.float64]
Ints: TypeAlias = npt.NDArray[np.int64]

_LONGEST = float(MOST_TOKENS)


def sample(distribution: Distribution, rng: np.random.Generator, count: int) -> Ints:
    """Draw `count` lengths. A longer draw from the same stream begins with the same lengths."""
    return _SAMPLERS[distribution.type](distribution.params, rng, count)


def _gaussian(params: Params, rng: np.random.Generator, count: int) -> Ints:
    low, high = params["min"], params["max"]
    if low == high:
        return np.full(count, int(low))
    drawn = rng.normal(params["mean"], params["std_dev"], count)
    # In this order the maximum wins where the bounds are swapped.
    return _whole(np.minimum(np.maximum(drawn, low), high))


def _exponential(params: Params, rng: np.random.Generator, count: int) -> Ints:
    return _bounded(rng.exponential(params["mean"], count), params)


def _lognormal(params: Params, rng: np.random.Generator, count: int) -> Ints:
    with np.errstate(over="ignore"):
        return _bounded(np.exp(params["mu"] + params["sigma"] * rng.standard_normal(count)), params)


def _pareto_lognormal(params: Params, rng: np.random.Generator, count: int) -> Ints:
    mixing, tail, body = rng.spawn(3)
    with np.errstate(over="ignore", divide="ignore"):
        # 1 - random() is in (0, 1].
        pareto = params["xm"] / (1 - tail.random(count)) ** (1 / params["alpha"])
        lognormal = np.exp(params["mu"] + params["sigma"] * body.standard_normal(count))
    drawn = np.where(mixing.random(count) < params["mix_weight"], pareto, lognormal)
    return _whole(np.where(np.isfinite(drawn), drawn, 1))


def _constant(params: Params, rng: np.random.Generator, count: int) -> Ints:
    return np.full(count, max(1, int(params["value"])))


def _empirical(params: Params, rng: np.random.Generator, count: int) -> Ints:
    weights = {int(tokens): weight for tokens, weight in params.items() if weight > 0}
    tokens = np.array(sorted(weights), np.int64)
    cumulative = np.cumsum([weights[length] for length in sorted(weights)])
    place = np.searchsorted(cumulative, rng.random(count) * cumulative[-1], side="right")
    lengths: Ints = tokens[np.minimum(place, len(tokens) - 1)]
    return lengths


def _bounded(drawn: Floats, params: Params) -> Ints:
    """Rounded, then kept within min and max, of which 0 is none."""
    rounded = np.floor(drawn + 0.5)
    low, high = params.get("min", 0), params.get("max", 0)
    if low:
        rounded = np.maximum(rounded, math.trunc(low))
    if high:
        rounded = np.minimum(rounded, math.trunc(high))
    return _whole(rounded)


def _whole(drawn: Floats) -> Ints:
    """Rounded half up, at least 1."""
    return np.floor(np.clip(drawn, 1, _LONGEST) + 0.5).astype(np.int64)


_SAMPLERS: Mapping[str, Callable[[Params, np.random.Generator, int], Ints]] = {
    "gaussian": _gaussian,
    "exponential": _exponential,
    "lognormal": _lognormal,
    "pareto_lognormal": _pareto_lognormal,
    "constant": _constant,
    "empirical": _empirical,
}


_ITEMS = (
    (Quantity.IMAGE_COUNT, Quantity.IMAGE_TOKENS, "image"),
    (Quantity.AUDIO_COUNT, Quantity.AUDIO_TOKENS, "audio"),
    (Quantity.VIDEO_COUNT, Quantity.VIDEO_TOKENS, "video"),
)


@dataclass(frozen=True, slots=True)
class LengthProfile:
    """Length distributions of a client's requests, in one of its windows or always."""

    client: Client
    input_distribution: Distribution
    output_distribution: Distribution


@dataclass(frozen=True, slots=True, kw_only=True)
class Turns:
    """Lengths of requests. `input_tokens` of a multimodal prompt sum up its text, image, audio and video tokens.

    `modalities`, these four, and `reason_percent` are None where all of them are 0.
    """

    input_tokens: Ints
    output_tokens: Ints
    modalities: tuple[Ints, Ints, Ints, Ints] | None
    reason_percent: Ints | None

    def rounds(self, think_time_us: int, places: slice = slice(None)) -> Iterator[Round]:
        """The turns at `places` as rounds of a session."""
        inputs, outputs = self.input_tokens[places].tolist(), self.output_tokens[places].tolist()
        none = [0] * len(inputs)
        modalities = [column[places].tolist() for column in self.modalities or ()] or [none] * 4
        ratios = none if self.reason_percent is None else (self.reason_percent[places] / 100).tolist()
        return map(Round, inputs, outputs, [think_time_us] * len(inputs), *modalities, ratios)


def draw_turns(profile: LengthProfile, streams: Streams, count: int) -> Turns:
    """Draw `count` turns. More turns from the same streams begin with the same ones."""
    client = profile.client
    modalities = None if client.multimodal is None else _modalities(client.multimodal, streams, count)
    if modalities is None:
        input_tokens = sample(profile.input_distribution, streams.of(Quantity.INPUT_TOKENS), count)
    else:
        input_tokens = np.sum(modalities, axis=0, dtype=np.int64)
    output_tokens = sample(profile.output_distribution, streams.of(Quantity.OUTPUT_TOKENS), count)
    return Turns(
        input_tokens=input_tokens,
        output_tokens=output_tokens,
        modalities=modalities,
        reason_percent=_reason_percent(client, streams, count),
    )


def _reason_percent(client: Client, streams: Streams, count: int) -> Ints | None:
    if client.reasoning is None or client.reasoning.reason_ratio_distribution is None:
        return None
    percent = sample(client.reasoning.reason_ratio_distribution, streams.of(Quantity.REASON_RATIO), count)
    return np.minimum(percent, 100)


def _modalities(multimodal: Multimodal, streams: Streams, count: int) -> tuple[Ints, Ints, Ints, Ints]:
    text = np.zeros(count, np.int64)
    if multimodal.text_distribution is not None:
        text = sample(multimodal.text_distribution, streams.of(Quantity.TEXT_TOKENS), count)
    image, audio, video = (
        _items(
            getattr(multimodal, f"{kind}_count_distribution"),
            getattr(multimodal, f"{kind}_distribution"),
            streams.of(counts),
            streams.of(tokens),
            count,
        )
        for counts, tokens, kind in _ITEMS
    )
    return text, image, audio, video


def _items(
    num_items: Distribution | None,
    item_tokens: Distribution | None,
    counts: np.random.Generator,
    tokens: np.random.Generator,
    count: int,
) -> Ints:
    """Per request the summed tokens of its items."""
    if num_items is None or item_tokens is None:
        return np.zeros(count, np.int64)
    per_request = sample(num_items, counts, count)
    num_drawn = float(per_request.sum(dtype=np.float64))
    if num_drawn > MOST_DRAWN:
        raise TraceError(
            f"multimodal: the count distributions draw {num_drawn:.2g} images, recordings or videos, expected at most"
            f" {MOST_DRAWN:g}"
        )
    ends = np.cumsum(per_request)
    drawn = sample(item_tokens, tokens, int(ends[-1]) if count else 0)
    sums = np.concatenate([np.zeros(1, np.int64), np.cumsum(drawn)])
    totals: Ints = sums[ends] - sums[ends - per_request]
    return totals


# When requests arrive: gaps drawn from an arrival process, in microseconds.
#
# Formulas and limits are those of BLIS (sim/workload/arrival.go).

Gaps: TypeAlias = Callable[[np.random.Generator, int], Floats]
"""Draws so many gaps in microseconds, not rounded."""

_MAX_AT_ONCE = 1 << 20


def gaps_of(arrival: Arrival, rate: float) -> tuple[Gaps, float]:
    """Return a function that draws gaps at `rate` requests per second, and the mean gap (us)."""
    per_us = max(rate, LEAST_RATE) / 1e6
    if arrival.process == "constant":
        # In this order of operations 10 a second are 99,999 us apart, as in the original.
        gap = float(max(1, math.trunc(1 / per_us)))
        return lambda _, count: np.full(count, gap), gap
    if arrival.process == "gamma":
        return _gamma(arrival, per_us)
    if arrival.process == "weibull":
        return _weibull(arrival, per_us)
    return lambda rng, count: rng.exponential(1 / per_us, count), 1 / per_us


def _gamma(arrival: Arrival, per_us: float) -> tuple[Gaps, float]:
    variance = (arrival.cv or 1) ** 2
    shape, scale = arrival.shape, arrival.scale
    if shape is None or scale is None:
        shape, scale = 1 / variance, variance / per_us
    return lambda rng, count: rng.gamma(shape, scale, count), shape * scale


def _weibull(arrival: Arrival, per_us: float) -> tuple[Gaps, float]:
    shape, scale = arrival.shape, arrival.scale
    if shape is None or scale is None:
        shape = weibull_shape(arrival.cv or 1)
        scale = 1 / (per_us * math.gamma(1 + 1 / shape))
    return lambda rng, count: scale * rng.weibull(shape, count), scale * math.exp(min(math.lgamma(1 + 1 / shape), 700))


def weibull_shape(cv: float) -> float:
    """The shape, between 0.1 and 100, of a Weibull distribution with this coefficient of variation."""
    low, high = 0.1, 100.0
    for _ in range(60):
        middle = (low + high) / 2
        # More shape is less variation.
        low, high = (low, middle) if _weibull_cv(middle) < cv else (middle, high)
    return (low + high) / 2


def _weibull_cv(shape: float) -> float:
    ratio = math.gamma(1 + 2 / shape) / math.gamma(1 + 1 / shape) ** 2
    return math.sqrt(max(ratio - 1, 0))


@dataclass(frozen=True, slots=True, kw_only=True)
class RenewalProcess:
    """Gaps one after the other from 0 on. With windows, (start, end) ascending, arrivals outside of them are lost."""

    gaps: Gaps
    mean_gap_us: float
    spread: float = 1.0
    """Coefficient of variation of the gaps, to guess how many are needed."""
    windows: tuple[tuple[int, int], ...] | None = None

    @property
    def start_us(self) -> int:
        """Return the instant before which no request arrives."""
        return self.windows[0][0] if self.windows else 0

    @property
    def end_us(self) -> int | None:
        """Return the instant from which on no request arrives; None when arrivals never end."""
        return None if self.windows is None else self.windows[-1][1]

    def instants(self, rng: np.random.Generator, until_us: int) -> Ints:
        """All arrivals up to and including `until_us`. Drawing up to a later instant gives the same ones before it."""
        if self.end_us is not None:
            until_us = min(until_us, self.end_us - 1)
        pieces: list[Ints] = []
        last = 0.0
        while last <= until_us:
            expected = (until_us - last) / max(self.mean_gap_us, 1)
            count = min(_MAX_AT_ONCE, int(expected + 4 * self.spread * math.sqrt(expected)) + 8)
            # Whole numbers held as floats are exact up to 2**53 us, and do not wrap around beyond.
            at = last + np.cumsum(np.maximum(np.floor(self.gaps(rng, count)), 1))
            last = float(at[-1])
            pieces.append(self._inside(at[: np.searchsorted(at, until_us, side="right")].astype(np.int64)))
        return np.concatenate(pieces) if pieces else np.empty(0, np.int64)

    def _inside(self, at: Ints) -> Ints:
        if self.windows is None:
            return at
        starts = np.array([start for start, _ in self.windows])
        ends = np.array([end for _, end in self.windows])
        window = np.searchsorted(starts, at, side="right") - 1
        return at[(window >= 0) & (at < ends[window])]


@dataclass(frozen=True, slots=True, kw_only=True)
class FixedCountArrivals:
    """A fixed number of gaps, stretched to fill a window exactly; the last arrival falls on its end.

    Over the window the rate changes evenly, to `growth` times that of its begin.
    """

    gaps: Gaps
    num_gaps: int
    start_us: int
    duration_us: float
    keeps_last: bool = False
    growth: float = 1.0

    @property
    def end_us(self) -> int:
        """Return the instant from which on no request arrives."""
        return self.start_us + math.ceil(self.duration_us) + 1

    @property
    def mean_gap_us(self) -> float:
        return self.duration_us / max(self.num_gaps, 1)

    @property
    def spread(self) -> float:
        return 1.0

    def instants(self, rng: np.random.Generator, until_us: int) -> Ints:
        """All arrivals up to and including `until_us`."""
        ends = np.cumsum(self.gaps(rng, self.num_gaps))
        kept = ends if self.keeps_last else ends[:-1]
        total = float(ends[-1]) if len(ends) else 0.0
        if total <= 0:
            return np.empty(0, np.int64)
        # A last gap close to nothing is lost in the division; what comes before it is still before the end.
        latest = self.duration_us - (0 if self.keeps_last else 1)
        shares = kept / total
        if self.growth != 1:
            # Where the integral of the rate, 1 + (growth - 1) x, from 0 to x is this share of the whole.
            shares *= (1 + self.growth) / (1 + np.sqrt(1 + (self.growth**2 - 1) * shares))
        at = self.start_us + np.floor(np.minimum(shares * self.duration_us, latest)).astype(np.int64)
        return at[at <= until_us]


Timeline: TypeAlias = RenewalProcess | FixedCountArrivals
