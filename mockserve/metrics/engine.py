"""vLLM's counts of requests and steps, fed by the real-time driver on the engine's clock, and histograms."""

import logging
import time
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from math import log

from prometheus_client.utils import floatToGoString

from blis_sim.engine.units import Micros
from mockserve.in_flight_request import InFlightRequest

BUCKETS_PER_E = 50
"""Buckets per factor e of duration; each bucket is 2 % wide, so its middle is within 1 % of its durations."""


class LogHistogram:
    """A histogram of durations with logarithmic buckets, narrow enough for percentiles within 1 %.

    Only used buckets take memory, about 1,000 at most.
    """

    __slots__ = ("counts",)

    def __init__(self) -> None:
        self.counts: dict[int, int] = {}

    def observe(self, duration_us: float, times: int = 1) -> None:
        """Count a duration `times` times; a duration below a microsecond counts as one microsecond."""
        bucket = int(log(duration_us) * BUCKETS_PER_E) if duration_us > 1 else 0
        self.counts[bucket] = self.counts.get(bucket, 0) + times


class Histogram:
    """Counts of observations per bucket. `bounds` ascend; an observation equal to a bound belongs to its bucket."""

    __slots__ = ("bounds", "count", "counts", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = tuple(bounds)
        self.counts = [0] * (len(self.bounds) + 1)
        self.count = 0
        self.total = 0.0

    def observe(self, value: float, times: int = 1) -> None:
        """Add `times` observations of `value`."""
        self.counts[bisect_left(self.bounds, value)] += times
        self.count += times
        self.total += value * times

    def add(self, other: "Histogram") -> None:
        """Add the observations of a histogram with equal bounds."""
        self.counts = [ours + theirs for ours, theirs in zip(self.counts, other.counts, strict=True)]
        self.count += other.count
        self.total += other.total

    def copy(self) -> "Histogram":
        """Return a histogram that later observations leave as it is."""
        found = Histogram(self.bounds)
        found.counts, found.count, found.total = self.counts[:], self.count, self.total
        return found

    def since(self, counts_before: Sequence[int]) -> "Histogram":
        """Return the observations made since `counts` was `counts_before`, without their total."""
        window = Histogram(self.bounds)
        window.counts = [now - before for now, before in zip(self.counts, counts_before, strict=True)]
        window.count = sum(window.counts)
        return window

    def quantile(self, fraction: float) -> float:
        """Return the interpolated quantile, at most the last bound.

        Returns 0 without observations.
        """
        rank = fraction * self.count
        seen = 0
        lower = 0.0
        for bound, count in zip(self.bounds, self.counts, strict=False):
            if count and seen + count >= rank:
                return lower + (bound - lower) * (rank - seen) / count
            seen += count
            lower = bound
        return lower if self.count else 0.0


def cumulative(histogram: Histogram) -> Sequence[tuple[str, float]]:
    """Return cumulative buckets, as in the Prometheus exposition format."""
    seen = 0
    buckets = []
    for bound, count in zip((*histogram.bounds, float("inf")), histogram.counts, strict=True):
        seen += count
        buckets.append((floatToGoString(bound), float(seen)))  # type: ignore[no-untyped-call]
    return buckets


LATENESS_BUCKETS_S = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)
WINDOW_S = 10.0
WARN_ABOVE_S = 0.005
PERCENTILE = 0.99

_logger = logging.getLogger(__name__)


class Lateness:
    """A histogram of the real seconds between the due time and the delivery of frames.

    Every `WINDOW_S` the 99th percentile of the window's frames is computed, interpolated within a bucket, and passed to
    `warn` if it exceeds `WARN_ABOVE_S`.
    """

    def __init__(self, warn: Callable[[str], None] | None = None) -> None:
        self.histogram = Histogram(LATENESS_BUCKETS_S)
        self.p99_s = 0.0
        """The 99th percentile of the latest complete window."""
        self._warn = warn or _logger.warning
        self._counts_before = list(self.histogram.counts)
        self._window_ends_at: float | None = None

    def observe(self, lateness_s: float, now_s: float, num_frames: int = 1) -> None:
        """Record frames sent together at `now_s` on a monotonic clock, with the lateness of the first."""
        self.histogram.observe(lateness_s, num_frames)
        if self._window_ends_at is None or now_s >= self._window_ends_at:
            self._next_window(now_s)

    def _next_window(self, now_s: float) -> None:
        if self._window_ends_at is not None:
            window = self.histogram.since(self._counts_before)
            self.p99_s = window.quantile(PERCENTILE)
            if self.p99_s > WARN_ABOVE_S:
                self._warn(
                    f"tokens leave late: p99 {self.p99_s * 1000:.1f} ms over the last {window.count:,} frames;"
                    " this machine cannot keep up with the load at this speed"
                )
        self._counts_before = list(self.histogram.counts)
        self._window_ends_at = now_s + WINDOW_S


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
CHOICE_BUCKETS = (1, 2, 5, 10, 20)
PROMPT_SOURCES = ("local_compute", "local_cache_hit", "external_kv_transfer")
CACHE_SOURCES = ("device", "host", "p2p", "disk", "external_unspecified")
DEVICE, HOST, PEER, _, UNSPECIFIED = CACHE_SOURCES
SLEEP_STATES = ("awake", "weights_offloaded", "discard_all")
MOST_ADAPTER_LISTS = 1000
MOST_ADAPTER_CHARACTERS = 1_000_000
"""Limits of the number of kept adapter lists and of their total length, because clients choose the names."""
FINISHED_REASONS = ("stop", "length", "abort", "error", "repetition")


def token_count_buckets(max_model_len: int) -> tuple[int, ...]:
    """1, 2, 5, 10, 20, 50, ... up to `max_model_len`."""
    bounds = []
    scale = 1
    while scale <= max_model_len:
        bounds += [step * scale for step in (1, 2, 5) if step * scale <= max_model_len]
        scale *= 10
    return tuple(bounds)


class Adapters:
    """Records which LoRA adapters were in use together after a step, with the latest time of each combination.

    vLLM's front end counts a request from its first token on, so an adapter is in use from the first token of its first
    request until the end of its last request. A step is recorded after the ends of requests in it. vLLM's two lists, of
    running and of waiting adapters, both name all adapters in use, in order of their first use. vLLM keeps every list
    forever; here the lists seen longest ago are dropped above a limit.
    """

    def __init__(self) -> None:
        self._last_seen: dict[str, float] = {}
        self._num_characters = 0
        self._numbers: dict[str, int] = {}
        self._step_ended_at: float | None = None
        """End of a step that is not recorded yet, because requests may still end in it."""

    def last_seen(self) -> Mapping[str, float]:
        """Comma-joined lists of adapters with the Unix time each was last seen, in ascending order of time."""
        self._note()
        return self._last_seen

    def request_started(self, adapter: str) -> None:
        """A request had its first token. An empty `adapter` means none."""
        self._note()
        if adapter:
            self._numbers[adapter] = self._numbers.get(adapter, 0) + 1

    def request_ended(self, adapter: str) -> None:
        """A request that had its first token has ended. An empty `adapter` means none."""
        if adapter:
            self._numbers[adapter] -= 1
            if not self._numbers[adapter]:
                del self._numbers[adapter]

    def request_aborted(self, adapter: str) -> None:
        """A request that had its first token was aborted between two steps."""
        self._note()
        self.request_ended(adapter)

    def step_ended(self) -> None:
        """A step has generated tokens. Calls of `request_ended` for its requests follow."""
        self._note()
        self._step_ended_at = time.time()

    def _note(self) -> None:
        """Record the adapters in use after the latest step, once."""
        if self._step_ended_at is None:
            return
        names = ",".join(self._numbers)
        if self._last_seen.pop(names, None) is None:
            self._num_characters += len(names)
        self._last_seen[names] = self._step_ended_at
        self._step_ended_at = None
        while len(self._last_seen) > MOST_ADAPTER_LISTS or (
            self._num_characters > MOST_ADAPTER_CHARACTERS and len(self._last_seen) > 1
        ):
            oldest = next(iter(self._last_seen))
            del self._last_seen[oldest]
            self._num_characters -= len(oldest)


MOST_RECENT_REQUESTS = 1000
"""Requests of which the hit rate in a log line is the mean."""


class RecentHitRate:
    """The hit rate of a cache over its latest requests, weighted by their tokens."""

    __slots__ = ("_num_hits", "_num_queries", "_requests")

    def __init__(self) -> None:
        self._requests: deque[tuple[int, int]] = deque()
        self._num_queries = 0
        self._num_hits = 0

    def observe(self, num_queries: int, num_hits: int) -> None:
        """Add a request that looked up `num_queries` tokens and found `num_hits` of them."""
        self._requests.append((num_queries, num_hits))
        self._num_queries += num_queries
        self._num_hits += num_hits
        if len(self._requests) > MOST_RECENT_REQUESTS:
            num_queries, num_hits = self._requests.popleft()
            self._num_queries -= num_queries
            self._num_hits -= num_hits

    @property
    def percent(self) -> float | None:
        """The hit rate in percent; None before the first request."""
        if not self._requests:
            return None
        return 100 * self._num_hits / self._num_queries if self._num_queries else 0.0


class EngineMetrics:
    """Counters and histograms of one engine, named after the things counted; times are simulated seconds."""

    def __init__(self, max_model_len: int, external_source: str | None = None, caches_prefixes: bool = True) -> None:
        """`external_source` is where a KV connector finds blocks, one of `CACHE_SOURCES`; None without a connector."""
        self._caches_prefixes = caches_prefixes
        counts = token_count_buckets(max_model_len)
        self._external_source = external_source
        self.prompt_tokens = 0
        self.prompt_tokens_by_source = dict.fromkeys(PROMPT_SOURCES, 0)
        self.prompt_tokens_cached_by_source = dict.fromkeys(CACHE_SOURCES, 0)
        self.generation_tokens = 0
        self.prefix_cache_queries = 0
        self.prefix_cache_hits = 0
        self.external_prefix_cache_queries = 0
        self.external_prefix_cache_hits = 0
        self.recent_hit_rate = RecentHitRate()
        self.recent_external_hit_rate = RecentHitRate()
        self.request_success = dict.fromkeys(FINISHED_REASONS, 0)
        self.sleep_state = SLEEP_STATES[0]
        self.iteration_tokens = Histogram(STEP_TOKEN_BUCKETS)
        self.first_token_s = Histogram(FIRST_TOKEN_BUCKETS_S)
        self.token_gap_s = Histogram(TOKEN_GAP_BUCKETS_S)
        self.first_token_fine = LogHistogram()
        self.token_gap_fine = LogHistogram()
        self.time_per_token_s = Histogram(TOKEN_GAP_BUCKETS_S)
        self.e2e_s = Histogram(REQUEST_LATENCY_BUCKETS_S)
        self.queue_s = Histogram(REQUEST_LATENCY_BUCKETS_S)
        self.prefill_s = Histogram(REQUEST_LATENCY_BUCKETS_S)
        self.decode_s = Histogram(REQUEST_LATENCY_BUCKETS_S)
        self.inference_s = Histogram(REQUEST_LATENCY_BUCKETS_S)
        self.prompt_lengths = Histogram(counts)
        self.computed_prompt_lengths = Histogram(counts)
        self.generation_lengths = Histogram(counts)
        self.longest_choices = Histogram(counts)
        self.params_max_tokens = Histogram(counts)
        self.params_n = Histogram(CHOICE_BUCKETS)
        self.preemptions = Histogram(PREEMPTION_BUCKETS)
        self.adapters = Adapters()

    @property
    def has_stepped(self) -> bool:
        """Whether the engine has begun to work on a request."""
        return self.prefix_cache_queries > 0 or self.iteration_tokens.count > 0

    @property
    def prompt_tokens_cached(self) -> int:
        return self.prompt_tokens - self.prompt_tokens_by_source["local_compute"]

    def scheduled(self, flight: InFlightRequest, at: Micros) -> None:
        if flight.first_scheduled_at is not None:
            return
        flight.first_scheduled_at = at
        local = flight.num_cached_tokens - flight.num_external_tokens
        self.prompt_tokens_cached_by_source[DEVICE] += local
        self.prompt_tokens_cached_by_source[self._external_source or PEER] += flight.num_external_tokens
        if self._caches_prefixes and flight.request.reads_prefix_cache:
            self.prefix_cache_queries += flight.request.input_tokens
            self.prefix_cache_hits += local
            self.recent_hit_rate.observe(flight.request.input_tokens, local)
        if self._external_source is not None or flight.request.external is not None:
            self.external_prefix_cache_queries += flight.request.input_tokens - local
            self.external_prefix_cache_hits += flight.num_external_tokens
            self.recent_external_hit_rate.observe(flight.request.input_tokens - local, flight.num_external_tokens)

    def first_token(self, flight: InFlightRequest, latency_us: Micros) -> None:
        self.prompt_tokens += flight.request.input_tokens
        self.prompt_tokens_by_source["local_compute"] += flight.num_computed_prompt_tokens
        self.prompt_tokens_by_source["local_cache_hit"] += flight.num_cached_tokens - flight.num_external_tokens
        self.prompt_tokens_by_source["external_kv_transfer"] += flight.num_external_tokens
        self.first_token_s.observe(latency_us / 1e6)
        self.first_token_fine.observe(latency_us)
        self.adapters.request_started(flight.request.adapter)

    def step(self, num_prompt_tokens: int, num_tokens: int, gaps_us: dict[Micros, int]) -> None:
        self.generation_tokens += num_tokens
        self.iteration_tokens.observe(num_prompt_tokens + num_tokens)
        for gap, times in gaps_us.items():
            self.token_gap_s.observe(gap / 1e6, times)
            self.token_gap_fine.observe(gap, times)
        self.adapters.step_ended()

    def aborted(self, flight: InFlightRequest) -> None:
        if flight.num_tokens:
            self.adapters.request_aborted(flight.request.adapter)

    def completed(self, flight: InFlightRequest, latency_us: Micros, finish_reason: str) -> None:
        if flight.num_tokens:
            self.adapters.request_ended(flight.request.adapter)
        self.request_success[finish_reason] += 1
        self.e2e_s.observe(latency_us / 1e6)
        self.prompt_lengths.observe(flight.request.input_tokens)
        self.computed_prompt_lengths.observe(flight.num_computed_prompt_tokens)
        self.generation_lengths.observe(flight.num_tokens)
        self.params_max_tokens.observe(flight.request.max_output_tokens)
        self.preemptions.observe(flight.num_preemptions)
        self._choice_completed(flight)
        scheduled_at, first_at, last_at = flight.first_scheduled_at, flight.first_token_at, flight.last_token_at
        if scheduled_at is None or first_at is None:
            return
        self.queue_s.observe((scheduled_at - flight.queued_at) / 1e6)
        self.prefill_s.observe((first_at - scheduled_at) / 1e6)
        self.decode_s.observe((last_at - first_at) / 1e6)
        self.inference_s.observe((last_at - scheduled_at) / 1e6)
        gaps = max(1, flight.num_tokens - 1)
        self.time_per_token_s.observe((last_at - first_at) / gaps / 1e6)

    def _choice_completed(self, flight: InFlightRequest) -> None:
        """Count all choices of a prompt as one request, when the last choice is complete."""
        parent = flight.parent
        parent.num_open -= 1
        parent.longest_tokens = max(parent.longest_tokens, flight.num_tokens)
        if not parent.num_open:
            self.params_n.observe(parent.number)
            self.longest_choices.observe(parent.longest_tokens)
