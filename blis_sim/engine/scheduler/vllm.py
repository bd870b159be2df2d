"""Steps as vLLM 0.33 takes them: composed while the one before executes, their outputs processed when they end.

Facts: vllm/v1/engine/core.py, `step_with_batch_queue`; vllm/v1/core/sched/scheduler.py, `update_from_output`.
"""

from blis_sim.engine.batch_shape import BatchShape
from blis_sim.engine.context import EngineContext
from blis_sim.engine.events import CacheChanged, Event, Finished, Preempted
from blis_sim.engine.kv_cache.interface import SlotCache
from blis_sim.engine.latency.decode_steps import step_timer
from blis_sim.engine.latency.model import growth_requests, idle_start_timer
from blis_sim.engine.lora import LoraSlots
from blis_sim.engine.scheduler.batch_queue import BatchQueueScheduler
from blis_sim.engine.scheduler.scheduled_step import BatchGrowth, ScheduledStep, ScheduledTokens
from blis_sim.engine.sequence import Outcome, Sequence
from blis_sim.engine.units import Micros

_COMPLETED, _LENGTH_CAPPED = Outcome.COMPLETED, Outcome.LENGTH_CAPPED


class VllmScheduler(BatchQueueScheduler):
    """A request that arrives while a step executes waits for that step and for the next one, composed without it."""

    __slots__ = (
        "_adds_time",
        "_followers",
        "_idle_start",
        "_idle_until",
        "_idle_us",
        "_leaving",
        "_lora",
        "_step_time",
        "_takes_longer",
    )

    def __init__(
        self, context: EngineContext, reports_steps: bool = True, has_cohort: bool = True, kv: SlotCache | None = None
    ) -> None:
        super().__init__(context, reports_steps, has_cohort, kv)
        self._lora = LoraSlots(context.config.lora) if context.config.lora is not None else None
        self._adds_time = self._lora is not None
        """Whether `added_time` may be other than 0."""
        self._step_time = step_timer(context.latency)
        self._idle_start = idle_start_timer(context.latency) if self._pipeline is None else None
        """Returns how much longer the step after an idle time takes."""
        self._idle_until = -1
        """The instant at which the GPU was idle last, and for how long."""
        self._idle_us = 0
        self._takes_longer = self._adds_time or self._idle_start is not None or self._pipeline is not None
        """Whether a step may take longer than the latency model predicts."""
        if (multiple := growth_requests(context.latency)) and self._pipeline is None and self._depth > 1:
            self._growth = BatchGrowth(multiple)
        self._followers: list[Sequence] = []
        """Requests that came behind the one with which an idle engine is about to start."""
        self._leaving: list[tuple[Sequence, Outcome]] = []
        """Requests whose clients hung up, to be removed when the executing step ends."""

    def enqueue(self, sequence: Sequence, at: Micros) -> None:
        starts = self._planned and not self.in_flight and self._pipeline is None and not self._is_lockstep
        if starts and sequence.request.follows:
            self._followers.append(sequence)
        else:
            super().enqueue(sequence, at)

    def step(self, at: Micros) -> None:
        if self._idle_start is not None and not self._executing:
            steps = self._context.steps
            self._idle_until, self._idle_us = at, at - (steps.end(len(steps) - 1) if len(steps) else 0)
        if self._followers:
            self._start_with_first(at)
        else:
            super().step(at)

    def _start_with_first(self, at: Micros) -> None:
        """Begin a step that is composed without the followers of its request."""
        self._planned = False
        depth, self._depth = self._depth, 1
        self._compose(at)
        self._depth = depth
        self._enqueue_followers(at)
        if not self.in_flight:
            return
        if depth > 1:
            self._multi_step(at, self._last_free_instant())
        else:
            ends_at = self._begin(at)
            self._pause(ends_at, at, [at, ends_at])

    def _enqueue_followers(self, at: Micros) -> None:
        followers, self._followers = self._followers, []
        for each in followers:
            super().enqueue(each, at)

    def _update_late(self, at: Micros, instants: list[Micros]) -> Micros | None:
        self._idle_until, self._idle_us = at, 1  # the step that is composed now has nothing to hide behind
        return super()._update_late(at, instants)

    def remove(self, sequence: Sequence, outcome: Outcome, at: Micros) -> None:
        self._enqueue_followers(at)
        if self.in_flight:
            self._leaving.append((sequence, outcome))
            self._must_update = True
        else:
            self._take_out(sequence, outcome, at)

    def preempt_all(self, at: Micros) -> None:
        self.materialize_all()
        self.preempted = []
        while self.explicit:
            self.preempt(self.explicit.pop())
        self.lose_all_progress()
        self._context.counters.num_preemptions += len(self.preempted)
        self._context.events.extend(Preempted(at, sequence) for sequence in self.preempted)

    def shrink_cache(self, num_blocks: int, at: Micros) -> None:
        """Withhold `num_blocks` KV blocks, or all free ones, from all requests; 0 gives all blocks back."""
        self.kv.withhold(num_blocks)
        if not self.in_flight:
            self._plan(at)

    def begin(self, step: ScheduledStep, at: Micros) -> Micros:
        engine_context, shape_of, step_time = self._context, self.shape_of, self._step_time
        recent_prompts = engine_context.recent_prompts
        engine_context.last_shape = shape = shape_of(step, recent_prompts.tokens_at(at))
        ends_at = computed_at = at + (step_time(shape) or 1)
        if self._takes_longer:
            computed_at, ends_at = self._end_of_computation(step, shape, at, ends_at)
        if prefill_tokens := shape[1]:
            recent_prompts.add(prefill_tokens, computed_at)
        return ends_at

    def _end_of_computation(
        self, step: ScheduledStep, shape: BatchShape, at: Micros, ends_at: Micros
    ) -> tuple[Micros, Micros]:
        """Return when a step that the latency model lets end at `ends_at` is computed, and when its outputs come."""
        if at == self._idle_until and self._idle_us > 0 and self._idle_start is not None:
            ends_at += self._idle_start(self._idle_us)
        if self._adds_time:
            ends_at += self.added_time(step, ends_at - at)
        if self._pipeline is None:
            return ends_at, ends_at
        return self._pipeline.enter(at, ends_at - at, shape.num_tokens, any(tokens.samples for tokens in step[2]))

    def added_time(self, step: ScheduledStep, computed_us: Micros) -> Micros:
        """Return the time of a step beside its computation, which takes so long: the loading of adapters."""
        if self._lora is None:
            return 0
        adapters = dict.fromkeys(tokens.sequence.request.adapter for tokens in step[2])  # in batch order, each once
        return self._lora.use(adapter for adapter in adapters if adapter)

    def update(self, at: Micros) -> list[Event]:
        if self._leaving:
            self._take_out_leaving(at)
        events = super().update(at)
        changes = self._context.cache_changes
        if changes:
            events.append(CacheChanged(at, tuple(changes)))
            changes.clear()
        return events

    def give_first_tokens(self, newcomers: list[Sequence], step_index: int, at: Micros) -> list[Sequence]:
        emitted: list[Sequence] = []
        for sequence in newcomers:
            span = sequence.span
            if span is None or span.first_step != step_index + 1:  # it has left the cohort in the meantime
                num_tokens = sequence.input_tokens
                self.process(ScheduledTokens(sequence, num_tokens, 0, num_tokens, True), step_index, at, emitted, [])
                continue
            sequence.num_in_flight_tokens = sequence.num_placeholders = 0
            sequence.num_output_tokens = 1
            sequence.first_token_step, sequence.first_token_at = step_index, at
            emitted.append(sequence)
        return emitted

    def process(
        self, tokens: ScheduledTokens, step_index: int, at: Micros, emitted: list[Sequence], finished: list[Event]
    ) -> None:
        sequence, num_tokens, span = tokens.sequence, tokens.num_tokens, tokens.sequence.span
        if span is not None and span.last_step == step_index:
            self.complete(sequence, at, finished)
            return
        sequence.num_in_flight_tokens -= num_tokens
        is_stale = sequence.num_stale_tokens > 0
        if is_stale:
            sequence.num_stale_tokens -= num_tokens
        if sequence.outcome is None and sequence.request.media:
            self._encoder.processed(sequence)
        if sequence.outcome is not None or not tokens.samples:
            return
        self._add_token(sequence, step_index, at)
        if sequence.output_tokens > 0:
            emitted.append(sequence)
        if span is not None:  # composed before it joined the cohort, which does not end here
            sequence.num_placeholders -= self._is_async
            return
        if sequence.num_placeholders > 0 and not is_stale:
            sequence.num_placeholders -= 1
            self.kv.register(sequence, sequence.num_computed_tokens - sequence.num_in_flight_tokens)
        if self._stops(sequence):
            self.complete(sequence, at, finished)

    def _add_token(self, sequence: Sequence, step_index: int, at: Micros) -> None:
        sequence.num_output_tokens += 1
        if sequence.first_token_step is None:
            sequence.first_token_step = step_index
            sequence.first_token_at = at
        else:
            sequence.add_token_step(step_index)

    def _stops(self, sequence: Sequence) -> bool:
        """Whether the token just produced was the last one."""
        num_output_tokens, request = sequence.num_output_tokens, sequence.request
        return num_output_tokens >= request.output_tokens or request.input_tokens + num_output_tokens >= self._limit

    def complete(self, sequence: Sequence, at: Micros, finished: list[Event]) -> None:
        if sequence.span is not None:
            self.settle_ended(sequence)
            if self.prepares:
                self.forget(sequence)
        else:
            self._leave(sequence)
        most, num_tokens, engine_context = sequence.output_tokens, sequence.num_output_tokens, self._context
        outcome = _COMPLETED if num_tokens >= most else _LENGTH_CAPPED
        if num_tokens > most:
            sequence.num_output_tokens = num_tokens = most
        sequence.outcome = outcome  # as in `EngineContext.end`
        counters = engine_context.counters
        counters.ended[outcome] += 1
        del engine_context.live[sequence.request.id]
        counters.output_tokens += num_tokens
        finished.append(Finished(at, sequence, outcome))

    def _take_out_leaving(self, at: Micros) -> None:
        """Remove requests whose clients hung up, before the tokens of the step that ends at `at` are processed."""
        for sequence, outcome in self._leaving:
            if sequence.outcome is None:
                self._take_out(sequence, outcome, at)
        self._leaving.clear()

    def _take_out(self, sequence: Sequence, outcome: Outcome, at: Micros) -> None:
        self._leave(sequence)
        self._context.end_and_report(sequence, outcome, at)

    def _leave(self, sequence: Sequence) -> None:
        """Forget a sequence for good; outputs of steps in flight for it are ignored."""
        self._has_left = True
        if self.prepares:
            self.forget(sequence)
        if sequence.request.media:
            self._encoder.release(sequence)
        if sequence.span is not None:
            self.settle(sequence, is_for_good=True)
            sequence.running = False
            return
        if sequence.running:
            self.explicit.remove(sequence)
        else:
            self.waiting.remove(sequence)
            self._deferred.discard(sequence)
        sequence.running = False
        self.kv.release(sequence)
