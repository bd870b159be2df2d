"""Who joins where everybody cruises, with a whole prompt that nobody shares: what becomes of it is known at once.

Its prompt is computed in the step it is admitted to, and it cruises from the next one on. So it needs no grant, and
nobody looks at it until its first token comes at the end of that step.
"""

from collections.abc import Iterable

from blis_sim.engine.batch_shape import BatchShape
from blis_sim.engine.events import Scheduled
from blis_sim.engine.instance import Instance
from blis_sim.engine.scheduler.vllm_batch import Grant
from blis_sim.engine.scheduler.vllm_fast_batch import FastVllmBatch
from blis_sim.engine.sequence import Sequence
from blis_sim.engine.units import Micros

_shape = BatchShape._make


class Newcomers:
    """Composes steps of all that cruise and of the first of those who wait: about 4 us for each of these.

    With asynchronous scheduling, where a step is composed before the one before it ends.
    """

    __slots__ = ("_batch", "_block_size", "_budget", "_instance", "_longest", "_longest_alone", "_max_num_seqs")

    def __init__(self, instance: Instance, batch: FastVllmBatch) -> None:
        config = instance.config
        self._instance = instance
        self._batch = batch
        self._block_size = config.block_size_tokens
        self._budget = config.max_num_batched_tokens
        self._max_num_seqs = config.max_num_seqs
        self._longest_alone = longest = config.limit_tokens - 2  # with a first token and another one
        self._longest = min(longest, config.long_prefill_token_threshold or longest)

    def compose(self, at: Micros, starts_at: Micros) -> tuple[list[Sequence], BatchShape] | None:
        """Compose a step at `at`, when there are blocks for all that cruise. Returns who joins and what it is like when
        it starts at `starts_at`.

        None, and nothing changed, when nobody can join or only the general rules can tell who does.
        """
        batch = self._batch
        cruising, kv, waiting, step = batch.cruising, batch.counting, batch.waiting, batch.next_step
        num_blocks = cruising.needs[step % self._block_size]
        num_joining, is_blocked = self._num_joining(kv.free.num_free - num_blocks)
        if not num_joining:
            return None
        instance, num_cruising = self._instance, cruising.num_sequences
        context = cruising.offset + num_cruising * step
        joined: list[Sequence] = []
        num_tokens = squares = 0
        for _ in range(num_joining):
            sequence = waiting.popleft()
            joined.append(sequence)
            batch.num_admissions = number = batch.num_admissions + 1
            sequence.running, sequence.running_number, sequence.scheduled_at = True, number, at
            sequence.num_computed_tokens = new = sequence.request.input_tokens
            num_tokens += new
            squares += new * new
            num_blocks += kv.hold_prompt(sequence, new)
            cruise = batch.cruise_of(sequence, step + 1, 1)
            assert cruise is not None
            cruising.join(sequence, cruise)
            if instance.tells_admissions:
                instance.events.append(Scheduled(at, sequence))
        kv.take(num_blocks)
        batch.num_running += num_joining
        if is_blocked:
            batch.note_blocked(waiting[0], 0)
        if step in cruising.leaves:
            cruising.leave_after(step)
        batch.next_step = step + 1
        recent = instance.recent_prompts.tokens_at(starts_at)
        return joined, _shape((num_joining, num_tokens, squares, 0, 0, squares, num_cruising, context, recent))

    def _num_joining(self, num_free: int) -> tuple[int, bool]:
        """How many join the next step, with so many free blocks, and whether the one after them finds too few.

        Nobody if somebody might join that the general rules must be asked about.
        """
        batch, longest = self._batch, self._longest
        waiting, num_running = batch.waiting, batch.num_running
        num_seats = self._max_num_seqs - num_running
        budget = self._budget - batch.cruising.num_sequences
        if num_running:
            num_free -= batch.counting.watermark_blocks
        if len(waiting) > 1:
            batch.put_in_order()
        elif not num_running:
            longest = self._longest_alone
        num_joining = 0
        for sequence in waiting:
            if num_joining == num_seats or not budget:
                break
            request = sequence.request
            num_tokens = request.input_tokens
            if num_tokens > budget or num_tokens > longest or request.output_tokens < 2:
                return 0, False
            if sequence.num_shareable_blocks or sequence.num_preemptions or request.external is not None:
                return 0, False
            num_free += -num_tokens // self._block_size
            if num_free < 0:
                return num_joining, True
            if not num_running:
                num_free -= batch.counting.watermark_blocks
                num_running = 1
            num_joining += 1
            budget -= num_tokens
        return num_joining, False


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
