"""Steps as vLLM 0.33 takes them: composed while the one before executes, their outputs processed when they end."""

from collections import deque
from dataclasses import dataclass

from blis_sim.engine.batch_shape import BatchShape
from blis_sim.engine.context import EngineContext
from blis_sim.engine.events import CacheChanged, Finished, Preempted, Scheduled, StepDone
from blis_sim.engine.kv_cache.vllm_cache import VllmKVCache
from blis_sim.engine.lora import LoraSlots
from blis_sim.engine.queue import EventKind
from blis_sim.engine.scheduler.interface import PauseState
from blis_sim.engine.sequence import Outcome, Sequence
from blis_sim.engine.units import Micros
from tests.oracle_scheduler.vllm_batch import Grant, VllmBatch


@dataclass(slots=True)
class Step:
    """A composed batch; executing once it has an index."""

    grants: list[Grant]
    shape: BatchShape
    index: int = -1
    started_at: Micros = 0


class PlainVllmScheduler:
    """Up to two steps at a time: one executes, and with asynchronous scheduling the next is already composed.

    A request that arrives while a step executes waits for that step and for the next one, which was composed without
    it. Facts: vllm/v1/engine/core.py, `step_with_batch_queue`; the time between steps is zero.
    """

    def __init__(self, instance: EngineContext, batch: VllmBatch | None = None) -> None:
        config = instance.config
        self._instance = instance
        self._batch = batch or VllmBatch(config, VllmKVCache(config, instance.cache_changes))
        self.kv = self._batch.kv
        self.running = self._batch.running
        self.waiting = self._batch.waiting
        self._depth = 2 if config.async_scheduling else 1
        self._limit = config.limit_tokens
        self._steps: deque[Step] = deque()
        """Composed and not ended; the first one executes."""
        self._leaving: list[tuple[Sequence, Outcome]] = []
        """Requests whose client has gone, to be taken out when the step under way ends."""
        self._planned = False
        self._pause_state = PauseState.NONE
        self._lora = LoraSlots(config.lora) if config.lora is not None else None

    @property
    def admitted(self) -> list[Sequence]:
        """Sequences that joined the batch in the latest composition."""
        return self._batch.admitted

    @property
    def preempted(self) -> list[Sequence]:
        """Sequences evicted in the latest composition."""
        return self._batch.preempted

    @property
    def num_running(self) -> int:
        return self._batch.num_running

    @property
    def num_waiting(self) -> int:
        return len(self.waiting)

    @property
    def num_deferred(self) -> int:
        return self._batch.num_deferred

    @property
    def takes_only_empty_steps(self) -> bool:
        return False

    @property
    def num_begun_steps(self) -> int:
        return len(self._instance.steps)

    def enqueue(self, sequence: Sequence, at: Micros) -> None:
        self.waiting.append(sequence)
        if not self._steps:
            self._plan(at)

    def remove(self, sequence: Sequence, outcome: Outcome, at: Micros) -> None:
        if self._steps:
            self._leaving.append((sequence, outcome))
        else:
            self._take_out(sequence, outcome, at)

    def step(self, at: Micros) -> None:
        """Compose until enough steps are under way or there is nothing to compose."""
        self._planned = False
        if self._pause_state is PauseState.EVERYTHING:
            return
        while len(self._steps) < self._depth and (self.num_running or self.num_waiting):
            if self.compose(at) is not None:
                if len(self._steps) == 1:
                    self._start(at)
            elif self._steps or not self.preempted:
                break  # otherwise evicting was all it did, and what it freed can be granted at once

    def compose(self, at: Micros) -> Step | None:
        """Compose one step behind those under way; None when nothing can be granted now."""
        grants = self._batch.compose()
        self._report_composition(at)
        if not grants:
            return None
        step = Step(grants, self.shape_of(grants))
        self._steps.append(step)
        return step

    def step_ended(self, report: object, at: Micros) -> None:
        """Process the outputs of the step that executed, start the next, compose one more."""
        self.process_outputs(at)
        if self._steps:
            self._start(at)
        self._plan(at)  # even when nothing is left to compose: a request may arrive at this very instant

    def set_pause_state(self, hold: PauseState, at: Micros) -> None:
        self._pause_state = hold
        self._batch.admits = hold is PauseState.NONE
        if not self._steps:
            self._plan(at)

    def shrink_cache(self, num_blocks: int, at: Micros) -> None:
        """Withhold so many KV blocks from all requests, or as many as are free; 0 gives them all back."""
        kv = self.kv
        assert isinstance(kv, VllmKVCache)
        kv.withhold(num_blocks)
        if not self._steps:
            self._plan(at)

    def preempt_all(self, at: Micros) -> None:
        preempted = self._batch.preempt_all()
        self._instance.counters.num_preemptions += len(preempted)
        self._instance.events.extend(Preempted(at, sequence) for sequence in preempted)

    def process_outputs(self, at: Micros) -> None:
        """Take the oldest step's tokens, and end what is done, after those whose client has gone."""
        for sequence, outcome in self._leaving:
            if sequence.outcome is None:
                self._take_out(sequence, outcome, at)
        self._leaving.clear()
        step = self._steps.popleft()
        emitted: list[Sequence] = []
        finished: list[Finished] = []
        for grant in step.grants:
            self._process(grant, step.index, at, emitted, finished)
        events = self._instance.events
        events.append(StepDone(at, step.index, step.started_at, emitted))
        events.extend(finished)
        if self._instance.cache_changes:
            events.append(CacheChanged(at, tuple(self._instance.cache_changes)))
            self._instance.cache_changes.clear()
        if finished:
            self._instance.queue.push(at, EventKind.DEPARTURE)

    def shape_of(self, grants: list[Grant]) -> BatchShape:
        """Return the latency model's view of a step."""
        return batch_shape(grants)

    def step_time(self, step: Step) -> Micros:
        """How long a composed step will execute, at least 1."""
        return max(1, self._instance.latency.step_time(step.shape))

    def _load_adapters(self, step: Step) -> Micros:
        """How long a step waits for adapters that are not on the GPU."""
        if self._lora is None:
            return 0
        # In batch order, each once.
        adapters = dict.fromkeys(grant.sequence.request.adapter for grant in step.grants)
        return self._lora.use(adapter for adapter in adapters if adapter)

    def _plan(self, at: Micros) -> None:
        """Compose at `at`, after everything else of that instant."""
        if not self._planned:
            self._planned = True
            self._instance.queue.push(at, EventKind.STEP)

    def _start(self, at: Micros) -> None:
        """Let the first composed step execute."""
        instance = self._instance
        step = self._steps[0]
        num_prompt_tokens = step.shape.prefill_tokens
        if num_prompt_tokens:
            step.shape = instance.recent_prompts.with_recent(step.shape, at)
        instance.last_shape = step.shape
        step_time = self.step_time(step) + self._load_adapters(step)
        if num_prompt_tokens:
            instance.recent_prompts.add(num_prompt_tokens, at + step_time)
        step.started_at = at
        step.index = instance.steps.append(at, at + step_time)
        instance.queue.push(at + step_time, EventKind.STEP_END, step)

    def _report_composition(self, at: Micros) -> None:
        events, reports_admissions = self._instance.events, self._instance.reports_admissions
        if self._batch.preempted:
            self._instance.counters.num_preemptions += len(self._batch.preempted)
            events.extend(Preempted(at, sequence) for sequence in self._batch.preempted)
        for sequence in self._batch.admitted:
            if sequence.scheduled_at is None:
                sequence.scheduled_at = at
            if reports_admissions:
                events.append(Scheduled(at, sequence))

    def _process(
        self, grant: Grant, step_index: int, at: Micros, emitted: list[Sequence], finished: list[Finished]
    ) -> None:
        """One sequence's share of a step that ended: its token, and whether that was the last."""
        sequence, num_tokens = grant.sequence, grant.num_tokens
        sequence.num_in_flight_tokens -= num_tokens
        is_stale = sequence.num_stale_tokens > 0
        if is_stale:
            sequence.num_stale_tokens -= num_tokens
        if sequence.outcome is not None or not grant.samples:
            return
        self._add_token(sequence, step_index, at)
        if sequence.request.output_tokens > 0:
            emitted.append(sequence)
        if sequence.num_placeholders > 0 and not is_stale:
            sequence.num_placeholders -= 1
            self.kv.register(sequence, sequence.num_computed_tokens - sequence.num_in_flight_tokens)
        outcome = self._stop(sequence)
        if outcome is not None:
            self._complete(sequence, outcome, at, finished)

    def _add_token(self, sequence: Sequence, step_index: int, at: Micros) -> None:
        sequence.num_output_tokens += 1
        if sequence.first_token_step is None:
            sequence.first_token_step = step_index
            sequence.first_token_at = at
        else:
            sequence.add_token_step(step_index)

    def _stop(self, sequence: Sequence) -> Outcome | None:
        """Whether the token just produced was the last one, and why."""
        num_output_tokens, request = sequence.num_output_tokens, sequence.request
        if num_output_tokens >= request.output_tokens:
            return Outcome.COMPLETED
        if request.input_tokens + num_output_tokens >= self._limit:
            return Outcome.LENGTH_CAPPED
        return None

    def _complete(self, sequence: Sequence, outcome: Outcome, at: Micros, finished: list[Finished]) -> None:
        self.kv.release(sequence)
        self._batch.leave(sequence)
        sequence.num_output_tokens = min(sequence.num_output_tokens, sequence.request.output_tokens)
        self._instance.end(sequence, outcome)
        self._instance.counters.output_tokens += sequence.num_output_tokens
        finished.append(Finished(at, sequence, outcome))

    def _take_out(self, sequence: Sequence, outcome: Outcome, at: Micros) -> None:
        self._batch.leave(sequence)
        self.kv.release(sequence)
        self._instance.end_and_report(sequence, outcome, at)


def batch_shape(grants: list[Grant], decodes: int = 0, decode_contexts: int = 0) -> BatchShape:
    """The sums over a step's grants and so many more decodes. Cost: O(grants)."""
    prefills = tokens = squares = contexts = context_work = prompt_work = 0
    for grant in grants:
        new, context = grant.num_tokens, grant.context_tokens
        if context < grant.sequence.request.input_tokens or new > 1:
            prefills += 1
            tokens += new
            squares += new * new
            contexts += context
            context_work += new * context
            prompt_work += new * grant.known_tokens
        else:
            decodes += 1
            decode_contexts += context
    return BatchShape(prefills, tokens, squares, contexts, context_work, prompt_work, decodes, decode_contexts)
