"""What vLLM counts about requests and steps, fed by the real-time driver. All times are on the engine's clock."""

from collections.abc import Sequence
from typing import Any

from engine.units import Micros
from mockserve.flight import Flight
from mockserve.histogram import Histogram

REQUEST_LATENCY_BUCKETS_S: tuple[float, ...] = (
    0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680,
)  # fmt: skip
FIRST_TOKEN_BUCKETS_S: tuple[float, ...] = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160, 640, 2560,
)  # fmt: skip
TOKEN_GAP_BUCKETS_S: tuple[float, ...] = (
    0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80,
)  # fmt: skip
STEP_TOKEN_BUCKETS = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
PREEMPTION_BUCKETS = (1, 2, 3, 4, 5, 10, 20)
FINISHED_REASONS = ("stop", "length", "abort", "error", "repetition")


def token_count_buckets(max_model_len: int) -> tuple[int, ...]:
    """1, 2, 5, 10, 20, 50, ... up to `max_model_len`."""
    bounds = []
    scale = 1
    while scale <= max_model_len:
        bounds += [step * scale for step in (1, 2, 5) if step * scale <= max_model_len]
        scale *= 10
    return tuple(bounds)


class EngineMetrics:
    """Counters and histograms of one server, under vLLM's names without their `vllm:`."""

    def __init__(self, max_model_len: int) -> None:
        counts = token_count_buckets(max_model_len)
        self.prompt_tokens = 0
        self.generation_tokens = 0
        self.prefix_cache_queries = 0
        self.request_success = dict.fromkeys(FINISHED_REASONS, 0)
        self.iteration_tokens_total = Histogram(STEP_TOKEN_BUCKETS)
        self.time_to_first_token_seconds = Histogram(FIRST_TOKEN_BUCKETS_S)
        self.inter_token_latency_seconds = Histogram(TOKEN_GAP_BUCKETS_S)
        self.request_time_per_output_token_seconds = Histogram(TOKEN_GAP_BUCKETS_S)
        self.e2e_request_latency_seconds = Histogram(REQUEST_LATENCY_BUCKETS_S)
        self.request_queue_time_seconds = Histogram(REQUEST_LATENCY_BUCKETS_S)
        self.request_prefill_time_seconds = Histogram(REQUEST_LATENCY_BUCKETS_S)
        self.request_decode_time_seconds = Histogram(REQUEST_LATENCY_BUCKETS_S)
        self.request_inference_time_seconds = Histogram(REQUEST_LATENCY_BUCKETS_S)
        self.request_prompt_tokens = Histogram(counts)
        self.request_generation_tokens = Histogram(counts)
        self.request_params_max_tokens = Histogram(counts)
        self.request_num_preemptions = Histogram(PREEMPTION_BUCKETS)

    def scheduled(self, flight: Flight, at: Micros) -> None:
        self.prefix_cache_queries += flight.request.input_tokens
        if flight.first_scheduled_at is None:
            flight.first_scheduled_at = at

    def first_token(self, flight: Flight, latency_us: Micros) -> None:
        self.prompt_tokens += flight.request.input_tokens
        self.time_to_first_token_seconds.observe(latency_us / 1e6)

    def step(self, num_prompt_tokens: int, num_tokens: int, gaps_us: dict[Micros, int]) -> None:
        self.generation_tokens += num_tokens
        self.iteration_tokens_total.observe(num_prompt_tokens + num_tokens)
        for gap, times in gaps_us.items():
            self.inter_token_latency_seconds.observe(gap / 1e6, times)

    def completed(self, flight: Flight, latency_us: Micros) -> None:
        self.request_success[flight.reply.finish_reason] += 1
        self.e2e_request_latency_seconds.observe(latency_us / 1e6)
        self.request_prompt_tokens.observe(flight.request.input_tokens)
        self.request_generation_tokens.observe(flight.num_tokens)
        self.request_params_max_tokens.observe(flight.request.max_output_tokens)
        self.request_num_preemptions.observe(flight.num_preemptions)
        scheduled_at, first_at, last_at = flight.first_scheduled_at, flight.first_token_at, flight.last_token_at
        if scheduled_at is None or first_at is None:
            return
        self.request_queue_time_seconds.observe((scheduled_at - flight.queued_at) / 1e6)
        self.request_prefill_time_seconds.observe((first_at - scheduled_at) / 1e6)
        self.request_decode_time_seconds.observe((last_at - first_at) / 1e6)
        self.request_inference_time_seconds.observe((last_at - scheduled_at) / 1e6)
        gaps = max(1, flight.num_tokens - 1)
        self.request_time_per_output_token_seconds.observe((last_at - first_at) / gaps / 1e6)

    def histograms(self) -> Sequence[tuple[str, Histogram]]:
        """Every histogram with its name."""
        found: dict[str, Any] = vars(self)
        return [(name, value) for name, value in found.items() if isinstance(value, Histogram)]
