"""Decoding sequences of a model with several groups of layers: sums, and a calendar of their blocks."""

from heapq import heappop, heappush

from blis_sim.engine.scheduler.cohort import DecodeCohort
from blis_sim.engine.sequence import DecodeSpan, Sequence


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
