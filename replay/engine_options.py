"""The settings of LoRA adapters and of KV offloading in `blis run` and `blis replay`, with their files."""

import math
from collections.abc import Collection
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypedDict

from blis_sim.engine.file_parts import problem_in, read_part
from blis_sim.engine.lora import Adapter, LoraOptions, LoraSettings
from blis_sim.options import (
    ExclusionError,
    OptionError,
    check_options,
    ineffective_flags,
    option,
    options_of,
    section,
)
from blis_sim.options.file_fields import Bounds, Positive

if TYPE_CHECKING:
    from blis_sim.engine.deployment import Deployment

# The settings of LoRA adapters in `blis run` and `blis replay`, and the file of `--lora-config`.

DEFAULT_BASE_LATENCY_US = 1500.0
DEFAULT_BANDWIDTH_BYTES_US = 2e6
DEFAULT_BYTES_PER_RANK = 2e6
MOST_ADAPTERS = 100_000
HIGHEST_RANK = 65_536
_FEWEST_BLOCKS = 2


class AdapterEntry(TypedDict, total=False):
    """An adapter that is declared."""

    id: str
    rank: Annotated[int, Bounds(at_least=1, at_most=HIGHEST_RANK)]


class LoraKeys(TypedDict, total=False):
    """The section of adapters."""

    adapters: list[AdapterEntry]
    adapter_capacity: Annotated[int, Bounds(at_least=1, at_most=MOST_ADAPTERS)]
    load_base_latency_us: Annotated[float, Bounds(at_least=0, at_most=1e12)]
    load_bandwidth_bytes_us: Positive
    footprint_bytes_per_rank: Annotated[float, Bounds(above=0, at_most=1e15)]


class AdapterKeys(TypedDict, total=False):
    """The keys of the file."""

    lora: LoraKeys


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterOptions:
    """LoRA adapters that requests name: how many fit on a GPU, and how long one takes to load."""

    lora: LoraOptions = section(LoraOptions)
    lora_config: str | None = option(
        None,
        "Declare LoRA adapters (YAML), in place of --enable-lora: under lora the list adapters, each with id and rank, "
        "and perhaps the settings below. Requests that name one as adapter or as model wait until it is loaded, by the "
        "rules of --engine vllm or blis.",
        metavar="FILE",
    )
    lora_adapter_capacity: int | None = option(
        None,
        "Adapters that fit on a GPU (default: adapter_capacity of --lora-config).",
        at_least=1,
        at_most=MOST_ADAPTERS,
    )
    lora_load_base_latency_us: float | None = option(
        None,
        "Microseconds to load any adapter, beside its bytes (default: that of --lora-config, else "
        f"{DEFAULT_BASE_LATENCY_US:g}).",
        at_least=0,
        at_most=1e12,
        metavar="US",
    )
    lora_load_bandwidth_bytes_us: float | None = option(
        None,
        "Bytes of an adapter that load in a microsecond (default: that of --lora-config, else "
        f"{DEFAULT_BANDWIDTH_BYTES_US:g}).",
        above=0,
        at_least=1e-6,
        metavar="BYTES",
    )
    lora_footprint_bytes_per_rank: float | None = option(
        None,
        "Bytes of an adapter for each of its ranks. Room for as many of the largest as fit is taken from the KV cache "
        f"(default: that of --lora-config, else {DEFAULT_BYTES_PER_RANK:g}).",
        above=0,
        at_most=1e15,
        metavar="BYTES",
    )

    def __post_init__(self) -> None:
        check_options(self)
        if self.lora_config is not None and self.lora.enable_lora:
            raise ExclusionError("--lora-config", "--enable-lora", ": both say how adapters are loaded")

    @property
    def flags_without_effect(self) -> list[str]:
        """A line for each flag without the one that it needs."""
        needed: dict[str, str] = {}
        if not self.lora.enable_lora:
            needed |= dict.fromkeys((each.name for each in options_of(LoraOptions)), "--enable-lora")
        if self.lora_config is None:
            own = (each.name for each in options_of(AdapterOptions) if not each.path)
            needed |= dict.fromkeys(own, "adapters in --lora-config")
        return list(ineffective_flags(self, needed))


def with_adapters(options: AdapterOptions, deployment: "Deployment", has_counted_blocks: bool) -> "Deployment":
    """Return the deployment with adapters, and with the KV blocks that those of `--lora-config` leave.

    `has_counted_blocks` says that the KV blocks were counted from the memory. Raises EngineError or OptionError.
    """
    from blis_sim.engine.memory.planner import bytes_per_block

    settings, config = adapter_settings(options), deployment.config
    if settings is None:
        return deployment
    if config.engine != "vllm" and (options.lora_config is None or config.engine != "blis"):
        flag, engines = ("--enable-lora", "vllm") if options.lora_config is None else ("--lora-config", "vllm or blis")
        raise OptionError(f"{flag} needs --engine {engines}, got {config.engine}")
    if config.cpu_tier is not None:
        raise ExclusionError("--lora-config", "--kv-cpu-blocks", " with --engine blis")
    reserved_bytes = _reserved_bytes(options)
    if has_counted_blocks and reserved_bytes:
        block_bytes = bytes_per_block(
            deployment.model, deployment.tp, config.engine, config.block_size_tokens, deployment.memory
        )
        on_each_gpu = reserved_bytes if config.engine == "blis" else reserved_bytes / deployment.tp
        blocks = config.total_kv_blocks - math.ceil(on_each_gpu / block_bytes)
        if blocks < _FEWEST_BLOCKS:
            raise OptionError(
                f"{options.lora_config}: {settings.max_loras} adapters of {reserved_bytes / settings.max_loras:.0f} "
                "bytes leave no room for a KV cache"
            )
        alone = replace(config, total_kv_blocks=blocks, max_model_len=0)
        config = replace(alone, max_model_len=min(config.max_model_len, alone.kv_capacity_tokens))
    rank = None if deployment.rank is None else replace(deployment.rank, lora=settings)
    return replace(deployment, config=replace(config, lora=settings), rank=rank)


def adapter_settings(options: AdapterOptions) -> LoraSettings | None:
    """Return the adapters of the flags and of `--lora-config`; None without any. Raises EngineError or OptionError."""
    if options.lora_config is None:
        return options.lora.settings
    ranks, keys = _read_adapters(options.lora_config)
    capacity = options.lora_adapter_capacity or keys.get("adapter_capacity")
    if capacity is None:
        raise OptionError(f"{options.lora_config} needs adapter_capacity, or give --lora-adapter-capacity")
    base_us = _first_given(options.lora_load_base_latency_us, keys.get("load_base_latency_us"), DEFAULT_BASE_LATENCY_US)
    bandwidth = _first_given(
        options.lora_load_bandwidth_bytes_us, keys.get("load_bandwidth_bytes_us"), DEFAULT_BANDWIDTH_BYTES_US
    )
    per_rank = _bytes_per_rank(options, keys)
    adapters = tuple(
        Adapter(name, rank, max(1, math.ceil(base_us + math.ceil(rank * per_rank / bandwidth))))
        for name, rank in ranks.items()
    )
    return LoraSettings(max_loras=capacity, adapters=adapters)


def check_declared(options: AdapterOptions, adapters: Collection[str]) -> None:
    """Raise OptionError for an adapter of a request that `--lora-config` does not declare."""
    if options.lora_config is None:
        return
    known, _ = _read_adapters(options.lora_config)
    for each in sorted(set(adapters) - {"", *known}):
        raise OptionError(
            f"{options.lora_config} must declare all adapters of requests, got {each!r}, known are {', '.join(known)}"
        )


def _reserved_bytes(options: AdapterOptions) -> float:
    """Return the bytes of GPU memory that are kept free for adapters: for as many as fit of the largest."""
    if options.lora_config is None:
        return 0
    ranks, keys = _read_adapters(options.lora_config)
    capacity = options.lora_adapter_capacity or keys.get("adapter_capacity", 0)
    return capacity * _bytes_per_rank(options, keys) * max(ranks.values())


def _bytes_per_rank(options: AdapterOptions, keys: LoraKeys) -> float:
    given = options.lora_footprint_bytes_per_rank
    return _first_given(given, keys.get("footprint_bytes_per_rank"), DEFAULT_BYTES_PER_RANK)


def _first_given(flag: float | None, key: float | None, default: float) -> float:
    return next(each for each in (flag, key, default) if each is not None)


def _read_adapters(path: str) -> tuple[dict[str, int], LoraKeys]:
    """Return the ranks of the adapters of a file by name, and its keys. Raises EngineError that names file and key."""
    from blis_sim.engine.latency.catalogue import read_mapping

    file = Path(path)
    keys: LoraKeys = read_part(file, AdapterKeys, read_mapping(file)).get("lora", {})
    ranks: dict[str, int] = {}
    for number, each in enumerate(keys.get("adapters", [])):
        within = f"lora.adapters[{number}]"
        if not each.get("id") or "rank" not in each:
            raise problem_in(file, within, "id and rank must be given")
        if each["id"] in ranks:
            raise problem_in(file, within, f"the adapter {each['id']!r} is declared twice")
        ranks[each["id"]] = each["rank"]
    if not ranks:
        raise problem_in(file, "lora", "adapters must list at least one adapter with id and rank")
    return ranks, keys
