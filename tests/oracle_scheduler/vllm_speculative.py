"""vLLM's steps with speculative decoding: each brings a sequence the drafts that hold, and one token more."""

import itertools
from collections.abc import Callable

from blis_sim.engine.batch_shape import BatchShape
from blis_sim.engine.context import EngineContext
from blis_sim.engine.events import Finished
from blis_sim.engine.kv_cache.next_token_cache import NextTokenKVCache
from blis_sim.engine.sequence import Outcome, Sequence
from blis_sim.engine.speculation import AcceptanceSampler
from blis_sim.engine.units import Micros
from tests.oracle_scheduler.draft_batch import DraftBatch, DraftGrant, draft_shape
from tests.oracle_scheduler.vllm import PlainVllmScheduler, Step
from tests.oracle_scheduler.vllm_batch import Grant


class PlainSpeculativeScheduler(PlainVllmScheduler):
    """Steps as its parent takes them, except that drafts are verified and those rejected are taken back.

    `num_accepted` may replace the settings' acceptance: from a sequence and its number of drafts to how many hold.
    Facts: vllm/v1/core/sched/scheduler.py, `update_from_output`.
    """

    def __init__(self, instance: EngineContext, num_accepted: Callable[[Sequence, int], int] | None = None) -> None:
        config, speculation = instance.config, instance.config.speculation
        assert speculation is not None
        kv = NextTokenKVCache(config, speculation, instance.cache_changes)
        super().__init__(instance, DraftBatch(config, kv, speculation))
        self._speculation = speculation
        self._drafts_ahead = config.async_scheduling
        self._acceptance = AcceptanceSampler(speculation)
        self._num_accepted = num_accepted or self._draw
        self._request_numbers: dict[Sequence, int] = {}
        """Numbers of the requests present, in the order in which they came: draws do not depend on how requests are
        named."""
        self._next_number = itertools.count()
        instance.counters.num_accepted_per_position = [0] * speculation.num_tokens

    def enqueue(self, sequence: Sequence, at: Micros) -> None:
        self._request_numbers[sequence] = next(self._next_number)
        super().enqueue(sequence, at)

    def shape_of(self, grants: list[Grant]) -> BatchShape:
        return draft_shape(grants)

    def step_time(self, step: Step) -> Micros:
        drafts = any(grant.samples for grant in step.grants)
        return super().step_time(step) + (self._speculation.draft_time_us if drafts else 0)

    def _draw(self, sequence: Sequence, num_drafts: int) -> int:
        return self._acceptance.num_accepted(self._request_numbers[sequence], sequence.num_output_tokens, num_drafts)

    def _process(
        self, grant: Grant, step_index: int, at: Micros, emitted: list[Sequence], finished: list[Finished]
    ) -> None:
        assert isinstance(grant, DraftGrant)
        sequence = grant.sequence
        sequence.num_in_flight_tokens -= grant.num_tokens
        is_stale = sequence.num_stale_tokens > 0
        if is_stale:
            sequence.num_stale_tokens -= grant.num_tokens
        if sequence.outcome is not None or not grant.samples:
            return
        num_tokens = 1 + self._verify(grant, is_stale)
        num_kept = self._add_tokens(sequence, num_tokens, step_index, at)
        if sequence.request.output_tokens > 0:
            emitted.append(sequence)
        if not is_stale:
            sequence.num_computed_tokens -= num_tokens - num_kept
            if sequence.num_placeholders > 0:
                sequence.num_placeholders -= num_tokens
            self.kv.register(sequence, sequence.num_computed_tokens - sequence.num_in_flight_tokens)
        outcome = self._stop(sequence)
        if outcome is not None:
            self._complete(sequence, outcome, at, finished)
        elif not self._drafts_ahead and not is_stale:
            sequence.num_drafts = self._speculation.num_tokens

    def _verify(self, grant: DraftGrant, is_stale: bool) -> int:
        """How many drafts hold. What was computed for the others is taken back, unless it has been thrown away."""
        if not grant.num_drafts:
            return 0
        sequence = grant.sequence
        accepted = self._num_accepted(sequence, grant.num_proposed) if grant.num_proposed else 0
        self._instance.counters.count_drafts(grant.num_drafts, accepted)
        rejected = grant.num_drafts - accepted
        if not is_stale:
            sequence.num_computed_tokens -= rejected
            if sequence.num_placeholders > 0:
                sequence.num_placeholders -= rejected
        return accepted

    def _add_tokens(self, sequence: Sequence, num_tokens: int, step_index: int, at: Micros) -> int:
        """Add tokens up to where the request stops; returns how many these are, at least 1."""
        to_end = max(1, sequence.request.output_tokens) - sequence.num_output_tokens
        num_kept = min(num_tokens, to_end, self._limit - sequence.num_tokens)
        self._add_token(sequence, step_index, at)
        if num_kept > 1:
            sequence.num_output_tokens += num_kept - 1
            sequence.add_extra_tokens(step_index, num_kept - 1)
        return num_kept

    def _complete(self, sequence: Sequence, outcome: Outcome, at: Micros, finished: list[Finished]) -> None:
        del self._request_numbers[sequence]
        super()._complete(sequence, outcome, at, finished)

    def _take_out(self, sequence: Sequence, outcome: Outcome, at: Micros) -> None:
        del self._request_numbers[sequence]
        super()._take_out(sequence, outcome, at)
