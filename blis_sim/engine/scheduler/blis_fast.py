"""BLIS's scheduling at the cost of what changes: `blis.py` is what it means, this gives the same results.

As in `vllm.py`, sequences that only decode cruise as sums until they end or blocks run short, and while nothing
changes many steps are taken at once.
"""

from blis_sim.engine.batch_shape import BatchShape, decodes
from blis_sim.engine.events import Finished
from blis_sim.engine.instance import Instance
from blis_sim.engine.kv_cache.counting_prompts import CountingPromptCache
from blis_sim.engine.latency.decode_steps import decode_timer
from blis_sim.engine.queue import Due
from blis_sim.engine.scheduler.blis import BlisStepping, batch_shape
from blis_sim.engine.scheduler.blis_fast_batch import FastBatchFormation
from blis_sim.engine.scheduler.leap import MAX_LEAP_STEPS, MIN_LEAP_STEPS, Leaper
from blis_sim.engine.sequence import Outcome, Sequence
from blis_sim.engine.units import Micros


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
        self._leaper = Leaper(instance)

    @property
    def num_running(self) -> int:
        return self._fast.num_running

    def enqueue(self, sequence: Sequence, at: Micros) -> None:
        if self._order is not None:
            self._fast.is_blocked = False  # it may be the next to join
        super().enqueue(sequence, at)

    def give_up(self, sequence: Sequence) -> None:
        self._fast.release(sequence)

    def remove(self, sequence: Sequence, outcome: Outcome, at: Micros) -> None:
        if sequence.running:
            self._fast.leave(sequence, len(self._instance.steps))
        elif sequence in self._waiting:
            self._waiting.remove(sequence)
        self._fast.release(sequence)
        self._instance.end_now(sequence, outcome, at)
        if not self.num_running:
            self._plan_step(at)

    def step(self, at: Micros) -> None:
        """Take steps for as long as nothing else is due in between, and plan the next one after."""
        self._step_planned = False
        instance, queue, fast = self._instance, self._instance.queue, self._fast
        log, explicit, ends, waiting = instance.steps, fast.explicit, fast.cruising.ends, self._waiting
        last = self._last_free_instant()
        while fast.num_running or waiting:
            ends_at = self._cruise(at, last) if fast.is_steady else at
            if ends_at == at:
                ends_at = self._single_step(at)
            step = len(log) - 1
            finished = self._end_what_is_done(step, ends_at) if explicit or step in ends else []
            if ends_at > last:
                last = self._last_free_instant()  # later than before, if what was due concerned who ended
            goes_on = bool(fast.num_running or waiting)
            if ends_at > last:
                instance.clock = log.start(step)  # which may be one of several that were taken at once
                if finished:
                    queue.push(ends_at, Due.STEP_END, finished)
                    queue.push(ends_at, Due.DEPARTURE)
                if goes_on:
                    self._step_planned = True
                    queue.push(ends_at, Due.STEP)
                return
            if finished:
                instance.events += finished
            if finished or goes_on:
                instance.clock = ends_at
            at = ends_at

    def step_ended(self, report: object, at: Micros) -> None:
        assert isinstance(report, list)
        self._instance.events.extend(report)

    def _last_free_instant(self) -> Micros:
        """Up to when steps may be taken without looking at anything else."""
        others_at, until = self._instance.queue.next_at(), self._instance.until
        return until if others_at is None or others_at > until else others_at - 1

    def _single_step(self, at: Micros) -> Micros:
        """Take one step in which anything may happen. Returns its end."""
        instance, fast = self._instance, self._fast
        step = len(instance.steps)
        if self._waiting:
            self._order_waiting()
        fast.form_fast(step)
        if fast.admitted or fast.preempted:
            self._tell_batch(at)
        cruising, explicit = fast.cruising, fast.explicit
        num_cruising = cruising.num_sequences
        contexts = cruising.context_tokens(step)
        if explicit:
            shape = batch_shape(list(explicit))
            shape = BatchShape(*shape[:6], shape.decode_requests + num_cruising, shape.decode_context_tokens + contexts)
            ends_at = at + max(1, instance.latency.step_time(shape))
        else:
            shape = decodes(num_cruising, contexts)
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
        if sequence.num_computed_tokens >= prompt_tokens and sequence.first_token_step is None:
            sequence.first_token_step = step
            sequence.first_token_at = ends_at

    def _end_what_is_done(self, step: int, ends_at: Micros) -> list[Finished]:
        """Take out what is done after `step`, in order of admission; what has its whole prompt cruises from now on."""
        fast, cruising = self._fast, self._fast.cruising
        done: list[tuple[Sequence, Outcome]] = []
        for sequence in list(fast.explicit) if fast.explicit else ():
            if sequence.first_token_step is not None:
                outcome = self._outcome(sequence)
                if outcome is not None:
                    done.append((sequence, outcome))
                elif not self._counting.will_share(sequence):
                    fast.let_cruise(sequence, step + 1)
        if step in cruising.ends:
            cruising.leaves.pop(step, None)
            for sequence in cruising.ended_by(step):
                fast.end_cruise(sequence, step + 1)
                outcome = self._outcome(sequence)
                assert outcome is not None
                done.append((sequence, outcome))
        if len(done) > 1:
            done.sort(key=lambda entry: entry[0].running_number)
        finished: list[Finished] = []
        for sequence, outcome in done:
            fast.explicit.pop(sequence, None)
            self._complete(sequence, outcome, ends_at, finished)
        if done:
            fast.is_blocked = False
        return finished

    def _outcome(self, sequence: Sequence) -> Outcome | None:
        request, computed = sequence.request, sequence.num_computed_tokens
        if computed >= request.input_tokens + max(request.output_tokens, 1) - 1:
            return Outcome.COMPLETED
        max_model_len = self._instance.config.max_model_len
        if max_model_len and computed >= max_model_len - 1:
            return Outcome.LENGTH_CAPPED
        return None

    def _cruise(self, at: Micros, last: Micros) -> Micros:
        """Take all steps from `at` on until one of them ends somebody, or ends after `last`, or blocks run short.

        Returns the end of the last one, `at` when there was none.
        """
        instance, cruising, kv, decode_time = self._instance, self._fast.cruising, self._counting, self._decode_time
        log, free, needs, ends, size = instance.steps, kv.free, cruising.needs, cruising.ends, len(cruising.needs)
        first, num_sequences = len(log), cruising.num_sequences
        step, context = first, cruising.context_tokens(first)
        while True:
            num_blocks = needs[step % size]
            if num_blocks > free.num_free:
                break
            step_us = decode_time(num_sequences, context)
            # Steps take ever longer as contexts grow, so this is how many can start by then at most.
            most = (last - at) // step_us + 1
            if most >= MIN_LEAP_STEPS:
                most = min(most, cruising.next_change() + 1 - step, MAX_LEAP_STEPS)
            if most >= MIN_LEAP_STEPS:
                most = cruising.num_steps_within(step, most, free.num_free)
            if most >= MIN_LEAP_STEPS:
                count, _, at = self._leaper.take(at, last, num_sequences, context, most)
                num_blocks = cruising.num_blocks_in(step, count)
            else:
                log.append(at, at + step_us)
                count, at = 1, at + step_us
            if num_blocks:
                kv.take(num_blocks)
            step += count
            context += num_sequences * count
            if at > last or step - 1 in ends:
                break
        if step > first:
            instance.last_shape = decodes(num_sequences, context - num_sequences)
        return at
