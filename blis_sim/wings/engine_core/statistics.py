"""Statistics of a rank for its frontend: of its scheduler, its caches and its drafts."""

from collections import deque
from collections.abc import Callable
from operator import sub

from blis_sim.engine.events import BatchDone
from blis_sim.engine.units import Micros
from blis_sim.wings.engine_core.messages import DraftStats, IterationDetails, PrefixCacheStats, SchedulerStats
from mockserve.engines import RankEngine

MOST_STEPS_BACK = 4096
"""Steps that a request may wait for its first token, for its arrival to be named by the step in which it came."""


class RankStatistics:
    """Counts of a rank since the last message."""

    def __init__(
        self, engine: RankEngine, rank: int, seconds_at: Callable[[Micros], float], shows_batches: bool
    ) -> None:
        """`seconds_at` is the monotonic clock at a simulated instant. `shows_batches` adds the batch of each step."""
        self.rank = rank
        self.seconds_at, self._shows_batches = seconds_at, shows_batches
        self._batch: BatchDone | None = None
        self._num_batches = 0
        self._steps: deque[tuple[Micros, Micros]] = deque(maxlen=MOST_STEPS_BACK)
        """Beginnings and ends of the latest steps."""
        self._engine = engine
        self._metrics = engine.metrics
        self._last: tuple[int, ...] = (0, 0, 0, 0)
        self._last_drafts: tuple[int, ...] = ()
        self._was_reset = False
        self._last_counts = (0, 0)
        self.num_looked_up = 0
        """Requests that were scheduled for the first time."""

    def cache_was_reset(self) -> None:
        """Note that the prefix cache was emptied."""
        self._was_reset = True

    def step_ended(self, event: BatchDone) -> None:
        """Note the batch of a step."""
        self._batch = event
        self._steps.append((event.started_at, event.at))

    def taken_at(self, queued_at: Micros) -> Micros:
        """Return when vLLM's engine takes a request that came at an instant: at the end of the step in execution."""
        for started_at, ended_at in reversed(self._steps):
            if queued_at >= ended_at:
                break
            if queued_at > started_at:
                return ended_at
        return queued_at

    def changed_load(self, wave: int) -> SchedulerStats | None:
        """Return what the coordinator learns of the load, if the numbers of requests have changed since the last call.

        `wave` is the number of the present wave.
        """
        stats = self._engine.driver.engine.stats
        counts = stats.num_running, stats.num_waiting
        if counts == self._last_counts:
            return None
        self._last_counts = counts
        usage = stats.kv_usage_fraction
        return SchedulerStats(
            num_running_reqs=counts[0], num_waiting_reqs=counts[1], kv_cache_usage=usage, current_wave=wave
        )

    def of_step(self) -> SchedulerStats:
        """Return the statistics after a step."""
        stats = self._engine.driver.engine.stats
        local, external = self._lookups()
        return SchedulerStats(
            num_running_reqs=stats.num_running,
            num_waiting_reqs=stats.num_waiting - stats.num_deferred,
            num_skipped_waiting_reqs=stats.num_deferred,
            kv_cache_usage=stats.kv_usage_fraction,
            prefix_cache_stats=local,
            connector_prefix_cache_stats=external,
            spec_decoding_stats=self._drafts(),
            iteration_details=self._details(),
        )

    def _details(self) -> IterationDetails | None:
        """Return the latest batch with its real duration, if the frontend is to know of it."""
        if not self._shows_batches or self._batch is None:
            return None
        batch, self._batch = self._batch, None
        prompt_tokens = sum(number for _, number in batch.prompts)
        self._num_batches += 1
        return IterationDetails(
            self._num_batches - 1,
            len(batch.prompts),
            prompt_tokens,
            batch.shape.num_requests - len(batch.prompts),
            batch.shape.num_tokens - prompt_tokens,
            (self.seconds_at(batch.at) - self.seconds_at(batch.started_at)) * 1000,
        )

    def _lookups(self) -> tuple[PrefixCacheStats, PrefixCacheStats | None]:
        """Return what was looked up in the engine's own cache and, with a connector, elsewhere."""
        metrics = self._metrics
        own = metrics.prefix_cache_queries, metrics.prefix_cache_hits
        now = (*own, metrics.external_prefix_cache_queries, metrics.external_prefix_cache_hits)
        queries, hits, outside_queries, outside_hits = map(sub, now, self._last)
        self._last = now
        number, self.num_looked_up = max(int(queries > 0), self.num_looked_up), 0
        was_reset, self._was_reset = self._was_reset, False
        local = PrefixCacheStats(was_reset, number if queries else 0, queries, hits)
        if not now[2]:
            return local, None
        external = PrefixCacheStats(was_reset, number if outside_queries else 0, outside_queries, outside_hits)
        if outside_hits:
            sources = metrics.prompt_tokens_cached_by_source
            largest = max(sources, key=lambda each: (each != "device", sources[each]))
            external.hits_by_source = {largest: outside_hits}
        return local, external

    def _drafts(self) -> DraftStats | None:
        """Return the drafts since the last message. Drafts by position are not counted: they are spread evenly."""
        counters = getattr(self._engine.driver.engine, "counters", None)
        if counters is None or not counters.num_accepted_per_position:
            return None
        accepted = counters.num_accepted_per_position
        now = (counters.num_drafts, counters.num_draft_tokens, counters.num_accepted_tokens, *accepted)
        num_drafts, num_tokens, *numbers = map(sub, now, self._last_drafts or (0,) * len(now))
        self._last_drafts = now
        if not num_drafts:
            return None
        places = range(len(accepted))
        even = [(num_tokens + len(accepted) - 1 - place) // len(accepted) for place in places]
        return DraftStats(len(accepted), num_drafts, num_tokens, numbers[0], numbers[1:], even)
