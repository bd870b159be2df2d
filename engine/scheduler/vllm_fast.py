"""vLLM's scheduling at the cost of what changes: `vllm.py` is what it means, this gives the same results.

Sequences that only decode cruise: they are sums, and their tokens, blocks and ends follow from the step at which they
began. Only what prefills, arrives, ends or runs out of blocks is looked at. While nothing changes, many steps are
taken at once. When blocks run short, all sums are spelled out and the plain rules decide.
"""

from engine.events import Finished
from engine.instance import Instance
from engine.kv_cache.counting import CountingKVCache
from engine.latency.decode_steps import decode_timer
from engine.queue import Due
from engine.scheduler.vllm import Step, VllmStepping, batch_shape
from engine.scheduler.vllm_batch import Grant
from engine.scheduler.vllm_fast_batch import FastVllmBatch, decodes, with_decodes
from engine.sequence import Outcome, Sequence
from engine.units import Micros

MIN_LEAP_STEPS = 8
"""Fewer steps are cheaper one by one."""
MAX_LEAP_STEPS = 1 << 16


class FastVllmStepping(VllmStepping):
    """Steps as its parent takes them. It reports no single steps, only what changes."""

    def __init__(self, instance: Instance) -> None:
        config = instance.config
        self._fast = FastVllmBatch(config, CountingKVCache(config))
        super().__init__(instance, self._fast)
        self._decode_time = decode_timer(instance.latency)

    def compose(self, at: Micros) -> Step | None:
        fast = self._fast
        if fast.explicit:
            fast.let_cruise()
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
                    finished.append(self._end_cruise(due, step.index, at))
        self._instance.events.extend(finished)

    def _end_cruise(self, sequence: Sequence, step_index: int, at: Micros) -> Finished:
        """The last token of a cruising sequence came with a step; no step to come is composed with it."""
        self._fast.finish_cruise(sequence, step_index + 1)
        outcome = self._stop(sequence)
        assert outcome is not None
        num_tokens = min(sequence.num_output_tokens, sequence.request.output_tokens)
        sequence.num_output_tokens = num_tokens
        self._instance.end(sequence, outcome)
        self._instance.counters.output_tokens += num_tokens
        return Finished(at, sequence, outcome)

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
            if len(steps) == 1 and self._depth == 2 and self._fast.is_steady and not steps[0].grants:
                at = self._cruise_on(at, last)
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

    def _cruise_on(self, at: Micros, last: Micros) -> Micros:  # noqa: C901 - one loop, as a call would cost a third
        """Take steps for as long as everybody cruises. Returns when the step now at the head of the line starts.

        At `at` one composed step is about to start. Its successor is composed at its start, and so on; a step's outputs
        are processed at its end, which must not be after `last`. A step costs about 1 us, many at once 8 us.
        """
        fast, steps = self._fast, self._instance.steps
        cruising, kv, decode_time = fast.cruising, fast.kv, self._decode_time
        leaves, ends, needs, size = cruising.leaves, cruising.ends, cruising.needs, len(cruising.needs)
        shape = self._steps[0].shape
        num_sequences, context = shape.decode_requests, shape.decode_context_tokens
        successor, change = fast.next_step, cruising.next_change()
        if fast.admitted or fast.preempted:
            fast.admitted, fast.preempted = [], []
        while 0 < (num_left := cruising.num_sequences) <= fast.most_cruising:
            ends_at = at + decode_time(num_sequences, context)
            if ends_at > last:
                break
            if change - successor >= MIN_LEAP_STEPS and num_left == num_sequences:
                # Steps take ever longer as contexts grow, so this is how many can end by then at most.
                most = min(change - successor, (last - at) // (ends_at - at), MAX_LEAP_STEPS)
                if most >= MIN_LEAP_STEPS:
                    count, leapt_to = self._leap(at, last, context, most)
                    if count:
                        at = leapt_to
                        successor += count
                        context += num_sequences * count
                        continue
            num_blocks = needs[successor % size]
            if num_blocks:
                if num_blocks > kv.free.num_free:
                    break
                kv.take(num_blocks)
            steps.append(at, ends_at)
            num_sequences, context = num_left, cruising.offset + num_left * successor
            if successor in leaves:
                cruising.leave_after(successor)
                change = cruising.next_change()
            at, head, successor = ends_at, successor - 1, successor + 1
            fast.next_step = successor
            if head in ends:
                self._end_cruises(head, at)
                change = cruising.next_change()
                if fast.waiting:
                    break  # one of them may join
        self._steps[0] = Step([], decodes(num_sequences, context))
        return at

    def _end_cruises(self, step_index: int, at: Micros) -> None:
        for sequence in self._fast.cruising.ended_by(step_index):
            self._instance.events.append(self._end_cruise(sequence, step_index, at))

    def _leap(self, at: Micros, last: Micros, context: int, most: int) -> tuple[int, Micros]:
        """Take up to `most` steps, after which nobody leaves or ends, at once.

        The first one starts at `at` with so many context tokens. Returns how many, and the end of the last one.
        """
        instance, fast = self._instance, self._fast
        cruising, first = fast.cruising, fast.next_step
        most = cruising.num_steps_within(first, most, fast.kv.free.num_free)
        if most < MIN_LEAP_STEPS:
            return 0, at
        ends = instance.latency.decode_times(decodes(cruising.num_sequences, context), most).cumsum()
        ends += at
        if ends[-1] > last or ends[-1] < at:
            ends = ends[: int(ends.searchsorted(last, side="right"))]
            if not len(ends):
                return 0, at
        instance.steps.extend(at, ends)
        num_blocks = cruising.num_blocks_in(first, len(ends))
        if num_blocks:
            fast.kv.take(num_blocks)
        fast.next_step = first + len(ends)
        return len(ends), int(ends[-1])

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
