"""Sequences that only decode, kept as sums: what they do in a step costs nothing per sequence."""

from bisect import bisect_right
from heapq import heappop, heappush
from itertools import accumulate

from blis_sim.engine.sequence import Cruise, Sequence


class Cruising:
    """The sequences that get exactly one token in every step they are part of.

    With n of them the sum of their contexts grows by n each step, so it is kept as a constant plus n times the step.
    A sequence needs a new block whenever its context is a multiple of the block size, so those that do in a given step
    are counted by that step modulo the block size. Joining, leaving and asking are O(1).
    """

    __slots__ = (
        "_block_size",
        "_step_heap",
        "ends",
        "latest_number",
        "leaves",
        "needs",
        "num_sequences",
        "offset",
        "sequences",
    )

    def __init__(self, block_size_tokens: int) -> None:
        self.num_sequences = 0
        self.latest_number = 0
        """No sequence here was admitted later than this."""
        self.sequences: dict[Sequence, None] = {}
        self._block_size = block_size_tokens
        self.offset = 0
        """The sum of their contexts before step 0, had they always been here."""
        self.needs = [0] * block_size_tokens
        """New blocks they need in a step, by its index modulo the block size."""
        self.leaves: dict[int, list[Sequence]] = {}
        """For whom a step is the last one composed with them."""
        self.ends: dict[int, list[Sequence]] = {}
        """Who gets the last token from a step."""
        self._step_heap: list[int] = []

    def known(self) -> list[Sequence]:
        """All that cruise, those that no further step will be composed with included."""
        return [sequence for listed in self.ends.values() for sequence in listed if sequence.cruise is not None]

    def join(self, sequence: Sequence, cruise: Cruise) -> None:
        """From `cruise.first_step` on, before which `sequence` has computed `num_computed_tokens`."""
        sequence.cruise = cruise
        self.sequences[sequence] = None
        self.num_sequences += 1
        if sequence.running_number > self.latest_number:
            self.latest_number = sequence.running_number
        lead = sequence.num_computed_tokens - cruise.first_step
        self.offset += lead
        self.needs[-lead % self._block_size] += 1
        last, end = cruise.last_granted_step, cruise.last_step
        leaving, ending = self.leaves.get(last), self.ends.get(end)
        if leaving is None:
            self.leaves[last] = [sequence]
            heappush(self._step_heap, last)
        else:
            leaving.append(sequence)
        if ending is None:
            self.ends[end] = [sequence]
            if end != last:
                heappush(self._step_heap, end)
        else:
            ending.append(sequence)

    def context_tokens(self, step: int) -> int:
        """Sum of the contexts before `step`."""
        return self.offset + self.num_sequences * step

    def num_blocks_needed(self, step: int) -> int:
        """New blocks they need in `step`."""
        return self.needs[step % self._block_size]

    def needs_block(self, sequence: Sequence, step: int) -> bool:
        """Whether one of them needs a new block in `step`."""
        if sequence.cruise is None or sequence not in self.sequences:
            return False
        lead = sequence.num_computed_tokens - sequence.cruise.first_step
        return (lead + step) % self._block_size == 0

    def num_steps_within(self, first_step: int, num_steps: int, num_free_blocks: int) -> int:
        """How many of `num_steps` steps from `first_step` on their blocks suffice for."""
        if not self.num_sequences:
            return num_steps
        size, needs = self._block_size, self.needs
        rounds, rest = divmod(num_free_blocks, self.num_sequences)  # in a round each of them needs one
        if num_steps <= rounds * size:
            return num_steps
        start = first_step % size
        return min(num_steps, rounds * size + bisect_right(list(accumulate(needs[start:] + needs[:start])), rest))

    def num_blocks_in(self, first_step: int, num_steps: int) -> int:
        """New blocks they need in `num_steps` steps from `first_step` on."""
        size = self._block_size
        needs = self.needs
        rounds, rest = divmod(num_steps, size)
        start = first_step % size
        end = start + rest
        total = sum(needs[start:end]) + rounds * self.num_sequences
        return total + sum(needs[: end - size]) if end > size else total

    def next_change(self) -> int:
        """The next step after which one of them leaves or ends; -1 without any."""
        heap = self._step_heap
        while heap:
            step = heap[0]
            if step in self.ends or step in self.leaves:
                return step
            heappop(heap)
        return -1

    def num_equal_steps(self, step: int) -> int:
        """In how many steps from `step` on, which is composed, the same decode, with some of them also in the next."""
        change = self.next_change()
        leaving = self.leaves.get(change)
        if leaving is not None and len(leaving) >= self.num_sequences:
            return change - step
        return change - step + 1

    def compose(self, first_step: int, num_steps: int) -> int:
        """Compose `num_steps` steps from `first_step` on, of which only the last may be without some of them.

        Returns how many new blocks they need.
        """
        last = first_step + num_steps - 1
        if num_steps == 1 or last - 1 not in self.leaves:
            return self.num_blocks_in(first_step, num_steps)
        num_blocks = self.num_blocks_in(first_step, num_steps - 1)
        self.leave_after(last - 1)
        return num_blocks + self.needs[last % self._block_size]

    def leave_after(self, step: int) -> None:
        """`step` has been composed; those it was the last one for are no longer part of the sums."""
        for sequence in self.leaves.pop(step, ()):
            if (cruise := sequence.cruise) is not None:
                self._subtract(sequence, cruise)

    def ended_by(self, step: int) -> list[Sequence]:
        """Those whose last token `step` brought, in order of admission. They are forgotten."""
        ended = self.ends.pop(step, [])
        for sequence in ended:
            if sequence.cruise is None:
                ended = [each for each in ended if each.cruise is not None]
                break
        if len(ended) > 1:
            ended.sort(key=lambda sequence: sequence.running_number)
        return ended

    def drop(self, sequence: Sequence) -> None:
        """Forget a sequence that cruises no more."""
        cruise = sequence.cruise
        assert cruise is not None
        if sequence in self.sequences:
            self._subtract(sequence, cruise)
        for steps, step in ((self.leaves, cruise.last_granted_step), (self.ends, cruise.last_step)):
            listed = steps.get(step)
            if listed is not None and sequence in listed:
                listed.remove(sequence)
                if not listed:
                    del steps[step]
        sequence.cruise = None

    def abandon(self, sequence: Sequence) -> None:
        """Forget a sequence that will never cruise again; its steps are passed over when they come."""
        assert sequence.cruise is not None
        if sequence in self.sequences:
            self._subtract(sequence, sequence.cruise)
        sequence.cruise = None

    def _subtract(self, sequence: Sequence, cruise: Cruise) -> None:
        del self.sequences[sequence]
        self.num_sequences -= 1
        if not self.num_sequences:
            self.latest_number = 0
        lead = sequence.num_computed_tokens - cruise.first_step
        self.offset -= lead
        self.needs[-lead % self._block_size] -= 1
