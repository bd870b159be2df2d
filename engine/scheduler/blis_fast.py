"""BLIS's scheduling at the cost of what changes: `blis.py` is what it means, this gives the same results.

As in `vllm_fast.py`, sequences that only decode cruise as sums until they end or blocks run short, and while nothing
changes many steps are taken at once.
"""

from bisect import bisect_right
from collections import deque
from itertools import accumulate

from engine.batch_shape import BatchShape
from engine.config import EngineConfig
from engine.events import Finished
from engine.instance import Instance
from engine.kv_cache.counting_prompts import CountingPromptCache
from engine.latency.decode_steps import decode_timer, few_decodes_timer
from engine.queue import Due
from engine.scheduler.batch import BatchFormation
from engine.scheduler.blis import BlisStepping, batch_shape
from engine.scheduler.cruise import Cruising
from engine.sequence import Cruise, Outcome, Sequence
from engine.units import Micros

MIN_LEAP_STEPS = 3
"""Fewer steps are cheaper one by one."""
FEW_STEPS = 48
"""Fewer steps are cheaper in a list than in an array."""
MAX_LEAP_STEPS = 1 << 16


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
        self._num_admissions = 0

    @property
    def num_running(self) -> int:
        return len(self.explicit) + self.cruising.num_sequences

    @property
    def is_steady(self) -> bool:
        """Whether everything that runs cruises and nothing that waits could join while nothing changes."""
        if self.explicit or not self.cruising.num_sequences:
            return False
        return not self._waiting or self.num_running >= self._config.max_num_seqs

    def form_fast(self, step: int) -> bool:
        """Grant tokens for `step`; False, and nothing granted, when only the plain rules can tell what happens."""
        num_cruising = self.cruising.num_sequences
        num_blocks = self.cruising.num_blocks_needed(step)
        budget = self._config.max_num_batched_tokens - num_cruising
        wanted = self._demand(budget) if self.explicit else 0
        if budget < 0 or wanted is None or num_blocks + wanted > self.kv.free.num_free:
            return False
        if num_blocks and self.explicit and next(iter(self.explicit)).running_number < self.cruising.latest_number:
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
            self._admit_waiting()
        return True

    def let_cruise(self, sequence: Sequence, step: int) -> None:
        """A running sequence with its whole prompt cruises from `step` on."""
        del self.explicit[sequence]
        self.cruising.join(sequence, self._cruise_of(sequence, step))

    def form_plainly(self) -> None:
        """Grant tokens by the plain rules; nobody cruises."""
        self._running[:] = sorted(self.explicit, key=lambda sequence: sequence.running_number)
        before = list(self._running)
        self.form()
        for sequence in before:
            if not sequence.running:
                del self.explicit[sequence]
        self._running.clear()

    def spell_out(self, sequence: Sequence, num_steps: int) -> None:
        """Write down what follows from a sequence's cruise through all steps below `num_steps`, where it ends."""
        cruise = sequence.cruise
        assert cruise is not None
        count = num_steps - cruise.first_step
        self.cruising.drop(sequence)
        size = self._config.block_size_tokens
        sequence.num_computed_tokens += count
        sequence.num_granted_tokens += count
        sequence.num_stored_tokens += count
        sequence.num_blocks = -(-sequence.num_stored_tokens // size)
        sequence.add_token_steps(cruise.first_step, count)

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


class FastBlisStepping(BlisStepping):
    """Steps as its parent takes them. It reports no single steps, only what changes."""

    def __init__(self, instance: Instance) -> None:
        super().__init__(instance)
        config = instance.config
        self._counting = CountingPromptCache(config.total_kv_blocks, config.block_size_tokens)
        self.kv = self._counting
        self._fast = FastBatchFormation(config, self._counting, self._running, self._waiting)
        self._batch = self._fast
        self._decode_time = decode_timer(instance.latency)
        self._few_decode_times = few_decodes_timer(instance.latency)

    @property
    def num_running(self) -> int:
        return self._fast.num_running

    def remove(self, sequence: Sequence, outcome: Outcome, at: Micros) -> None:
        if sequence.cruise is not None:
            self._fast.spell_out(sequence, len(self._instance.steps))
        if sequence.running:
            self._fast.explicit.pop(sequence, None)
            sequence.running = False
        elif sequence in self._waiting:
            self._waiting.remove(sequence)
        self.kv.release(sequence)
        self._instance.end_now(sequence, outcome, at)
        if not self.num_running:
            self._plan_step(at)

    def step(self, at: Micros) -> None:
        """Take steps for as long as nothing else is due in between, and plan the next one after."""
        self._step_planned = False
        instance, queue = self._instance, self._instance.queue
        while self.num_running or self._waiting:
            others_at = queue.next_at()
            last = instance.until if others_at is None else min(instance.until, others_at - 1)
            ends_at = self._leap(at, last) if self._fast.is_steady else None
            if ends_at is None:
                ends_at = self._single_step(at)
            finished = self._end_what_is_done(len(instance.steps) - 1, ends_at)
            goes_on = bool(self.num_running or self._waiting)
            if ends_at > last:
                if finished:
                    queue.push(ends_at, Due.STEP_END, finished)
                    queue.push(ends_at, Due.DEPARTURE)
                if goes_on:
                    self._step_planned = True
                    queue.push(ends_at, Due.STEP)
                return
            if finished:
                instance.events.extend(finished)
            if finished or goes_on:
                instance.clock = ends_at
            at = ends_at

    def _single_step(self, at: Micros) -> Micros:
        step = len(self._instance.steps)
        if self._waiting:
            self._order_waiting()
        if not self._fast.form_fast(step):
            for sequence in list(self._fast.cruising.sequences):
                self._fast.spell_out(sequence, step)
                self._fast.explicit[sequence] = None
            self._fast.form_plainly()
        if self._fast.admitted or self._fast.preempted:
            self._tell_batch(at)
        return self._execute(at, step)

    def step_ended(self, report: object, at: Micros) -> None:
        assert isinstance(report, list)
        self._instance.events.extend(report)

    def _execute(self, at: Micros, step: int) -> Micros:
        """The step's time, and the progress of those that do not cruise. Returns the step's end."""
        instance, cruising = self._instance, self._fast.cruising
        explicit = self._fast.explicit
        num_cruising = cruising.num_sequences
        contexts = cruising.context_tokens(step) if num_cruising else 0
        if explicit:
            shape = batch_shape(list(explicit))
            shape = BatchShape(*shape[:6], shape.decode_requests + num_cruising, shape.decode_context_tokens + contexts)
            ends_at = at + max(1, instance.latency.step_time(shape))
        else:
            shape = BatchShape(0, 0, 0, 0, 0, 0, num_cruising, contexts)
            ends_at = at + max(1, self._decode_time(num_cruising, contexts))
        instance.last_shape = shape
        instance.steps.append(at, ends_at)
        for sequence in explicit:
            self._progress(sequence, step, ends_at)
        return ends_at

    def _progress(self, sequence: Sequence, step: int, ends_at: Micros) -> None:
        prompt_tokens = sequence.request.input_tokens
        if sequence.num_computed_tokens < prompt_tokens:
            sequence.num_computed_tokens = sequence.num_granted_tokens
        elif sequence.new_tokens > 0:
            sequence.num_computed_tokens += 1
            sequence.add_token_step(step)
        if sequence.num_computed_tokens == prompt_tokens and sequence.first_token_step is None:
            sequence.first_token_step = step
            sequence.first_token_at = ends_at

    def _end_what_is_done(self, step: int, ends_at: Micros) -> list[Finished]:
        """Take out what is done after `step`, in order of admission; what has its whole prompt cruises from now on."""
        fast = self._fast
        if not fast.explicit and step not in fast.cruising.ends:
            return []
        done: list[tuple[Sequence, Outcome]] = []
        for sequence in list(fast.explicit) if fast.explicit else ():
            if sequence.first_token_step is not None:
                outcome = self._outcome(sequence)
                if outcome is not None:
                    done.append((sequence, outcome))
                else:
                    fast.let_cruise(sequence, step + 1)
        for sequence in fast.cruising.ended_by(step):
            fast.spell_out(sequence, step + 1)
            outcome = self._outcome(sequence)
            assert outcome is not None
            done.append((sequence, outcome))
        if not done:
            return []
        if len(done) > 1:
            done.sort(key=lambda entry: entry[0].running_number)
        finished: list[Finished] = []
        for sequence, outcome in done:
            fast.explicit.pop(sequence, None)
            self._complete(sequence, outcome, ends_at, finished)
        return finished

    def _outcome(self, sequence: Sequence) -> Outcome | None:
        request, computed = sequence.request, sequence.num_computed_tokens
        if computed >= request.input_tokens + max(request.output_tokens, 1) - 1:
            return Outcome.COMPLETED
        max_model_len = self._instance.config.max_model_len
        if max_model_len and computed >= max_model_len - 1:
            return Outcome.LENGTH_CAPPED
        return None

    def _leap(self, at: Micros, last: Micros) -> Micros | None:
        """Take all steps from `at` on until one of them ends somebody, or the next would start after `last`.

        Returns the end of the last one; None, and nothing done, when they are too few to be worth it.
        """
        instance, cruising = self._instance, self._fast.cruising
        first = len(instance.steps)
        change = cruising.next_change()
        num_sequences, context = cruising.num_sequences, cruising.context_tokens(first)
        if change + 1 - first < MIN_LEAP_STEPS or num_sequences > instance.config.max_num_batched_tokens:
            return None
        # Steps take ever longer as contexts grow, so this is how many can start by then at most.
        most = min(
            change + 1 - first, (last - at) // max(1, self._decode_time(num_sequences, context)) + 1, MAX_LEAP_STEPS
        )
        if most < MIN_LEAP_STEPS:
            return None
        most = cruising.num_steps_within(first, most, self._counting.free.num_free)
        if most < MIN_LEAP_STEPS:
            return None
        if most < FEW_STEPS:
            times = self._few_decode_times(num_sequences, context, most)
            times[0] += at
            few_ends = list(accumulate(times))
            count = min(bisect_right(few_ends, last) + 1, most)
            instance.steps.extend_by_few(at, few_ends[:count])
            ends_at = few_ends[count - 1]
        else:
            shape = BatchShape(0, 0, 0, 0, 0, 0, num_sequences, context)
            ends = instance.latency.decode_times(shape, most).cumsum()
            ends += at
            count = min(int(ends.searchsorted(last, side="right")) + 1, most)
            instance.steps.extend(at, ends[:count])
            ends_at = int(ends[count - 1])
        self._counting.take(cruising.num_blocks_in(first, count))
        instance.last_shape = BatchShape(0, 0, 0, 0, 0, 0, num_sequences, context + (count - 1) * num_sequences)
        return ends_at
