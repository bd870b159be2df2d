"""The families on the metrics page of vLLM, in its order: names, types, labels, sources, and made-up values."""

import csv
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import Any, ClassVar, TypeAlias, TypeVar

from blis_sim.engine.config import EngineConfig
from blis_sim.engine.deployment import Deployment
from blis_sim.engine.memory.kv_groups import STATE
from blis_sim.engine.offloading import LOOKUP_S, Observations, OffloadConfig, TierCounters, TransferCounters
from blis_sim.engine.stats import EngineCounters, EngineStats
from blis_sim.options import OptionError
from blis_sim.options.custom_metrics import CustomMetric
from mockserve.metrics.counters import SLEEP_STATES, EngineMetrics, Histogram
from mockserve.options.serve import ServeOptions
from mockserve.options.server import FakeMetrics

_logger = logging.getLogger(__name__)
TABLE = Path(__file__).with_name("families.csv")
T = TypeVar("T")

UNSIMULATED_SAMPLES = {
    "_block_size_resolved": "True",
    "cache_hit_alignment_tokens": "None",
    "enable_mamba_shared_prefix_checkpoint": "False",
    "hash_block_size": "None",
    "is_attention_free": "False",
    "kv_cache_dtype_skip_layers": "[]",
    "kv_cache_layout": "None",
    "kv_offloading_backend": "native",
    "kv_sharing_fast_prefill": "False",
    "mamba_cache_dtype": "auto",
    "mamba_page_size_padded": "None",
    "mamba_ssm_cache_dtype": "float32",
    "num_cpu_blocks": "None",
    "prefix_cache_retention_interval": "0",
    "prefix_match_unit": "None",
    "replayssm_buffer_len": "16",
    "simple_cpu_offload_num_blocks": "None",
    "skip_page_size_padded": "None",
    "sliding_window": "None",
    "swa_bounded_replay": "True",
    "use_kda_recoverssm": "False",
    "use_replayssm": "False",
}
"""vLLM's samples for features that are not simulated, with the values of a server without these features."""


def cache_config_labels(options: ServeOptions, deployment: Deployment) -> dict[str, str]:
    """Label to value, `engine` left out. The number of blocks counts all data-parallel ranks; other sizes describe one
    rank."""
    config = deployment.config
    states = [group.block_tokens for group in config.kv_groups if group.kind == STATE]
    others = [group.block_tokens for group in config.kv_groups if group.kind != STATE]
    block_size, size_tokens = str(min(others, default=config.block_size_tokens)), config.kv_size_tokens
    return {
        **UNSIMULATED_SAMPLES,
        "block_size": block_size,
        "cache_dtype": options.deployment.kv_cache_dtype,
        "effective_attention_block_size": block_size,
        "enable_prefix_caching": str(config.enable_prefix_caching),
        "gpu_memory_utilization": str(options.deployment.memory_utilization),
        "kv_cache_memory_bytes": str(options.deployment.kv_cache_memory_bytes or None),
        "kv_cache_max_concurrency": str(size_tokens / config.limit_tokens),
        "kv_cache_size_tokens": str(size_tokens),
        "kv_offloading_size": str(options.deployment.kv_offloading_size),
        "mamba_block_size": str(states[0] if states else None),
        "mamba_cache_mode": "align" if states and config.enable_prefix_caching else "none",
        "num_gpu_blocks": str(config.total_kv_blocks * options.deployment.dp),
        "num_gpu_blocks_override": str(options.deployment.total_kv_blocks),
        "prefix_caching_hash_algo": options.kv_sharing.prefix_caching_hash_algo,
        "user_specified_block_size": str(options.deployment.block_size is not None),
    }


Value: TypeAlias = float | Histogram | Mapping[str, float] | Mapping[str, Histogram] | None
"""None for a metric without a sample."""


@dataclass(frozen=True, slots=True)
class EngineState:
    """One engine at the moment of a scrape."""

    stats: EngineStats
    counters: EngineCounters
    metrics: EngineMetrics
    always_zero: ClassVar[float] = 0
    """Value of a metric that vLLM changes only for features that are not simulated."""
    no_tier: ClassVar[Mapping[str, float]] = {}
    """Value of a metric of tiers that vLLM samples only with features that are not simulated."""

    @property
    def waiting_by_reason(self) -> Mapping[str, float]:
        deferred = self.stats.num_deferred
        return {"capacity": self.stats.num_waiting - deferred, "deferred": deferred}

    @property
    def sleep_states(self) -> Mapping[str, float]:
        return {state: float(state == self.metrics.sleep_state) for state in SLEEP_STATES}

    @property
    def accepted_per_position(self) -> Mapping[str, float]:
        return {str(place): number for place, number in enumerate(self.counters.num_accepted_per_position)}

    @property
    def pinned_share(self) -> float | None:
        return self._share(self.counters.offload.num_pinned)

    @property
    def written_share(self) -> float | None:
        return self._share(self.counters.offload.num_written)

    @property
    def read_share(self) -> float | None:
        return self._share(max(0, self.counters.offload.num_pinned - self.counters.offload.num_written))

    @property
    def tier_lookups(self) -> Mapping[str, Histogram]:
        """Times of look-ups, which take none in simulated time."""
        found: dict[str, Histogram] = {}
        for label, tier in self._tiers().items():
            times = Observations(LOOKUP_S)
            times.observe(0.0, tier.num_queries)
            found[label] = as_histogram(times)
        return _counted(found)

    @property
    def tier_promotions(self) -> Mapping[str, Histogram]:
        found = self.by_tier(lambda tier: as_histogram(tier.promoted_s))
        return {f"{label} success": each for label, each in _counted(found).items()}

    @property
    def tier_write_shares(self) -> Mapping[str, float]:
        """Shares of CPU memory that blocks take which are read from each device: these write to it."""
        return self.by_device(lambda device: self._share(device.reads.num_blocks_under_way) or 0.0)

    @property
    def tier_read_shares(self) -> Mapping[str, float]:
        return self.by_device(lambda device: self._share(device.writes.num_blocks_under_way) or 0.0)

    def _tiers(self) -> Mapping[str, TierCounters]:
        tiers = self.counters.offload.tiers
        return dict(zip(tier_labels(len(tiers) - 1), tiers, strict=True)) if tiers else {}

    def by_tier(self, read: Callable[[TierCounters], T]) -> Mapping[str, T]:
        """Return a value of CPU memory and of each device behind it."""
        return {label: read(tier) for label, tier in self._tiers().items()}

    def by_device(self, read: Callable[[TierCounters], T]) -> Mapping[str, T]:
        """Return a value of each device from the first step on."""
        has_stepped = self.counters.offload.num_blocks > 0
        return dict(list(self.by_tier(read).items())[1:]) if has_stepped else {}

    def by_direction(self, read: Callable[[TransferCounters], T]) -> Mapping[str, T]:
        """Return a value of transfers in each direction."""
        offload = self.counters.offload
        return {"CPU_to_GPU": read(offload.loads), "GPU_to_CPU": read(offload.stores)}

    def _share(self, num_blocks: int) -> float | None:
        """Return a part of the blocks in CPU memory; None without CPU memory."""
        all_blocks = self.counters.offload.num_blocks
        return num_blocks / all_blocks if all_blocks else None


def tier_labels(num_devices: int) -> list[str]:
    """Return vLLM's labels of CPU memory and of so many devices behind it, which are file systems."""
    return ["0:primary", *(f"{number}:fs" for number in range(1, num_devices + 1))]


def _counted(values: Mapping[str, Histogram]) -> Mapping[str, Histogram]:
    return {label: value for label, value in values.items() if value.count}


def as_histogram(values: Observations) -> Histogram:
    """Return the engine's observations as a histogram of the page."""
    found = Histogram(values.bounds)
    found.counts, found.count, found.total = list(values.counts), sum(values.counts), values.total
    return found


@dataclass(frozen=True, slots=True)
class Family:
    """One metric, named without the prefix `vllm:`. With `label`, `read` returns a value for each label value.

    Several labels stand in `label` with spaces between, and so do their values.
    """

    kind: str
    name: str
    help: str
    read: Callable[[EngineState], Value]
    label: str = ""


def _families_by_shown() -> Mapping[str, Sequence[Family]]:
    """Return the families by their column `shown`, in vLLM's order.

    A `value` names an attribute of `EngineState`, or of each tier, device or direction of transfers. One that ends in
    `?` has no sample while it is zero or empty.
    """
    found: dict[str, list[Family]] = {}
    tiered = found["tiered"] = []
    with TABLE.open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            family = Family(row["kind"], row["name"], row["help"], _reader(row["value"]), row["label"])
            found.setdefault(row["shown"], []).append(family)
            if row["shown"] in ("offload", "tiers"):
                tiered.append(family)
    return found


def custom_families(metrics: Sequence[CustomMetric]) -> Sequence[Family]:
    """Return a gauge for each metric of another package. Raises OptionError for a name that vLLM has."""
    known = {family.name for families in _ALL.values() for family in families}
    for metric in metrics:
        if metric.name in known:
            raise OptionError(f"--metric {metric.reference} has the name of a metric of vLLM")
    return [Family("gauge", each.name.replace("-", "_"), each.help, partial(_read_custom, each)) for each in metrics]


def _read_custom(metric: CustomMetric, engine: EngineState) -> Value:
    """Return the value; a function that fails has no sample on this page, and its error is logged."""
    try:
        return metric.value(engine)
    except OptionError as error:
        _logger.warning("%s", error)
        return None


_PARTS: Mapping[str, Callable[..., Mapping[str, Any]]] = {
    "tiers": EngineState.by_tier,
    "devices": EngineState.by_device,
    "directions": EngineState.by_direction,
}


def _reader(value: str) -> Callable[[EngineState], Value]:
    path, omits_zero = value.removesuffix("?"), value.endswith("?")
    part, _, of_part = path.partition(".")
    if part not in _PARTS:
        return partial(_read_value, attrgetter(path), omits_zero)
    return partial(_read_parts, _PARTS[part], attrgetter(of_part), omits_zero)


def _read_value(get: Callable[[Any], Any], omits_zero: bool, engine: Any) -> Value:
    value = get(engine)
    if isinstance(value, Observations):
        return as_histogram(value) if any(value.counts) or not omits_zero else None
    return None if omits_zero and not value else value


def _read_parts(
    read: Callable[..., Mapping[str, Any]], get: Callable[[Any], Any], omits_zero: bool, engine: EngineState
) -> Value:
    values = read(engine, lambda part: _read_value(get, omits_zero, part))
    return {label: value for label, value in values.items() if value is not None}


_ALL = _families_by_shown()
FAMILIES = _ALL["always"]
"""Metrics with an engine label, in vLLM's order; rejection counters follow them on the page."""
HISTOGRAMS = _ALL["requests"]
"""Metrics that follow the rejection counters."""
DRAFT_FAMILIES = _ALL["drafts"]
"""Metrics that exist only with speculative decoding, at the top of the page."""
OFFLOAD_FAMILIES = _ALL["offload"]
"""Metrics that exist only where KV blocks are offloaded to CPU memory; they follow the metrics of drafts."""
TIERED_FAMILIES = _ALL["tiered"]
"""Instead of these where devices are behind CPU memory."""

OFFLOAD_INFO_HELP = (
    "Static configuration of the KV offload managers of this engine instance. The configured offloading spec declares "
    "the label names, and each manager fills the values, so a series appears from the first scheduler step of its "
    "engine. A manager reports one series for each configuration it holds, and a label of its own tells the series "
    "apart. Each engine reports its own configuration, not the instance total."
)


def offload_labels(config: EngineConfig, offload: OffloadConfig) -> dict[str, str]:
    """Label to value of the settings of CPU memory: a chunk is one block."""
    longest, blocks_per_request = config.limit_tokens, 0
    for group in config.cache_groups:
        whole, window = -(-longest // group.block_tokens), group.window_blocks(0)
        blocks_per_request += min(whole, window) if window else whole
    return {
        "cpu_num_chunks": str(offload.num_blocks),
        "cpu_blocks_per_chunk": "1",
        "cpu_kv_cache_size_bytes": str(round(offload.num_blocks * offload.block_bytes * offload.num_gpus)),
        "cpu_kv_cache_size_tokens": str(offload.num_blocks * longest // blocks_per_request),
    }


def displayed_value(fakes: FakeMetrics, name: str, value: Value, seconds: float) -> Value:
    """Return the fake value of a metric `seconds` after the start, or else the measured `value`."""
    if name in fakes.value_functions:
        return fakes.value_functions[name](seconds)
    if name in fakes.buckets and isinstance(value, Histogram):
        return _pinned_histogram(value, fakes.buckets[name])
    if name == "request_success" and fakes.success is not None and isinstance(value, Mapping):
        return {reason: fakes.success.get(reason, 0) for reason in value}
    return value


def _pinned_histogram(true: Histogram, counts: Sequence[int]) -> Histogram:
    found = Histogram(true.bounds)
    for bound, count in zip((*true.bounds, true.bounds[-1]), counts, strict=False):
        found.observe(bound, count)
    return found
