"""vLLM's scheduling of a model with several groups of layers, whose decoding sequences give back blocks, too."""

from heapq import heappop, heappush

from blis_sim.engine.context import EngineContext
from blis_sim.engine.kv_cache.grouped_cache import GroupedKVCache
from blis_sim.engine.scheduler.cohort import DecodeCohort
from blis_sim.engine.scheduler.vllm import VllmScheduler
from blis_sim.engine.sequence import DecodeSpan, Sequence
from blis_sim.engine.units import Micros


class GroupCohort(DecodeCohort):
    """Members take and give back blocks in the steps that the calendar has; in all others they only count tokens."""

    __slots__ = ("_change_heap", "changes")

    def __init__(self, block_size_tokens: int) -> None:
        super().__init__(block_size_tokens)
        self.changes: dict[int, list[DecodeSpan]] = {}
        """Spans by the step in which their blocks change next. Spans that were cut short stay listed."""
        self._change_heap: list[int] = []

    def join(self, sequence: Sequence, span: DecodeSpan) -> None:
        super().join(sequence, span)
        self.needs[(span.first_step - sequence.num_computed_tokens) % self._block_size] = 0

    def expect_change(self, span: DecodeSpan, step: int) -> None:
        """Note that blocks of a member change in `step`."""
        spans = self.changes.get(step)
        if spans is None:
            self.changes[step] = [span]
            heappush(self._change_heap, step)
        else:
            spans.append(span)

    def pop_changes(self, step: int) -> list[DecodeSpan]:
        """Return the members whose blocks change in `step`, in order of admission. The members are not listed any
        more."""
        found = [span for span in self.changes.pop(step, ()) if span.sequence.span is span and not span.is_over]
        if len(found) > 1:
            found.sort(key=_running_number)
        return found

    def next_change(self, first_step: int) -> int:
        """Return the first step from `first_step` on in which blocks change; -1 without any."""
        heap = self._change_heap
        while heap and (heap[0] < first_step or heap[0] not in self.changes):
            heappop(heap)
        return heap[0] if heap else -1

    def num_steps_within(self, first_step: int, num_steps: int, num_free_blocks: int) -> int:
        return num_steps

    def num_blocks_in(self, first_step: int, num_steps: int) -> int:
        return 0

    def _subtract(self, span: DecodeSpan) -> None:
        super()._subtract(span)
        self.needs[(span.first_step - span.sequence.num_computed_tokens) % self._block_size] = 0


def _running_number(span: DecodeSpan) -> int:
    return span.sequence.running_number


class GroupedScheduler(VllmScheduler):
    """Members of the cohort get blocks in the same order as sequences that are granted tokens one by one."""

    __slots__ = ("_calendar", "_grouped")

    def __init__(self, context: EngineContext, reports_steps: bool = True, has_cohort: bool = True) -> None:
        super().__init__(context, reports_steps, has_cohort)
        assert isinstance(self.kv, GroupedKVCache)
        self._grouped: GroupedKVCache = self.kv
        self._calendar = GroupCohort(self._block_size)
        self.cohort = self._calendar
        self._max_decode_only = 0
        self._prompt_blocks = self.prompt_blocks

    def compose_cohort(self, at: Micros) -> bool:
        num_decodes = self.cohort.num_decodes
        if num_decodes > self._max_decodes or not self._composes:
            return False
        if num_decodes and not self._grant_changes():
            return False
        return super().compose_cohort(at)

    def _num_equal_steps(self, most: int) -> int:
        step, first = self.next_step, self._calendar.next_change(self.next_step)
        return super()._num_equal_steps(most if first < 0 else min(most, 1 + first - step))

    def prompt_blocks(self, sequence: Sequence) -> int:
        """Return the blocks for a whole prompt that is not shared; a negative number where it must be split."""
        num_tokens = sequence.input_tokens
        if self._split is not None and self._split_chunk(sequence, 0, num_tokens) != num_tokens:
            return -1
        return self._grouped.num_prompt_blocks(num_tokens)

    def _join(self, sequence: Sequence, num_tokens_due: int) -> bool:
        if not super()._join(sequence, num_tokens_due):
            return False
        span = sequence.span
        assert span is not None
        self._grouped.join(sequence)
        self._calendar.expect_change(span, span.first_step)
        return True

    def _grant_cohort(self) -> tuple[int, int]:
        cohort, step = self.cohort, self.next_step
        if not self._can_grant_members_first() or not self._grant_changes():
            self.materialize_all()
            return 0, 0
        num_decodes, context = cohort.num_decodes, cohort.offset + cohort.num_decodes * step
        self._budget -= num_decodes
        if step in cohort.ends:
            cohort.composed(step)
        return num_decodes, context

    def _can_grant_members_first(self) -> bool:
        """Whether granting the cohort before all others is the same as granting in order of admission."""
        if self._budget < self.cohort.num_decodes:
            return False
        if not self._by_priority and self._is_cohort_admitted_first():
            return True
        return not self.explicit and self._has_blocks_for_changes()

    def _has_blocks_for_changes(self) -> bool:
        spans = self._calendar.changes.get(self.next_step, ())
        return len(spans) * self._grouped.num_groups <= self._free.num_free

    def _grant_changes(self) -> bool:
        """Let members take and give back blocks for the next step. False, and nothing changed, if they may not fit."""
        step, calendar = self.next_step, self._calendar
        if step not in calendar.changes:
            return len(self.in_flight) >= self._depth - 1
        if len(self.in_flight) < self._depth - 1 or not self._has_blocks_for_changes():
            return False
        for span in calendar.pop_changes(step):
            self._change_blocks(span, step)
        return True

    def _change_blocks(self, span: DecodeSpan, step: int) -> None:
        sequence, first, lag = span.sequence, span.first_step, self._depth - 1
        context = sequence.num_computed_tokens + step - first
        num_in_flight = sequence.num_in_flight_tokens + step - max(first, self.num_processed)
        next_change = self._grouped.decode(sequence, context, context - num_in_flight, lag)
        # In its first steps chunks of its prompt are in flight, later on one token of each step.
        is_steady = step >= first + lag
        num_steps = next_change - context if is_steady else 1
        self._calendar.expect_change(span, step + num_steps)
