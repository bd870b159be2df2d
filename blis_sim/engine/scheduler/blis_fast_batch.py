"""Forms BLIS's batches at the cost of what changes: those that only decode are sums, nobody looks at them."""

from collections import deque

from blis_sim.engine.config import EngineConfig
from blis_sim.engine.kv_cache.counting_prompts import CountingPromptCache
from blis_sim.engine.scheduler.batch import BatchFormation
from blis_sim.engine.scheduler.cruise import Cruising
from blis_sim.engine.sequence import Cruise, Sequence


class FastBatchFormation(BatchFormation):
    """Forms batches as its parent does, without looking at those that cruise."""

    def __init__(
        self, config: EngineConfig, kv: CountingPromptCache, running: list[Sequence], waiting: deque[Sequence]
    ) -> None:
        super().__init__(config, kv, running, waiting)
        self.kv = kv
        self.cruising = Cruising(config.block_size_tokens)
        self.explicit: dict[Sequence, None] = {}
        """Running and not cruising, in order of admission."""
        self.is_blocked = False
        """Whether the head of the queue finds too few blocks until somebody gives some back."""
        self._evicts_latest = config.preemption_policy == "fcfs"
        self._num_admissions = 0

    @property
    def num_running(self) -> int:
        return len(self.explicit) + self.cruising.num_sequences

    @property
    def is_steady(self) -> bool:
        """Whether everything that runs cruises and nothing that waits could join while nothing changes."""
        num_cruising = self.cruising.num_sequences
        if self.explicit or not 0 < num_cruising <= self._config.max_num_batched_tokens:
            return False
        return not self._waiting or self.is_blocked or num_cruising >= self._config.max_num_seqs

    def form_fast(self, step: int) -> None:
        """Grant tokens for `step`: without looking at those that cruise, unless only the plain rules can tell."""
        if self._form_calmly(step):
            return
        all_get_one = self.cruising.num_sequences <= self._config.max_num_batched_tokens
        if self._evicts_latest and all_get_one and self._are_in_order and not self.holds_while_waiting:
            self._form_in_order(step)
            return
        for sequence in list(self.cruising.sequences):
            self._spell_out(sequence, step)
            self.explicit[sequence] = None
        self._form_plainly()

    def let_cruise(self, sequence: Sequence, step: int) -> None:
        """A running sequence with its whole prompt cruises from `step` on."""
        del self.explicit[sequence]
        self.cruising.join(sequence, self._cruise_of(sequence, step))

    def end_cruise(self, sequence: Sequence, num_steps: int) -> None:
        """Write down what follows from the cruise of a sequence that ends before step `num_steps`, for good."""
        cruise = sequence.cruise
        assert cruise is not None
        self.cruising.abandon(sequence)
        self._write_down(sequence, cruise.first_step, num_steps - cruise.first_step)

    def leave(self, sequence: Sequence, num_steps: int) -> None:
        """A sequence that runs is taken out before step `num_steps`."""
        if sequence.cruise is not None:
            self.end_cruise(sequence, num_steps)
        else:
            del self.explicit[sequence]
        sequence.running = False

    def release(self, sequence: Sequence) -> None:
        """Give its blocks back at the end of a request, for whoever waits."""
        self.kv.release(sequence)
        self.is_blocked = False

    def _form_calmly(self, step: int) -> bool:
        """Grant tokens if blocks suffice; False, and nothing granted, if not or if only the plain rules can tell."""
        num_cruising = self.cruising.num_sequences
        num_blocks = self.cruising.num_blocks_needed(step)
        budget = self._config.max_num_batched_tokens - num_cruising
        wanted = self._demand(budget) if self.explicit else 0
        if budget < 0 or wanted is None or num_blocks + wanted > self.kv.free.num_free:
            return False
        if num_blocks and not self._are_in_order:
            # Whether a block is named before or after another of the same content is reused makes a difference, so
            # those that cruise may only go first if they come first.
            return False
        self.admitted, self.preempted = [], []
        self._budget = budget
        self.kv.take(num_blocks)
        for sequence in self.explicit:
            sequence.new_tokens = 0
            num_tokens = self._next_tokens(sequence) if self._budget > 0 else 0
            if num_tokens > 0:
                allocated = self.kv.allocate_prompt(sequence, num_tokens)
                assert allocated
                self._grant(sequence, num_tokens)
        if self._waiting:
            found = self._admit_waiting()
            if found is not None and not self.explicit:
                self.is_blocked = self._stays_blocked(self._waiting[0].request.input_tokens, found)
        return True

    @property
    def _are_in_order(self) -> bool:
        """Whether those that cruise come before all others."""
        if not self.explicit:
            return True
        return next(iter(self.explicit)).running_number > self.cruising.latest_number

    def _stays_blocked(self, input_tokens: int, found: list[int]) -> bool:
        """Whether the head of the queue, which cannot join, cannot do so for as long as everybody cruises on.

        Meanwhile free blocks get fewer, and so may the blocks of its prompt that it finds. Those of them that are in
        use stay; free ones it needs whether it finds them or not.
        """
        size = self._config.block_size_tokens
        if self._chunk(input_tokens, 0) == input_tokens:
            least = -(-input_tokens // size) - self.kv.free.num_held(found)
        else:
            start = len(found) * size
            least = -(-self._chunk(input_tokens - start, start) // size)
        return least > self.kv.free.num_free

    def _form_in_order(self, step: int) -> None:
        """Grant tokens when blocks may run short, to those that cruise first: the last admitted lose theirs.

        As with the plain rules, all that is free is given out before somebody loses blocks, and who loses them is the
        last to need any.
        """
        cruising, kv, others = self.cruising, self.kv, self._running
        self.admitted, self.preempted = [], []
        others[:] = self.explicit
        for sequence in others:
            sequence.new_tokens = 0
        wanted = cruising.num_blocks_needed(step)
        while True:
            num_blocks = min(wanted, kv.free.num_free)
            kv.take(num_blocks)
            wanted -= num_blocks
            if not wanted:
                break
            if others:
                self._preempt(others.pop())
                continue
            victim = max(cruising.sequences, key=_running_number)
            wanted -= cruising.needs_block(victim, step)
            self._spell_out(victim, step)
            self._preempt(victim)
        self._budget = self._config.max_num_batched_tokens - cruising.num_sequences
        self._continue_running()
        for sequence in self.preempted:
            self.explicit.pop(sequence, None)
        others.clear()
        if not self.preempted:
            self._admit_waiting()

    def _preempt(self, victim: Sequence) -> None:
        super()._preempt(victim)
        self.is_blocked = False

    def _evict_reservation(self, victim: Sequence) -> None:
        super()._evict_reservation(victim)
        self.is_blocked = False

    def _spell_out(self, sequence: Sequence, num_steps: int) -> None:
        """Let a sequence cruise no more, before step `num_steps`, but it may later."""
        cruise = sequence.cruise
        assert cruise is not None
        self.cruising.drop(sequence)
        self._write_down(sequence, cruise.first_step, num_steps - cruise.first_step)

    def _write_down(self, sequence: Sequence, first_step: int, count: int) -> None:
        """What follows from so many steps of a cruise."""
        sequence.num_computed_tokens += count
        sequence.num_granted_tokens += count
        sequence.num_stored_tokens = stored = sequence.num_stored_tokens + count
        sequence.num_blocks = -(-stored // self._config.block_size_tokens)
        sequence.add_token_steps(first_step, count)

    def _form_plainly(self) -> None:
        """Grant tokens by the plain rules; nobody cruises."""
        before = sorted(self.explicit, key=_running_number)
        self.explicit.clear()
        self.explicit.update(dict.fromkeys(before))
        self._running[:] = before
        self.form()
        for sequence in before:
            if not sequence.running:
                del self.explicit[sequence]
        self._running.clear()

    def _demand(self, budget: int) -> int | None:
        """Blocks that those not cruising will ask for with so many tokens; None when the plain rules must be asked.

        The order of the running list decides who goes short of budget, so there must be enough for all but the last.
        """
        size = self._config.block_size_tokens
        num_blocks = 0
        for sequence in self.explicit:
            self._budget = self._config.max_num_batched_tokens
            wanted = self._next_tokens(sequence)
            if wanted > budget and sequence.running_number != self._num_admissions:
                return None
            num_tokens = min(wanted, budget)
            budget -= num_tokens
            num_blocks += -(-(sequence.num_stored_tokens + num_tokens) // size) - sequence.num_blocks
        return num_blocks

    def _cruise_of(self, sequence: Sequence, step: int) -> Cruise:
        """Its decoding from `step` on, to its own end or to max_model_len."""
        request = sequence.request
        end = request.input_tokens + max(request.output_tokens, 1) - 1
        if self._config.max_model_len:
            end = min(end, self._config.max_model_len - 1)
        last_step = step + end - sequence.num_computed_tokens - 1
        return Cruise(step, last_step, last_step)

    def _join(self, sequence: Sequence) -> None:
        self.admitted.append(sequence)
        sequence.running = True
        self.explicit[sequence] = None
        self._num_admissions += 1
        sequence.running_number = self._num_admissions


def _running_number(sequence: Sequence) -> int:
    return sequence.running_number
