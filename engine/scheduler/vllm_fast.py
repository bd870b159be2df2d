"""vLLM's scheduling at the cost of what changes: `vllm.py` is what it means, this gives the same results.

Sequences that only decode cruise: they are sums, and their tokens, blocks and ends follow from the step at which they
began. Only what prefills, arrives, ends or runs out of blocks is looked at. While nothing changes, many steps are
taken at once. When blocks run short, all sums are spelled out and the plain rules decide.
"""

from engine.events import Finished
from engine.instance import Instance
from engine.kv_cache.counting import CountingKVCache
from engine.queue import Due
from engine.scheduler.vllm import Step, VllmStepping, batch_shape
from engine.scheduler.vllm_batch import Grant
from engine.scheduler.vllm_fast_batch import FastVllmBatch, decodes, with_decodes
from engine.sequence import Outcome, Sequence
from engine.units import Micros

MIN_LEAP_STEPS = 3
"""Fewer steps are cheaper one by one."""
MAX_LEAP_STEPS = 1 << 16


class FastVllmStepping(VllmStepping):
    """Steps as its parent takes them. It reports no single steps, only what changes."""

    def __init__(self, instance: Instance) -> None:
        config = instance.config
        self._fast = FastVllmBatch(config, CountingKVCache(config))
        super().__init__(instance, self._fast)

    def compose(self, at: Micros) -> Step | None:
        fast = self._fast
        if not fast.explicit and not fast.waiting:
            step = fast.compose_calm()
            if step is not None:
                self._steps.append(step)
                return step
        composed = fast.compose_fast()
        if composed is None:
            self._spell_out_all()
            grants = fast.compose_plainly()
            num_cruising = 0
            shape = batch_shape(grants)
        else:
            grants, num_cruising, context_tokens = composed
            if grants:
                shape = with_decodes(batch_shape(grants), num_cruising, context_tokens)
            else:
                shape = decodes(num_cruising, context_tokens)
        if fast.admitted or fast.preempted:
            self._tell_composition(at)
        if not grants and not num_cruising:
            return None
        step = Step(grants, shape)
        self._steps.append(step)
        fast.next_step += 1
        return step

    def process_outputs(self, at: Micros) -> None:
        for sequence, outcome in self._leaving:
            if sequence.outcome is None:
                self._take_out(sequence, outcome, at)
        self._leaving.clear()
        step = self._steps.popleft()
        ended = self._fast.cruising.ended_by(step.index)
        if not ended and not step.grants:
            return
        finished: list[Finished] = []
        if not ended:
            for grant in step.grants:
                self._process(grant, step, at, [], finished)
        else:
            # In batch order, for blocks are reused in the order in which they are given back.
            dues: list[Grant | Sequence] = [*step.grants, *ended]
            for due in sorted(dues, key=_running_number):
                if isinstance(due, Grant):
                    self._process(due, step, at, [], finished)
                else:
                    self._end_cruise(due, step, at, finished)
        self._instance.events.extend(finished)

    def _end_cruise(self, sequence: Sequence, step: Step, at: Micros, finished: list[Finished]) -> None:
        """The last token of a cruising sequence came with `step`; no step to come is composed with it."""
        self._fast.finish_cruise(sequence, step.index + 1)
        ending = self._stop(sequence)
        assert ending is not None
        self._complete(sequence, ending, at, finished)

    def step_ended(self, report: object, at: Micros) -> None:
        """Go from step to step for as long as nothing else is due in between."""
        instance, steps = self._instance, self._steps
        self.process_outputs(at)
        last = self._last_free_instant()
        if last < at:
            if steps:
                self._start(at)
            self._plan(at)  # something else happens at this instant, and it comes first
            return
        while True:
            if len(steps) == 1 and self._depth == 2 and self._fast.is_steady:
                at = self._leap(at, last)
            ends_at = self._begin_and_compose(at)
            if ends_at > last:
                last = self._last_free_instant()  # later than it was, if what was due then concerned somebody who ended
            if not ends_at or ends_at > last:
                instance.clock = at
                if ends_at:
                    instance.queue.push(ends_at, Due.STEP_END, steps[0])
                return
            at = ends_at
            self.process_outputs(at)

    def _begin_and_compose(self, at: Micros) -> Micros:
        """Let the next step execute and compose behind it. Returns its end, 0 when there is none."""
        steps, fast = self._steps, self._fast
        ends_at = self._begin(at) if steps else 0
        while len(steps) < self._depth and (fast.num_running or fast.waiting):
            if self.compose(at) is not None:
                ends_at = ends_at or self._begin(at)
            elif steps or not fast.preempted:
                break
        return ends_at

    def _last_free_instant(self) -> Micros:
        """Up to when steps may be taken without looking at anything else."""
        others_at, until = self._instance.queue.next_at(), self._instance.until
        return until if others_at is None or others_at > until else others_at - 1

    def _begin(self, at: Micros) -> Micros:
        """The first composed step executes from `at` on; returns its end."""
        instance, step = self._instance, self._steps[0]
        shape = step.shape
        instance.last_shape = shape
        ends_at = at + instance.latency.step_time(shape)
        step.started_at = at
        step.index = instance.steps.append(at, ends_at)
        return ends_at

    def _leap(self, at: Micros, last: Micros) -> Micros:
        """Take all steps until something changes, or none. Returns when the step now at the head of the line starts.

        At `at` one composed step is about to start. Step by step it would run, its successor being composed at its
        start, and so on; each composition happens at the end of a step, which must not be after `last`.
        """
        instance, fast = self._instance, self._fast
        cruising, head = fast.cruising, self._steps[0]
        if head.grants or head.shape.decode_requests != cruising.num_sequences:
            return at
        first = fast.next_step
        change = cruising.next_change()
        assert change is not None
        # Steps take ever longer as contexts grow, so this is how many can end by then at most.
        most = min(change - first, (last - at) // max(1, instance.latency.step_time(head.shape)), MAX_LEAP_STEPS)
        if most < MIN_LEAP_STEPS:
            return at
        most = cruising.num_steps_within(first, most, fast.kv.free.num_free)
        if most < MIN_LEAP_STEPS:
            return at
        ends = instance.latency.decode_times(head.shape, most).cumsum()
        ends += at
        count = int(ends.searchsorted(last, side="right"))
        if count < MIN_LEAP_STEPS:
            return at
        instance.steps.extend(at, ends[:count])
        fast.kv.take(cruising.num_blocks_in(first, count))
        fast.next_step += count
        self._steps[0] = Step([], decodes(head.shape.decode_requests, cruising.context_tokens(fast.next_step - 1)))
        return int(ends[count - 1])

    def _take_out(self, sequence: Sequence, outcome: Outcome, at: Micros) -> None:
        fast = self._fast
        if sequence.cruise is not None:
            # What steps under way bring for it is of no interest any more.
            fast.spell_out(sequence, fast.next_step - len(self._steps))
        fast.leave(sequence)
        fast.kv.release(sequence)
        self._instance.end_now(sequence, outcome, at)

    def _spell_out_all(self) -> None:
        for sequence in sorted(self._fast.cruising.known(), key=lambda each: each.running_number):
            self._spell_out(sequence)

    def _spell_out(self, sequence: Sequence) -> None:
        """Let a sequence cruise no more: what it has in steps under way becomes grants of its own."""
        fast, cruise = self._fast, sequence.cruise
        assert cruise is not None
        processed = fast.next_step - len(self._steps)
        context = sequence.num_computed_tokens - cruise.first_step
        fast.spell_out(sequence, processed)
        if sequence.running:
            fast.explicit[sequence] = None
        for index, step in enumerate(self._steps, processed):
            if cruise.first_step <= index <= cruise.last_granted_step:
                step.grants.append(Grant(sequence, 1, context + index, sequence.num_tokens, samples=True))
                step.grants.sort(key=lambda grant: grant.sequence.running_number)


def _running_number(due: Grant | Sequence) -> int:
    sequence = due.sequence if isinstance(due, Grant) else due
    return sequence.running_number
