"""Lengths of requests drawn in columns, one element per request."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from blis_sim.options.limits import MOST_DRAWN
from traces.errors import TraceError
from traces.workload.lengths import Ints, sample
from traces.workload.request import Round
from traces.workload.spec import Client, Distribution, Multimodal
from traces.workload.streams import Quantity, Streams

_ITEMS = (
    (Quantity.IMAGE_COUNT, Quantity.IMAGE_TOKENS, "image"),
    (Quantity.AUDIO_COUNT, Quantity.AUDIO_TOKENS, "audio"),
    (Quantity.VIDEO_COUNT, Quantity.VIDEO_TOKENS, "video"),
)


@dataclass(frozen=True, slots=True)
class Habits:
    """How a client words its requests, in one of its windows or always."""

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


def draw_turns(habits: Habits, streams: Streams, count: int) -> Turns:
    """Draw `count` turns. More turns from the same streams begin with the same ones."""
    client = habits.client
    modalities = None if client.multimodal is None else _modalities(client.multimodal, streams, count)
    if modalities is None:
        input_tokens = sample(habits.input_distribution, streams.of(Quantity.INPUT_TOKENS), count)
    else:
        input_tokens = np.sum(modalities, axis=0, dtype=np.int64)
    output_tokens = sample(habits.output_distribution, streams.of(Quantity.OUTPUT_TOKENS), count)
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
