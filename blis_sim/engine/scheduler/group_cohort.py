"""The cohort of a model with several groups of layers, whose decoding sequences give back blocks, too."""

from heapq import heappop, heappush

from blis_sim.engine.kv_cache.grouped_cache import GroupedKVCache
from blis_sim.engine.scheduler.cohort import DecodeCohort
from blis_sim.engine.sequence import DecodeSpan, Sequence


class GroupCohort(DecodeCohort):
    """Members take and give back blocks in the steps that the calendar has; in all others they only count tokens.

    They get blocks in the same order as sequences that are granted tokens one by one.
    """

    __slots__ = ("_change_heap", "_kv", "changes")

    def __init__(self, block_size_tokens: int, kv: GroupedKVCache) -> None:
        super().__init__(block_size_tokens)
        self._kv = kv
        self.changes: dict[int, list[DecodeSpan]] = {}
        """Spans by the step in which their blocks change next. Spans that were cut short stay listed."""
        self._change_heap: list[int] = []

    def join(self, sequence: Sequence, span: DecodeSpan) -> None:
        super().join(sequence, span)
        self.needs[(span.first_step - sequence.num_computed_tokens) % self._block_size] = 0
        self._kv.join(sequence)
        self.expect_change(span, span.first_step)

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

    def has_blocks_for_changes(self, step: int, num_free_blocks: int) -> bool:
        """Whether blocks suffice for all changes of a step, whatever they are."""
        return len(self.changes.get(step, ())) * self._kv.num_groups <= num_free_blocks

    def grant_changes(self, step: int, num_in_flight: int, depth: int, num_free_blocks: int) -> bool:
        """Let members take and give back blocks for `step`. False, and nothing changed, if they may not fit.

        Before it, `num_in_flight` steps have not ended, of at most `depth`.
        """
        lag = depth - 1
        if step not in self.changes:
            return num_in_flight >= lag
        if num_in_flight < lag or not self.has_blocks_for_changes(step, num_free_blocks):
            return False
        for span in self.pop_changes(step):
            self._change_blocks(span, step, lag, step - num_in_flight)
        return True

    def _change_blocks(self, span: DecodeSpan, step: int, lag: int, num_processed: int) -> None:
        sequence, first = span.sequence, span.first_step
        context = sequence.num_computed_tokens + step - first
        num_in_flight = sequence.num_in_flight_tokens + step - max(first, num_processed)
        next_change = self._kv.decode(sequence, context, context - num_in_flight, lag)
        # In its first steps chunks of its prompt are in flight, later on one token of each step.
        is_steady = step >= first + lag
        self.expect_change(span, step + (next_change - context if is_steady else 1))

    def num_steps_within(self, first_step: int, num_steps: int, num_free_blocks: int) -> int:
        return num_steps

    def num_blocks_in(self, first_step: int, num_steps: int) -> int:
        return 0

    def _subtract(self, span: DecodeSpan) -> None:
        super()._subtract(span)
        self.needs[(span.first_step - span.sequence.num_computed_tokens) % self._block_size] = 0


def _running_number(span: DecodeSpan) -> int:
    return span.sequence.running_number
