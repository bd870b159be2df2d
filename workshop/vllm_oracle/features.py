"""Features that random workloads have, each laid over the settings and requests of a workload. Any of them combine."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial

import numpy as np

from blis_sim.engine.config import EngineConfig, PipelineStages
from blis_sim.engine.errors import EngineError
from blis_sim.engine.lora import LoraSettings
from blis_sim.engine.memory.kv_groups import (
    CHUNKED,
    FULL,
    LATENT,
    SLIDING,
    STATE,
    KVCacheGroupSpec,
    capacity_tokens,
    hash_block_tokens,
    is_single_context,
)
from blis_sim.engine.offloading import Device, OffloadConfig
from blis_sim.engine.request import EncoderLimits, Medium
from blis_sim.engine.speculation import DRAFTERS, Speculation
from workshop.vllm_oracle.workload import TICK_US, Arrival, Ranks, Workload, draw_workload

Groups = tuple[KVCacheGroupSpec, ...]

# What the layers of a model keep: groups of KV caches, with as many blocks as the longest request needs at least.


def with_groups(workload: Workload, seed: int, kind: str) -> Workload:
    """Return the workload on a model of that kind, with as many blocks as its longest request needs at least."""
    generator = np.random.default_rng((seed, 2))
    config = workload.config
    groups = KINDS[kind](generator, config)
    size = hash_block_tokens(groups, config.enable_prefix_caching)
    if is_single_context(groups):
        return replace(workload, config=replace(config, block_size_tokens=size, kv_groups=()))
    num_blocks = config.total_kv_blocks
    while capacity_tokens(groups, num_blocks, config.max_in_flight_tokens) < config.max_model_len:
        num_blocks += 1
    if generator.random() < 0.5:
        num_blocks += int(generator.integers(0, 60))
    config = replace(config, total_kv_blocks=num_blocks, block_size_tokens=size, kv_groups=groups)
    return replace(workload, config=config)


def _full(generator: np.random.Generator, config: EngineConfig) -> Groups:
    return (KVCacheGroupSpec(FULL, config.block_size_tokens),)


def _latent(generator: np.random.Generator, config: EngineConfig) -> Groups:
    """Latent attention, alone or beside states."""
    if generator.random() < 0.6:
        return (KVCacheGroupSpec(LATENT, config.block_size_tokens),)
    return tuple(replace(group, kind=LATENT) if group.kind == FULL else group for group in _states(generator, config))


def _windows(generator: np.random.Generator, config: EngineConfig) -> Groups:
    """One width or two, with or without layers that keep every token, whose blocks may be twice as long."""
    widths = [int(width) for width in generator.integers(1, 180, size=int(generator.choice([1, 1, 2])))]
    groups = [
        KVCacheGroupSpec(SLIDING, 16, width, layers=(width,))
        for width in widths
        for _ in range(int(generator.choice([1, 1, 2, 3])))
    ]
    if generator.random() < 0.85:
        full = KVCacheGroupSpec(FULL, int(generator.choice([16, 16, 32])))
        groups.insert(0 if generator.random() < 0.5 else len(groups), full)
    return tuple(groups)


def _chunks(generator: np.random.Generator, config: EngineConfig) -> Groups:
    chunk = int(generator.choice([16, 32, 48, 128, 100]))
    groups = [KVCacheGroupSpec(CHUNKED, 16, chunk) for _ in range(int(generator.choice([1, 2, 3])))]
    return (*groups, KVCacheGroupSpec(FULL, 16))


def _states(generator: np.random.Generator, config: EngineConfig) -> Groups:
    size = int(generator.choice([16, 32, 48, 64]))
    checkpoint = int(generator.choice([0, 1, 16, size])) if config.enable_prefix_caching else 0
    state = KVCacheGroupSpec(
        STATE,
        size if config.enable_prefix_caching else config.max_model_len,
        checkpoint_tokens=checkpoint,
        states=(3 if checkpoint else 2) if config.enable_prefix_caching else 1,
    )
    groups = [state] * int(generator.choice([1, 2, 3]))
    return (*groups, KVCacheGroupSpec(FULL, size))


KINDS: Mapping[str, Callable[[np.random.Generator, EngineConfig], Groups]] = {
    "full": _full,
    "latent": _latent,
    "windows": _windows,
    "chunks": _chunks,
    "states": _states,
}
"""Kinds of models by what their layers keep."""

# Drafts. Where vLLM itself would fail an assertion, the settings give way.

METHODS = [method for method in DRAFTERS if method != "medusa"]
"""Methods whose drafters the genuine scheduler tells apart."""


def with_speculation(workload: Workload, seed: int) -> Workload:
    """Return the workload with drafts, in one of the supported ways."""
    generator = np.random.default_rng((seed, 1))
    method = str(generator.choice(METHODS))
    num_tokens = int(generator.integers(1, 7))
    rates = np.sort(generator.random(num_tokens))[::-1] if generator.random() < 0.8 else np.ones(num_tokens)
    speculation = Speculation(
        method=method,
        num_tokens=num_tokens,
        acceptance_rates=tuple(map(float, rates)),
        seed=seed,
        parallel_drafting=DRAFTERS[method].writes_kv and bool(generator.random() < 0.2),
        hashes_next_token=bool(generator.random() < 0.7),
        keeps_last_hit_block=bool(generator.random() < 0.1),
    )
    return replace(workload, config=_fitting(workload.config, speculation))


def _fitting(config: EngineConfig, speculation: Speculation) -> EngineConfig:
    """vLLM fills newcomers that decode up to 1 + K tokens, and asserts that no threshold cuts that."""
    threshold = config.long_prefill_token_threshold
    if 0 < threshold <= speculation.num_tokens:
        if any(group.kind == STATE for group in config.kv_groups):  # whose blocks are those of a cache that is on
            config = replace(config, long_prefill_token_threshold=0)
        else:  # no newcomer decodes when nothing is found in the cache
            config = replace(config, enable_prefix_caching=False)
    # Each draft needs a recurrent state of its own.
    groups = tuple(
        replace(group, states=group.states + speculation.num_tokens) if group.kind == STATE else group
        for group in config.kv_groups
    )
    if any(group.kind == CHUNKED for group in groups) and speculation.drops_last_hit_block:
        speculation = replace(speculation, keeps_last_hit_block=True)  # vLLM asserts that chunks drop none
    num_blocks = config.total_kv_blocks
    while groups and capacity_tokens(groups, num_blocks, config.max_in_flight_tokens) < config.max_model_len:
        num_blocks += 1
    return replace(config, speculation=speculation, kv_groups=groups, total_kv_blocks=num_blocks)


# Pictures in prompts, some of them at the same place in several, and limits of their encoder.

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


# Limits of a step that few deployments set, urgency, adapters and salts.


def with_budgets(workload: Workload, seed: int) -> Workload:
    """Return the workload with fewer scheduled tokens than a step has room for, and an adaptive threshold."""
    generator = np.random.default_rng((seed, 3))
    config = workload.config
    width = 1 + config.speculation.num_tokens if config.speculation is not None else 1
    least = width if config.enable_chunked_prefill else config.max_model_len
    scheduled = max(least, int(config.max_num_batched_tokens * generator.choice([0.3, 0.6, 1.0, 2.0])))
    takes_rows = config.speculation is not None and config.speculation.rows_per_request
    return replace(
        workload,
        config=replace(
            config,
            max_num_scheduled_tokens=0 if takes_rows else scheduled,
            long_prefill_token_threshold=max(width, int(generator.choice([1, 7, 16, 40]))),
            long_prefill_token_threshold_adaptive=bool(generator.random() < 0.8),
        ),
    )


def with_priority(workload: Workload, seed: int) -> Workload:
    """Return the workload with requests that more urgent ones overtake and preempt."""
    config = replace(workload.config, scheduler="priority-fcfs", preemption_policy="priority")
    return replace(workload, config=config)


def with_adapters(workload: Workload, seed: int) -> Workload:
    """Return the workload with LoRA adapters, of which a step has room for few."""
    generator = np.random.default_rng((seed, 7))
    names = ["", *(f"adapter{number}" for number in range(1, int(generator.integers(2, 6))))]
    arrivals = [replace(each, adapter=str(generator.choice(names))) for each in workload.arrivals]
    config = replace(workload.config, lora=LoraSettings(max_loras=int(generator.integers(1, 4))))
    return replace(workload, config=config, arrivals=arrivals)


def with_salts(workload: Workload, seed: int) -> Workload:
    """Return the workload with salts, so that equal prompts may have different contents."""
    generator = np.random.default_rng((seed, 8))
    salts = ["", "", *(f"salt{number}" for number in range(int(generator.integers(1, 4))))]
    arrivals = [replace(each, salt=str(generator.choice(salts))) for each in workload.arrivals]
    return replace(workload, arrivals=arrivals)


# CPU memory, pipeline stages, and changes of the content of the prefix cache.


def with_offloading(workload: Workload, seed: int) -> Workload:
    """Return the workload with CPU memory that is scarce or ample, and transfers that are fast or slow."""
    generator = np.random.default_rng((seed, 6))
    num_blocks = int(generator.integers(2, 30 if generator.random() < 0.5 else 200))
    block_us = TICK_US * float(generator.choice([0.0, 0.2, 1.0, 1.0, 4.0, 20.0]))
    config = workload.config
    speculation = config.speculation
    threshold = config.long_prefill_token_threshold
    if speculation is not None:
        # vLLM asserts that no threshold cuts a newcomer that decodes, as one does that is loaded whole.
        threshold = 0 if threshold <= speculation.num_tokens else threshold
        if any(group.kind == CHUNKED for group in config.kv_groups):  # found with connectors as without lookahead
            speculation = replace(speculation, keeps_last_hit_block=True)
    config = replace(
        config,
        speculation=speculation,
        long_prefill_token_threshold=threshold,
        enable_prefix_caching=config.enable_prefix_caching or _has_several_sizes(config),
        offload=OffloadConfig(num_blocks, block_us),
    )
    return replace(workload, config=config)


def with_tiers(workload: Workload, seed: int) -> Workload:
    """Return the workload with one or two devices behind CPU memory, slow or fast, narrow or wide."""
    generator = np.random.default_rng((seed, 7))
    if workload.config.offload is None:
        workload = with_offloading(workload, seed)
    offload = workload.config.offload
    assert offload is not None
    block_us = TICK_US * float(generator.choice([0.0, 0.1, 0.5, 2.0, 8.0]))
    devices = tuple(
        Device(
            read_bytes_us=1.0,
            write_bytes_us=float(generator.choice([0.5, 1.0])),
            base_us=int(generator.integers(0, TICK_US)),
            num_readers=int(generator.integers(1, 4)),
            num_writers=int(generator.integers(1, 4)),
            saturation_depth=int(generator.choice([1, 1, 4])),
            single_fraction=0.5,
            jitter_stdev=float(generator.choice([0.0, 0.2])),
            reports_writes=(seed + number) % 3 > 0,
            locality=("", "LOCAL", "REMOTE")[(seed + number) % 3],
        )
        for number in range(int(generator.integers(1, 3)))
    )
    config = replace(workload.config, offload=replace(offload, stored_bytes=block_us, devices=devices, seed=seed))
    return replace(workload, config=config)


def _has_several_sizes(config: EngineConfig) -> bool:
    """Whether groups have blocks of several sizes, which vLLM offloads only with a prefix cache."""
    return len({group.block_tokens for group in config.kv_groups}) > 1


PARTS = 8
"""Stages take whole eighths of a step whose times are multiples of eight ticks, so that all instants stay on the grid.
"""


def with_pipeline(workload: Workload, seed: int, num_stages: int) -> Workload:
    """Return the workload with so many pipeline stages; one in two have stages that take equally long, about."""
    generator = np.random.default_rng((seed, 2))
    if generator.random() < 0.5:
        ends = [round(PARTS * stage / num_stages) for stage in range(1, num_stages)]
    else:
        ends = sorted(int(end) for end in generator.choice(range(1, PARTS), num_stages - 1, replace=False))
    shares = tuple((end - start) / PARTS for start, end in zip([0, *ends], [*ends, PARTS], strict=True))
    pipeline = PipelineStages(
        shares,
        transfer_start_us=int(generator.choice([0, 0, 1, 5])) * TICK_US,
        transfer_token_us=int(generator.choice([0, 0, 0, TICK_US])),
    )
    latency = workload.latency
    slowed = replace(
        latency,
        step_us=latency.step_us * PARTS,
        token_us=latency.token_us * PARTS,
        request_us=latency.request_us * PARTS,
    )
    return replace(workload, config=_with_room(workload.config, pipeline), latency=slowed)


def _with_room(config: EngineConfig, pipeline: PipelineStages) -> EngineConfig:
    """Return the settings with stages and room for the longest request, which holds more with more steps in flight."""
    blocks = config.total_kv_blocks
    while True:
        try:
            return replace(config, pipeline=pipeline, total_kv_blocks=blocks)
        except EngineError:
            blocks += 1


def with_content(workload: Workload, seed: int) -> Workload:
    """Return the workload with changes of the prefix cache reported, for some requests those of found blocks, too.

    Not with CPU memory: while a request waits for transfers, vLLM's idle core looks it up as often as time allows.
    """
    generator = np.random.default_rng((seed, 5))
    share = 0.3 if workload.config.offload is None else 0.0
    arrivals = [replace(each, reports_found_blocks=bool(generator.random() < share)) for each in workload.arrivals]
    return replace(workload, config=replace(workload.config, reports_kv_changes=True), arrivals=arrivals)


# Data-parallel ranks.

MOST_SCALE = 100
"""Times are so many times as long, for reports of loads come every 100 ms."""


def with_ranks(workload: Workload, seed: int, share_experts: bool) -> Workload:
    """Return the workload on data-parallel ranks, with times so long that their loads are reported often.

    Instants at which requests come and leave lie apart from each other and from the ends of steps.
    """
    if share_experts and workload.config.pipeline is not None:
        raise EngineError("ranks that share experts are compared without pipeline stages")
    generator = np.random.default_rng((seed, 10))
    scale = MOST_SCALE // int(generator.choice([1, 1, 5]))
    config, latency = workload.config, workload.latency
    if config.offload is not None:
        config = replace(config, offload=_slowed(config.offload, scale))
    if (stages := config.pipeline) is not None:
        start_us, token_us = stages.transfer_start_us * scale, stages.transfer_token_us * scale
        config = replace(config, pipeline=replace(stages, transfer_start_us=start_us, transfer_token_us=token_us))
    places = {at: place for place, at in enumerate(dict.fromkeys(each.at for each in workload.arrivals), start=1)}
    arrivals = [
        replace(
            each,
            at=each.at * scale + places[each.at],
            deadline_us=each.deadline_us * scale + 50 + each.number if each.deadline_us else 0,
        )
        for each in workload.arrivals
    ]
    return replace(
        workload,
        config=config,
        latency=replace(
            latency,
            step_us=latency.step_us * scale,
            token_us=latency.token_us * scale,
            request_us=latency.request_us * scale,
        ),
        arrivals=arrivals,
        hang_ups=[(at * scale + 80 + place, name) for place, (at, name) in enumerate(workload.hang_ups)],
        ranks=Ranks(int(generator.choice([2, 2, 2, 3, 4])), share_experts),
    )


def _slowed(offload: OffloadConfig, scale: int) -> OffloadConfig:
    """Return CPU memory and devices whose transfers take `scale` times as long."""
    devices = tuple(
        replace(
            each,
            read_bytes_us=each.read_bytes_us / scale,
            write_bytes_us=each.write_bytes_us / scale,
            base_us=each.base_us * scale,
        )
        for each in offload.devices
    )
    return replace(offload, block_us=offload.block_us * scale, devices=devices)


# All of them.

FEATURES: Mapping[str, Callable[[Workload, int], Workload]] = {
    **{kind: partial(with_groups, kind=kind) for kind in KINDS},
    "drafts": with_speculation,
    "budgets": with_budgets,
    "media": with_media,
    "priority": with_priority,
    "adapters": with_adapters,
    "salts": with_salts,
    "offloading": with_offloading,
    "tiers": with_tiers,
    "2-stages": partial(with_pipeline, num_stages=2),
    "3-stages": partial(with_pipeline, num_stages=3),
    "content": with_content,
    "ranks": partial(with_ranks, share_experts=False),
    "experts": partial(with_ranks, share_experts=True),
}
"""How a workload gets each feature, in the order in which they are laid over each other."""
ALTERNATIVES: tuple[Mapping[str, float], ...] = (
    {"full": 0.06, "latent": 0.21, "windows": 0.21, "chunks": 0.21, "states": 0.21},
    {"2-stages": 0.4, "3-stages": 0.4},
    {"ranks": 0.2, "experts": 0.2},
)
"""Features of which a workload has one at most, with the shares of those that have it where none are named."""
NOT_WITH_EXPERTS = ("2-stages", "3-stages")
"""Features that ranks which share experts are not compared with."""


def draw_features(seed: int) -> list[str]:
    """Return the features that the workload of a seed has where none are named: every other one, about."""
    generator = np.random.default_rng((seed, 9))
    chosen = {name for name in FEATURES if generator.random() < 0.45}
    for alternatives in ALTERNATIVES:
        chosen.difference_update(alternatives)
        draw = generator.random()
        for name, share in alternatives.items():
            if 0 <= draw < share:
                chosen.add(name)
            draw -= share
    if "experts" in chosen and not chosen.isdisjoint(NOT_WITH_EXPERTS):
        chosen = chosen - {"experts"} | {"ranks"}
    return [name for name in FEATURES if name in chosen]


def drawn_workload(seed: int, async_scheduling: bool, features: Iterable[str]) -> Workload:
    """Return the workload of a seed with features."""
    chosen = [name for name in FEATURES if name in set(features)]
    workload = draw_workload(seed, async_scheduling)
    if not {"offloading", "tiers"}.isdisjoint(chosen):
        for kind in KINDS.keys() & set(chosen):
            if _has_several_sizes(with_groups(workload, seed, kind).config):
                workload = replace(workload, config=replace(workload.config, enable_prefix_caching=True))
    for name in chosen:
        workload = FEATURES[name](workload, seed)
    return workload
