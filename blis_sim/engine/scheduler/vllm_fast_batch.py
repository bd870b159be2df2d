"""Composes vLLM's steps at the cost of what changes: those that only decode are sums, nobody looks at them."""

from blis_sim.engine.batch_shape import decodes
from blis_sim.engine.config import EngineConfig
from blis_sim.engine.kv_cache.counting import CountingKVCache
from blis_sim.engine.scheduler.cruise import Cruising
from blis_sim.engine.scheduler.vllm import Step
from blis_sim.engine.scheduler.vllm_batch import Grant, VllmBatch, num_external_tokens
from blis_sim.engine.sequence import Cruise, Sequence


class FastVllmBatch(VllmBatch):
    """Composes as its parent does, without looking at those that cruise."""

    num_running = 0

    def __init__(self, config: EngineConfig, kv: CountingKVCache) -> None:
        super().__init__(config, kv)
        self.counting = kv
        self.cruising = Cruising(config.block_size_tokens)
        self.explicit: dict[Sequence, None] = {}
        """Running and not cruising, in order of admission."""
        self.next_step = 0
        """Index of the step to be composed next."""
        self.num_admissions = 0
        self._blocked: tuple[Sequence | None, int, int] = None, 0, 0
        """Who found too few blocks, how many waited and how often blocks had come back by then."""
        self._lookahead = 1 if config.async_scheduling else 0
        self.most_cruising = config.max_num_batched_tokens if config.prefill_schedule_interval == 1 else -1
        """With more, or with prefills spaced out, only the rules of `compose` say who gets a token."""

    def stays_blocked(self) -> bool:
        """Whether the head of the queue, which once found too few blocks, cannot join because none came back since."""
        head, num_waiting, num_changes = self._blocked
        waiting = self.waiting
        return waiting[0] is head and num_changes == self.counting.free.num_changes and num_waiting == len(waiting)

    @property
    def evicts_in_order(self) -> bool:
        """Whether all that a lack of blocks can mean is that the last admitted lose theirs."""
        return not (self.explicit or self._by_priority) and self.cruising.num_sequences <= self.most_cruising

    def evict(self, sequence: Sequence) -> None:
        """Preempt a sequence that runs and does not cruise."""
        del self.explicit[sequence]
        self.num_running -= 1
        self._preempt(sequence)

    def compose_calm(self) -> Step | None:
        """The next step when nobody waits and everybody cruises; None, and nothing changed, if that is not enough."""
        cruising, step = self.cruising, self.next_step
        num_cruising = cruising.num_sequences
        if not 0 < num_cruising <= self.most_cruising:
            return None
        num_blocks = cruising.num_blocks_needed(step)
        if num_blocks:
            if num_blocks > self.counting.free.num_free:
                return None
            self.counting.take(num_blocks)
        if self.admitted or self.preempted:
            self.admitted, self.preempted = [], []
        shape = decodes(num_cruising, cruising.context_tokens(step))
        if step in cruising.leaves:
            cruising.leave_after(step)
        self.next_step = step + 1
        return Step([], shape)

    def compose_fast(self) -> tuple[list[Grant], int, int] | None:
        """Grants of those that do not cruise, how many cruise in this step and the sum of their contexts.

        None, and nothing changed, when only the plain rules can tell what happens.
        """
        cruising, step, config = self.cruising, self.next_step, self._config
        num_cruising = cruising.num_sequences
        num_blocks = cruising.num_blocks_needed(step)
        if num_cruising > self.most_cruising:
            return None
        alone = self.num_running + len(self.waiting) <= 1
        self._threshold = 0 if alone else config.long_prefill_token_threshold
        wanted = self._explicit_demand(num_cruising) if self.explicit else 0
        if wanted is None or num_blocks + wanted > self.counting.free.num_free:
            return None
        self.admitted, self.preempted, self._granted = [], [], {}
        context_tokens = cruising.context_tokens(step)
        self._budget = config.max_num_batched_tokens - num_cruising
        if num_blocks:
            self.counting.take(num_blocks)
        for sequence in self.explicit:
            num_tokens = self._next_tokens(sequence, defers=False) if self._budget > 0 else 0
            if num_tokens > 0:
                allocated = self.counting.allocate(sequence, num_tokens)
                assert allocated
                self._granted[sequence] = num_tokens
                self._budget -= num_tokens
        if self.waiting:
            self._admit_waiting(defers=False)
        if step in cruising.leaves:
            cruising.leave_after(step)
        grants = [self._advance(sequence, num_tokens) for sequence, num_tokens in self._granted.items()]
        return grants, num_cruising, context_tokens

    def _explicit_demand(self, num_cruising: int) -> int | None:
        """Blocks that those not cruising will ask for; None when the plain rules must be asked.

        The order of the running list decides who goes short of budget or blocks, so there must be enough for all, or
        those that could go short must come after all that cruise.
        """
        budget = self._config.max_num_batched_tokens - num_cruising
        num_blocks = 0
        for sequence in self.explicit:
            self._budget = max(budget, 1)
            num_tokens = self._next_tokens(sequence, defers=False)
            if num_tokens <= 0:
                continue
            budget -= num_tokens
            num_blocks += max(
                0, self.counting.blocks_for(sequence.num_computed_tokens + num_tokens) - sequence.num_blocks
            )
            self._budget = self._config.max_num_batched_tokens
            if budget <= 0 and self._next_tokens(sequence, defers=False) != num_tokens and not self._is_last(sequence):
                return None
        return num_blocks if budget >= 0 else None

    def _is_last(self, sequence: Sequence) -> bool:
        """Whether no running sequence was admitted after it."""
        return sequence.running_number == self.num_admissions

    def let_cruise(self) -> None:
        """Those that have nothing left to prefill cruise from the next step on."""
        explicit = self.explicit
        for sequence in list(explicit):
            if sequence.is_prefilling or sequence.num_stale_tokens:
                continue
            if sequence.num_shareable_blocks and self.counting.will_share(sequence):
                continue  # others can find what it generates, as soon as it has filled a block
            num_tokens_due = sequence.num_output_tokens + sequence.num_placeholders
            cruise = self.cruise_of(sequence, self.next_step, num_tokens_due)
            if cruise is not None:
                del explicit[sequence]
                self.cruising.join(sequence, cruise)

    def cruise_of(self, sequence: Sequence, first_step: int, num_tokens_due: int) -> Cruise | None:
        """Its decoding from a step on, before which it gets so many tokens; None when these are all."""
        request, budget = sequence.request, sequence.max_output_tokens
        last_token, most = request.output_tokens, self._limit - request.input_tokens
        if last_token > most:
            last_token = most
        if last_token <= num_tokens_due:
            return None
        last_step = first_step + last_token - num_tokens_due - 1
        # With asynchronous scheduling a step is composed before the end of the one before it shows who stops there;
        # only an end by the declared budget, or by the context window, is known beforehand.
        known = 0 < budget <= last_token or last_token == most
        return Cruise(first_step, last_step, last_step if known else last_step + self._lookahead)

    def _admit_waiting(self, defers: bool) -> None:
        """As its parent admits, without what only the plain rules need: adapters, spaced prefills, drafters."""
        if self.most_cruising < 0:
            super()._admit_waiting(defers)
            return
        config, kv, waiting, block_size = self._config, self.counting, self.waiting, self._config.block_size_tokens
        self.put_in_order()
        while waiting and self._budget > 0 and self.num_running < config.max_num_seqs:
            sequence = waiting[0]
            if sequence.num_stale_tokens:
                break  # steps under way still bring tokens from before its preemption
            may_be_there = sequence.num_shareable_blocks or sequence.num_preemptions
            hits: list[int] = kv.cached_prefix(sequence) if may_be_there else []
            cached = start = len(hits) * block_size
            if sequence.request.external is not None:
                start = max(cached, num_external_tokens(sequence))
            num_tokens = sequence.request.input_tokens + sequence.num_output_tokens - start
            if 0 < self._threshold < num_tokens:
                num_tokens = self._threshold
            if num_tokens > self._budget:
                num_tokens = self._budget if config.enable_chunked_prefill else 0
            if num_tokens == 0 or not kv.admit(
                sequence, start - cached + num_tokens, hits, config.reserve_full_prompt, self.num_running > 0
            ):
                self.note_blocked(sequence, len(hits))
                break
            kv.count_lookup(sequence, len(hits))
            waiting.popleft()
            self._join(sequence)
            sequence.num_computed_tokens = start
            if sequence.num_preemptions == 0:
                sequence.num_cached_tokens = start
                sequence.num_external_tokens = start - cached
            self._granted[sequence] = num_tokens
            self._budget -= num_tokens

    def note_blocked(self, sequence: Sequence, num_hits: int) -> None:
        """The head of the queue cannot join; if that is for want of blocks, it need not be asked every step."""
        if self._config.reserve_full_prompt and not self.counting.may_fit(sequence, num_hits):
            self._blocked = sequence, len(self.waiting), self.counting.free.num_changes

    def put_in_order(self) -> None:
        """Let those who wait stand in the order in which they may join."""
        if self._order is not None and len(self.waiting) > 1:
            ordered = sorted(self.waiting, key=self._order)
            self.waiting.clear()
            self.waiting.extend(ordered)

    def _join(self, sequence: Sequence) -> None:
        self.admitted.append(sequence)
        sequence.running = True
        self.explicit[sequence] = None
        self.num_admissions += 1
        sequence.running_number = self.num_admissions
        self.num_running += 1

    def leave(self, sequence: Sequence) -> None:
        if not sequence.running:
            super().leave(sequence)
            return
        sequence.running = False
        self.explicit.pop(sequence, None)
        self.num_running -= 1

    def spell_out(self, sequence: Sequence, num_processed_steps: int) -> None:
        """Write down what follows from a sequence's cruise, which ends here."""
        cruise = sequence.cruise
        assert cruise is not None
        first = cruise.first_step
        composed = min(self.next_step, cruise.last_granted_step + 1)
        granted = composed - first
        processed = min(max(0, num_processed_steps - first), cruise.last_step + 1 - first)
        self.cruising.drop(sequence)
        sequence.num_computed_tokens += granted
        in_flight = composed - max(first, num_processed_steps)
        if in_flight > 0:
            sequence.num_in_flight_tokens += in_flight
        sequence.num_output_tokens += processed
        if self._lookahead:
            sequence.num_placeholders += granted - max(0, min(num_processed_steps - first, granted))
        if granted > 0:
            sequence.num_blocks = self.counting.blocks_for(sequence.num_computed_tokens)
            self.counting.register(sequence, sequence.num_computed_tokens - self._lookahead)
        sequence.add_token_steps(first, processed)

    def end_cruise(self, sequence: Sequence, num_processed_steps: int) -> None:
        """What `spell_out` would write down that matters still for a sequence that leaves early; it is gone from here.

        It never comes back, so nobody looks for it where those that cruise are listed by step.
        """
        cruise = sequence.cruise
        assert cruise is not None
        first = cruise.first_step
        granted = (
            self.next_step if self.next_step <= cruise.last_granted_step else cruise.last_granted_step + 1
        ) - first
        self.cruising.abandon(sequence)
        if num_processed_steps > first:
            processed = (
                num_processed_steps if num_processed_steps <= cruise.last_step else cruise.last_step + 1
            ) - first
            sequence.num_output_tokens += processed
            sequence.add_token_steps(first, processed)
        if granted > 0:
            sequence.num_computed_tokens = computed = sequence.num_computed_tokens + granted
            self.counting.release_grown(sequence, computed, computed - self._lookahead)
        else:
            self.counting.release(sequence)
        sequence.running = False
        self.num_running -= 1

    def finish_cruise(self, sequence: Sequence, num_processed_steps: int) -> None:
        """What `spell_out` would write down that matters still for a sequence whose last token has just come.

        It is gone from here.
        """
        cruise = sequence.cruise
        assert cruise is not None
        first, composed = cruise.first_step, cruise.last_granted_step + 1
        if composed > self.next_step:
            composed = self.next_step
        count = cruise.last_step + 1 - first
        sequence.cruise, sequence.running = None, False
        sequence.num_output_tokens += count
        sequence.add_token_steps(first, count)
        sequence.num_computed_tokens = computed = sequence.num_computed_tokens + composed - first
        # What is in flight was computed for a token beyond the last one, which nobody learns.
        in_flight = sequence.num_in_flight_tokens + composed - num_processed_steps
        known = computed - (in_flight if in_flight < self._lookahead else self._lookahead)
        self.counting.release_grown(sequence, computed, known)
        self.num_running -= 1

    def compose_plainly(self) -> list[Grant]:
        """Compose by the plain rules; nobody cruises."""
        assert not self.cruising.sequences
        self.running = sorted(self.explicit, key=lambda sequence: sequence.running_number)
        before = set(self.running)
        grants = self.compose()
        for sequence in before:
            if not sequence.running:
                self.num_running -= 1
                del self.explicit[sequence]
        self.running = []
        return grants
