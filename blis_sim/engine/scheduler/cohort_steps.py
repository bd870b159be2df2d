"""Steps in which only the cohort computes: composed one by one, and many taken at once."""

from abc import ABC, abstractmethod
from bisect import bisect_right
from collections import deque
from collections.abc import Callable
from itertools import accumulate

from blis_sim.engine.batch_shape import decodes
from blis_sim.engine.context import EngineContext
from blis_sim.engine.events import StepsDone
from blis_sim.engine.kv_cache.block_pool import FreeRuns
from blis_sim.engine.kv_cache.vllm_cache import CountingKVCache
from blis_sim.engine.latency.decode_steps import few_decodes_timer
from blis_sim.engine.latency.decode_sums import STEPS_PER_RUN, decode_sums
from blis_sim.engine.scheduler.cohort import DecodeCohort, running_number
from blis_sim.engine.scheduler.scheduled_step import NO_NEWCOMERS, NO_TOKENS, ScheduledStep
from blis_sim.engine.sequence import Sequence
from blis_sim.engine.step_log import MAX_INSTANT_US, too_late
from blis_sim.engine.units import Micros

MIN_STEPS_AT_ONCE = 4
"""Least steps of a leap: fewer are cheaper one by one."""
FEW_STEPS = 32
"""Fewer steps are cheaper in a list than in an array, where their sums are not kept."""
MAX_STEPS_AT_ONCE = 1 << 16


class MultiStep:
    """Takes steps of an engine in which no request joins or leaves. About 3 us, however many, where few decode."""

    __slots__ = ("_context", "_latency", "_sums", "_times_of_few")

    def __init__(self, context: EngineContext) -> None:
        self._context = context
        self._latency = context.latency
        self._sums = decode_sums(context.latency)
        self._times_of_few = few_decodes_timer(context.latency)

    def take(
        self, at: Micros, last: Micros, num_sequences: int, context_tokens: int, most: int
    ) -> tuple[int, Micros, Micros]:
        """Take up to `most` steps from `at` on, the first with so many context tokens, each of which starts by `last`.

        Returns how many, and start and end of the last one.
        """
        run, first = self._sums.find(self._latency, num_sequences, context_tokens)
        if run is None:
            return self._take_unknown(at, last, num_sequences, context_tokens, most)
        shift = at - run[first]
        if (end := first + most) > STEPS_PER_RUN:
            end = STEPS_PER_RUN
        ends_at = run[end] + shift
        if ends_at > last:
            end = bisect_right(run, last - shift, first + 1, end)
            ends_at = run[end] + shift
        if ends_at > MAX_INSTANT_US:
            raise too_late(at)
        self._context.steps.extend_shifted(at, run[first + 1 : end + 1], shift)
        return end - first, run[end - 1] + shift, ends_at

    def _take_unknown(
        self, at: Micros, last: Micros, num_sequences: int, context_tokens: int, most: int
    ) -> tuple[int, Micros, Micros]:
        times_of_few = self._times_of_few
        if most < FEW_STEPS and times_of_few is not None:
            times = times_of_few(num_sequences, context_tokens, most)
            instants = list(accumulate(times, initial=at))
            if instants[-1] > last:
                del instants[bisect_right(instants, last, 1) + 1 :]
            count, started_at, ends_at = len(instants) - 1, instants[-2], instants[-1]
            self._context.steps.move_contiguous(instants)
            return count, started_at, ends_at
        ends = self._latency.decode_times(decodes(num_sequences, context_tokens), most).cumsum()
        ends += at
        ends = ends[: int(ends.searchsorted(last, side="right")) + 1]
        self._context.steps.extend(at, ends)
        count = len(ends)
        return count, int(ends[-2]) if count > 1 else at, int(ends[-1])


MAX_REPEATED_STEPS = 64
"""Most steps reported in one event: they are also sent at once, so a larger number is of no use."""


class CohortSteps(ABC):
    """The cohort beside the other sequences, and the steps in flight, at most `depth`."""

    __slots__ = (
        *("_admits", "_block_size", "_blocked", "_composes", "_counts_taken_blocks", "_depth", "_free", "_context"),
        *(
            "_limits_admission",
            "_max_decodes",
            "_max_decode_only",
            "_most_running",
            "_must_update",
            "_names",
            "_reports_steps",
            "_take_blocks",
        ),
        *("_steps", "cohort", "explicit", "in_flight", "next_step", "preempted", "waiting"),
    )

    def __init__(
        self,
        context: EngineContext,
        reports_steps: bool,
        depth: int,
        max_decodes: int,
        free: FreeRuns,
        take: Callable[[int], None],
    ) -> None:
        """`free` and `take` are the free blocks of the cohort and how they are taken."""
        self._context = context
        self._depth = depth
        self._max_decodes = max_decodes
        """With more decodes the order of admission decides which of them fit the budget."""
        self._most_running = context.config.max_num_seqs
        self._free = free
        self._take_blocks = take
        self._max_decode_only = max_decodes
        """`max_decodes` where members of the cohort take blocks by their sums alone, else 0."""
        self._counts_taken_blocks = False
        """Whether the cache counts every block that is taken."""
        self._block_size = context.config.block_size_tokens
        self.cohort = DecodeCohort(self._block_size)
        self.explicit: list[Sequence] = []
        """Running and not in the cohort, in order of admission."""
        self.waiting: deque[Sequence] = deque()
        self.preempted: list[Sequence] = []
        """Sequences preempted by the latest `schedule`."""
        self.in_flight: deque[ScheduledStep] = deque()
        """Steps that have not ended, at most `depth`."""
        self.next_step = 0
        """Index of the step to be composed next."""
        self._admits = True
        """Whether waiting sequences may join."""
        self._composes = True
        """Whether steps may be composed."""
        self._limits_admission = False
        """Whether waiting sequences may have to wait though places in the batch are free."""
        self._names: CountingKVCache | None = None
        """Names the blocks of members that other requests may find; None where no such sequence may be a member."""
        self._blocked: tuple[Sequence, int, int] | None = None
        """The sequence that found too few blocks, the length of the queue and the number of cache changes then."""
        self._must_update = False
        """Whether the end of the executing step changes more than the number of tokens."""
        self._reports_steps = reports_steps
        self._steps = MultiStep(context)

    @abstractmethod
    def compose_newcomers(self, at: Micros) -> bool:
        """Compose a step of the cohort and of sequences that join it at once. False, and nothing changed, otherwise."""

    @abstractmethod
    def is_full(self) -> bool:
        """Whether no waiting sequence can join whatever blocks are free and can be found."""

    def is_blocked(self) -> bool:
        """Whether no waiting sequence can join while nothing but the number of tokens changes."""
        if self._blocked is not None:
            head, num_waiting, num_changes = self._blocked
            waiting = self.waiting
            if waiting[0] is head and num_changes == self._free.num_changes and num_waiting == len(waiting):
                return True
        return self.is_full()

    def expect_fills(self, sequence: Sequence) -> None:
        """Expect a sequence that has just joined the cohort to fill blocks, if others may find them."""
        if self._names is not None and self._names.will_share(sequence):
            self.cohort.expect_fills(sequence, self._depth - 1)

    def fill_blocks(self, first_step: int, end: int) -> None:
        """Name the blocks of members that are full with steps from `first_step` on, before `end`.

        Cost: O(blocks named) and a look at each step.
        """
        cohort, names, num_unknown = self.cohort, self._names, self._depth - 1
        assert names is not None
        for step in range(first_step, end):
            for sequence in cohort.filling(step):
                span = sequence.span
                assert span is not None
                num_tokens = sequence.num_computed_tokens + step + 1 - span.first_step
                names.register(sequence, num_tokens - num_unknown)
                if not names.will_share(sequence):
                    cohort.expect_no_fills(sequence)

    def _fills_in_admission_order(self) -> bool:
        """Whether members fill blocks with the next step as if granted their tokens one by one, in order of
        admission: of equal blocks a search finds the one that was filled first."""
        is_due = bool(self.cohort.fills[self.next_step % self._block_size])
        return len(self.in_flight) == self._depth - 1 and (not is_due or self._is_cohort_admitted_first())

    def _is_cohort_admitted_first(self) -> bool:
        """Whether all other sequences were admitted after those of the cohort."""
        return not self.explicit or self.explicit[0].running_number > self.cohort.latest_number

    def compose_cohort(self, at: Micros) -> bool:
        """Compose a step of the cohort and newcomers to it. False, and nothing changed, if others may compute, too."""
        cohort, step = self.cohort, self.next_step
        num_decodes, fills = cohort.num_decodes, cohort.num_filling > 0
        if num_decodes > self._max_decodes or not self._composes or (fills and len(self.in_flight) != self._depth - 1):
            return False
        if self.waiting and not (self.is_full() if fills or self._blocked is None else self.is_blocked()):
            return self.compose_newcomers(at)
        num_blocks, free = cohort.needs[step % self._block_size], self._free
        if num_blocks > free.num_free or not num_decodes:
            return False
        if num_blocks:
            take_blocks = self._take_blocks
            take_blocks(num_blocks)
        if fills:
            self.fill_blocks(step, step + 1)
        self.in_flight.append((num_decodes, cohort.offset + num_decodes * step, NO_TOKENS, NO_NEWCOMERS))
        self.next_step = step + 1
        if step in cohort.ends:
            cohort.composed(step)
        return True

    def _num_equal_steps(self, most: int) -> int:
        """How many of the next `most` steps can be taken at once: the cohort alone computes and stays what it is."""
        cohort, step, depth = self.cohort, self.next_step, self._depth
        if cohort.decode_only_from > step - depth or self.explicit or self._must_update or len(self.in_flight) < depth:
            return 0
        if self.waiting and not (self.is_full() if cohort.num_filling else self.is_blocked()):
            return 0
        if self._reports_steps and (not self._context.allows_multi_step or most > MAX_REPEATED_STEPS):
            most = MAX_REPEATED_STEPS if self._context.allows_multi_step else 0
        end, num_decodes = cohort.end_heap[0], cohort.num_decodes
        if most > (until_end := end - step + 2):
            # The last step may be composed without members whose end is foreseen, but not without all.
            most = until_end + 1 if depth > 1 and len(cohort.ends[end]) < num_decodes else until_end
        if most < MIN_STEPS_AT_ONCE:
            return 0
        if most > MAX_STEPS_AT_ONCE:
            most = MAX_STEPS_AT_ONCE
        num_free = self._free.num_free
        if num_decodes * (most // self._block_size + 1) <= num_free:  # at most a block more each
            return most
        return 1 + cohort.num_steps_within(step, most - 1, num_free)

    def _take_many_steps(
        self, at: Micros, last: Micros, most: int, instants: list[Micros]
    ) -> tuple[Micros, Micros, int, int]:
        """Take up to `most` steps from `at` on, each of which begins by `last`. Returns start and end of the last one,
        the context tokens of its sequences, and its index.

        Before them `instants` get into the log: the starts of steps and the end of the last of these, `at`.
        """
        if len(instants) > 1:
            self._context.steps.move_contiguous(instants)
        instants.clear()
        in_flight, cohort, step, depth = self.in_flight, self.cohort, self.next_step, self._depth
        num_decodes, context, _, _ = in_flight[0]
        count, started_at, ends_at = self._steps.take(at, last, num_decodes, context, most)
        if count == 1:
            return started_at, ends_at, context, step - depth
        last_step = step + count - 2
        if last_step - 1 in cohort.ends and count > 2:
            num_blocks = cohort.num_blocks_in(step, count - 2)
            cohort.composed(last_step - 1)
            num_blocks += cohort.needs[last_step % self._block_size]
        else:
            num_blocks = cohort.num_blocks_in(step, count - 1)
        if num_blocks:
            self._take_blocks(num_blocks)
        num_last = cohort.num_decodes
        last_context = cohort.offset + num_last * last_step
        in_flight[-1] = num_last, last_context, NO_TOKENS, NO_NEWCOMERS
        if depth == 2:  # with more there is no cohort
            last_context = context + num_decodes * (count - 1)
            in_flight[0] = num_decodes, last_context, NO_TOKENS, NO_NEWCOMERS
        self.next_step = last_step + 1
        if cohort.num_filling:
            self.fill_blocks(step, last_step + 1)
        if last_step in cohort.ends:
            cohort.composed(last_step)
        if self._reports_steps:
            first = step - depth
            ends = [self._context.steps.end(index) for index in range(first, first + count - 1)]
            self._context.events.append(StepsDone(ends, first, self._decoding_in(first)))
        return started_at, ends_at, last_context, last_step + 1 - depth

    def _decoding_in(self, step: int) -> list[Sequence]:
        """Members of the cohort that have a token from `step`, in order of admission."""
        found: list[Sequence] = []
        for sequence in self.cohort.members:
            span = sequence.span
            if span is not None and span.first_step <= step <= span.last_step:
                found.append(sequence)
        found.sort(key=running_number)
        return found
