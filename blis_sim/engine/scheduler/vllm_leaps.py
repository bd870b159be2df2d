"""Steps as vLLM takes them, many at a time when a driver is far behind: the same, told in one event."""

from blis_sim.engine.batch_shape import BatchShape
from blis_sim.engine.events import StepsDone
from blis_sim.engine.kv_cache.vllm_cache import VllmKVCache
from blis_sim.engine.scheduler.hold import Hold
from blis_sim.engine.scheduler.vllm import VllmStepping
from blis_sim.engine.scheduler.vllm_batch import Grant
from blis_sim.engine.sequence import Sequence
from blis_sim.engine.units import Micros

FEWEST_STEPS = 2
MOST_STEPS = 64
"""What is told at once is also sent at once, so there is no use in more."""

MARGIN_STEPS = 3
"""So many tokens before the end of a request its steps are taken one by one, for they are composed ahead."""


class LeapingVllmStepping(VllmStepping):
    """As its parent, but for drivers that allow leaps steps in which all that run decode are taken together."""

    def step_ended(self, report: object, at: Micros) -> None:
        if self._instance.leaps:
            at = self._leap(at)
        super().step_ended(report, at)

    def _leap(self, at: Micros) -> Micros:
        """Take as many steps as can be, the first of which ended at `at`. Returns when the one after them ended."""
        instance = self._instance
        others_at, last = instance.queue.next_at(), instance.until
        if others_at is not None:
            last = min(last, others_at - 1)
        # Steps take ever longer as contexts grow.
        if last - at < FEWEST_STEPS * (at - self._steps[0].started_at) or not self._is_steady:
            return at
        ended, executing = self._steps
        count = min(MOST_STEPS, *(_num_steps(sequence, self._limit) for sequence in self.running))
        if count < FEWEST_STEPS:
            return at
        ends = instance.latency.decode_times(executing.shape, count).cumsum()
        ends += at
        count = int(ends.searchsorted(last, side="right"))
        if count < FEWEST_STEPS or not self._grow(count):
            return at
        ends = ends[:count]
        instance.events.append(StepsDone([at, *ends[:-1].tolist()], ended.index, list(self.running)))
        instance.steps.extend(at, ends)
        ended.index += count
        ended.started_at = instance.steps.start(ended.index)
        instance.last_shape = _later(executing.shape, count - 1)
        executing.shape = _later(executing.shape, count)
        self._batch.count_steps(count)
        return int(ends[-1])

    @property
    def _is_steady(self) -> bool:
        """Whether the step that ended, the composed one and those to come only decode, for the same sequences."""
        if len(self._steps) < self._depth or self._depth < 2 or self._leaving or self._planned:
            return False
        if self._hold is not Hold.NONE or self._lora is not None or self._instance.cache_changes is not None:
            return False
        num_running = self.num_running
        if self.num_waiting and num_running < self._instance.config.max_num_seqs:
            return False
        return all(
            len(step.grants) == num_running and all(map(_decodes, step.grants, self.running)) for step in self._steps
        )

    def _grow(self, count: int) -> bool:
        """Give all that run `count` tokens more, and the blocks for them. False, and nothing changed, without enough.

        Blocks are taken and become findable in the order in which single steps would do it.
        """
        size, kv = self._instance.config.block_size_tokens, self.kv
        assert isinstance(kv, VllmKVCache)
        chores: list[tuple[int, int, bool]] = []
        num_blocks = 0
        for place, sequence in enumerate(self.running):
            first = -sequence.num_computed_tokens % size + 1
            takes = range(first, count + 1, size)
            num_blocks += len(takes)
            chores += [(step, place, False) for step in takes]
            first = size - sequence.num_tokens % size
            chores += [(step, place, True) for step in range(first, count + 1, size)]
        if num_blocks > kv.pool.num_free:
            return False
        for step, place, is_full in sorted(chores):
            sequence = self.running[place]
            if is_full:
                kv.register(sequence, sequence.num_tokens + step)
            else:
                kv.take(sequence, 1)
        first_index = self._steps[0].index
        for sequence in self.running:
            sequence.num_computed_tokens += count
            sequence.num_output_tokens += count
            sequence.add_token_steps(first_index, count)
        return True


def _decodes(grant: Grant, sequence: Sequence) -> bool:
    """Whether a grant is one decode of that sequence."""
    return (
        grant.sequence is sequence
        and grant.num_tokens == 1
        and grant.samples
        and grant.context_tokens >= sequence.request.input_tokens
        and not sequence.num_stale_tokens
        and sequence.request.output_tokens > 0
    )


def _num_steps(sequence: Sequence, limit_tokens: int) -> int:
    """Steps for which nothing about its end matters, which may be less than none."""
    request = sequence.request
    most = min(request.output_tokens, limit_tokens - request.input_tokens)
    if sequence.max_output_tokens:
        most = min(most, sequence.max_output_tokens)
    return most - sequence.num_output_tokens - MARGIN_STEPS


def _later(shape: BatchShape, num_steps: int) -> BatchShape:
    """The shape so many steps on."""
    num_sequences = shape.decode_requests
    return shape._replace(decode_context_tokens=shape.decode_context_tokens + num_steps * num_sequences)
