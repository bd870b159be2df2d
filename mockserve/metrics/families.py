"""The families on the metrics page of vLLM, in its order: names, types, labels, sources, and made-up values."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from blis_sim.engine.config import EngineConfig
from blis_sim.engine.deployment import Deployment
from blis_sim.engine.memory.kv_groups import STATE, KVCacheGroupSpec
from blis_sim.engine.offloading import Observations, OffloadConfig
from blis_sim.engine.stats import EngineCounters, EngineStats
from mockserve.metrics.counters import SLEEP_STATES, EngineMetrics, Histogram
from mockserve.options.serve import ServeOptions
from mockserve.options.server import FakeMetrics

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
    """Label to value, `engine` left out. Blocks are those of all data-parallel ranks, other sizes those of one."""
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


@dataclass(frozen=True, slots=True)
class Family:
    """One metric, named without the prefix `vllm:`. With `label`, `read` returns a value for each label value."""

    kind: str
    name: str
    help: str
    read: Callable[[EngineState], Value]
    label: str = ""


def _always_zero(_engine: EngineState) -> float:
    """Return 0 for a metric that vLLM always exports but changes only for features that are not simulated."""
    return 0


FAMILIES: tuple[Family, ...] = (
    Family(
        "counter",
        "estimated_flops_per_gpu",
        "Estimated number of floating point operations per GPU (for Model Flops Utilization calculations).",
        _always_zero,
    ),
    Family(
        "counter",
        "estimated_read_bytes_per_gpu",
        "Estimated number of bytes read from memory per GPU (for Model Flops Utilization calculations).",
        _always_zero,
    ),
    Family(
        "counter",
        "estimated_write_bytes_per_gpu",
        "Estimated number of bytes written to memory per GPU (for Model Flops Utilization calculations).",
        _always_zero,
    ),
    Family(
        "gauge", "num_requests_running", "Number of requests in model execution batches.", lambda e: e.stats.num_running
    ),
    Family(
        "gauge", "num_requests_waiting", "Number of requests waiting to be processed.", lambda e: e.stats.num_waiting
    ),
    Family(
        "gauge",
        "num_requests_waiting_by_reason",
        "Number of waiting requests by reason. Reason labels: 'capacity' = waiting for scheduling capacity; "
        "'deferred' = deferred by transient constraints (LoRA budget, KV transfer, blocked status). Sum of "
        "all reasons equals vllm:num_requests_waiting.",
        lambda e: {"capacity": e.stats.num_waiting - e.stats.num_deferred, "deferred": e.stats.num_deferred},
        "reason",
    ),
    Family(
        "gauge",
        "engine_sleep_state",
        "Engine sleep state; awake = 0 means engine is sleeping; awake = 1 means engine is awake; "
        "weights_offloaded = 1 means sleep level 1; discard_all = 1 means sleep level 2.",
        lambda e: {state: float(state == e.metrics.sleep_state) for state in SLEEP_STATES},
        "sleep_state",
    ),
    Family(
        "gauge",
        "kv_cache_usage_perc",
        "KV-cache usage. 1 means 100 percent usage.",
        lambda e: e.stats.kv_usage_fraction,
    ),
    Family(
        "counter",
        "prefix_cache_queries",
        "Prefix cache queries, in terms of number of queried tokens.",
        lambda e: e.metrics.prefix_cache_queries,
    ),
    Family(
        "counter",
        "prefix_cache_hits",
        "Prefix cache hits, in terms of number of cached tokens.",
        lambda e: e.metrics.prefix_cache_hits,
    ),
    Family(
        "counter",
        "external_prefix_cache_queries",
        "External prefix cache queries from KV connector cross-instance cache sharing, in terms of number of "
        "queried tokens.",
        lambda e: e.metrics.external_prefix_cache_queries,
    ),
    Family(
        "counter",
        "external_prefix_cache_hits",
        "External prefix cache hits from KV connector cross-instance cache sharing, in terms of number of "
        "cached tokens.",
        lambda e: e.metrics.external_prefix_cache_hits,
    ),
    Family(
        "counter", "mm_cache_queries", "Multi-modal cache queries, in terms of number of queried items.", _always_zero
    ),
    Family("counter", "mm_cache_hits", "Multi-modal cache hits, in terms of number of cached items.", _always_zero),
    Family(
        "counter",
        "num_preemptions",
        "Cumulative number of preemption from the engine.",
        lambda e: e.stats.num_preemptions,
    ),
    Family("counter", "prompt_tokens", "Number of prefill tokens processed.", lambda e: e.metrics.prompt_tokens),
    Family(
        "counter",
        "prompt_tokens_by_source",
        "Number of prompt tokens by source.",
        lambda e: e.metrics.prompt_tokens_by_source,
        "source",
    ),
    Family(
        "counter",
        "prompt_tokens_cached",
        "Number of cached prompt tokens (local + external).",
        lambda e: e.metrics.prompt_tokens_cached,
    ),
    Family(
        "counter",
        "prompt_tokens_cached_by_source",
        "Prefix-cache hit tokens by the cache tier that supplied them: device (local HBM), host (offloaded to"
        " DRAM), disk, p2p (transferred from another vLLM instance) or external_unspecified. Counted at "
        "admission; sums to vllm:prefix_cache_hits + vllm:external_prefix_cache_hits.",
        lambda e: e.metrics.prompt_tokens_cached_by_source,
        "source",
    ),
    Family(
        "counter", "generation_tokens", "Number of generation tokens processed.", lambda e: e.metrics.generation_tokens
    ),
    Family(
        "counter",
        "request_success",
        "Count of successfully processed requests.",
        lambda e: e.metrics.request_success,
        "finished_reason",
    ),
)
"""Metrics with an engine label, in vLLM's order; rejection counters follow them on the page."""

DRAFT_FAMILIES: tuple[Family, ...] = (
    Family(
        "counter",
        "spec_decode_num_drafts",
        "Number of spec decoding drafts.",
        lambda e: e.counters.num_drafts,
    ),
    Family("counter", "spec_decode_num_draft_tokens", "Number of draft tokens.", lambda e: e.counters.num_draft_tokens),
    Family(
        "counter",
        "spec_decode_num_accepted_tokens",
        "Number of accepted tokens.",
        lambda e: e.counters.num_accepted_tokens,
    ),
    Family(
        "counter",
        "spec_decode_num_accepted_tokens_per_pos",
        "Accepted tokens per draft position.",
        lambda e: {str(place): number for place, number in enumerate(e.counters.num_accepted_per_position)},
        "position",
    ),
)
"""Metrics that exist only with speculative decoding, at the top of the page."""

_LOAD, _STORE = "CPU_to_GPU", "GPU_to_CPU"


def _as_histogram(values: Observations) -> Histogram:
    found = Histogram(values.bounds)
    found.counts, found.count, found.total = list(values.counts), sum(values.counts), values.total
    return found


def _unless_empty(values: Observations) -> Histogram | None:
    """vLLM has no sample of these histograms before the first observation."""
    return _as_histogram(values) if any(values.counts) else None


def _share(e: EngineState, num_blocks: int) -> float | None:
    return num_blocks / e.counters.offload.num_blocks if e.counters.offload.num_blocks else None


OFFLOAD_FAMILIES: tuple[Family, ...] = (
    Family(
        "counter",
        "kv_offload_total_bytes",
        "Number of bytes offloaded by KV connector",
        lambda e: {_LOAD: e.counters.offload.loads.num_bytes, _STORE: e.counters.offload.stores.num_bytes},
        "transfer_type",
    ),
    Family(
        "counter",
        "kv_offload_total_time",
        "Total time measured by all KV offloading operations",
        lambda e: {_LOAD: e.counters.offload.loads.seconds, _STORE: e.counters.offload.stores.seconds},
        "transfer_type",
    ),
    Family(
        "histogram",
        "kv_offload_size",
        "Histogram of KV offload transfer size, in bytes.",
        lambda e: {
            _LOAD: _as_histogram(e.counters.offload.loads.sizes),
            _STORE: _as_histogram(e.counters.offload.stores.sizes),
        },
        "transfer_type",
    ),
    Family(
        "gauge",
        "kv_offload_cpu_cache_usage_perc",
        "Fraction of CPU KV-cache space currently pinned by active transfers (0.0 = idle, 1.0 = saturated). "
        "Sustained high values indicate transfers (stores or promotions) may be dropped due to insufficient capacity.",
        lambda e: _share(e, e.counters.offload.num_pinned),
    ),
    Family(
        "gauge",
        "kv_offload_cpu_cache_write_usage_perc",
        "Fraction of CPU KV-cache space currently pinned by in-flight stores that have not yet completed (0.0 = idle, "
        "1.0 = saturated).",
        lambda e: _share(e, e.counters.offload.num_written),
    ),
    Family(
        "gauge",
        "kv_offload_cpu_cache_read_usage_perc",
        "Fraction of CPU KV-cache space currently pinned by in-flight loads that have not yet completed (0.0 = idle, "
        "1.0 = saturated).",
        lambda e: _share(e, max(0, e.counters.offload.num_pinned - e.counters.offload.num_written)),
    ),
    Family(
        "histogram",
        "kv_offload_cpu_allocation_size",
        "Histogram of the number of CPU chunks requested by each KV offload prepare_store call.",
        lambda e: _unless_empty(e.counters.offload.allocated_chunks),
    ),
    Family(
        "counter",
        "kv_offload_load_bytes",
        "Total bytes loaded from offload storage to GPU.",
        lambda e: e.counters.offload.loads.num_bytes or None,
    ),
    Family(
        "counter",
        "kv_offload_load_time",
        "Total load time from offload storage to GPU, in seconds.",
        lambda e: e.counters.offload.loads.seconds or None,
    ),
    Family(
        "histogram",
        "kv_offload_load_size",
        "Histogram of KV offload load operation size, in bytes.",
        lambda e: _unless_empty(e.counters.offload.loads.sizes),
    ),
    Family(
        "counter",
        "kv_offload_store_bytes",
        "Total bytes stored from GPU to offload storage.",
        lambda e: e.counters.offload.stores.num_bytes or None,
    ),
    Family(
        "counter",
        "kv_offload_store_time",
        "Total store time from GPU to offload storage, in seconds.",
        lambda e: e.counters.offload.stores.seconds or None,
    ),
    Family(
        "histogram",
        "kv_offload_store_size",
        "Histogram of KV offload store operation size, in bytes.",
        lambda e: _unless_empty(e.counters.offload.stores.sizes),
    ),
    Family(
        "histogram",
        "kv_offload_lookup_sync_delay_seconds",
        "Histogram of the time spent in a single offload lookup call, in seconds.",
        lambda e: _unless_empty(e.counters.offload.lookup_s),
    ),
    Family(
        "histogram",
        "kv_offload_lookup_async_delay_seconds",
        "Histogram of time between a request's offload lookup first deferring and the following lookup resolving, or "
        "request finish, in seconds.",
        lambda e: _unless_empty(e.counters.offload.deferred_s),
    ),
    Family(
        "counter",
        "kv_offload_allocation_failure",
        "Number of KV offload store allocation attempts that failed.",
        lambda e: e.counters.offload.num_allocation_failures or None,
    ),
)
"""Metrics that exist only where KV blocks are offloaded to CPU memory, behind those of drafts."""

OFFLOAD_INFO_HELP = (
    "Static configuration of the KV offload managers of this engine instance. The configured offloading spec declares "
    "the label names, and each manager fills the values, so a series appears from the first scheduler step of its "
    "engine. A manager reports one series for each configuration it holds, and a label of its own tells the series "
    "apart. Each engine reports its own configuration, not the instance total."
)


def offload_labels(config: EngineConfig, offload: OffloadConfig) -> dict[str, str]:
    """Label to value of the settings of CPU memory: a chunk is one block."""
    longest, blocks_per_request = config.limit_tokens, 0
    for group in config.kv_groups or (KVCacheGroupSpec(config.context_kind, config.block_size_tokens),):
        whole, window = -(-longest // group.block_tokens), group.window_blocks(0)
        blocks_per_request += min(whole, window) if window else whole
    return {
        "cpu_num_chunks": str(offload.num_blocks),
        "cpu_blocks_per_chunk": "1",
        "cpu_kv_cache_size_bytes": str(round(offload.num_blocks * offload.block_bytes * offload.num_gpus)),
        "cpu_kv_cache_size_tokens": str(offload.num_blocks * longest // blocks_per_request),
    }


HISTOGRAMS: tuple[Family, ...] = (
    Family(
        "histogram", "request_prompt_tokens", "Number of prefill tokens processed.", lambda e: e.metrics.prompt_lengths
    ),
    Family(
        "histogram",
        "request_generation_tokens",
        "Number of generation tokens processed.",
        lambda e: e.metrics.generation_lengths,
    ),
    Family(
        "histogram",
        "iteration_tokens_total",
        "Histogram of number of tokens per engine_step.",
        lambda e: e.metrics.iteration_tokens,
    ),
    Family(
        "histogram",
        "request_max_num_generation_tokens",
        "Histogram of maximum number of requested generation tokens.",
        lambda e: e.metrics.longest_choices,
    ),
    Family("histogram", "request_params_n", "Histogram of the n request parameter.", lambda e: e.metrics.params_n),
    Family(
        "histogram",
        "request_params_max_tokens",
        "Histogram of the max_tokens request parameter.",
        lambda e: e.metrics.params_max_tokens,
    ),
    Family(
        "histogram",
        "time_to_first_token_seconds",
        "Histogram of time to first token in seconds.",
        lambda e: e.metrics.first_token_s,
    ),
    Family(
        "histogram",
        "inter_token_latency_seconds",
        "Histogram of inter-token latency in seconds.",
        lambda e: e.metrics.token_gap_s,
    ),
    Family(
        "histogram",
        "request_time_per_output_token_seconds",
        "Histogram of time_per_output_token_seconds per request.",
        lambda e: e.metrics.time_per_token_s,
    ),
    Family(
        "histogram",
        "e2e_request_latency_seconds",
        "Histogram of e2e request latency in seconds.",
        lambda e: e.metrics.e2e_s,
    ),
    Family(
        "histogram",
        "request_queue_time_seconds",
        "Histogram of time spent in WAITING phase for request.",
        lambda e: e.metrics.queue_s,
    ),
    Family(
        "histogram",
        "request_inference_time_seconds",
        "Histogram of time spent in RUNNING phase for request.",
        lambda e: e.metrics.inference_s,
    ),
    Family(
        "histogram",
        "request_prefill_time_seconds",
        "Histogram of time spent in PREFILL phase for request.",
        lambda e: e.metrics.prefill_s,
    ),
    Family(
        "histogram",
        "request_decode_time_seconds",
        "Histogram of time spent in DECODE phase for request.",
        lambda e: e.metrics.decode_s,
    ),
    Family(
        "histogram",
        "request_num_preemptions",
        "Histogram of the number of times a request was preempted.",
        lambda e: e.metrics.preemptions,
    ),
    Family(
        "histogram",
        "request_prefill_kv_computed_tokens",
        "Histogram of new KV tokens computed during prefill (excluding cached tokens).",
        lambda e: e.metrics.computed_prompt_lengths,
    ),
)


def displayed_value(fakes: FakeMetrics, name: str, value: Value, seconds: float) -> Value:
    """Return the fake value of a metric `seconds` after the start, or else the measured `value`."""
    if name in fakes.value_functions:
        return fakes.value_functions[name](seconds)
    if name in fakes.buckets and isinstance(value, Histogram):
        return _histogram(value, fakes.buckets[name])
    if name == "request_success" and fakes.success is not None and isinstance(value, Mapping):
        return {reason: fakes.success.get(reason, 0) for reason in value}
    return value


def _histogram(true: Histogram, counts: Sequence[int]) -> Histogram:
    found = Histogram(true.bounds)
    for bound, count in zip((*true.bounds, true.bounds[-1]), counts, strict=False):
        found.observe(bound, count)
    return found
