"""Random pictures in the prompts of a workload, and limits of their encoder."""

from dataclasses import replace

import numpy as np

from blis_sim.engine.request import EncoderLimits, Medium
from workshop.vllm_oracle.workload import Arrival, Workload

MEDIA_TOKENS = 900_000_000_000
"""Token ids each picture has for itself, above those of prompts."""
NUM_PICTURES = 4


def with_media(workload: Workload, seed: int) -> Workload:
    """Return the workload with pictures, some of them at the same place in several prompts."""
    generator = np.random.default_rng((seed, 3))
    config = workload.config
    # With a drafter that reads ahead, steps of a token or two would wait for ever for a picture that is not split.
    splits_media = bool(generator.random() < 0.6) or 0 < config.long_prefill_token_threshold < 4
    longest = config.max_model_len // 2
    if not splits_media:  # a picture that fits in no step waits for ever
        longest = min(longest, config.token_budget, config.long_prefill_token_threshold or longest) // 2
    sizes = [int(size) for size in generator.integers(1, max(2, longest), size=NUM_PICTURES)]
    common = _places(generator, sizes, config.max_model_len)
    arrivals = [
        _with_pictures(each, common if generator.random() < 0.6 else _places(generator, sizes, len(each.prompt)))
        for each in workload.arrivals
    ]
    limits = EncoderLimits(
        step_tokens=max(*sizes, int(generator.integers(1, 100))),
        cache_tokens=max(*sizes, int(generator.integers(1, 200))),
        splits_media=splits_media,
    )
    return replace(workload, config=replace(config, encoder=limits), arrivals=arrivals)


def _places(generator: np.random.Generator, sizes: list[int], end: int) -> list[Medium]:
    places: list[Medium] = []
    offset = int(generator.integers(0, 20))
    while offset < end and len(places) < 5:
        number = int(generator.integers(0, len(sizes)))
        places.append(Medium(offset, sizes[number], number))
        offset = places[-1].end + int(generator.choice([0, 1, 10, 50]))
    return places


def _with_pictures(arrival: Arrival, places: list[Medium]) -> Arrival:
    """Return the arrival with those of the pictures that lie within its prompt."""
    prompt = list(arrival.prompt)
    media = tuple(place for place in places if place.end <= len(prompt))
    for place in media:
        first = MEDIA_TOKENS * (int(str(place.identity)) + 1)
        prompt[place.offset : place.end] = range(first, first + place.num_tokens)
    return replace(arrival, prompt=tuple(prompt), media=media)
