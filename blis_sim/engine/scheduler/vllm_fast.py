"""vLLM's scheduling at the cost of what changes: `vllm.py` is what it means, this gives the same results.

Sequences that only decode cruise: they are sums, and their tokens, blocks and ends follow from the step at which they
began. Only what prefills, arrives, ends or runs out of blocks is looked at. While nothing changes, many steps are
taken at once. When blocks run short, all sums are spelled out and the plain rules decide.
"""

from blis_sim.engine.batch_shape import BatchShape, decodes
from blis_sim.engine.events import Finished
from blis_sim.engine.instance import Instance
from blis_sim.engine.kv_cache.counting import CountingKVCache
from blis_sim.engine.latency.decode_steps import decode_timer
from blis_sim.engine.queue import Due
from blis_sim.engine.scheduler.leap import MAX_LEAP_STEPS, MIN_LEAP_STEPS, Leaper
from blis_sim.engine.scheduler.newcomers import Newcomers, give_first_tokens, grants_of
from blis_sim.engine.scheduler.vllm import Step, VllmStepping, batch_shape
from blis_sim.engine.scheduler.vllm_batch import Grant
from blis_sim.engine.scheduler.vllm_fast_batch import FastVllmBatch
from blis_sim.engine.sequence import Outcome, Sequence
from blis_sim.engine.units import Micros

NO_GRANTS: list[Grant] = []
"""Of steps that are sums. Nobody changes it."""
NOBODY: list[Sequence] = []

_COMPLETED, _LENGTH_CAPPED = Outcome.COMPLETED, Outcome.LENGTH_CAPPED


class FastVllmStepping(VllmStepping):
    """Steps as its parent takes them. It reports no single steps, only what changes."""

    def __init__(self, instance: Instance) -> None:
        config = instance.config
        self._fast = FastVllmBatch(config, CountingKVCache(config))
        super().__init__(instance, self._fast)
        self._decode_time = decode_timer(instance.latency)
        self._leaper = Leaper(instance)
        self._newcomers = Newcomers(instance, self._fast)
        self._max_num_seqs = config.max_num_seqs

    @property
    def num_begun_steps(self) -> int:
        return self._fast.next_step - len(self._steps)

    def compose(self, at: Micros) -> Step | None:
        fast = self._fast
        if fast.explicit:
            fast.let_cruise()
        if not fast.explicit and (not fast.waiting or fast.stays_blocked()):
            step = fast.compose_calm()
            if step is not None:
                self._steps.append(step)
                return step
        composed = fast.compose_fast()
        if composed is None and fast.evicts_in_order:
            composed = [], *self._make_room()
        if composed is None:
            self._spell_out_all()
            grants = fast.compose_plainly()
            num_cruising = 0
            shape = batch_shape(grants)
        else:
            grants, num_cruising, context_tokens = composed
            shape = batch_shape(grants, num_cruising, context_tokens)
        if fast.admitted or fast.preempted:
            self._tell_composition(at)
        if not grants and not num_cruising:
            return None
        step = Step(grants, shape)
        self._steps.append(step)
        fast.next_step += 1
        return step

    def _make_room(self) -> tuple[int, int]:
        """Blocks run short while everybody cruises: the last admitted lose theirs until the others have what they need.

        As with the plain rules, all that is free is given out before somebody loses blocks, and who loses them is the
        last to need any. Returns how many cruise in this step and the sum of their contexts.
        """
        fast, cruising, kv = self._fast, self._fast.cruising, self._fast.counting
        fast.admitted, fast.preempted = [], []
        step = fast.next_step
        wanted = cruising.num_blocks_needed(step)
        while True:
            num_blocks = min(wanted, kv.free.num_free)
            kv.take(num_blocks)
            wanted -= num_blocks
            if not wanted:
                break
            victim = max(cruising.known(), key=_running_number)
            wanted -= cruising.needs_block(victim, step)
            self._spell_out(victim)
            fast.evict(victim)
        num_cruising, context_tokens = cruising.num_sequences, cruising.context_tokens(step)
        cruising.leave_after(step)
        return num_cruising, context_tokens

    def process_outputs(self, at: Micros) -> None:
        if self._leaving:
            self._take_out_leaving(self._fast.next_step - len(self._steps), at)
        step = self._steps.popleft()
        if step.grants or step.index in self._fast.cruising.ends:
            self._take_tokens(step.grants, step.index, at)

    def _take_tokens(self, grants: list[Grant], step_index: int, at: Micros) -> None:
        """What a step brought for those that have grants of their own, and for those whose cruise it ended."""
        ended = self._fast.cruising.ended_by(step_index)
        if not grants:
            for sequence in ended:
                self._end_cruise(sequence, step_index, at)
            return
        finished: list[Finished] = []
        # In batch order, for blocks are reused in the order in which they are given back.
        dues: list[Grant | Sequence] = sorted([*grants, *ended], key=_running_number) if ended else [*grants]
        for due in dues:
            if isinstance(due, Grant):
                self._process(due, step_index, at, [], finished)
                self._instance.events += finished
                finished.clear()
            else:
                self._end_cruise(due, step_index, at)

    def _end_cruise(self, sequence: Sequence, step_index: int, at: Micros) -> None:
        """The last token of a cruising sequence came with a step; no step to come is composed with it."""
        self._fast.finish_cruise(sequence, step_index + 1)
        instance, num_tokens = self._instance, sequence.num_output_tokens
        outcome = _COMPLETED if num_tokens == sequence.request.output_tokens else _LENGTH_CAPPED
        instance.counters.output_tokens += num_tokens
        instance.end_now(sequence, outcome, at)

    def step_ended(self, report: object, at: Micros) -> None:
        """Go from step to step for as long as nothing else is due in between."""
        steps = self._steps
        self.process_outputs(at)
        last = self._last_free_instant()
        if last < at:
            if steps:
                self._start(at)
            self._plan(at)  # something else happens at this instant, and it comes first
            return
        goes_on_at: Micros | None = at
        while goes_on_at is not None:
            if steps and self._depth == 2:
                goes_on_at = self._go_on(goes_on_at, last)
            else:
                goes_on_at = self._take_one(goes_on_at, last)

    def _take_one(self, at: Micros, last: Micros) -> Micros | None:
        """Take a step that was not composed beforehand. Returns its end, None when something else comes first."""
        ends_at = self._begin_and_compose(at)
        if ends_at and self._is_free_until(ends_at, last):
            self.process_outputs(ends_at)
            return ends_at
        self._instance.clock = at
        if ends_at:
            self._instance.queue.push(ends_at, Due.STEP_END, self._steps[0])
        return None

    def _is_free_until(self, ends_at: Micros, last: Micros) -> bool:
        """Whether nothing else is due by then. That may be later than it was, if what was due concerned who ended."""
        return ends_at <= last or ends_at <= self._last_free_instant()

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
        step.shape = self._with_prompts(step.shape, at) or step.shape
        instance.last_shape = step.shape
        ends_at = at + instance.latency.step_time(step.shape)
        if step.shape.prefill_tokens:
            instance.recent_prompts.add(step.shape.prefill_tokens, ends_at)
        step.started_at = at
        step.index = instance.steps.append(at, ends_at)
        return ends_at

    def _with_prompts(self, shape: BatchShape, at: Micros) -> BatchShape | None:
        """What a step that starts at `at` and computes prompts is like beside those before it; None of other steps."""
        return self._instance.recent_prompts.told(shape, at) if shape.prefill_tokens else None

    def _go_on(self, at: Micros, last: Micros) -> Micros | None:  # noqa: C901 - one loop: calls would double its cost
        """Take steps up to the one during which something else is due; then None.

        At `at` one composed step, the head, is about to start. Its successor is composed at its start; its outputs are
        processed at its end. Returns that end when there is no successor. A step in which everybody cruises costs about
        1.2 us, less when many are taken at once, and 4 us more for each newcomer; other steps cost 10 us and more.
        """
        fast, instance, composed, leaving = self._fast, self._instance, self._steps, self._leaving
        cruising, kv, log, decode_time = fast.cruising, fast.counting, instance.steps, self._decode_time
        step_time, add_prompts = instance.latency.step_time, instance.recent_prompts.add
        take_leap, let_join, free = self._leaper.take, self._newcomers.compose, fast.counting.free
        explicit, waiting, leaves, ends = fast.explicit, fast.waiting, cruising.leaves, cruising.ends
        needs, size, max_num_seqs = cruising.needs, len(cruising.needs), self._max_num_seqs
        head, most_cruising = composed[0], fast.most_cruising
        # Only of a step with prompts more is known than how many decode. The prompts have grants, or are newcomers'.
        grants, joined, shape = head.grants, NOBODY, self._with_prompts(head.shape, at)
        num_sequences, context = head.shape.decode_requests, head.shape.decode_context_tokens
        step_index, successor = fast.next_step - 1, fast.next_step
        # The log and the cache are told of steps before somebody else asks or changes them.
        unlogged_ends: list[Micros] = []
        unlogged_from, num_free, leaps_before = at, free.num_free, last
        while True:
            if shape is None:
                ends_at = at + decode_time(num_sequences, context)
            else:
                ends_at = at + step_time(shape)
                add_prompts(shape.prefill_tokens, ends_at)
            if explicit:
                fast.let_cruise()
            num_left, num_blocks = cruising.num_sequences, needs[successor % size]
            is_calm = not explicit and num_blocks <= num_free and num_left <= most_cruising
            if is_calm and num_left and (not waiting or fast.num_running >= max_num_seqs or fast.stays_blocked()):
                most = 0
                if ends_at < leaps_before and num_left == num_sequences and shape is None and not grants:
                    # Steps take ever longer as contexts grow, so this is how many can start by then at most.
                    most = min((last - at) // (ends_at - at) + 1, cruising.num_equal_steps(step_index), MAX_LEAP_STEPS)
                if most >= MIN_LEAP_STEPS:
                    log.extend_by_few(unlogged_from, unlogged_ends)
                    most = cruising.num_steps_within(successor, most, num_free)
                    count, at, ends_at = take_leap(at, last, num_sequences, context, most)
                    unlogged_from, unlogged_ends = ends_at, []
                    num_blocks, num_left = cruising.compose(successor, count), cruising.num_sequences
                    context += num_sequences * (count - 1)
                    step_index, successor = step_index + count - 1, successor + count - 1
                else:
                    unlogged_ends.append(ends_at)
                num_free -= num_blocks
                fast.next_step = successor + 1
                next_grants, next_joined, next_shape = NO_GRANTS, NOBODY, None
                num_next, next_context = num_left, cruising.offset + num_left * successor
                if successor in leaves:
                    cruising.leave_after(successor)
            else:
                kv.take(free.num_free - num_free)
                unlogged_ends.append(ends_at)
                if is_calm and waiting and (newcomers := let_join(at, ends_at)) is not None:
                    next_grants, (next_joined, next_shape) = NO_GRANTS, newcomers
                    num_next, next_context = num_left, next_shape.decode_context_tokens
                else:
                    head = Step(grants or grants_of(joined), shape or decodes(num_sequences, context), step_index)
                    step, num_free = self._compose_behind(head, at), free.num_free
                    if step is None:
                        break
                    grants, joined = head.grants, NOBODY  # more than before, if those that cruised were spelled out
                    next_grants, next_joined, next_shape = step.grants, NOBODY, self._with_prompts(step.shape, ends_at)
                    num_next, next_context = step.shape.decode_requests, step.shape.decode_context_tokens
                num_free = free.num_free
            if ends_at > last:
                last = self._caught_up(ends_at)
                leaps_before = last - (MIN_LEAP_STEPS - 2) * (ends_at - at)  # later there are too few steps left
                if ends_at > last:
                    head = Step(grants or grants_of(joined), shape or decodes(num_sequences, context), step_index)
                    next_grants = next_grants or grants_of(next_joined)
                    composed.append(Step(next_grants, next_shape or decodes(num_next, next_context)))
                    break
            at = ends_at
            if step_index in ends or grants or leaving:
                kv.take(free.num_free - num_free)
                if leaving:
                    self._take_out_leaving(step_index, at)
                self._take_tokens(grants, step_index, at)
                num_free = free.num_free
            if joined:
                give_first_tokens(joined, step_index, at)
            step_index, successor = successor, successor + 1
            grants, joined, shape = next_grants, next_joined, next_shape
            num_sequences, context = num_next, next_context
        kv.take(free.num_free - num_free)
        log.extend_by_few(unlogged_from, unlogged_ends)
        return self._pause(head, at, ends_at, last)

    def _pause(self, head: Step, at: Micros, ends_at: Micros, last: Micros) -> Micros | None:
        """The head, which started at `at`, is the last step that goes without asking. Returns its end if it is alone
        and nothing else comes first."""
        instance, composed = self._instance, self._steps
        composed[0], instance.last_shape = head, head.shape
        if len(composed) == 1 and self._is_free_until(ends_at, last):
            self.process_outputs(ends_at)
            return ends_at
        instance.clock = max(at, instance.clock)
        instance.queue.push(ends_at, Due.STEP_END, head)
        return None

    def _caught_up(self, ends_at: Micros) -> Micros:
        """Let come or go who does so during a step, which only queues up for its end. Returns the last free instant."""
        instance = self._instance
        until = instance.until
        next_at = instance.queue.next_at() if ends_at > until else instance.catch_up(ends_at - 1)
        return until if next_at is None or next_at > until else next_at - 1

    def _compose_behind(self, head: Step, at: Micros) -> Step | None:
        """Compose by the general rules while `head` executes; the step is not listed among those composed."""
        if not self._fast.num_running and not self._fast.waiting:
            return None
        self._steps[0] = head
        step = self.compose(at)
        if step is not None:
            self._steps.pop()
        return step

    def _take_out_leaving(self, num_processed_steps: int, at: Micros) -> None:
        """Those whose client has gone leave before the tokens of the step that ends at `at` are processed."""
        for sequence, outcome in self._leaving:
            if sequence.outcome is None:
                if sequence.cruise is not None:
                    # What steps under way bring for it is of no interest any more.
                    self._fast.end_cruise(sequence, num_processed_steps)
                    self._instance.end_now(sequence, outcome, at)
                else:
                    self._take_out(sequence, outcome, at)
        self._leaving.clear()

    def _take_out(self, sequence: Sequence, outcome: Outcome, at: Micros) -> None:
        fast = self._fast
        if sequence.cruise is not None:
            fast.end_cruise(sequence, fast.next_step - len(self._steps))
        else:
            fast.leave(sequence)
            fast.counting.release(sequence)
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
