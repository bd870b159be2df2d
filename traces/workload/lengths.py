"""Lengths of requests in tokens: the distributions, and draws from them in columns.

Rules and rounding are those of BLIS (sim/workload/distribution.go): whole numbers of at least 1, except for empirical
ones and for a gaussian whose bounds coincide.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from blis_sim.options.limits import MOST_DRAWN, MOST_TOKENS
from traces.text_file import TraceError
from traces.workload.checks import Params
from traces.workload.request import Round
from traces.workload.spec import Client, Distribution, Multimodal
from traces.workload.streams import Quantity, Streams

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
