"""Several pipeline stages with drafts and without asynchronous scheduling: batches follow each other one by one.

vLLM's core asks its workers for the drafts of a batch as soon as that batch has been handed over, and waits for the
answer. So a batch has left the last stage before the next one is composed, although the outputs of earlier batches stay
in the queue until that is full: the scheduler has the drafts of a batch before the tokens that the batch sampled.
Facts: vllm/v1/engine/core.py, `post_step`; vllm/v1/executor/multiproc_executor.py, `take_draft_token_ids`.
"""

from abc import abstractmethod
from collections import deque

from blis_sim.engine.context import EngineContext
from blis_sim.engine.kv_cache.interface import SlotCache
from blis_sim.engine.queue import Due
from blis_sim.engine.scheduler.vllm import VllmScheduler
from blis_sim.engine.units import Micros


class DraftWaitScheduler(VllmScheduler):
    """Waits for the drafts of each batch where several stages take batches that are not composed ahead."""

    __slots__ = ("_starts", "_waits")

    def __init__(
        self, context: EngineContext, reports_steps: bool = True, has_cohort: bool = True, kv: SlotCache | None = None
    ) -> None:
        super().__init__(context, reports_steps, has_cohort, kv)
        self._waits = context.config.pipeline is not None and not context.config.async_scheduling
        """Whether the core waits for the drafts of a batch before it goes on."""
        self._starts: deque[Micros] = deque()
        """Instants at which the steps in flight began: the log has a step only when its outputs are processed."""

    @abstractmethod
    def drafts_came(self) -> None:
        """Take in the drafts that follow the step composed last."""

    @property
    def num_begun_steps(self) -> int:
        return super().num_begun_steps + len(self._starts)

    def step_ended(self, report: object, at: Micros) -> None:
        if not self._waits:
            super().step_ended(report, at)
            return
        self._executing = False
        self.drafts_came()
        last = self._last_free_instant()
        if last >= at:
            self._take_batches(at, last)
        else:
            self._plan(at)

    def _take_batches(self, at: Micros, last: Micros) -> None:
        if self._waits:
            self._take_one_by_one(at, last)
        else:
            super()._take_batches(at, last)

    def _take_one_by_one(self, at: Micros, last: Micros) -> None:
        """Compose batches from `at` on, each after the drafts of the one before, up to one that ends after `last`."""
        engine_context, batches = self._context, self._batches
        num_empty = 0
        while True:
            if self._leaving:
                self._take_out_leaving(at)
            is_step = False
            if self._has_work():
                is_step = self._compose_batch(at)
                batches.append(is_step)
                num_empty = 0 if self.flight else num_empty + 1
                if num_empty > 2 * self._depth:
                    batches.clear()
                    break
            elif not batches:
                break
            has_room = is_step or self._has_work()
            if (len(batches) == self._depth or not has_room) and batches.popleft():
                self._end_batch(at)
            if not is_step:
                continue
            ends_at = self._ends[-1]
            if ends_at > last:
                last = self._caught_up(ends_at)
                if ends_at > last:
                    self._executing = True
                    engine_context.clock = max(at, engine_context.clock)
                    engine_context.queue.push(ends_at, Due.STEP_END)
                    return
            at = ends_at
            self.drafts_came()
        engine_context.clock = max(at, engine_context.clock)

    def _log_step(self, started_at: Micros, ends_at: Micros) -> None:
        if self._waits:
            self._starts.append(started_at)
        else:
            super()._log_step(started_at, ends_at)

    def _end_batch(self, at: Micros) -> None:
        if self._waits:
            self._context.steps.append(self._starts.popleft(), at)
        super()._end_batch(at)
