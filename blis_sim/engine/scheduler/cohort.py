"""Sequences that get exactly one token in every step, kept as sums: a step of theirs costs nothing per sequence."""

from bisect import bisect_right
from heapq import heappop, heappush
from itertools import accumulate
from typing import Protocol

from blis_sim.engine.config import EngineConfig
from blis_sim.engine.kv_cache.block_pool import FreeBlockRuns
from blis_sim.engine.sequence import DecodeSpan, Sequence


def can_have_cohort(config: EngineConfig) -> bool:
    """Whether sequences that decode get exactly one token in every step and only shareable blocks need names."""
    return (
        config.speculation is None
        and config.lora is None
        and not config.reports_kv_changes
        and config.prefill_schedule_interval == 1
        and config.pipeline is None
        and config.offload is None
        and config.preemption_policy != "gap"
    )


class MemberBlocks(Protocol):
    """Blocks of a cohort, which are counted instead of numbered."""

    @property
    def free(self) -> FreeBlockRuns:
        """The free blocks."""
        ...

    def take(self, num_blocks: int) -> None:
        """Take free blocks, of which there must be enough, and forget what they held."""
        ...

    def hold_prompt(self, sequence: Sequence, num_tokens: int) -> int:
        """Count a prompt that no request shares as stored. Returns how many blocks are to be taken for it."""
        ...


def no_blocks(_num_blocks: int) -> None:
    """Take nothing: without a cohort, blocks are taken sequence by sequence."""


def no_hold(_sequence: Sequence, _num_tokens: int) -> int:
    """Hold nothing: without a cohort, no prompt joins it."""
    return 0


class DecodeCohort:
    """Decoding sequences as sums over their contexts and block needs, and a list of their ends by step.

    With n sequences the sum of their contexts grows by n each step, so it is kept as a constant plus n times the step.
    A sequence needs a new block when its context is a multiple of the block size. Block needs are therefore counted by
    step modulo the block size. Joining and leaving are O(1).
    """

    __slots__ = (
        "_block_size",
        "decode_only_from",
        "end_heap",
        "ends",
        "fills",
        "latest_number",
        "members",
        "needs",
        "num_decodes",
        "num_filling",
        "offset",
    )

    def __init__(self, block_size_tokens: int) -> None:
        self._block_size = block_size_tokens
        self.members: dict[Sequence, None] = {}
        """All sequences in the cohort, those included whose last token is in flight."""
        self.num_decodes = 0
        """Sequences that decode in the next step."""
        self.offset = 0
        """The sum of the contexts of these before step 0, extrapolated backwards."""
        self.needs = [0] * block_size_tokens
        """New blocks that these need in a step, by its index modulo the block size."""
        self.ends: dict[int, list[DecodeSpan]] = {}
        """Spans by the step that brings their last token. Spans that were cut short stay listed."""
        self.latest_number = 0
        """No member was admitted later than this."""
        self.decode_only_from = 0
        """No member joins later than for this step, and only members compute from it on, as far as is composed."""
        self.end_heap: list[int] = []
        """The steps of `ends`, the first one first."""
        self.fills: list[dict[Sequence, None]] = [{} for _ in range(block_size_tokens)]
        """Members that fill blocks which others may find, by `fills_at` of their spans."""
        self.num_filling = 0
        """Number of these."""

    def join(self, sequence: Sequence, span: DecodeSpan) -> None:
        """`sequence` decodes from `span.first_step` on, before which it has computed `num_computed_tokens`."""
        sequence.span = span
        self.members[sequence] = None
        self.num_decodes += 1
        if sequence.running_number > self.latest_number:
            self.latest_number = sequence.running_number
        self.decode_only_from = span.first_step
        lead = sequence.num_computed_tokens - span.first_step
        self.offset += lead
        self.needs[-lead % self._block_size] += 1
        last = span.last_step
        ending = self.ends.get(last)
        if ending is None:
            self.ends[last] = [span]
            heappush(self.end_heap, last)
        else:
            ending.append(span)

    def expect_fills(self, sequence: Sequence, num_unknown: int) -> None:
        """A member that has just joined fills blocks which others may find, from when all their tokens are known.

        When a step has been composed, so many of the tokens computed up to it are not known.
        """
        span = sequence.span
        assert span is not None
        span.fills_at = (num_unknown - 1 - sequence.num_computed_tokens + span.first_step) % self._block_size
        self.fills[span.fills_at][sequence] = None
        self.num_filling += 1

    def expect_no_fills(self, sequence: Sequence) -> None:
        """A member has filled the last block which others may find."""
        span = sequence.span
        assert span is not None
        del self.fills[span.fills_at][sequence]
        span.fills_at = -1
        self.num_filling -= 1

    def filling(self, step: int) -> list[Sequence]:
        """Return the members of which a block that others may find is full with `step`, in order of admission."""
        members = self.fills[step % self._block_size]
        if not members:
            return []
        found: list[Sequence] = []
        for sequence in members:
            span = sequence.span
            if span is not None and (not span.is_over or step <= span.last_step):
                found.append(sequence)
        found.sort(key=running_number)
        return found

    def leave(self, sequence: Sequence) -> None:
        """Forget a member. Its span stays listed among the ends and is ignored there."""
        span = sequence.span
        assert span is not None
        if span.fills_at >= 0:
            self.expect_no_fills(sequence)
        if not span.is_over:
            self._subtract(span)
        del self.members[sequence]
        sequence.span = None
        if not self.members:
            self.latest_number = 0

    def composed(self, step: int) -> None:
        """`step` has been composed. Members whose end was foreseen do not decode in later steps."""
        for span in self.ends[step]:
            if span.has_known_end and not span.is_over and span.sequence.span is span:
                self._subtract(span)

    def pop_ended(self, step: int) -> list[Sequence]:
        """Return the members whose last token `step` brought, the first of `ends`, in order of admission. The
        sequences are still members."""
        spans = self.ends.pop(step)
        heappop(self.end_heap)
        if len(spans) == 1:  # as mostly
            sequence = spans[0].sequence
            return [sequence] if sequence.span is spans[0] else []
        ended = [span.sequence for span in spans if span.sequence.span is span]
        ended.sort(key=running_number)
        return ended

    def needs_block(self, sequence: Sequence, step: int) -> bool:
        """Whether a member decodes in `step` and needs a new block for that."""
        span = sequence.span
        assert span is not None
        return not span.is_over and (sequence.num_computed_tokens - span.first_step + step) % self._block_size == 0

    def num_steps_within(self, first_step: int, num_steps: int, num_free_blocks: int) -> int:
        """How many of `num_steps` steps from `first_step` on can be given blocks out of `num_free_blocks`."""
        size, needs = self._block_size, self.needs
        rounds, rest = divmod(num_free_blocks, self.num_decodes)  # in `size` steps each of them needs one
        if num_steps <= rounds * size:
            return num_steps
        start = first_step % size
        return min(num_steps, rounds * size + bisect_right(list(accumulate(needs[start:] + needs[:start])), rest))

    def num_blocks_in(self, first_step: int, num_steps: int) -> int:
        """New blocks that members need in `num_steps` steps from `first_step` on."""
        size, needs = self._block_size, self.needs
        rounds, start = num_steps // size, first_step % size
        end = start + num_steps % size
        total = sum(needs[start:end]) + rounds * self.num_decodes
        return total + sum(needs[: end - size]) if end > size else total

    def _subtract(self, span: DecodeSpan) -> None:
        """`span` is no longer part of the sums."""
        span.is_over = True
        self.num_decodes -= 1
        lead = span.sequence.num_computed_tokens - span.first_step
        self.offset -= lead
        self.needs[-lead % self._block_size] -= 1


def running_number(sequence: Sequence) -> int:
    """Orders running sequences by admission."""
    return sequence.running_number
