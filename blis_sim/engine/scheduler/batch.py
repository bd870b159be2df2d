"""The composition of a step for all rule sets: the cohort first, then other sequences, then newcomers."""

from abc import abstractmethod
from collections.abc import Callable

from blis_sim.engine.batch_shape import BatchShape
from blis_sim.engine.context import EngineContext
from blis_sim.engine.events import BatchDone, Event, Scheduled, StepDone
from blis_sim.engine.kv_cache.block_pool import FreeRuns
from blis_sim.engine.kv_cache.interface import PagedCache
from blis_sim.engine.scheduler.cohort import running_number
from blis_sim.engine.scheduler.encoder_inputs import new_encoder
from blis_sim.engine.scheduler.multi_step import CohortScheduler
from blis_sim.engine.scheduler.policies import ORDERS
from blis_sim.engine.scheduler.scheduled_step import (
    NO_TOKENS,
    ScheduledStep,
    ScheduledTokens,
    batch_order,
    last_token,
    shape_of,
)
from blis_sim.engine.sequence import DecodeSpan, Sequence
from blis_sim.engine.units import Micros


class BatchScheduler(CohortScheduler):
    """Composes steps in order of admission, though the cohort comes first where that changes nothing.

    Without a cohort every sequence is granted its tokens one by one, with equal results.
    """

    __slots__ = (
        *("_blocks", "_budget", "_by_priority", "_config", "_drafter_rows", "_encoder", "_granted"),
        *("_had_prefill", "_hold_prompt", "_late", "_limit", "_longest_joining"),
        *("_newcomer_placeholders", "_num_admissions", "_order", "_prompt_blocks", "_resumes"),
        *("_threshold_when_alone", "_token_budget"),
        *("_watermark_blocks", "admitted", "has_cohort", "shape_of", "takes_newcomers"),
    )

    def __init__(
        self,
        context: EngineContext,
        reports_steps: bool,
        depth: int,
        limit_tokens: int,
        blocks: PagedCache,
        free: FreeRuns | None,
        take: Callable[[int], None],
        hold_prompt: Callable[[Sequence, int], int],
    ) -> None:
        """`free` and `take` are the free blocks of the cohort and how they are taken; None without a cohort.

        `hold_prompt` counts a prompt that is not shared as stored, and returns the blocks to be taken for it.
        """
        config = context.config
        has_cohort = free is not None
        self._token_budget = config.token_budget
        """Tokens of a whole step."""
        max_decodes = self._token_budget if has_cohort else -1
        super().__init__(context, reports_steps, depth, max_decodes, free or FreeRuns(0), take)
        self.has_cohort = has_cohort
        self.takes_newcomers = True
        """Whether `compose_newcomers` may decide, which takes the queue as it is."""
        self.admitted: list[Sequence] = []
        """Sequences that joined the batch in the latest `schedule`."""
        self._config = config
        self._encoder = new_encoder(config)
        self._limit = limit_tokens
        self._order = ORDERS[config.scheduler]
        self._by_priority = config.preemption_policy != "fcfs"
        self._longest_joining = min(limit_tokens - 2, config.long_prefill_token_threshold or limit_tokens)
        """Most tokens of a prompt that joins the cohort at once beside others, with two output tokens to come."""
        self._limits_admission = type(self).may_admit is not BatchScheduler.may_admit
        self._resumes = False
        """Whether sequences after one that evicted itself may compute in the same step."""
        self._blocks = blocks
        self._hold_prompt = hold_prompt
        self._newcomer_placeholders = 0
        """Output tokens that the step of a prompt is to produce, where they are counted."""
        self._watermark_blocks = 0
        self.shape_of: Callable[[ScheduledStep, int], BatchShape] = shape_of
        """Returns what the latency model sees of a step, after so many recent prompt tokens."""
        self._prompt_blocks: Callable[[Sequence], int] | None = None
        """Blocks of a whole prompt that is not shared, where layers differ; negative where it must be split."""
        self._drafter_rows = 0
        """Tokens of the budget that a drafter takes for each granted sequence."""
        self._threshold_when_alone = True
        """Whether a prompt is split by the long-prefill threshold when no other sequence is there."""
        self._budget = self._num_admissions = 0
        self._granted: dict[Sequence, int] = {}
        self._had_prefill = False
        self._late: dict[int, list[ScheduledTokens]] = {}
        """Tokens in flight, by step, of sequences that were in the cohort when that step was composed."""

    @abstractmethod
    def next_tokens(self, sequence: Sequence) -> int:
        """How many tokens a running sequence would compute in the next step, within the budget."""

    @abstractmethod
    def preempt(self, victim: Sequence) -> None:
        """Send a sequence that runs no more to the front of the queue."""

    @abstractmethod
    def choose_victim(self) -> int:
        """The index in `explicit` of the sequence to be preempted."""

    @abstractmethod
    def materialize(self, sequence: Sequence) -> None:
        """Let a member leave the cohort. Its tokens in flight are processed as those of other sequences."""

    @abstractmethod
    def blocks_lacking(self, sequence: Sequence, num_tokens: int) -> int:
        """New blocks that a sequence needs for so many more tokens. Only with a cohort."""

    @abstractmethod
    def stays_without_blocks(self, sequence: Sequence, num_hits: int) -> bool:
        """Whether a waiting sequence that finds so many blocks cannot join before some are given back."""

    @abstractmethod
    def process(
        self, tokens: ScheduledTokens, step_index: int, at: Micros, emitted: list[Sequence], finished: list[Event]
    ) -> None:
        """One sequence's share of a step: its token, and whether that was the last."""

    def left_stages(self) -> list[tuple[Micros, Micros]]:
        """Return when the first step in flight entered and left each pipeline stage; none with a single stage."""
        return []

    def _batch_done(self, step_index: int, at: Micros, cohort: list[Sequence]) -> BatchDone:
        """Return the report of the first step in flight, in which these sequences of the cohort decoded."""
        step = self.in_flight[0]
        prompts: list[tuple[Sequence, int]] = []
        decoding = [*cohort, *(late.sequence for late in self._late.get(step_index, ()))]
        for each in step[2]:
            if each.sequence.outcome is None:  # else computed in vain, before its end was known
                if each.sequence.first_token_step is None:
                    prompts.append((each.sequence, each.num_tokens))
                else:
                    decoding.append(each.sequence)
        prompts += [(sequence, sequence.input_tokens) for sequence in step[3]]
        started_at, num_used_blocks = self._context.steps.start(step_index), self._blocks.num_used_blocks
        shape, stages = self.shape_of(step, 0), self.left_stages()
        return BatchDone(at, step_index, started_at, shape, prompts, decoding, num_used_blocks, num_used_blocks, stages)

    def update(self, at: Micros) -> list[Event]:
        step_index = self.next_step - len(self.in_flight)
        cohort = self.cohort
        emitted = self._decoding_in(step_index) if self._reports_steps and cohort.members else []
        batches = [self._batch_done(step_index, at, list(emitted))] if self._context.reports_batches else []
        _, _, tokens, newcomers = self.in_flight.popleft()
        finished: list[Event] = []
        ended = cohort.pop_ended(step_index) if step_index in cohort.ends else []
        if self._must_update or (tokens and ended):
            # In batch order, for blocks are reused in the order in which they are given back.
            tokens = [*tokens, *self._late.pop(step_index, ()), *map(last_token, ended)]
            tokens.sort(key=batch_order)
            ended = []
            self._must_update = bool(self._late)
        for each in tokens:
            self.process(each, step_index, at, emitted, finished)
        if newcomers:
            emitted += self.give_first_tokens(newcomers, step_index, at)
        for sequence in ended:
            self.complete(sequence, at, finished)
        if not self._reports_steps:
            return list(finished)
        if self.has_cohort and (tokens or newcomers):
            emitted.sort(key=running_number)  # batch order
        for batch in batches:
            batch.num_blocks_after = self._blocks.num_used_blocks
        return [*batches, StepDone(at, step_index, self._context.steps.start(step_index), emitted), *finished]

    @property
    def takes_only_empty_steps(self) -> bool:
        """Whether every step is empty until something other than a step is due."""
        return False

    def rest(self, at: Micros, ends_at: Micros, last: Micros) -> tuple[Micros, Micros]:
        return at, ends_at

    def _grant_cohort(self) -> tuple[int, int]:
        """Grant the cohort its tokens. Returns how many of it decode and the sum of their contexts.

        Without enough blocks the last admitted lose theirs, after all that is free has been given out, as when
        sequences are granted tokens one by one.
        """
        cohort, step = self.cohort, self.next_step
        num_blocks = cohort.needs[step % self._block_size]
        fills = cohort.num_filling > 0
        if not self._can_grant_cohort_first(num_blocks) or (fills and not self._fills_in_admission_order()):
            self.materialize_all()
            return 0, 0
        while True:
            num_taken = min(num_blocks, self._free.num_free)
            self._take_blocks(num_taken)
            num_blocks -= num_taken
            if not num_blocks:
                break
            victim = self.explicit.pop() if self.explicit else max(cohort.members, key=running_number)
            if victim.span is not None:
                num_blocks -= cohort.needs_block(victim, step)
                self.materialize(victim)
            self.preempt(victim)
        if fills:
            self.fill_blocks(step, step + 1)
        num_decodes, context = cohort.num_decodes, cohort.offset + cohort.num_decodes * step
        self._budget -= num_decodes
        if step in cohort.ends:
            cohort.composed(step)
        return num_decodes, context

    def _can_grant_cohort_first(self, num_blocks: int) -> bool:
        """Whether granting tokens to the cohort before all others is the same as granting in order of admission."""
        num_tokens = self._budget - self.cohort.num_decodes
        if num_tokens < 0:
            return False
        if not self._by_priority and self._is_cohort_admitted_first():
            return True
        for sequence in self.explicit:  # is there enough for all?
            if sequence.request.media:
                return False
            num_new_tokens = max(0, self.next_tokens(sequence))
            if num_new_tokens > num_tokens:
                if sequence.running_number != self._num_admissions:
                    return False
                num_new_tokens = num_tokens  # the last admitted gets what the others leave
            num_tokens -= num_new_tokens
            num_blocks += max(0, self.blocks_lacking(sequence, num_new_tokens))
        return num_blocks <= self._free.num_free

    def _grant_explicit(self) -> None:
        index = 0
        running, blocks = self.explicit, self._blocks
        while index < len(running) and self._budget > 0:
            sequence = running[index]
            num_tokens = self.next_tokens(sequence)
            if num_tokens > 0:
                prefilling = sequence.is_prefilling
                if not blocks.allocate(sequence, num_tokens):
                    index = self._preempt_for(sequence, num_tokens, index)
                    if not sequence.running:
                        if self._resumes:
                            continue
                        return
                self._granted[sequence] = num_tokens
                if sequence.request.media:
                    self._encoder.take(sequence)
                self._budget -= num_tokens + self._drafter_rows
                self._had_prefill |= prefilling
            index += 1

    def _preempt_for(self, sequence: Sequence, num_tokens: int, index: int) -> int:
        """Evict others until there are slots for `sequence`, itself last. Returns its index afterwards."""
        while True:
            if not self.takes_reservation(sequence):
                victim_index = self.choose_victim()
                victim = self.explicit.pop(victim_index)
                if victim_index < index:
                    index -= 1
                if victim in self._granted:
                    self.take_back_grant(victim)
                self.preempt(victim)
                if victim is sequence:
                    return index
            if self._blocks.allocate(sequence, num_tokens):
                return index

    def take_back_grant(self, victim: Sequence) -> None:
        self._budget += self._granted.pop(victim) + self._drafter_rows
        self._encoder.give_back(victim)

    def may_admit(self) -> bool:
        """Whether waiting sequences may join beside those that run. Only admissions and endings may change it."""
        return True

    def takes_reservation(self, sequence: Sequence) -> bool:
        """Whether a waiting sequence held blocks and has lost them for the sake of a running one."""
        return False

    def materialize_all(self) -> None:
        """Let all members leave the cohort and go on as sequences that are granted their tokens one by one."""
        members = list(self.cohort.members)
        for sequence in members:
            self.materialize(sequence)
        self.explicit = sorted(self.explicit + members, key=running_number)

    def _join(self, sequence: Sequence, num_tokens_due: int) -> bool:
        """Let a sequence that has or gets so many tokens before the next step join the cohort, if it gets others."""
        last_token, most = sequence.output_tokens, self._limit - sequence.input_tokens
        if last_token > most:
            last_token = most
        if last_token <= num_tokens_due:
            return False
        step = self.next_step
        # The scheduler sees the declared budget and the context window, not where a sequence stops.
        has_known_end = 0 < sequence.max_output_tokens <= last_token or last_token == most
        self.cohort.join(sequence, DecodeSpan(sequence, step, step + last_token - num_tokens_due - 1, has_known_end))
        if sequence.num_shareable_blocks:
            self.expect_fills(sequence)
        return True

    def compose_newcomers(self, at: Micros) -> bool:
        """Compose a step of the cohort and of waiting sequences whose whole prompts fit in it and are not shared.

        Newcomers join the cohort at once. The result is that of `schedule` at a third of its cost. False, and nothing
        changed, where only `schedule` decides correctly.
        """
        if not self.takes_newcomers:
            return False
        cohort, waiting, step = self.cohort, self.waiting, self.next_step
        num_blocks, num_decodes = cohort.needs[step % self._block_size], cohort.num_decodes
        newcomers: list[Sequence] = []
        is_blocked = self._choose_newcomers(newcomers, self._free.num_free - num_blocks)
        if not newcomers:
            return False
        engine_context, num_placeholders = self._context, self._newcomer_placeholders
        hold_prompt, take_blocks = self._hold_prompt, self._take_blocks
        if cohort.num_filling:
            self.fill_blocks(step, step + 1)
        self.in_flight.append((num_decodes, cohort.offset + num_decodes * step, NO_TOKENS, newcomers))
        self.next_step = step + 1
        if step in cohort.ends:
            cohort.composed(step)
        for sequence in newcomers:
            waiting.popleft()
            num_tokens = sequence.input_tokens
            self._num_admissions = number = self._num_admissions + 1
            sequence.running, sequence.running_number, sequence.scheduled_at = True, number, at
            sequence.num_computed_tokens = sequence.num_in_flight_tokens = num_tokens
            sequence.num_placeholders = num_placeholders
            num_blocks += hold_prompt(sequence, num_tokens)
            self._join(sequence, 1)
            if engine_context.reports_admissions:
                engine_context.events.append(Scheduled(at, sequence))
        take_blocks(num_blocks)
        if is_blocked:
            self._budget = self._token_budget - cohort.num_decodes
            self._note_blocked(waiting[0], 0)
        return True

    def _choose_newcomers(self, newcomers: list[Sequence], num_free: int) -> bool:
        """Add the first of the waiting sequences that join the next step, with so many free blocks. Returns whether
        the one after them finds too few.

        None are added if one of them needs the general rules of `schedule`.
        """
        waiting, cohort, size = self.waiting, self.cohort, self._block_size
        num_running, budget = len(cohort.members), self._token_budget - cohort.num_decodes
        num_seats = self._most_running - num_running
        longest, prompt_blocks = self._longest_joining, self._prompt_blocks
        if num_running:
            num_free -= self._watermark_blocks
        if len(waiting) > 1:
            self._order_waiting()
        elif not num_running and not self._threshold_when_alone:
            longest = self._limit - 2
        for sequence in waiting:
            if not num_seats or not budget:
                break
            num_tokens = sequence.input_tokens
            if num_tokens > budget or num_tokens > longest or not num_tokens or sequence.output_tokens < 2:
                newcomers.clear()
                break
            request = sequence.request
            num_blocks = -(-num_tokens // size) if prompt_blocks is None else prompt_blocks(sequence)
            is_resumed = sequence.num_preemptions or sequence.num_computed_tokens
            if is_resumed or sequence.num_shareable_blocks or request.media or num_blocks < 0 or request.external:
                newcomers.clear()
                break
            num_free -= num_blocks
            if num_free < 0:
                return True
            if not num_running:
                num_free -= self._watermark_blocks
                num_running = 1
            newcomers.append(sequence)
            num_seats -= 1
            budget -= num_tokens
        return False

    def _order_waiting(self) -> None:
        if self._order is not None:
            ordered = sorted(self.waiting, key=self._order)
            self.waiting.clear()
            self.waiting.extend(ordered)

    def is_full(self) -> bool:
        if len(self.explicit) + len(self.cohort.members) >= self._most_running or not self._admits:
            return True
        return self._limits_admission and not self.may_admit()

    def _note_blocked(self, sequence: Sequence, num_hits: int) -> None:
        """Note that the head of the queue cannot join, which is tried again when blocks have come back."""
        stays_first = self.takes_newcomers or len(self.waiting) == 1
        if self.has_cohort and stays_first and self.stays_without_blocks(sequence, num_hits):
            self._blocked = sequence, len(self.waiting), self._free.num_changes
