"""vLLM's scheduling with speculative decoding: steps compute drafts, and accepted drafts bring more tokens.

A drafted token is computed like any other. The number of accepted drafts is known when the step ends. Facts:
vllm/v1/core/sched/scheduler.py, `schedule` and `update_from_output`; async_scheduler.py, `_update_after_schedule`.
`DraftWaitScheduler`: vLLM's core requests the drafts of a batch from its workers as soon as that batch has been handed
over, and waits for the response. So a batch has left the last stage before the next one is composed, although the
outputs of earlier batches stay in the queue until that is full: the scheduler has the drafts of a batch before the
tokens that the batch sampled. Facts: vllm/v1/engine/core.py, `post_step`; vllm/v1/executor/multiproc_executor.py,
`take_draft_token_ids`.
"""

import itertools
from abc import abstractmethod
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from blis_sim.engine.batch_shape import BatchShape
from blis_sim.engine.context import EngineContext
from blis_sim.engine.events import Event
from blis_sim.engine.kv_cache.interface import SlotCache
from blis_sim.engine.kv_cache.slot_caches import new_slot_cache
from blis_sim.engine.queue import EventKind
from blis_sim.engine.scheduler.scheduled_step import ScheduledStep, ScheduledTokens, batch_shape
from blis_sim.engine.scheduler.vllm import VllmScheduler
from blis_sim.engine.sequence import Sequence
from blis_sim.engine.speculation import AcceptanceSampler
from blis_sim.engine.units import Micros


class DraftWaitScheduler(VllmScheduler):
    """Waits for the drafts of each batch where several stages take batches that are not composed ahead."""

    __slots__ = ("_starts", "_waits")

    def __init__(
        self, context: EngineContext, reports_steps: bool = True, has_cohort: bool = True, kv: SlotCache | None = None
    ) -> None:
        super().__init__(context, reports_steps, has_cohort, kv)
        self._waits = context.config.pipeline is not None and not context.config.async_scheduling
        """Whether the core waits for the drafts of a batch before it goes on."""
        self._starts: deque[Micros] = deque()
        """Instants at which the steps in flight began: the log has a step only when its outputs are processed."""

    @abstractmethod
    def on_drafts_ready(self) -> None:
        """Take in the drafts that follow the step composed last."""

    @property
    def num_begun_steps(self) -> int:
        return super().num_begun_steps + len(self._starts)

    def step_ended(self, report: object, at: Micros) -> None:
        if not self._waits:
            super().step_ended(report, at)
            return
        self._executing = False
        self.on_drafts_ready()
        last = self._last_free_instant()
        if last >= at:
            self._take_batches(at, last)
        else:
            self._plan(at)

    def _take_batches(self, at: Micros, last: Micros) -> None:
        if self._waits:
            self._take_one_by_one(at, last)
        else:
            super()._take_batches(at, last)

    def _take_one_by_one(self, at: Micros, last: Micros) -> None:
        """Compose batches from `at` on, each after the drafts of the one before, up to one that ends after `last`."""
        engine_context, batches = self._context, self._batches
        num_empty = 0
        while True:
            if self._leaving:
                self._take_out_leaving(at)
            is_step = False
            if self._has_work():
                is_step = self._compose_batch(at)
                batches.append(is_step)
                num_empty = 0 if self.in_flight else num_empty + 1
                if num_empty > 2 * self._depth:
                    batches.clear()
                    break
            elif not batches:
                break
            has_room = is_step or self._has_work()
            if (len(batches) == self._depth or not has_room) and batches.popleft():
                self._end_batch(at)
            if not is_step:
                continue
            ends_at = self._ends[-1]
            if ends_at > last:
                last = self._caught_up(ends_at)
                if ends_at > last:
                    self._executing = True
                    engine_context.clock = max(at, engine_context.clock)
                    engine_context.queue.push(ends_at, EventKind.STEP_END)
                    return
            at = ends_at
            self.on_drafts_ready()
        engine_context.clock = max(at, engine_context.clock)

    def _log_step(self, started_at: Micros, ends_at: Micros) -> None:
        if self._waits:
            self._starts.append(started_at)
        else:
            super()._log_step(started_at, ends_at)

    def _end_batch(self, at: Micros) -> None:
        if self._waits:
            self._context.steps.append(self._starts.popleft(), at)
        super()._end_batch(at)


@dataclass(slots=True)
class DraftedTokens(ScheduledTokens):
    """Scheduled tokens of which the last `num_drafts` are drafts."""

    num_drafts: int
    num_proposed: int
    """Drafts that a drafter proposed. The others only fill the batch up to an even shape and are never accepted."""
    is_drafted_for: bool = False
    """Whether the step drafts for the sequence's next step, by the gates at its composition."""


class SpeculativeScheduler(DraftWaitScheduler):
    """Schedules drafts for each sequence that samples, verifies them, and takes back what was computed in vain.

    `num_accepted` may replace the settings' acceptance: from a sequence and its number of drafts to those accepted.
    """

    __slots__ = (
        *("_acceptance", "_gates", "_has_grants", "_is_drafting", "_next_number", "_now", "_num_accepted", "_pads"),
        *("_request_numbers", "_speculation"),
    )

    def __init__(
        self,
        context: EngineContext,
        reports_steps: bool = True,
        has_cohort: bool = False,
        num_accepted: Callable[[Sequence, int], int] | None = None,
    ) -> None:
        config, speculation = context.config, context.config.speculation
        assert speculation is not None
        kv = new_slot_cache(config, context.cache_changes)
        super().__init__(context, reports_steps, has_cohort, kv)
        self._adds_time = self._takes_longer = True
        self.shape_of = step_shape
        self._speculation = speculation
        self._acceptance = AcceptanceSampler(speculation)
        self._num_accepted = num_accepted or self._draw
        self._request_numbers: dict[Sequence, int] = {}
        """Numbers of the requests present, in order of arrival: draws do not depend on how requests are named."""
        self._next_number = itertools.count()
        self._pads = False
        self._has_grants = False
        self._is_drafting = False
        """Whether a request granted in the step being composed, or in the latest one, can use drafts made after it."""
        self._gates = speculation.gates
        self._now: Micros = 0
        """Instant of the latest composition, or end of a step."""
        context.counters.num_accepted_per_position = [0] * speculation.num_tokens

    def enqueue(self, sequence: Sequence, at: Micros) -> None:
        self._request_numbers[sequence] = next(self._next_number)
        super().enqueue(sequence, at)

    def schedule(self, at: Micros) -> bool:
        self._now = at
        self._is_drafting = not self._speculation.skips_unused_drafts
        return super().schedule(at)

    def take_back_grant(self, victim: Sequence) -> None:
        self._is_drafting |= self._uses_drafts(victim, self._granted[victim])
        super().take_back_grant(victim)

    def _uses_drafts(self, sequence: Sequence, num_tokens: int) -> bool:
        """Whether drafts made after a step with `num_tokens` of a sequence may be verified: another step follows."""
        if sequence.num_computed_tokens + num_tokens < sequence.num_tokens:
            return False
        request = sequence.request
        most = sequence.max_output_tokens or self._config.limit_tokens - request.input_tokens
        return sequence.num_output_tokens + 1 + (sequence.num_placeholders > 0) < most

    def on_drafts_ready(self) -> None:
        for tokens in self.in_flight[-1][2]:
            sequence = tokens.sequence
            if sequence.outcome is None:
                drafts = self._is_drafting and not sequence.is_prefilling
                sequence.num_drafts = self._next_drafts(sequence) if drafts else 0

    def update(self, at: Micros) -> list[Event]:
        self._now = at
        return super().update(at)

    def added_time(self, step: ScheduledStep, computed_us: Micros) -> Micros:
        if self._gates is None:
            drafts = any(tokens.samples for tokens in step[2])
        else:
            drafts = any(isinstance(tokens, DraftedTokens) and tokens.is_drafted_for for tokens in step[2])
        return super().added_time(step, computed_us) + (self._speculation.drafting_us(computed_us) if drafts else 0)

    def _next_drafts(self, sequence: Sequence) -> int:
        """Return how many tokens are drafted for the next step of a sequence."""
        gates = self._gates
        if gates is not None:
            num_left = (sequence.max_output_tokens or sequence.output_tokens) - sequence.num_output_tokens
            kv_usage = self.kv.num_used_blocks / self.kv.num_blocks
            utilization = max(kv_usage, self.num_running / self._config.max_num_seqs)
            if not gates.allows_drafts(sequence.priority, sequence.deadline_at - self._now, num_left, utilization):
                return 0
        return self._speculation.num_tokens

    def _admit_waiting(self) -> None:
        self._pads = not self._had_prefill
        self._has_grants = bool(self._granted)
        super()._admit_waiting()

    def _admission_tokens(self, sequence: Sequence, start: int) -> int:
        """A newcomer that lacks one token decodes, so among others that do it is filled up to their width."""
        width = 1 + self._speculation.num_tokens
        decodes = sequence.num_tokens - start == 1 and (self._has_grants or start > 0)
        if not decodes or not self._pads or start + width + 1 > self._limit:
            return super()._admission_tokens(sequence, start)
        if width > self._budget:
            return 0
        if self._split is not None and self._split_chunk(sequence, start, width) != width:
            return 1
        return min(width, self._threshold) if self._threshold else width

    def _advance(self, sequence: Sequence, num_tokens: int) -> DraftedTokens:
        known = sequence.num_tokens + sequence.num_placeholders
        num_drafts = max(0, sequence.num_computed_tokens + num_tokens - known)
        num_proposed = min(num_drafts, sequence.num_drafts)
        self._is_drafting = self._is_drafting or self._uses_drafts(sequence, num_tokens)
        tokens = super()._advance(sequence, num_tokens)
        sequence.num_drafts = 0
        num_next = self._next_drafts(sequence) if tokens.samples else 0
        if tokens.samples and self._is_async:
            # The next step is composed before this one ends, so it counts on drafts that are yet to be made.
            sequence.num_placeholders += num_drafts
            sequence.num_drafts = num_next
        return DraftedTokens(
            sequence,
            num_tokens,
            tokens.context_tokens,
            tokens.known_tokens,
            tokens.samples,
            num_drafts,
            num_proposed,
            num_next > 0,
        )

    def process(
        self, tokens: ScheduledTokens, step_index: int, at: Micros, emitted: list[Sequence], finished: list[Event]
    ) -> None:
        assert isinstance(tokens, DraftedTokens)
        sequence = tokens.sequence
        sequence.num_in_flight_tokens -= tokens.num_tokens
        is_stale = sequence.num_stale_tokens > 0
        if is_stale:
            sequence.num_stale_tokens -= tokens.num_tokens
        if sequence.outcome is not None:
            return
        num_tokens = 1 + self._verify(tokens, is_stale) if tokens.samples else 0
        if sequence.request.media:
            self._encoder.processed(sequence)
        if not num_tokens:
            return
        num_kept = self._add_tokens(sequence, num_tokens, step_index, at)
        if sequence.output_tokens > 0:
            emitted.append(sequence)
        if not is_stale:
            sequence.num_computed_tokens -= num_tokens - num_kept
            if sequence.num_placeholders > 0:
                sequence.num_placeholders -= num_tokens
            self.kv.register(sequence, sequence.num_computed_tokens - sequence.num_in_flight_tokens)
        if self._stops(sequence):
            self.complete(sequence, at, finished)
        elif not self._is_async and not self._waits and not is_stale:
            sequence.num_drafts = self._next_drafts(sequence)

    def _verify(self, tokens: DraftedTokens, is_stale: bool) -> int:
        """Return how many drafts are accepted. Tokens computed for rejected drafts are taken back, unless a preemption
        has discarded them."""
        if not tokens.num_drafts:
            return 0
        sequence = tokens.sequence
        accepted = self._num_accepted(sequence, tokens.num_proposed) if tokens.num_proposed else 0
        self._context.counters.count_drafts(tokens.num_drafts, accepted)
        rejected = tokens.num_drafts - accepted
        if not is_stale:
            sequence.num_computed_tokens -= rejected
            if sequence.num_placeholders > 0:
                sequence.num_placeholders -= rejected
        return accepted

    def _add_tokens(self, sequence: Sequence, num_tokens: int, step_index: int, at: Micros) -> int:
        """Add tokens up to where the request stops; returns how many these are, at least 1."""
        to_end = max(1, sequence.output_tokens) - sequence.num_output_tokens
        num_kept = min(num_tokens, to_end, self._limit - sequence.num_tokens)
        self._add_token(sequence, step_index, at)
        if num_kept > 1:
            sequence.num_output_tokens += num_kept - 1
            sequence.add_extra_tokens(step_index, num_kept - 1)
        return num_kept

    def _leave(self, sequence: Sequence) -> None:
        del self._request_numbers[sequence]
        super()._leave(sequence)

    def _draw(self, sequence: Sequence, num_drafts: int) -> int:
        return self._acceptance.num_accepted(self._request_numbers[sequence], sequence.num_output_tokens, num_drafts)


def step_shape(step: ScheduledStep, recent_prompt_tokens: int) -> BatchShape:
    """Return the shape of a step for the latency model."""
    shape = draft_shape(step[2])
    return shape._replace(recent_prefill_tokens=recent_prompt_tokens if shape.prefill_tokens else 0)


def draft_shape(tokens: list[ScheduledTokens]) -> BatchShape:
    """The sums over a step's tokens: drafts cost like prefill tokens, after a context that their sequence reads anyway.

    Only the rest of a sequence's tokens makes a request of the batch, one that decodes or one that prefills.
    """
    drafts = squares = context_work = 0
    others: list[ScheduledTokens] = []
    for each in tokens:
        assert isinstance(each, DraftedTokens)
        count = min(each.num_drafts, each.num_tokens - 1)  # drafts may come before the token that they follow is known
        rest = each.num_tokens - count
        others.append(ScheduledTokens(each.sequence, rest, each.context_tokens, each.known_tokens, each.samples))
        drafts += count
        squares += count * count
        context_work += count * (each.context_tokens + rest)
    shape = batch_shape(others, 0, 0, 0)
    return shape._replace(
        prefill_tokens=shape.prefill_tokens + drafts,
        prefill_tokens_squared=shape.prefill_tokens_squared + squares,
        prefill_context_work=shape.prefill_context_work + context_work,
        prefill_prompt_work=shape.prefill_prompt_work + context_work,
    )
