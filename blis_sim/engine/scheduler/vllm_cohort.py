"""Which sequences of vLLM's scheduling are in the decode cohort, and what follows when they join or leave it."""

from blis_sim.engine.config import EngineConfig
from blis_sim.engine.events import Scheduled
from blis_sim.engine.instance import Instance
from blis_sim.engine.kv_cache.counting import CountingKVCache
from blis_sim.engine.kv_cache.free_runs import FreeRuns
from blis_sim.engine.kv_cache.slots import SlotCache
from blis_sim.engine.kv_cache.vllm_cache import VllmKVCache
from blis_sim.engine.scheduler.cohort import running_number
from blis_sim.engine.scheduler.multi_step import NO_TOKENS, CohortScheduler, ScheduledTokens
from blis_sim.engine.scheduler.waiting import ORDERS
from blis_sim.engine.sequence import DecodeSpan, Sequence
from blis_sim.engine.units import Micros


class VllmCohort(CohortScheduler):
    """Lets sequences join the cohort when nothing but the number of their tokens changes from step to step.

    `has_cohort=False` is the plain way, in which every sequence is granted its tokens one by one, with equal results.
    """

    def __init__(
        self, instance: Instance, reports_steps: bool = True, has_cohort: bool = True, kv: SlotCache | None = None
    ) -> None:
        config = instance.config
        self._counting = counting = CountingKVCache(config) if has_cohort and can_have_cohort(config) else None
        depth = 2 if config.async_scheduling else 1
        if counting is None:
            self.kv: SlotCache = kv or VllmKVCache(config, instance.cache_changes)
            super().__init__(instance, reports_steps, depth, 0, FreeRuns(0), _take_none)
        else:
            self.kv = counting
            super().__init__(
                instance, reports_steps, depth, config.max_num_batched_tokens, counting.free, counting.take
            )
        self._config = config
        self._limit = config.limit_tokens
        self._is_async = config.async_scheduling
        self._watermark_blocks = self.kv.watermark_blocks
        self._order = ORDERS[config.scheduler]
        self._late: dict[int, list[ScheduledTokens]] = {}
        """Tokens in flight, by step, of sequences that were in the cohort when that step was composed."""
        self._num_admissions = 0
        self._blocked: tuple[Sequence | None, int, int] = None, 0, 0
        """The sequence that found too few blocks, the length of the queue and the number of cache changes then."""

    def join_cohort(self) -> None:
        if self._counting is not None:
            self.explicit = self._not_joining(self.explicit, 0)

    def _not_joining(self, sequences: list[Sequence], num_sampling: int) -> list[Sequence]:
        """Let those of `sequences` that only decode join the cohort. Returns the others.

        `num_sampling` counts tokens that are in flight without placeholders.
        """
        counting = self._counting
        assert counting is not None
        return [
            sequence
            for sequence in sequences
            if sequence.is_prefilling
            or sequence.num_stale_tokens
            or (sequence.num_shareable_blocks and counting.will_share(sequence))
            or not self._join(sequence, sequence.num_output_tokens + sequence.num_placeholders + num_sampling)
        ]

    def _join(self, sequence: Sequence, num_tokens_due: int) -> bool:
        """Let a sequence that has or gets so many tokens before the next step join the cohort, if it gets others."""
        request, budget = sequence.request, sequence.max_output_tokens
        last_token, most = request.output_tokens, self._limit - request.input_tokens
        if last_token > most:
            last_token = most
        if last_token <= num_tokens_due:
            return False
        step = self.next_step
        # The model alone knows where a sequence stops; its declared budget and the context window are known.
        is_foreseen = 0 < budget <= last_token or last_token == most
        self.cohort.join(sequence, DecodeSpan(sequence, step, step + last_token - num_tokens_due - 1, is_foreseen))
        return True

    def compose_newcomers(self, at: Micros) -> bool:
        """Compose a step of the cohort and of waiting sequences whose whole prompts fit in it and are not shared.

        They join the cohort at once. The result is that of `schedule` at a third of its cost. False, and nothing
        changed, where only `schedule` decides correctly.
        """
        cohort, counting, waiting, step = self.cohort, self._counting, self.waiting, self.next_step
        if counting is None:
            return False
        num_blocks, num_decodes = cohort.needs[step % self._block_size], cohort.num_decodes
        num_joining, is_blocked = self._num_joining(counting.free.num_free - num_blocks)
        if not num_joining:
            return False
        instance, num_placeholders = self._instance, int(self._is_async)
        newcomers: list[Sequence] = []
        self.flight.append((num_decodes, cohort.offset + num_decodes * step, NO_TOKENS, newcomers))
        self._latest_explicit = step
        self.next_step = step + 1
        if step in cohort.ends:
            cohort.composed(step)
        for _ in range(num_joining):
            sequence = waiting.popleft()
            num_tokens = sequence.request.input_tokens
            self._num_admissions = number = self._num_admissions + 1
            sequence.running, sequence.running_number, sequence.scheduled_at = True, number, at
            sequence.num_computed_tokens = sequence.num_in_flight_tokens = num_tokens
            sequence.num_placeholders = num_placeholders
            num_blocks += counting.hold_prompt(sequence, num_tokens)
            newcomers.append(sequence)
            self._join(sequence, 1)
            if instance.tells_admissions:
                instance.events.append(Scheduled(at, sequence))
        counting.take(num_blocks)
        if is_blocked:
            self._note_blocked(waiting[0], 0)
        return True

    def _num_joining(self, num_free: int) -> tuple[int, bool]:
        """How many join the next step, with so many free blocks, and whether the one after them finds too few.

        The number is 0 if one of them needs the general rules of `schedule`.
        """
        config, waiting, cohort = self._config, self.waiting, self.cohort
        num_running, budget = len(cohort.members), config.max_num_batched_tokens - cohort.num_decodes
        num_seats = config.max_num_seqs - num_running
        longest = self._limit - 2  # with a first token and another one
        if num_running:
            num_free -= self._watermark_blocks
        if len(waiting) > 1:
            self._order_waiting()
        if num_running + len(waiting) > 1:
            longest = min(longest, config.long_prefill_token_threshold or longest)
        num_joining = 0
        for sequence in waiting:
            if num_joining == num_seats or not budget:
                break
            request = sequence.request
            num_tokens = request.input_tokens
            if num_tokens > budget or num_tokens > longest or request.output_tokens < 2:
                return 0, False
            if sequence.num_shareable_blocks or sequence.num_preemptions or request.external is not None:
                return 0, False
            num_free += -num_tokens // self._block_size
            if num_free < 0:
                return num_joining, True
            if not num_running:
                num_free -= self._watermark_blocks
                num_running = 1
            num_joining += 1
            budget -= num_tokens
        return num_joining, False

    def _order_waiting(self) -> None:
        if self._order is not None:
            ordered = sorted(self.waiting, key=self._order)
            self.waiting.clear()
            self.waiting.extend(ordered)

    def materialize_all(self) -> None:
        """Let all members leave the cohort and go on as sequences that are granted their tokens one by one."""
        members = list(self.cohort.members)
        for sequence in members:
            self.materialize(sequence)
        self.explicit = sorted(self.explicit + members, key=running_number)

    def materialize(self, sequence: Sequence) -> None:
        """Let a member leave the cohort. Its tokens in flight are processed as those of other sequences."""
        for step in self.settle(sequence):
            self._late.setdefault(step, []).append(ScheduledTokens(sequence, 1, 0, 0, samples=True))
            self._must_update = True

    def settle(self, sequence: Sequence, is_for_good: bool = False) -> range:
        """Write down what follows from the decode span of a member, which leaves. Returns its steps in flight.

        A member that leaves for good gives its blocks back.
        """
        span, counting, num_processed = sequence.span, self._counting, self.next_step - len(self.flight)
        assert span is not None
        assert counting is not None
        first, end = span.first_step, span.last_step + 1
        composed = end if span.is_foreseen and end < self.next_step else self.next_step
        self.cohort.leave(sequence)
        num_in_flight = composed - first
        if num_processed > first:
            num_tokens = (num_processed if num_processed < end else end) - first
            sequence.num_output_tokens += num_tokens
            sequence.add_token_steps(first, num_tokens)
            num_in_flight = composed - num_processed
        sequence.num_computed_tokens = computed = sequence.num_computed_tokens + composed - first
        sequence.num_in_flight_tokens = num_unknown = sequence.num_in_flight_tokens + num_in_flight
        if self._is_async:
            sequence.num_placeholders += num_in_flight
        if num_unknown >= self._depth:
            num_unknown = self._depth - 1
        if is_for_good:
            counting.release_grown(sequence, computed, computed - num_unknown)
        else:
            counting.grow_to(sequence, computed, computed - num_unknown)
        return range(composed - num_in_flight, composed)

    def is_blocked(self) -> bool:
        num_running = len(self.explicit) + len(self.cohort.members)
        return num_running >= self._config.max_num_seqs or not self._admits or self._stays_without_blocks()

    def _stays_without_blocks(self) -> bool:
        """Whether the head of the queue once found too few blocks, and none came back since."""
        head, num_waiting, num_changes = self._blocked
        waiting = self.waiting
        return waiting[0] is head and num_changes == self._free.num_changes and num_waiting == len(waiting)

    def _note_blocked(self, sequence: Sequence, num_hits: int) -> None:
        """The head of the queue cannot join. For want of blocks, it need not be asked again until some come back."""
        counting = self._counting
        if counting is not None and self._config.reserve_full_prompt and not counting.may_fit(sequence, num_hits):
            self._blocked = sequence, len(self.waiting), counting.free.num_changes


def can_have_cohort(config: EngineConfig) -> bool:
    """Whether sequences that decode get exactly one token in every step and only shareable blocks need names."""
    return (
        config.speculation is None
        and config.lora is None
        and not config.reports_kv_changes
        and config.prefill_schedule_interval == 1
    )


def _take_none(_num_blocks: int) -> None:
    """Take nothing: without a cohort, blocks are taken sequence by sequence."""
