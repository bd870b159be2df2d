"""Several pipeline stages: as many batches in flight as vLLM's engine core keeps in its queue, each in a stage.

Facts: vllm/v1/engine/core.py, `step_with_batch_queue`; vllm/config/vllm.py, `max_concurrent_batches`.
"""

from collections import deque

from blis_sim.engine.batch_shape import BatchShape
from blis_sim.engine.context import EngineContext
from blis_sim.engine.kv_cache.interface import SlotCache
from blis_sim.engine.queue import EventKind
from blis_sim.engine.scheduler.vllm_urgency import UrgencyComposition
from blis_sim.engine.units import Micros


class BatchQueueScheduler(UrgencyComposition):
    """Takes steps one after the other with one pipeline stage, and with several as vLLM's batch queue does.

    The core composes a batch whenever the queue has room, and an empty one where no request can be granted a token,
    which takes room, too. With a full queue it waits for the first batch, processes its outputs and composes again.
    """

    __slots__ = ("_batches", "_ends", "_has_left", "_is_lockstep", "_passages")

    def __init__(
        self, context: EngineContext, reports_steps: bool = True, has_cohort: bool = True, kv: SlotCache | None = None
    ) -> None:
        super().__init__(context, reports_steps, has_cohort, kv)
        self._batches: deque[bool] = deque()
        """The queue: for each batch whether it is a step in flight; the others are empty."""
        self._ends: deque[Micros] = deque()
        """Instants at which the steps in flight leave the last stage."""
        self._passages: deque[list[tuple[Micros, Micros]]] = deque()
        """Instants at which each step in flight enters and leaves each stage, where batches are reported."""
        self._has_left = False
        """Whether a request has ended since the latest composition."""
        self._is_lockstep = False
        """Whether steps are composed, begun and ended from outside, forward pass by forward pass."""

    def enable_lockstep(self) -> None:
        """Let callers of `compose_forward`, `begin_forward` and `end_forward` take the steps."""
        self._is_lockstep = True

    @property
    def has_work(self) -> bool:
        """Whether requests are here that can be composed or are in flight."""
        if self.in_flight:
            return True
        return self._composes and bool(self.explicit or self.cohort.members or (self._admits and self.waiting))

    def compose_forward(self, at: Micros, number: int) -> bool:
        """Compose a step for a forward pass, the one after `number` others. False when it has no tokens from here.

        Ranks space prefills by the number of forward passes, so that all of them prefill in the same ones.
        """
        if not self._composes:
            return False
        if (interval := self._config.prefill_schedule_interval) > 1:
            self._last_prefill_step, self._num_executed_steps = 0, 0 if number % interval else interval - 1
        if self.explicit:
            self.join_cohort()
        if not self.explicit and self.compose_cohort(at):
            return True
        return bool(self.explicit or self.cohort.members or self.waiting) and self.schedule(at)

    def forward_shape(self, at: Micros) -> BatchShape:
        """Return what the latency model sees of the first step in flight, if that begins at `at`."""
        return self.shape_of(self.in_flight[0], self._context.recent_prompts.tokens_at(at))

    def begin_forward(self, at: Micros) -> Micros:
        """Begin the first step in flight. Returns its end, were there no other rank."""
        self._executing = True
        self._context.clock = max(at, self._context.clock)
        return self.begin(self.in_flight[0], at)

    def record_forward(self, at: Micros, ends_at: Micros) -> None:
        """Record that the first step in flight, which began at `at`, ends together with the steps of other ranks."""
        self._context.steps.append(at, ends_at)

    def end_forward(self, at: Micros) -> None:
        """Process the outputs of the first step in flight, which ends at `at`."""
        self._executing = False
        self._context.clock = max(at, self._context.clock)
        self._context.events += self.update(at)

    @property
    def num_begun_steps(self) -> int:
        return super().num_begun_steps if self._pipeline is None else len(self._context.steps)

    def step(self, at: Micros) -> None:
        if self._is_lockstep:
            self._planned = False
            return
        if self._pipeline is None:
            super().step(at)
            return
        self._planned = False
        if not self._executing:
            self._take_batches(at, self._last_free_instant())

    def step_ended(self, report: object, at: Micros) -> None:
        if self._pipeline is None:
            super().step_ended(report, at)
            return
        self._executing = False
        self._end_batch(at)
        last = self._last_free_instant()
        if last >= at:
            self._take_batches(at, last)
        else:
            self._plan(at)  # what else is due at this instant comes first

    def _take_batches(self, at: Micros, last: Micros) -> None:
        """Compose batches and process their outputs from `at` on, up to the first that ends after `last`."""
        engine_context, batches = self._context, self._batches
        num_empty = 0
        """Compositions in a row, with no step in flight, that granted nothing."""
        while True:
            if self._has_work():
                is_step = self._compose_batch(at)
                batches.append(is_step)
                num_empty = 0 if self.in_flight else num_empty + 1
                if num_empty > 2 * self._depth:  # nothing changes until something else happens
                    batches.clear()
                    break
                if len(batches) < self._depth and (is_step or self._has_work()):
                    continue
            if not batches:
                break
            if not batches.popleft():
                continue
            ends_at = self._ends[0]
            if ends_at > last:
                last = self._caught_up(ends_at)
                if ends_at > last:
                    self._executing = True
                    engine_context.clock = max(at, engine_context.clock)
                    engine_context.queue.push(ends_at, EventKind.STEP_END)
                    return
            at = ends_at
            self._end_batch(at)
        engine_context.clock = max(at, engine_context.clock)

    def left_stages(self) -> list[tuple[Micros, Micros]]:
        return self._passages.popleft() if self._pipeline is not None else []

    def _has_work(self) -> bool:
        """Whether vLLM's core would compose: it also does so to inform its workers of requests that have ended."""
        if self._has_left:
            return True
        return self._composes and bool(self.explicit or (self._admits and self.waiting))

    def _compose_batch(self, at: Micros) -> bool:
        """Compose a batch and let it enter the first stage. False when it is empty."""
        pipeline = self._pipeline
        assert pipeline is not None
        self._has_left = False
        self.num_compositions += 1
        pipeline.composed()
        if not self._composes or not self.schedule(at):
            return False
        started_at = pipeline.start(at)
        ends_at = self.begin(self.in_flight[-1], started_at)
        self._log_step(started_at, ends_at)
        self._ends.append(ends_at)
        if self._context.reports_batches:
            self._passages.append(pipeline.passages)
        return True

    def _log_step(self, started_at: Micros, ends_at: Micros) -> None:
        self._context.steps.append(started_at, ends_at)

    def _end_batch(self, at: Micros) -> None:
        self._ends.popleft()
        self._context.events += self.update(at)
