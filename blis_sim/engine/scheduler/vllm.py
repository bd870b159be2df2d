"""vLLM's scheduler, whose `schedule` composes a step and whose `update` processes the outputs of one."""

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from blis_sim.engine.batch_shape import BatchShape
from blis_sim.engine.compilation import mypyc_attr
from blis_sim.engine.config import EngineConfig, Pipeline, PipelineStages
from blis_sim.engine.context import EngineContext
from blis_sim.engine.events import CacheChanged, Event, EventKind, Finished, Preempted, Scheduled
from blis_sim.engine.kv_cache.block_pool import CohortCache, SlotCache
from blis_sim.engine.kv_cache.single_type_manager import new_state_split
from blis_sim.engine.kv_cache.slot_caches import new_cohort_cache, new_slot_cache
from blis_sim.engine.kv_cache.vllm_cache import CountingKVCache
from blis_sim.engine.lora import LoraSlots
from blis_sim.engine.scheduler.batch import (
    NO_DISPLACED,
    NO_NEWCOMERS,
    Admission,
    BatchGrowth,
    BatchScheduler,
    ScheduledStep,
    ScheduledTokens,
    num_external_tokens,
)
from blis_sim.engine.scheduler.cohort import can_have_cohort
from blis_sim.engine.scheduler.policies import SlotPreemption, least_urgent_latest_due
from blis_sim.engine.sequence import Outcome, Sequence
from blis_sim.engine.units import Micros
from blis_sim.engine.urgency import Urgency

if TYPE_CHECKING:
    from blis_sim.engine.offloading import OffloadConfig
    from blis_sim.engine.scheduler.drafter import Drafter
    from blis_sim.engine.scheduler.group_cohort import GroupCohort
    from blis_sim.engine.scheduler.offloader import Offloader

# Requests that become more urgent while they wait, and less urgent ones that lose their places to them.


class UrgentRequests:
    """Raises waiting requests near their deadlines, and lets urgent ones take places when all are taken.

    A request that loses its place and keeps its progress waits with its KV blocks.
    """

    __slots__ = ("_urgency", "keeps_progress", "places", "waiting_with_blocks")

    def __init__(self, config: EngineConfig) -> None:
        self._urgency = Urgency(config.urgency) if config.priority_policy == "slo-urgency" else None
        self.places = SlotPreemption(config.urgency.min_preempt_gap) if config.preemption_policy == "gap" else None
        """Which request takes the place of which; None where none does."""
        self.keeps_progress = config.urgency.keeps_progress
        self.waiting_with_blocks: set[Sequence] = set()
        """Waiting sequences that lost their places and hold their KV blocks."""

    def watch(self, sequence: Sequence) -> None:
        """Let a request that begins to wait become more urgent as its deadline comes near."""
        if self._urgency is not None:
            self._urgency.watch(sequence)

    def rise(self, at: Micros) -> None:
        """Make waiting requests more urgent that are to be at `at`."""
        if self._urgency is not None:
            self._urgency.rise(at)

    def least_urgent_with_blocks(self, sequence: Sequence) -> Sequence | None:
        """Return the least urgent request but `sequence` that waits with its progress; None without any."""
        others = [each for each in self.waiting_with_blocks if each is not sequence]
        if not others:
            return None
        return max(others, key=lambda each: (each.priority, each.deadline_at, each.running_number))

    def forget(self, sequence: Sequence) -> None:
        """Forget a request that has ended."""
        if self._urgency is not None:
            self._urgency.forget(sequence)
        if self.places is not None:
            self.places.forget(sequence)
            self.waiting_with_blocks.discard(sequence)


def new_urgent_requests(config: EngineConfig) -> UrgentRequests | None:
    """Return the urgent requests of an engine; None where urgency never changes and takes no place."""
    has_urgency = config.priority_policy == "slo-urgency" or config.preemption_policy == "gap"
    return UrgentRequests(config) if has_urgency else None


# Several pipeline stages: as many batches in flight as vLLM's engine core keeps in its queue, each in a stage.
#
# Facts: vllm/v1/engine/core.py, `step_with_batch_queue` and `post_step`; vllm/config/vllm.py,
# `max_concurrent_batches`; vllm/v1/executor/multiproc_executor.py, `take_draft_token_ids`.


class BatchQueue:
    """The steps in flight of a scheduler, and the empty batches between them.

    The core composes a batch whenever the queue has room. It composes an empty one, which takes room, too, where no
    request can be granted a token. With a full queue it waits for the first batch, processes its outputs and composes
    again.
    """

    __slots__ = (
        *("_batches", "_context", "_drafter", "_ends", "_passages", "_room", "_scheduler", "_starts", "has_left"),
        *("num_compositions", "pipeline"),
    )

    def __init__(
        self, context: EngineContext, stages: PipelineStages, scheduler: "VllmScheduler", drafter: "Drafter | None"
    ) -> None:
        """`drafter` is one whose drafts the core waits for before it goes on, or None."""
        self._context = context
        self._scheduler = scheduler
        self._drafter = drafter
        self._room = context.config.max_concurrent_batches
        self.pipeline = Pipeline(stages)
        self.num_compositions = 0
        """Number of times that a step was to be composed."""
        self.has_left = False
        """Whether a request has ended since the latest composition."""
        self._batches: deque[bool] = deque()
        """The queue: for each batch whether it is a step in flight; the others are empty."""
        self._ends: deque[Micros] = deque()
        """Instants at which the steps in flight leave the last stage."""
        self._passages: deque[list[tuple[Micros, Micros]]] = deque()
        """Instants at which each step in flight enters and leaves each stage, where batches are reported."""
        self._starts: deque[Micros] = deque()
        """Instants at which the steps in flight began, where the log has a step only when its outputs are processed."""

    @property
    def awaits_drafts(self) -> bool:
        """Whether the core waits for the drafts of a batch before it goes on."""
        return self._drafter is not None

    @property
    def num_begun_steps(self) -> int:
        return len(self._context.steps) + len(self._starts)

    def left_stages(self) -> list[tuple[Micros, Micros]]:
        """Return when the first step in flight entered and left each stage."""
        return self._passages.popleft()

    def step_ended(self, at: Micros) -> None:
        """Take in what the step brings that has just left the last stage."""
        if self._drafter is None:
            self._end_first(at)
        else:
            self._take_in_drafts(self._drafter)

    def take(self, at: Micros, last: Micros) -> None:
        """Compose batches and process their outputs from `at` on, up to the first that ends after `last`."""
        if self._drafter is not None:
            self._take_one_by_one(self._drafter, at, last)
            return
        scheduler, batches = self._scheduler, self._batches
        num_empty = 0
        """Compositions in a row, with no step in flight, that granted nothing and changed nothing."""
        while True:
            if self._has_work():
                is_step = self._compose(at)
                batches.append(is_step)
                num_empty = 0 if scheduler.in_flight or scheduler.has_transfer_news(at) else num_empty + 1
                if num_empty > 2 * self._room:  # nothing changes until something else happens
                    self._make_room(at)
                    break
                if len(batches) < self._room and (is_step or self._has_work()):
                    continue
            if not batches:
                break
            if not batches.popleft():
                scheduler.process_empty(at)
                continue
            ends_at = self._ends[0]
            if ends_at > last:
                last = scheduler.caught_up(ends_at)
                if ends_at > last:
                    scheduler.await_end(ends_at, at)
                    return
            at = ends_at
            self._end_first(at)
        self._idle(at)

    def _take_one_by_one(self, drafter: "Drafter", at: Micros, last: Micros) -> None:
        """Compose batches from `at` on, each after the drafts of the one before, up to one that ends after `last`.

        vLLM's core requests the drafts of a batch from its workers as soon as that batch has been handed over, and
        waits for the response. So a batch has left the last stage before the next one is composed. The outputs of
        earlier batches stay in the queue until that is full. The scheduler has the drafts of a batch before the tokens
        that the batch sampled.
        """
        scheduler, batches = self._scheduler, self._batches
        num_empty = 0
        while True:
            scheduler.note_load(at, is_processed=True)  # the core waits for drafts before it reports
            scheduler.take_out_leaving(at)
            is_step = False
            if self._has_work():
                is_step = self._compose(at)
                batches.append(is_step)
                num_empty = 0 if scheduler.in_flight or scheduler.has_transfer_news(at) else num_empty + 1
                if num_empty > 2 * self._room:
                    self._make_room(at)
                    break
            elif not batches:
                break
            has_room = is_step or self._has_work()
            if len(batches) == self._room or not has_room:
                if batches.popleft():
                    self._end_first(at)
                else:
                    scheduler.process_empty(at)
            if not is_step:
                continue
            ends_at = self._ends[-1]
            if ends_at > last:
                last = scheduler.caught_up(ends_at)
                if ends_at > last:
                    scheduler.await_end(ends_at, at)
                    return
            at = ends_at
            self._take_in_drafts(drafter)
        self._idle(at)

    def _idle(self, at: Micros) -> None:
        """Note that nothing is left to be composed or to be processed at `at`."""
        self._context.clock = max(at, self._context.clock)
        self._scheduler.report_cache_changes(at, self._context.events)

    def _has_work(self) -> bool:
        """Whether vLLM's core would compose: it also does so to inform its workers of requests that have ended."""
        return self.has_left or self._scheduler.can_compose_batch

    def _compose(self, at: Micros) -> bool:
        """Compose a batch and let it enter the first stage. False when it is empty."""
        scheduler, pipeline = self._scheduler, self.pipeline
        self.has_left = False
        self.num_compositions += 1
        scheduler.note_load(at)
        pipeline.composed()
        if not scheduler.compose_batch(at):
            return False
        started_at = pipeline.start(at)
        ends_at = scheduler.begin(scheduler.in_flight[-1], started_at)
        if self._drafter is None:
            self._context.steps.append(started_at, ends_at)
        else:
            self._starts.append(started_at)
        self._ends.append(ends_at)
        if self._context.reports_batches:
            self._passages.append(pipeline.passages)
        return True

    def _make_room(self, at: Micros) -> None:
        """Process the first batch where the queue is full of empty ones; a core that waits on keeps the others."""
        if len(self._batches) == self._room:
            self._batches.popleft()
            self._scheduler.process_empty(at)

    def _take_in_drafts(self, drafter: "Drafter") -> None:
        """Take in the drafts that follow the step composed last."""
        drafter.take_in(self._scheduler.in_flight[-1], self._scheduler.num_running)

    def _end_first(self, at: Micros) -> None:
        """Process the outputs of the first step in flight."""
        if self._drafter is not None:
            self._context.steps.append(self._starts.popleft(), at)
        self._ends.popleft()
        self._context.events += self._scheduler.update(at)


# vLLM's scheduler, whose `schedule` composes a step and whose `update` processes the outputs of one.
#
# There is no prefill and no decode: each sequence has tokens it has and tokens it has computed, and every step lets
# it catch up. The next step is composed while one executes, with asynchronous scheduling; several pipeline stages
# take as many batches as vLLM's engine core keeps in its queue, each in a stage. The rules are vLLM 0.33's, in their
# order.
#
# Facts: vllm/v1/core/sched/scheduler.py, `schedule` and `update_from_output`; vllm/v1/engine/core.py,
# `step_with_batch_queue`; vllm/config/vllm.py, `max_concurrent_batches`.

_COMPLETED, _LENGTH_CAPPED = Outcome.COMPLETED, Outcome.LENGTH_CAPPED


@mypyc_attr(allow_interpreted_subclasses=True)
class VllmScheduler(BatchScheduler):
    """A request that arrives while a step executes waits for that step and for the next one, composed without it.

    Without a cohort every sequence is granted its tokens one by one; results are the same. A request that loses its
    place to a more urgent one and keeps its progress waits with its KV blocks. It loses these, the least urgent request
    first, when a running or a more urgent request finds too few.
    """

    __slots__ = (
        *("_adds_time", "_batches", "_counting", "_decode_interval", "_deferred", "_defers", "_drafter", "_followers"),
        *("_idle_start", "_idle_until", "_idle_us", "_is_async", "_is_capacity_bound", "_is_lockstep"),
        *("_last_prefill_step", "_leaving", "_lora", "_num_executed_steps", "_offloader", "_split", "_step_time"),
        *("_takes_longer", "_threshold", "_urgent", "kv"),
    )

    def __init__(
        self,
        context: EngineContext,
        reports_steps: bool = True,
        has_cohort: bool = True,
        num_accepted: Callable[[Sequence, int], int] | None = None,
    ) -> None:
        """`num_accepted` may replace the settings' acceptance: from a sequence and its drafts to those accepted."""
        config = context.config
        self._counting = counting = new_cohort_cache(config) if has_cohort and can_have_cohort(config) else None
        self.kv: SlotCache = counting or new_slot_cache(config, context.cache_changes)
        depth = config.max_concurrent_batches
        super().__init__(context, reports_steps, depth, config.limit_tokens, self.kv, counting)
        self._names = counting if isinstance(counting, CountingKVCache) else None
        if counting is not None and config.kv_groups:
            self._hold_group_cohort(counting)
        self._offloader: Offloader | None = None
        if config.offload is not None:
            self._offloader = _new_offloader(context, config.offload, self.kv, depth)
        self._drafter: Drafter | None = None
        if config.speculation is not None:
            self._drafter, self.shape_of = _new_drafter(context, self.kv, num_accepted)
        self._deferred: set[Sequence] = set()
        """Waiting sequences that a `schedule` passed over."""
        self._is_async = config.async_scheduling
        self._newcomer_placeholders = int(config.async_scheduling)
        self._watermark_blocks = self.kv.watermark_blocks
        self._resumes = self._by_priority  # those after it are more urgent and may fit
        self._threshold_when_alone = False
        self._drafter_rows = 0 if self._drafter is None else self._drafter.rows
        self._threshold = 0
        self._split = new_state_split(config)
        self._defers = False
        """Whether the latest step only decodes."""
        self._num_executed_steps = 0
        self._last_prefill_step = -config.prefill_schedule_interval
        self._is_capacity_bound = False
        self._urgent = new_urgent_requests(config)
        """Requests that become more urgent, and that lose their places to more urgent ones; None without any."""
        self._has_deadlines = config.uses_deadlines
        # Newcomers join by an order that may be old.
        self.takes_newcomers = config.priority_policy != "slo-urgency"
        self._batches: BatchQueue | None = None
        """The queue of batches, with several pipeline stages."""
        if config.pipeline is not None:
            awaited = None if config.async_scheduling else self._drafter
            self._batches = BatchQueue(context, config.pipeline, self, awaited)
        self._decode_interval = config.num_stages if config.pipeline is not None and config.async_scheduling else 0
        """Compositions from one decode of a sequence to the next at the earliest; 0 for no limit."""
        self._is_lockstep = False
        """Whether steps are composed, begun and ended from outside, forward pass by forward pass."""
        lora = config.lora
        self._lora = LoraSlots(lora, context.counters.adapters) if lora is not None else None
        self._adds_time = self._lora is not None or self._drafter is not None
        """Whether `added_time` may be other than 0."""
        self._step_time = context.latency.step_timer()
        self._idle_start = context.latency.idle_start_timer() if self._batches is None else None
        """Returns how much longer the step after an idle time takes."""
        self._idle_until = -1
        """The instant at which the GPU was idle last, and for how long."""
        self._idle_us = 0
        self._takes_longer = self._adds_time or self._idle_start is not None or self._batches is not None
        """Whether a step may take longer than the latency model predicts."""
        if (multiple := context.latency.growth_requests) and self._batches is None and self._depth > 1:
            self._growth = BatchGrowth(multiple)
        self._followers: list[Sequence] = []
        """Requests that came behind the one with which an idle engine is about to start."""
        self._leaving: list[tuple[Sequence, Outcome]] = []
        """Requests whose clients hung up, to be removed when the executing step ends."""

    @property
    def num_deferred(self) -> int:
        return len(self._deferred)

    @property
    def num_begun_steps(self) -> int:
        return super().num_begun_steps if self._batches is None else self._batches.num_begun_steps

    def enqueue(self, sequence: Sequence, at: Micros) -> None:
        if self._drafter is not None:
            self._drafter.enter(sequence)
        if self._offloader is not None:
            self._offloader.enter(sequence)
        starts = self._planned and not self.in_flight and self._batches is None and not self._is_lockstep
        if starts and sequence.request.follows:
            self._followers.append(sequence)
        else:
            super().enqueue(sequence, at)

    def remove(self, sequence: Sequence, outcome: Outcome, at: Micros) -> None:
        self._enqueue_followers(at)
        if self.in_flight or self._is_lockstep:
            self._leaving.append((sequence, outcome))
            self._must_update = True
        else:
            self._take_out(sequence, outcome, at)
            self.note_load(at)
            if self.explicit or self.waiting:  # which may go on in its place
                self._plan(at)

    def preempt_all(self, at: Micros) -> None:
        self.dissolve_cohort()
        self.preempted = []
        while self.explicit:
            self.preempt(self.explicit.pop())
        if self._urgent is not None:
            for sequence in list(self._urgent.waiting_with_blocks):
                self._lose_progress(self._urgent, sequence)
        self._context.counters.num_preemptions += len(self.preempted)
        self._context.events.extend(Preempted(at, sequence) for sequence in self.preempted)

    def shrink_cache(self, num_blocks: int, at: Micros) -> None:
        """Withhold `num_blocks` KV blocks, or all free ones, from all requests; 0 gives all blocks back."""
        self.kv.withhold(num_blocks)
        if not self.in_flight:
            self._plan(at)

    def note_load(self, at: Micros, is_processed: bool = False) -> None:
        """Report how many requests there are: before a step is composed, or when outputs have been processed."""
        if (note_load := self._context.note_load) is not None:
            note_load(at, is_processed)

    def step(self, at: Micros) -> None:
        if not self._executing:
            self.note_load(at)
        if self._offloader is not None and self.in_flight and not self._planned:
            return  # transfers end beside the steps, and vLLM's scheduler is notified when a step has ended
        if self._idle_start is not None and not self._executing:
            steps = self._context.steps
            self._idle_until, self._idle_us = at, at - (steps.end(len(steps) - 1) if len(steps) else 0)
        if self._followers:
            self._start_with_first(at)
        elif self._is_lockstep:
            self._planned = False
        elif self._batches is None:
            super().step(at)
        else:
            self._planned = False
            if not self._executing:
                self._batches.take(at, self._last_free_instant())

    def step_ended(self, report: object, at: Micros) -> None:
        batches = self._batches
        if batches is None:
            super().step_ended(report, at)
            return
        self._executing = False
        batches.step_ended(at)
        last = self._last_free_instant()
        if last >= at:
            batches.take(at, last)
        else:
            self._plan(at)  # what else is due at this instant comes first

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

    def _compose(self, at: Micros) -> None:
        super()._compose(at)
        offloader = self._offloader
        if offloader is None or not self._composes:
            return
        if self.in_flight and len(self.in_flight) < self._depth and not (self.explicit or self.waiting):
            if offloader.has_work:  # for which vLLM's core composes an empty batch
                self.schedule(at)
            return
        while not self.in_flight and offloader.needs_composition(at):
            if self.explicit or self.waiting:
                super()._compose(at)
            else:
                self.schedule(at)
        if not self.in_flight:  # an idle core publishes, too
            self.report_cache_changes(at, self._context.events)

    def report_cache_changes(self, at: Micros, events: list[Event]) -> None:
        """Add what the prefix cache holds anew, and what it has lost, to `events`."""
        changes = self._context.cache_changes
        if changes:
            events.append(CacheChanged(at, tuple(changes)))
            changes.clear()

    def _update_late(self, at: Micros, instants: list[Micros]) -> Micros | None:
        self._idle_until, self._idle_us = at, 1  # the step that is composed now has nothing to hide behind
        return super()._update_late(at, instants)

    # --- the composition of a step ---

    def schedule(self, at: Micros) -> bool:  # noqa: C901 - every part of a composition, in order
        drafter, offloader = self._drafter, self._offloader
        if drafter is not None:
            drafter.begin_composition(at)
        if offloader is not None:
            offloader.begin_composition(at)
        self.admitted, self.preempted, self._granted = [], [], {}
        self.kv.new_step()
        self._encoder.new_step()
        self._budget = self._token_budget - self._drafter_rows
        self._threshold = self._long_prefill_threshold()
        self._had_prefill = False
        displaced = NO_DISPLACED if self._urgent is None else self._displaced(self._urgent, at)
        self._defers = self._defers_prefills()
        num_decodes, context = self._grant_cohort() if self.cohort.members else (0, 0)
        if self.explicit:
            self._grant_explicit()
        if not self.preempted and self._admits and self.may_admit():
            self._admit_waiting()
        if displaced:
            self.preempted = displaced + self.preempted
        if self.admitted or self.preempted:
            self._report_composition(at)
        is_scheduled = bool(self._granted) or num_decodes > 0
        self._num_executed_steps += is_scheduled
        if self._had_prefill:
            self._last_prefill_step = self._num_executed_steps
        if not is_scheduled:
            if offloader is not None:
                offloader.composed_nothing(not self.in_flight and not self._is_lockstep, bool(self.waiting))
            return False
        advance = self._advance if drafter is None else self._advance_with_drafts
        if offloader is not None:
            offloader.composed(self._granted, self.admitted)
        tokens = [advance(sequence, num_tokens) for sequence, num_tokens in self._granted.items()]
        if offloader is not None:
            offloader.advanced(tokens)
        if tokens:
            self.cohort.decode_only_from = self.next_step + 1
        self.in_flight.append((num_decodes, context, tokens, NO_NEWCOMERS))
        self.next_step += 1
        if self.admitted:
            self.explicit += (
                self.admitted if self._counting is None else self._not_joining(self.admitted, not self._is_async)
            )
        return True

    def _displaced(self, urgent: UrgentRequests, at: Micros) -> list[Sequence]:
        """Raise waiting requests, and let them take places. Returns the requests that lost theirs."""
        urgent.rise(at)
        places, waiting = urgent.places, self.waiting
        if places is None or not waiting or not self._admits or self.num_running < self._config.max_num_seqs:
            return NO_DISPLACED
        self._order_waiting()
        displaced: list[Sequence] = []
        for candidate in list(waiting):
            if candidate.num_stale_tokens:
                continue
            index = places.find_victim(candidate, self.explicit)
            if index is None:
                break
            victim = self.explicit.pop(index)
            self._displace(urgent, victim)
            displaced.append(victim)
        return displaced

    def _long_prefill_threshold(self) -> int:
        """Tokens by which a long prompt is split for the sake of others; 0 where it is alone, and for no limit."""
        config, num_requests = self._config, self.num_running + len(self.waiting)
        threshold = config.long_prefill_token_threshold if num_requests > 1 else 0
        if threshold and config.long_prefill_token_threshold_adaptive:
            return max(threshold, config.max_num_batched_tokens // num_requests)
        return threshold

    def _defers_prefills(self) -> bool:
        """Whether this step only decodes, because prefills are spaced `prefill_schedule_interval` steps apart."""
        interval = self._config.prefill_schedule_interval
        since = self._num_executed_steps + 1 - self._last_prefill_step
        if interval == 1 or since >= interval or self._is_capacity_bound:
            return False
        return any(not sequence.is_prefilling for sequence in self.explicit)

    def next_tokens(self, sequence: Sequence) -> int:
        computed, placeholders = sequence.num_computed_tokens, sequence.num_placeholders
        if placeholders > 0:
            budget_end = sequence.input_tokens + sequence.max_output_tokens
            if sequence.max_output_tokens and computed + 2 - placeholders >= budget_end:
                return 0  # the steps in flight bring its last token
        if self._defers and sequence.is_prefilling:
            return 0
        if self._batches is not None and self._batches.num_compositions < sequence.decodes_from:
            return 0
        num_tokens = sequence.input_tokens + sequence.num_output_tokens + sequence.num_drafts + placeholders - computed
        media = sequence.request.media
        if num_tokens == 1 and not media:  # it decodes, with a budget that is not used up
            return 1 if computed + 1 < self._limit else 0
        if 0 < self._threshold < num_tokens:
            num_tokens = self._threshold
        num_tokens = min(num_tokens, self._budget, self._limit - computed - 1)
        if self._split is not None:
            num_tokens = self._split_chunk(sequence, computed, num_tokens)
        return self._encoder.clip(sequence, computed, num_tokens) if media else num_tokens

    def choose_victim(self) -> int:
        """Return the index of the last admitted, or by priority of the least urgent, of equals the latest arrival."""
        running = self.explicit
        if self._config.preemption_policy == "gap":
            return least_urgent_latest_due(running)
        if not self._by_priority:
            return len(running) - 1
        return max(range(len(running)), key=lambda i: (running[i].priority, running[i].arrived_at, -i))

    def preempt(self, victim: Sequence) -> None:
        """Send a victim to the front of the queue; it keeps its output and recomputes the rest."""
        self.discard_progress(victim)
        victim.running = False
        victim.num_preemptions += 1
        self.waiting.appendleft(victim)
        self.preempted.append(victim)
        if self._urgent is not None:
            self._urgent.watch(victim)

    def can_preempt(self, victim: Sequence) -> bool:
        return self._offloader is None or self._offloader.may_lose_blocks(victim)

    def take_back_grant(self, victim: Sequence) -> None:
        if self._drafter is not None:
            self._drafter.note_grant(victim, self._granted[victim])
        super().take_back_grant(victim)

    def discard_progress(self, sequence: Sequence) -> None:
        """Take the KV blocks of a sequence, which computes all its tokens so far anew."""
        if self._offloader is None:
            self.kv.evict(sequence)
        else:
            self._offloader.preempt(sequence)
        self._encoder.release(sequence)
        sequence.num_computed_tokens = 0
        sequence.num_stale_tokens = sequence.num_in_flight_tokens
        sequence.num_placeholders = 0
        sequence.num_drafts = 0

    def _admit_waiting(self) -> None:  # noqa: C901 - one loop over the queue
        waiting, kv, config = self.waiting, self.kv, self._config
        if self._drafter is not None:
            self._drafter.begin_admissions(bool(self._granted), self._had_prefill)
        self._order_waiting()
        if self._offloader is not None:
            # vLLM keeps those that hold blocks in a queue of their own, and looks at them before all others.
            self.waiting = waiting = deque(sorted(waiting, key=lambda sequence: not sequence.num_computed_tokens))
        urgent, adapters = self._urgent, self._running_adapters()
        passed_over: list[Sequence] = []
        num_running = self.num_running
        while waiting and self._budget > 0 and num_running < config.max_num_seqs:
            sequence = waiting[0]
            if urgent is not None and sequence in urgent.waiting_with_blocks:
                num_tokens = self._resume_first(urgent, passed_over, adapters)
                if num_tokens < 0:
                    break
                num_running += num_tokens > 0
                continue
            admission = self._admission(sequence, adapters, num_running > 0)
            if admission is Admission.LATER:
                passed_over.append(waiting.popleft())
                continue
            if admission is Admission.BLOCKED:
                if self.takes_reservation(sequence):
                    continue
                break
            if self._offloader is not None and sequence.num_computed_tokens:
                resumed = self._resume_loaded(self._offloader, sequence, num_running > 0, adapters)
                if resumed is Admission.BLOCKED:
                    break
                waiting.popleft()
                if resumed is Admission.LATER:
                    passed_over.append(sequence)
                else:
                    num_running += 1
                continue
            hits = kv.cached_prefix(sequence) if self._offloader is None else self._offloader.hits
            cached = start = kv.num_found_tokens(hits)
            if sequence.request.external is not None:
                start = max(cached, num_external_tokens(sequence))
            num_known = sequence.input_tokens + sequence.num_output_tokens
            if self._defers and start < num_known - 1:
                break
            num_tokens = self._admission_tokens(sequence, start)
            if num_tokens and not (num_tokens := self._encoder.clip(sequence, start, num_tokens)):
                passed_over.append(waiting.popleft())
                continue
            if num_tokens == 0 or not kv.admit(
                sequence, start - cached + num_tokens, hits, config.reserve_full_prompt, num_running > 0
            ):
                if num_tokens and self.takes_reservation(sequence):
                    continue
                self._note_blocked(sequence, len(hits))
                self._encoder.release(sequence)
                break
            kv.count_lookup(sequence, len(hits))
            waiting.popleft()
            num_running += 1
            sequence.num_computed_tokens = start
            if sequence.num_preemptions == 0:
                sequence.num_cached_tokens = start
                sequence.num_external_tokens = start - cached
            self._had_prefill |= start < num_known - 1
            self._grant_newcomer(sequence, num_tokens, adapters)
        waiting.extendleft(reversed(passed_over))
        if passed_over or self._deferred:
            self._deferred.update(passed_over)
            self._deferred.difference_update(self.admitted)
        if not self._defers:
            self._is_capacity_bound = len(waiting) > len(self._deferred)

    def _resume_loaded(
        self, offloader: "Offloader", sequence: Sequence, others_run: bool, adapters: set[str] | None
    ) -> Admission:
        """Let a waiting sequence go on after what was loaded for it, if it can now."""
        start = sequence.num_computed_tokens
        num_known = sequence.input_tokens + sequence.num_output_tokens
        if self._defers and start < num_known - 1:
            return Admission.BLOCKED
        num_tokens = self._admission_tokens(sequence, start)
        if num_tokens and not (num_tokens := self._encoder.clip(sequence, start, num_tokens)):
            return Admission.LATER
        if num_tokens == 0 or not offloader.resume(sequence, num_tokens, others_run):
            self._encoder.release(sequence)
            return Admission.BLOCKED
        self._had_prefill |= start < num_known - 1
        self._grant_newcomer(sequence, num_tokens, adapters)
        return Admission.NOW

    def _admission(self, sequence: Sequence, adapters: set[str] | None, others_run: bool) -> Admission:
        """Whether a waiting sequence may join a step with `adapters`."""
        # Steps in flight still bring tokens from before its preemption, or its adapter finds no slot.
        if sequence.num_stale_tokens or not self._finds_slot(sequence.request.adapter, adapters):
            return Admission.LATER
        if self._offloader is None:
            return Admission.NOW
        return self._offloader.admission(sequence, others_run)

    def _grant_newcomer(self, sequence: Sequence, num_tokens: int, adapters: set[str] | None) -> None:
        self._num_admissions += 1
        sequence.running, sequence.running_number = True, self._num_admissions
        self._granted[sequence] = num_tokens
        self._encoder.take(sequence)
        self._budget -= num_tokens + self._drafter_rows
        self.admitted.append(sequence)
        if self._offloader is not None:
            self._offloader.joined(sequence, sequence.num_tokens - sequence.num_computed_tokens - num_tokens)
        if adapters is not None:
            adapters.add(sequence.request.adapter)

    def _running_adapters(self) -> set[str] | None:
        """Return the adapters of all running sequences; None without LoRA."""
        if self._config.lora is None:
            return None
        return {sequence.request.adapter for sequence in self.explicit} | {""}

    def _finds_slot(self, adapter: str, adapters: set[str] | None) -> bool:
        """Whether a step with `adapters`, one of which stands for none, can take `adapter`, too."""
        if adapters is None:
            return True
        assert self._config.lora is not None
        return adapter in adapters or len(adapters) <= self._config.lora.max_loras

    def _admission_tokens(self, sequence: Sequence, start: int) -> int:
        """Return the tokens that a newcomer computes after `start` cached ones; 0 when they need a larger budget."""
        if self._drafter is not None and self._drafter.fills_up(sequence, start):
            return self._filled_tokens(sequence, start, self._drafter.width)
        num_tokens = sequence.input_tokens + sequence.num_output_tokens - start
        if 0 < self._threshold < num_tokens:
            num_tokens = self._threshold
        if num_tokens > self._budget and not self._config.enable_chunked_prefill:
            return 0
        num_tokens = min(num_tokens, self._budget)
        return num_tokens if self._split is None else self._split_chunk(sequence, start, num_tokens)

    def _filled_tokens(self, sequence: Sequence, start: int, width: int) -> int:
        """Return the tokens of a newcomer that is filled up to the width of others that decode."""
        if width > self._budget:
            return 0
        if self._split is not None and self._split_chunk(sequence, start, width) != width:
            return 1
        return min(width, self._threshold) if self._threshold else width

    def _split_chunk(self, sequence: Sequence, start: int, num_tokens: int) -> int:
        """Return how many of the next `num_tokens` tokens end where recurrent states can be kept."""
        assert self._split is not None
        most = min(self._token_budget, self._config.long_prefill_token_threshold or self._token_budget)
        return self._split.num_tokens(sequence, start, num_tokens, self.kv.boundary_tokens(sequence), most)

    def _advance(self, sequence: Sequence, num_tokens: int) -> ScheduledTokens:
        """Count tokens as computed at once, so that the next step can be composed before this one ends."""
        context = sequence.num_computed_tokens
        num_known = sequence.input_tokens + sequence.num_output_tokens
        sequence.num_computed_tokens = computed = context + num_tokens
        sequence.num_in_flight_tokens += num_tokens
        samples = computed >= num_known + sequence.num_placeholders
        sequence.is_prefilling = not samples
        if samples and self._is_async:
            sequence.num_placeholders += 1
            if self._decode_interval and self._batches is not None:
                sequence.decodes_from = self._batches.num_compositions + self._decode_interval
        return ScheduledTokens(sequence, num_tokens, context, num_known, samples)

    def _advance_with_drafts(self, sequence: Sequence, num_tokens: int) -> ScheduledTokens:
        """`_advance` where the last of the tokens may be drafts."""
        drafter = self._drafter
        assert drafter is not None
        num_drafts, num_proposed = drafter.num_drafts_of(sequence, num_tokens)
        drafter.note_grant(sequence, num_tokens)
        return drafter.scheduled(self._advance(sequence, num_tokens), num_drafts, num_proposed, self.num_running)

    def _report_composition(self, at: Micros) -> None:
        engine_context = self._context
        if self.preempted:
            engine_context.counters.num_preemptions += len(self.preempted)
            engine_context.events.extend(Preempted(at, sequence) for sequence in self.preempted)
        for sequence in self.admitted:
            if sequence.scheduled_at is None:
                sequence.scheduled_at = at
            if engine_context.reports_admissions:
                engine_context.events.append(Scheduled(at, sequence))

    # --- the time of a step ---

    def begin(self, step: ScheduledStep, at: Micros) -> Micros:
        engine_context, shape_of, step_time = self._context, self.shape_of, self._step_time
        recent_prompts = engine_context.recent_prompts
        engine_context.last_shape = shape = shape_of(step, recent_prompts.tokens_at(at))
        ends_at = computed_at = at + (step_time(shape) or 1)
        if self._takes_longer:
            computed_at, ends_at = self._end_of_computation(step, shape, at, ends_at)
        if prefill_tokens := shape[1]:
            recent_prompts.add(prefill_tokens, computed_at)
        if self._offloader is not None and not self._is_lockstep:
            self._offloader.step_began(ends_at)
        return ends_at

    def _end_of_computation(
        self, step: ScheduledStep, shape: BatchShape, at: Micros, ends_at: Micros
    ) -> tuple[Micros, Micros]:
        """Return when a step that the latency model lets end at `ends_at` is computed, and when its outputs come."""
        if at == self._idle_until and self._idle_us > 0 and self._idle_start is not None:
            ends_at += self._idle_start(self._idle_us)
        if self._adds_time:
            ends_at += self.added_time(step, ends_at - at)
        if self._batches is None:
            return ends_at, ends_at
        return self._batches.pipeline.enter(
            at, ends_at - at, shape.num_tokens, any(tokens.samples for tokens in step[2])
        )

    def added_time(self, step: ScheduledStep, computed_us: Micros) -> Micros:
        """Return the time of a step beside its computation, which takes so long: adapters are loaded, drafts made."""
        added_us = 0
        if self._drafter is not None:
            added_us = self._drafter.time_us(step, computed_us, self._context.last_shape)
        if self._lora is not None:
            adapters = dict.fromkeys(tokens.sequence.request.adapter for tokens in step[2])  # in batch order, each once
            added_us += self._lora.use(adapter for adapter in adapters if adapter)
        return added_us

    # --- the outputs of a step ---

    def update(self, at: Micros) -> list[Event]:
        if self._drafter is not None:
            self._drafter.now = at
        if self._leaving:
            self.take_out_leaving(at)
        if self._offloader is None:
            events = super().update(at)
        else:
            self._offloader.step_ended()
            events = super().update(at)
            self._offloader.step_processed(at)
        self.report_cache_changes(at, events)
        if self._batches is None or not self._batches.awaits_drafts:
            self.note_load(at, is_processed=True)
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

    def process(  # noqa: C901 - every rule of vLLM's loop
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
        if sequence.outcome is not None:
            return
        drafter, num_sampled = self._drafter, 1
        if drafter is not None and tokens.samples:
            num_sampled += drafter.verify(tokens, is_stale)
        if sequence.request.media:
            self._encoder.processed(sequence)
        if not tokens.samples:
            return
        if drafter is None:
            self._add_token(sequence, step_index, at)
        else:
            num_kept = self._add_tokens(sequence, num_sampled, step_index, at)
            if not is_stale:
                sequence.num_computed_tokens -= num_sampled - num_kept
        if sequence.output_tokens > 0:
            emitted.append(sequence)
        if span is not None:  # composed before it joined the cohort, which does not end here
            sequence.num_placeholders -= self._is_async
            return
        if not is_stale and (sequence.num_placeholders > 0 or drafter is not None):
            if sequence.num_placeholders > 0:
                sequence.num_placeholders -= num_sampled
            self.kv.register(sequence, sequence.num_computed_tokens - sequence.num_in_flight_tokens)
        if self._stops(sequence):
            self.complete(sequence, at, finished)
        elif drafter is not None and not is_stale:
            drafter.draft_after_outputs(sequence, self.num_running)

    def _add_token(self, sequence: Sequence, step_index: int, at: Micros) -> None:
        sequence.num_output_tokens += 1
        if sequence.first_token_step is None:
            sequence.first_token_step = step_index
            sequence.first_token_at = at
        else:
            sequence.add_token_step(step_index)

    def _add_tokens(self, sequence: Sequence, num_tokens: int, step_index: int, at: Micros) -> int:
        """Add tokens up to where the request stops; returns how many these are, at least 1."""
        to_end = max(1, sequence.output_tokens) - sequence.num_output_tokens
        num_kept = min(num_tokens, to_end, self._limit - sequence.num_tokens)
        self._add_token(sequence, step_index, at)
        if num_kept > 1:
            sequence.num_output_tokens += num_kept - 1
            sequence.add_extra_tokens(step_index, num_kept - 1)
        return num_kept

    def _stops(self, sequence: Sequence) -> bool:
        """Whether the token just produced was the last one."""
        num_output_tokens, request = sequence.num_output_tokens, sequence.request
        return num_output_tokens >= request.output_tokens or request.input_tokens + num_output_tokens >= self._limit

    def complete(self, sequence: Sequence, at: Micros, finished: list[Event]) -> None:
        if sequence.span is not None:
            self.record_ended_span(sequence)
            if self._urgent is not None:
                self._urgent.forget(sequence)
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

    def take_out_leaving(self, at: Micros) -> None:
        """Remove requests whose clients hung up, before the tokens of the step that ends at `at` are processed."""
        for sequence, outcome in self._leaving:
            if sequence.outcome is None:
                self._take_out(sequence, outcome, at)
        self._leaving.clear()

    def _take_out(self, sequence: Sequence, outcome: Outcome, at: Micros) -> None:
        self._leave(sequence, is_aborted=True)
        self._context.end_and_report(sequence, outcome, at)

    def _leave(self, sequence: Sequence, is_aborted: bool = False) -> None:
        """Forget a sequence for good; outputs of steps in flight for it are ignored."""
        if self._batches is not None:
            self._batches.has_left = True
        if self._drafter is not None:
            self._drafter.leave(sequence)
        if self._urgent is not None:
            self._urgent.forget(sequence)
        if sequence.request.media:
            self._encoder.release(sequence)
        if sequence.span is not None:
            self.record_span(sequence, is_for_good=True)
            sequence.running = False
            return
        if sequence.running:
            self.explicit.remove(sequence)
        else:
            self.waiting.remove(sequence)
            self._deferred.discard(sequence)
        sequence.running = False
        if self._offloader is None:
            self.kv.release(sequence)
        else:
            self._offloader.leave(sequence, is_aborted)

    # --- members of the cohort ---

    def _hold_group_cohort(self, kv: CohortCache) -> None:
        """Hold a cohort whose members give back blocks, too."""
        from blis_sim.engine.kv_cache.grouped_cache import GroupedKVCache  # other models do without its managers
        from blis_sim.engine.scheduler.group_cohort import GroupCohort

        assert isinstance(kv, GroupedKVCache)
        self.cohort = self._calendar = GroupCohort(self._block_size, kv)
        self._max_decode_only = 0

        def prompt_blocks(sequence: Sequence) -> int:
            num_tokens = sequence.input_tokens
            if self._split is not None and self._split_chunk(sequence, 0, num_tokens) != num_tokens:
                return -1
            return kv.num_prompt_blocks(num_tokens)

        self._prompt_blocks = prompt_blocks

    def _grant_cohort(self) -> tuple[int, int]:
        calendar, step = self._calendar, self.next_step
        if calendar is None:
            return super()._grant_cohort()
        if not self._can_grant_members_first(calendar) or not self._grant_changes(calendar):
            self.dissolve_cohort()
            return 0, 0
        num_decodes, context = calendar.num_decodes, calendar.offset + calendar.num_decodes * step
        self._budget -= num_decodes
        if step in calendar.ends:
            calendar.composed(step)
        return num_decodes, context

    def _can_grant_members_first(self, calendar: "GroupCohort") -> bool:
        """Whether granting the cohort before all others is the same as granting in order of admission."""
        if self._budget < calendar.num_decodes:
            return False
        if not self._by_priority and self._is_cohort_admitted_first():
            return True
        return not self.explicit and calendar.has_blocks_for_changes(self.next_step, self._free.num_free)

    def join_cohort(self) -> None:
        if self._counting is not None:
            self.explicit = self._not_joining(self.explicit, 0)

    def _not_joining(self, sequences: list[Sequence], num_sampling: int) -> list[Sequence]:
        """Let those of `sequences` that only decode join the cohort. Returns the others.

        `num_sampling` counts tokens that are in flight without placeholders.
        """
        counting = self._counting
        assert counting is not None
        return [
            sequence
            for sequence in sequences
            if sequence.is_prefilling
            or sequence.num_stale_tokens
            or self._encoder.has_references(sequence)
            or (sequence.num_shareable_blocks and self._names is None and counting.will_share(sequence))
            or not self._join(sequence, sequence.num_output_tokens + sequence.num_placeholders + num_sampling)
        ]

    def leave_cohort(self, sequence: Sequence) -> None:
        for step in self.record_span(sequence):
            self._late.setdefault(step, []).append(ScheduledTokens(sequence, 1, 0, 0, samples=True))
            self._must_update = True

    def record_span(self, sequence: Sequence, is_for_good: bool = False) -> range:
        """Record the progress that follows from the decode span of a member that leaves. Returns its steps in flight.

        A member that leaves for good gives its blocks back.
        """
        span, counting, num_processed = sequence.span, self._counting, self.next_step - len(self.in_flight)
        assert span is not None
        assert counting is not None
        first, end = span.first_step, span.last_step + 1
        composed = end if span.has_known_end and end < self.next_step else self.next_step
        self.cohort.leave(sequence)
        num_in_flight = composed - first
        if num_processed > first:
            num_tokens = (num_processed if num_processed < end else end) - first
            sequence.num_output_tokens += num_tokens
            sequence.add_token_steps(first, num_tokens)
            num_in_flight = composed - num_processed
        sequence.num_computed_tokens = computed = sequence.num_computed_tokens + composed - first
        sequence.num_in_flight_tokens = num_unknown = sequence.num_in_flight_tokens + num_in_flight
        if self._is_async:
            sequence.num_placeholders += num_in_flight
        if num_unknown >= self._depth:
            num_unknown = self._depth - 1
        if is_for_good:
            counting.release_grown(sequence, computed, computed - num_unknown)
        else:
            counting.grow_to(sequence, computed, computed - num_unknown)
        return range(composed - num_in_flight, composed)

    def record_ended_span(self, sequence: Sequence) -> None:
        """`record_span` for good, where the last token of a member has just been processed. The member does not run any
        more."""
        span, counting = sequence.span, self._counting
        assert span is not None
        assert counting is not None
        first, end = span.first_step, span.last_step + 1
        num_steps = end - first
        sequence.running = False
        sequence.num_output_tokens += num_steps
        if sequence.token_runs:
            sequence.add_token_steps(first, num_steps)
        else:
            sequence.token_runs.append([first, num_steps])
        num_vain = 0 if span.has_known_end else self.next_step - end
        """Steps in flight that compute a token beyond the last one, which stays unknown."""
        self.cohort.leave(sequence)
        sequence.num_computed_tokens = computed = sequence.num_computed_tokens + num_steps + num_vain
        counting.release_grown(sequence, computed, computed - num_vain)

    def blocks_lacking(self, sequence: Sequence, num_tokens: int) -> int:
        return self.kv.blocks_for(sequence.num_computed_tokens + num_tokens) - sequence.num_blocks

    def stays_without_blocks(self, sequence: Sequence, num_hits: int) -> bool:
        assert self._counting is not None
        return self._config.reserve_full_prompt and not self._counting.may_fit(sequence, num_hits)

    # --- requests that become more urgent, and that lose their places to more urgent ones ---

    def note_deadline(self, sequence: Sequence) -> None:
        sequence.deadline_at = self._config.urgency.deadline_of(sequence.request, sequence.arrived_at)
        if self._urgent is not None:
            self._urgent.watch(sequence)

    def _displace(self, urgent: UrgentRequests, victim: Sequence) -> None:
        """Let a running sequence lose its place."""
        if not urgent.keeps_progress:
            self.preempt(victim)
            self.preempted.pop()  # reported apart from those that lack blocks, which end admissions
            return
        victim.running = False
        victim.num_preemptions += 1
        urgent.waiting_with_blocks.add(victim)
        self.waiting.appendleft(victim)
        urgent.watch(victim)

    def _resume_first(self, urgent: UrgentRequests, passed_over: list[Sequence], adapters: set[str] | None) -> int:
        """Resume the first waiting request, or pass it over. Returns its tokens; -1 without enough blocks."""
        sequence = self.waiting[0]
        num_tokens = self._resume(urgent, sequence) if self._finds_slot(sequence.request.adapter, adapters) else 0
        if num_tokens < 0:
            return num_tokens
        self.waiting.popleft()
        if num_tokens == 0:
            passed_over.append(sequence)
            return 0
        self._had_prefill |= sequence.is_prefilling
        self._grant_newcomer(sequence, num_tokens, adapters)
        return num_tokens

    def _resume(self, urgent: UrgentRequests, sequence: Sequence) -> int:
        """Resume a request that kept its progress. Returns its tokens in this step.

        -1 if too few blocks are free; 0, and it waits on, while it cannot be granted a token.
        """
        num_tokens = self.next_tokens(sequence)
        if num_tokens <= 0:
            return 0
        while not self._blocks.allocate(sequence, num_tokens):
            if not self.takes_reservation(sequence):
                return -1
        urgent.waiting_with_blocks.discard(sequence)
        return num_tokens

    def takes_reservation(self, sequence: Sequence) -> bool:
        """Take the blocks of the least urgent request that waits with its progress, if there is one. It starts anew."""
        urgent = self._urgent
        loser = None if urgent is None else urgent.least_urgent_with_blocks(sequence)
        if urgent is None or loser is None:
            return False
        self._lose_progress(urgent, loser)
        return True

    def _lose_progress(self, urgent: UrgentRequests, sequence: Sequence) -> None:
        """Take the KV blocks of a waiting request."""
        urgent.waiting_with_blocks.discard(sequence)
        self.discard_progress(sequence)

    # --- several pipeline stages: batches in a queue ---

    @property
    def can_compose_batch(self) -> bool:
        """Whether requests or transfers are here for which vLLM's core composes."""
        if not self._composes:
            return False
        if self._offloader is not None and self._offloader.has_work:
            return True
        return bool(self.explicit or (self._admits and self.waiting))

    def compose_batch(self, at: Micros) -> bool:
        """Compose a batch. False when it is empty."""
        return self._composes and self.schedule(at)

    def process_empty(self, at: Micros) -> None:
        """Process the outputs of the first batch in the queue, which is empty."""
        if self._offloader is not None:
            self._offloader.empty_processed(at)
        self.note_load(at, is_processed=True)

    def has_transfer_news(self, at: Micros) -> bool:
        """Whether transfers let another composition at `at` have another result."""
        return self._offloader is not None and self._offloader.has_news(at)

    def await_end(self, ends_at: Micros, at: Micros) -> None:
        """Wait from `at` on for the end of a step: something else is due before."""
        self._executing = True
        self._context.clock = max(at, self._context.clock)
        self._context.queue.push(ends_at, EventKind.STEP_END)

    def left_stages(self) -> list[tuple[Micros, Micros]]:
        return [] if self._batches is None else self._batches.left_stages()

    # --- forward passes of several ranks, which a caller composes, begins and ends ---

    def enable_lockstep(self) -> None:
        """Let callers of `compose_forward`, `begin_forward` and `end_forward` take the steps."""
        self._is_lockstep = True
        if self._offloader is not None:
            self._offloader.enable_lockstep()

    @property
    def has_requests(self) -> bool:
        """Whether requests are here that have not ended and may be composed."""
        return self._composes and bool(self.explicit or self.cohort.members or (self._admits and self.waiting))

    @property
    def has_transfers(self) -> bool:
        """Whether transfers are under way, or requests have ended whose blocks may be stored."""
        return self._offloader is not None and self._offloader.has_work

    @property
    def num_left(self) -> int:
        """Number of requests that have ended after they came, for which vLLM's core composes an empty batch."""
        ended = self._context.counters.ended
        return ended[_COMPLETED] + ended[_LENGTH_CAPPED] + ended[Outcome.ABORTED] + ended[Outcome.TIMED_OUT]

    @property
    def has_leaving(self) -> bool:
        """Whether clients have hung up whose requests are still here."""
        return bool(self._leaving)

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
        composes = self._offloader is not None or bool(self.explicit or self.cohort.members or self.waiting)
        return composes and self.schedule(at)

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

    def dummy_handed_over(self) -> None:
        """Note that the rank takes part in a forward pass with a dummy batch, which begins later."""
        if self._offloader is not None:
            self._offloader.dummy_handed_over()

    def forward_began(self, ends_at: Micros) -> None:
        """Let transfers begin behind a forward pass that ends at `ends_at`."""
        if self._offloader is not None:
            self._offloader.step_began(ends_at)

    def end_forward(self, at: Micros) -> None:
        """Process the outputs of the first step in flight, which ends at `at`."""
        self._executing = False
        self._context.clock = max(at, self._context.clock)
        self._context.events += self.update(at)

    def end_empty(self, at: Micros) -> None:
        """Process the outputs of an empty batch: what transfers have brought, and what the caches hold anew."""
        self.process_empty(at)
        self.report_cache_changes(at, self._context.events)


def _new_drafter(
    context: EngineContext, kv: SlotCache, num_accepted: Callable[[Sequence, int], int] | None
) -> "tuple[Drafter, Callable[[ScheduledStep, int], BatchShape]]":
    from blis_sim.engine.scheduler.drafter import Drafter, step_shape  # other engines do without it

    return Drafter(context, kv, num_accepted), step_shape


def _new_offloader(context: EngineContext, offload: "OffloadConfig", kv: SlotCache, depth: int) -> "Offloader":
    from blis_sim.engine.kv_cache.grouped_cache import GroupedKVCache
    from blis_sim.engine.scheduler.offloader import Offloader  # other engines do without it

    assert isinstance(kv, GroupedKVCache)
    return Offloader(context, offload, kv, depth)
