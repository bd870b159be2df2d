"""The families on the metrics page of vLLM, in its order: names, types, labels, sources."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from engine.stats import EngineCounters, EngineStats
from mockserve.metrics.engine import SLEEP_STATES, EngineMetrics
from mockserve.metrics.histogram import Histogram

Value: TypeAlias = float | Histogram | Mapping[str, float]


@dataclass(frozen=True, slots=True)
class EngineState:
    """One engine at the moment of a scrape."""

    stats: EngineStats
    counters: EngineCounters
    metrics: EngineMetrics


@dataclass(frozen=True, slots=True)
class Family:
    """One metric under vLLM's name without its `vllm:`; with `label`, `read` gives a value for each of its values."""

    kind: str
    name: str
    help: str
    read: Callable[[EngineState], Value]
    label: str = ""


def _nothing(_engine: EngineState) -> float:
    """vLLM exports it always and moves it only for features that mean nothing here."""
    return 0


FAMILIES: tuple[Family, ...] = (
    Family("counter", "estimated_flops_per_gpu", "Estimated floating-point operations, not estimated here.", _nothing),
    Family(
        "counter", "estimated_read_bytes_per_gpu", "Estimated bytes read from memory, not estimated here.", _nothing
    ),
    Family(
        "counter", "estimated_write_bytes_per_gpu", "Estimated bytes written to memory, not estimated here.", _nothing
    ),
    Family("gauge", "num_requests_running", "Requests in the running batch.", lambda e: e.stats.num_running),
    Family("gauge", "num_requests_waiting", "Requests waiting to be scheduled.", lambda e: e.stats.num_waiting),
    Family(
        "gauge",
        "num_requests_waiting_by_reason",
        "Requests waiting for room in the batch or the cache, or passed over for a reason of their own.",
        lambda e: {"capacity": e.stats.num_waiting - e.stats.num_deferred, "deferred": e.stats.num_deferred},
        "reason",
    ),
    Family(
        "gauge",
        "engine_sleep_state",
        "1 for the state the engine is in.",
        lambda e: {state: float(state == e.metrics.sleep_state) for state in SLEEP_STATES},
        "sleep_state",
    ),
    Family("gauge", "kv_cache_usage_perc", "KV cache in use, 1 is all of it.", lambda e: e.stats.kv_usage_fraction),
    Family(
        "counter",
        "prefix_cache_queries",
        "Tokens looked up in the prefix cache at the first admission of requests.",
        lambda e: e.metrics.prefix_cache_queries,
    ),
    Family("counter", "prefix_cache_hits", "Those of them that the cache held.", lambda e: e.metrics.prefix_cache_hits),
    Family(
        "counter",
        "external_prefix_cache_queries",
        "Tokens looked up in another instance.",
        lambda e: e.metrics.external_prefix_cache_queries,
    ),
    Family(
        "counter",
        "external_prefix_cache_hits",
        "Those of them that the other instance had.",
        lambda e: e.metrics.external_prefix_cache_hits,
    ),
    Family(
        "counter", "mm_cache_queries", "Images and the like looked up in a cache, of which there is none.", _nothing
    ),
    Family("counter", "mm_cache_hits", "Those of them that the cache held.", _nothing),
    Family("counter", "num_preemptions", "Requests preempted.", lambda e: e.stats.num_preemptions),
    Family("counter", "prompt_tokens", "Prompt tokens processed.", lambda e: e.metrics.prompt_tokens),
    Family(
        "counter",
        "prompt_tokens_by_source",
        "Prompt tokens processed, by whether they were computed or found.",
        lambda e: e.metrics.prompt_tokens_by_source,
        "source",
    ),
    Family(
        "counter",
        "prompt_tokens_cached",
        "Prompt tokens found instead of computed.",
        lambda e: e.metrics.prompt_tokens_cached,
    ),
    Family(
        "counter",
        "prompt_tokens_cached_by_source",
        "Prompt tokens found at admission, by where.",
        lambda e: e.metrics.prompt_tokens_cached_by_source,
        "source",
    ),
    Family("counter", "generation_tokens", "Tokens generated.", lambda e: e.metrics.generation_tokens),
    Family(
        "counter",
        "request_success",
        "Requests finished, by reason.",
        lambda e: e.metrics.request_success,
        "finished_reason",
    ),
)
"""Those before the rejections, which have no engine."""

DRAFT_FAMILIES: tuple[Family, ...] = (
    Family(
        "counter",
        "spec_decode_num_drafts",
        "Times that drafted tokens of a request were verified.",
        lambda e: e.counters.num_drafts,
    ),
    Family("counter", "spec_decode_num_draft_tokens", "Tokens drafted.", lambda e: e.counters.num_draft_tokens),
    Family(
        "counter",
        "spec_decode_num_accepted_tokens",
        "Drafted tokens accepted.",
        lambda e: e.counters.num_accepted_tokens,
    ),
    Family(
        "counter",
        "spec_decode_num_accepted_tokens_per_pos",
        "Drafted tokens accepted, by their place in the draft.",
        lambda e: {str(place): number for place, number in enumerate(e.counters.num_accepted_per_position)},
        "position",
    ),
)
"""Only there with speculative decoding, and then the first ones."""

HISTOGRAMS: tuple[Family, ...] = (
    Family(
        "histogram", "request_prompt_tokens", "Prompt tokens per finished request.", lambda e: e.metrics.prompt_lengths
    ),
    Family(
        "histogram",
        "request_generation_tokens",
        "Output tokens per finished request.",
        lambda e: e.metrics.generation_lengths,
    ),
    Family(
        "histogram",
        "iteration_tokens_total",
        "Prompt tokens computed and output tokens per engine step.",
        lambda e: e.metrics.iteration_tokens,
    ),
    Family(
        "histogram",
        "request_max_num_generation_tokens",
        "Output tokens of the longest choice, per request of a client.",
        lambda e: e.metrics.longest_choices,
    ),
    Family(
        "histogram", "request_params_n", "Choices asked for, per request of a client.", lambda e: e.metrics.params_n
    ),
    Family(
        "histogram",
        "request_params_max_tokens",
        "Output limit per finished request.",
        lambda e: e.metrics.params_max_tokens,
    ),
    Family(
        "histogram",
        "time_to_first_token_seconds",
        "Time from arrival to the first token.",
        lambda e: e.metrics.first_token_s,
    ),
    Family(
        "histogram",
        "inter_token_latency_seconds",
        "Time between consecutive outputs of a request.",
        lambda e: e.metrics.token_gap_s,
    ),
    Family(
        "histogram",
        "request_time_per_output_token_seconds",
        "Mean time per output token after the first, per request.",
        lambda e: e.metrics.time_per_token_s,
    ),
    Family(
        "histogram", "e2e_request_latency_seconds", "Time from arrival to the last token.", lambda e: e.metrics.e2e_s
    ),
    Family(
        "histogram",
        "request_queue_time_seconds",
        "Time spent waiting before the first admission.",
        lambda e: e.metrics.queue_s,
    ),
    Family(
        "histogram",
        "request_inference_time_seconds",
        "Time from the first admission to the last token.",
        lambda e: e.metrics.inference_s,
    ),
    Family(
        "histogram",
        "request_prefill_time_seconds",
        "Time from the first admission to the first token.",
        lambda e: e.metrics.prefill_s,
    ),
    Family(
        "histogram",
        "request_decode_time_seconds",
        "Time from the first to the last token.",
        lambda e: e.metrics.decode_s,
    ),
    Family(
        "histogram",
        "request_num_preemptions",
        "Preemptions per finished request.",
        lambda e: e.metrics.preemptions,
    ),
    Family(
        "histogram",
        "request_prefill_kv_computed_tokens",
        "Prompt tokens computed, per finished request.",
        lambda e: e.metrics.computed_prompt_lengths,
    ),
)
