"""Who joins where everybody cruises, with a whole prompt that nobody shares: what becomes of it is known at once.

Its prompt is computed in the step it is admitted to, and it cruises from the next one on. So it needs no grant, and
nobody looks at it until its first token comes at the end of that step.
"""

from collections.abc import Iterable

from engine.batch_shape import BatchShape
from engine.events import Scheduled
from engine.instance import Instance
from engine.scheduler.vllm_batch import Grant
from engine.scheduler.vllm_fast_batch import FastVllmBatch
from engine.sequence import Cruise, Sequence
from engine.units import Micros


class Newcomers:
    """Composes steps of all that cruise and of the first of those who wait: about 5 us for each of these.

    With asynchronous scheduling, where a step is composed before the one before it ends.
    """

    __slots__ = (
        "_batch",
        "_block_size",
        "_instance",
        "_max_num_seqs",
        "_max_tokens",
        "_threshold",
        "_watermark_blocks",
    )

    def __init__(self, instance: Instance, batch: FastVllmBatch) -> None:
        config = instance.config
        self._instance = instance
        self._batch = batch
        self._block_size = config.block_size_tokens
        self._max_tokens = config.max_num_batched_tokens
        self._max_num_seqs = config.max_num_seqs
        self._threshold = config.long_prefill_token_threshold
        self._watermark_blocks = batch.kv.watermark_blocks

    def compose(self, at: Micros) -> tuple[list[Sequence], BatchShape] | None:
        """Compose a step at `at`, when there are blocks for all that cruise. Returns who joins and what it is like.

        None, and nothing changed, when nobody can join or only the general rules can tell who does.
        """
        batch = self._batch
        cruising, kv, step = batch.cruising, batch.kv, batch.next_step
        num_blocks = cruising.needs[step % self._block_size]
        joining, is_blocked = self._who_joins(kv.free.num_free - num_blocks)
        if not joining:
            return None
        num_cruising, context = cruising.num_sequences, cruising.offset + cruising.num_sequences * step
        joined, events, tells_admissions = [], self._instance.events, self._instance.tells_admissions
        num_tokens = squares = 0
        for sequence, cruise, blocks in joining:
            batch.join_cruising(sequence, cruise, blocks)
            sequence.scheduled_at = at
            if tells_admissions:
                events.append(Scheduled(at, sequence))
            joined.append(sequence)
            new = sequence.num_computed_tokens
            num_tokens += new
            squares += new * new
            num_blocks += blocks
        kv.take(num_blocks)
        if is_blocked:
            batch.note_blocked(batch.waiting[0], 0)
        if step in cruising.leaves:
            cruising.leave_after(step)
        batch.next_step = step + 1
        return joined, BatchShape(len(joined), num_tokens, squares, 0, 0, squares, num_cruising, context)

    def _who_joins(self, num_free: int) -> tuple[list[tuple[Sequence, Cruise, int]], bool]:
        """Who joins the next step, for how long and with how many blocks; and whether the next one finds too few.

        Nobody if somebody might join that the general rules must be asked about.
        """
        batch = self._batch
        num_running, step = batch.num_running, batch.next_step
        num_seats = self._max_num_seqs - num_running
        budget = self._max_tokens - batch.cruising.num_sequences
        threshold = self._threshold if num_running + len(batch.waiting) > 1 else 0
        if num_running:
            num_free -= self._watermark_blocks
        joining: list[tuple[Sequence, Cruise, int]] = []
        batch.put_in_order()
        for sequence in batch.waiting:
            if not num_seats or not budget:
                break
            request = sequence.request
            num_tokens = request.input_tokens
            is_usual = not (sequence.num_shareable_blocks or sequence.num_preemptions or request.external)
            if not is_usual or num_tokens > budget or 0 < threshold < num_tokens:
                return [], False
            blocks = -(-num_tokens // self._block_size)
            if blocks > num_free:
                return joining, True
            cruise = batch.cruise_of(sequence, step + 1, num_tokens_due=1)
            if cruise is None:
                return [], False
            joining.append((sequence, cruise, blocks))
            num_free -= blocks
            num_seats -= 1
            budget -= num_tokens
            if not num_running:
                num_free -= self._watermark_blocks
                num_running = 1
        return joining, False


def grants_of(joined: Iterable[Sequence]) -> list[Grant]:
    """What the general rules would have granted to newcomers whose first token has not come yet."""
    grants: list[Grant] = []
    for sequence in joined:
        if sequence.outcome is None:
            num_tokens = sequence.request.input_tokens
            sequence.num_in_flight_tokens = num_tokens
            sequence.num_placeholders = 1
            grants.append(Grant(sequence, num_tokens, 0, num_tokens, samples=True))
    return grants


def give_first_tokens(joined: Iterable[Sequence], step_index: int, at: Micros) -> None:
    """The step that computed the prompts of newcomers ended at `at`."""
    for sequence in joined:
        if sequence.outcome is None:
            sequence.num_output_tokens = 1
            sequence.first_token_step = step_index
            sequence.first_token_at = at
