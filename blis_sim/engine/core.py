"""One simulated vLLM instance: it takes the time as an argument and reports events. Pure, synchronous, in integer
microseconds.
"""

from bisect import bisect_right
from collections.abc import Callable, Container, Mapping
from collections.abc import Sequence as SequenceOf
from typing import TYPE_CHECKING, ClassVar

from blis_sim.engine.batch_shape import BatchShape
from blis_sim.engine.config import EngineConfig, max_always_accepted_tokens, refusal_reason
from blis_sim.engine.context import EngineContext, StepLog, nothing_due
from blis_sim.engine.errors import EngineError
from blis_sim.engine.events import Event, EventKind, Payload
from blis_sim.engine.latency.model import LatencyModel
from blis_sim.engine.latency.request_timing import RequestTiming
from blis_sim.engine.request import Request
from blis_sim.engine.scheduler.interface import KVUsage, PauseState
from blis_sim.engine.scheduler.policies import PRIORITIES
from blis_sim.engine.scheduler.registry import ENGINES
from blis_sim.engine.sequence import Outcome, Sequence
from blis_sim.engine.stats import EngineCounters, EngineStats
from blis_sim.engine.units import Micros

if TYPE_CHECKING:
    from blis_sim.engine.scheduler.blis import BlisScheduler
    from blis_sim.engine.scheduler.vllm import VllmScheduler

# The API server process before an engine: it prepares requests in the order in which they arrive.


class FrontEnd:
    """The way of requests from their arrival until they join the wait queue.

    Prompts are tokenized one after the other, so no request overtakes one that arrived before it. Where the event loop
    works `request_us` for each request first, requests that arrive together wait until that is done for all of them.
    The loop takes up every new request before it goes on with one that it has begun.
    """

    def __init__(self, request_us: Micros = 0) -> None:
        self.request_us = request_us
        self._arrived_at: Micros = -1
        self._ready_at: Micros = 0
        self._arrivals: list[Micros] = []
        self._done: list[Micros] = []
        """When the loop has taken up each of `_arrivals`."""
        self._begun: set[str] = set()
        """Requests that the loop has taken up and not gone on with."""

    def ready_at(self, request_id: str, at: Micros, queueing_us: Micros) -> Micros:
        """Return when a request that arrives at `at` is prepared, if it is alone for `queueing_us`."""
        if self.request_us:
            self._arrivals.append(at)
            self._done.append(max(at, self._done[-1] if self._done else 0) + self.request_us)
            self._begun.add(request_id)
            queueing_us += self._done[-1] - at
        ready_at = at + queueing_us
        if at < self._arrived_at:  # a driver may let requests enter in another order than they arrived
            return ready_at
        self._arrived_at = at
        self._ready_at = max(ready_at, self._ready_at)
        return self._ready_at

    def goes_on_at(self, request_id: str, at: Micros) -> Micros:
        """Return when the loop goes on with a request that could have gone on at `at`: then, or later once."""
        if request_id not in self._begun:
            return at
        self._begun.remove(request_id)
        taken = bisect_right(self._arrivals, at)
        later = self._done[taken - 1]
        del self._arrivals[: taken - 1], self._done[: taken - 1]
        return max(at, later)


# One simulated vLLM instance: it takes the time as an argument and reports events. Pure, synchronous, in integer
# microseconds.
#
# Read this first: the life of a request outside of steps. A request arrives, waits out its queueing overhead, passes
# the admission checks, and is handed to a scheduler, which schedules it step by step to its end.

_STEP_END, _QUEUED, _DEADLINE = EventKind.STEP_END, EventKind.QUEUED, EventKind.DEADLINE


class Engine:
    """The engine of one instance. Two drivers advance it: virtual time jumps, real time sleeps.

    `submit` and `abort` name an instant after everything already done; `advance` does all that is due. How often or
    how far a driver advances changes no instant.
    """

    vain_kills: ClassVar[tuple[Micros, ...]] = ()
    """Only a cluster kills instances."""

    def __init__(
        self,
        config: EngineConfig,
        latency: LatencyModel,
        reports_steps: bool = True,
        steps: StepLog | None = None,
        reports_admissions: bool = True,
        reports_batches: bool = False,
    ) -> None:
        """`steps` is where steps are recorded, by default all of them for good.

        Without `reports_admissions` there are no events `Scheduled`. With `reports_batches`, which needs
        `reports_steps`, there are events `BatchDone`.
        """
        self.config = config
        self.latency = latency
        self.first_number = 0
        """The number among all engines of a cluster; `Sequence.instance` is the number of an engine."""
        self.now: Micros | None = None
        """The instant up to which the engine has been advanced; None before the first time."""
        self._context = EngineContext(config, latency, self._catch_up, steps, reports_admissions)
        self._context.reports_batches = reports_batches
        self._queue = self._context.queue
        self._front_end = FrontEnd(config.front_end_us) if config.engine == "vllm" else None
        self._scheduler = ENGINES[config.engine](self._context, reports_steps)
        self._reports_steps, self._ends_late_requests = reports_steps, config.urgency.ends_late_requests
        self._max_always_accepted_tokens = max_always_accepted_tokens(config)
        self._priority = PRIORITIES[config.priority_policy](config.slo_priorities, config.age_scores)

    def report_batches(self) -> None:
        """Report an event `BatchDone` for each step from now on, as with `reports_batches`."""
        self._context.reports_batches = True

    def submit(self, request: Request, at: Micros) -> Sequence:
        """Let `request` arrive at `at`. Returns its sequence, for reading.

        `at` may be in the past, because an arrival alone changes nothing. Raises ValueError if the request would have
        joined the wait queue by now, and for an id still in use.
        """
        sequence = Sequence(request, at)
        self.enter(sequence, at)
        return sequence

    def submit_all(self, requests: SequenceOf[Request], instants: SequenceOf[Micros]) -> list[Sequence]:
        """Let each of `requests` arrive at its instant, which ascend; as `submit`, at less cost for each."""
        sequences = list(map(Sequence, requests, instants))
        self.enter_all(sequences)
        return sequences

    def enter_all(self, sequences: SequenceOf[Sequence]) -> Micros | None:
        """Let requests enter this engine at the instants of their arrivals; otherwise as `submit`.

        Returns the instant at which the first request joins the wait queue.
        """
        live, queueing_time, front_end = self._context.live, self.latency.queueing_timer(), self._front_end
        now = -1 if self.now is None else self.now
        instants: list[Micros] = []
        try:
            for sequence in sequences:
                request, at = sequence.request, sequence.arrived_at
                queued_at = at + queueing_time(sequence.input_tokens)
                if front_end is not None:
                    queued_at = front_end.ready_at(request.id, at, queued_at - at)
                if request.external is not None:
                    queued_at += request.external.transfer_us
                if queued_at <= now:
                    self._check_is_ahead(queued_at)
                request_id = request.id
                if request_id in live:
                    raise ValueError(f"request {request_id!r} is still in the engine")
                live[request_id] = sequence
                instants.append(queued_at)
        finally:
            self._queue.push_queued(instants, sequences)
        return min(instants, default=None)

    def enter(self, sequence: Sequence, at: Micros) -> Micros:
        """Let a request that arrived elsewhere enter this engine at `at`; otherwise as `submit`.

        Returns the instant at which it joins the wait queue.
        """
        request, live = sequence.request, self._context.live
        queued_at = at + self.queueing_time(request)
        self._check_is_ahead(queued_at)
        if self._front_end is not None:
            transfer_us = 0 if request.external is None else request.external.transfer_us
            queueing_us = queued_at - at - transfer_us
            queued_at = self._front_end.ready_at(request.id, at, queueing_us) + transfer_us
        request_id = request.id
        if request_id in live:
            raise ValueError(f"request {request_id!r} is still in the engine")
        live[request_id] = sequence
        # Requests that join the wait queue at one instant do so in the order in which they arrived, and those of one
        # message in their own.
        self._queue.push(queued_at, _QUEUED, sequence, queued_at if request.follows else at)
        return queued_at

    def queueing_time(self, request: Request) -> Micros:
        """Return the time from the arrival of a request until it joins the wait queue, its transfer included."""
        queueing_us = self.latency.queueing_time(request.input_tokens)
        return queueing_us if request.external is None else queueing_us + request.external.transfer_us

    def abort(self, request_id: str, at: Micros, outcome: Outcome = Outcome.ABORTED) -> None:
        """Let the client of `request_id` hang up at `at`; ids without a live request are ignored.

        `outcome` is the outcome of the request.
        """
        self._check_is_ahead(at)
        self._queue.push(at, EventKind.ABORT, (request_id, outcome))

    def abort_elsewhere(self, sequence: Sequence, at: Micros, outcome: Outcome) -> None:
        """Let the client of a request hang up at `at` that is on its way to one of several engines. It ends here."""
        self._context.live[sequence.request.id] = sequence
        self.abort(sequence.request.id, at, outcome)

    def hold(self, hold: PauseState, at: Micros) -> None:
        """Suspend scheduling to the extent of `hold`, or resume it, from `at` on, which must be ahead."""
        self._check_reports_steps()
        self._check_is_ahead(at)
        self._scheduler.set_pause_state(hold, at)

    def reset_prefix_cache(self, at: Micros, preempts_running: bool = False) -> bool:
        """Empty the prefix cache. Returns False, and changes nothing, while any block is held.

        With `preempts_running` all running requests are preempted first, at `at`, which must be ahead.
        """
        self._check_reports_steps()
        self._check_is_ahead(at)
        if preempts_running:
            self._scheduler.preempt_all(at)
        return self._scheduler.kv.forget()

    def shrink_cache(self, num_blocks: int, at: Micros) -> None:
        """Withhold `num_blocks` KV blocks, or all free ones, from all requests from `at` on, which must be ahead.

        0 gives all blocks back. Raises EngineError with BLIS's scheduling.
        """
        self._check_reports_steps()
        self._check_is_ahead(at)
        from blis_sim.engine.scheduler.fixed_timing import FixedTimingScheduler  # loaded on demand
        from blis_sim.engine.scheduler.vllm import VllmScheduler

        if not isinstance(self._scheduler, VllmScheduler | FixedTimingScheduler):
            raise EngineError(f"KV blocks can only be withheld with vLLM's scheduling, not with {self.config.engine}")
        self._scheduler.shrink_cache(num_blocks, at)

    @property
    def timing(self) -> RequestTiming | None:
        """The set times; None where the engine computes them."""
        from blis_sim.engine.scheduler.fixed_timing import FixedTimingScheduler  # loaded on demand

        return self._scheduler.timing if isinstance(self._scheduler, FixedTimingScheduler) else None

    def set_timing(self, timing: RequestTiming) -> None:
        """Take the times of all tokens to come from `timing`; those awaited already stay due when they were.

        Raises EngineError where the engine computes its times.
        """
        from blis_sim.engine.scheduler.fixed_timing import FixedTimingScheduler

        if not isinstance(self._scheduler, FixedTimingScheduler):
            raise EngineError("times can only be set where none are computed")
        self._scheduler.set_timing(timing)

    def reserve(self, sequence: Sequence) -> bool:
        """Hold blocks for the whole prompt of a request that another instance has computed, as its transfer begins.

        Returns False, and changes nothing, when too few blocks are free. Raises EngineError except with BLIS's
        scheduling; other schedulers read `Request.external`.
        """
        return self._blis_scheduler.reserve(sequence)

    def release_reservation(self, sequence: Sequence) -> None:
        """Free the blocks of a `reserve`d prompt that will not arrive."""
        self._blis_scheduler.release_reservation(sequence)

    def enqueue_reserved(self, sequence: Sequence, at: Micros) -> None:
        """Let a request join the wait queue at `at`, which must be ahead, with the prompt that was reserved for it.

        The request has waited out its overheads and passed the admission checks where its prompt was computed, and has
        no deadline here.
        """
        self._check_is_ahead(at)
        self._queue.push(at, EventKind.RESERVED_QUEUED, sequence)

    def next_event_at(self) -> Micros | None:
        """The next instant at which something is due; None when idle."""
        return self._queue.next_at()

    @property
    def takes_only_empty_steps(self) -> bool:
        """Whether every step is empty until something other than a step is due."""
        return self._scheduler.takes_only_empty_steps

    def next_change_at(self) -> Micros | None:
        """The next instant at which something other than an empty step is due; None if nothing is."""
        return self._queue.next_but_steps_at() if self._scheduler.takes_only_empty_steps else self._queue.next_at()

    def advance(self, until: Micros, allows_multi_step: bool = False) -> list[Event]:
        """Do everything due up to and including `until`; return the events in the order they happened.

        With `allows_multi_step` steps in which every request decodes may be reported together, as `StepsDone`, unless
        batches are reported.
        """
        context = self._context
        context.allows_multi_step = allows_multi_step and not context.reports_batches
        events = context.events  # some there already when a reset preempted
        context.until = until
        self._do_due(until)
        if self.now is None or until > self.now:
            self.now = until
        context.events = []
        return events

    def advance_numbered(self, until: Micros) -> list[tuple[int, list[Event]]]:
        """Return the events of `advance` behind the number of this engine; nothing without events."""
        events = self.advance(until)
        return [(self.first_number, events)] if events else []

    def note_load_by(self, note_load: Callable[[Micros, bool], None]) -> None:
        """Let `note_load` be called where vLLM's core reports its load, as `EngineContext.note_load` says."""
        self._context.note_load = note_load

    def lockstep_scheduler(self) -> "VllmScheduler":
        """Return the scheduler, whose steps the caller composes, begins and ends from then on.

        Raises EngineError with pipeline stages and for other scheduling than vLLM's.
        """
        from blis_sim.engine.scheduler.vllm import VllmScheduler

        if not isinstance(self._scheduler, VllmScheduler):
            raise EngineError(
                "--data-parallel-size must be 1 for a model with experts and other scheduling than vLLM's, "
                f"got --engine {self.config.engine}"
            )
        if self.config.pipeline is not None:
            raise EngineError("only steps without pipeline stages can be taken together")
        self._scheduler.enable_lockstep()
        return self._scheduler

    @property
    def instances(self) -> "tuple[Engine, ...]":
        """This engine alone; a cluster has several."""
        return (self,)

    @property
    def live(self) -> Mapping[str, Sequence]:
        """Requests that have entered this engine and not ended, by id."""
        return self._context.live

    @property
    def clock(self) -> Micros:
        """Instant of the last event: the end of the simulated run."""
        # A past arrival counts as an event, although nothing follows from it yet.
        passed = (at for at in self._queue.ranks(_QUEUED) if self.now is not None and at <= self.now)
        return max(self._context.clock, max(passed, default=0))

    @property
    def reports_steps(self) -> bool:
        """Whether there is an event for each step."""
        return self._reports_steps

    @property
    def steps(self) -> StepLog:
        """When each step started and ended."""
        return self._context.steps

    @property
    def num_begun_steps(self) -> int:
        """Number of steps that have begun; the log may lack the latest one. While the latency model times a step, this
        is the number of that step."""
        return self._scheduler.num_begun_steps

    @property
    def counters(self) -> EngineCounters:
        """Return the counters of all that has happened so far."""
        return self._context.counters

    @property
    def num_ended(self) -> int:
        """Number of requests that have ended."""
        return sum(self._context.counters.ended.values())

    def cached_identities(self) -> Container[object]:
        """The identities of the blocks that can be found: a view, which changes with the cache."""
        return self._scheduler.kv.index.identities()

    def cached_identities_now(self) -> Container[object]:
        """The identities of the blocks that can be found at this instant."""
        return self._scheduler.kv.index.identities_now()

    @property
    def kv(self) -> KVUsage:
        """The KV cache, for reading."""
        return self._scheduler.kv

    @property
    def last_shape(self) -> BatchShape:
        """Return the shape of the latest step."""
        return self._context.last_shape

    @property
    def stats(self) -> EngineStats:
        """Current gauges of the engine."""
        kv = self._scheduler.kv
        return EngineStats(
            num_running=self._scheduler.num_running,
            num_waiting=self._scheduler.num_waiting,
            kv_blocks_total=kv.num_blocks,
            kv_blocks_used=kv.num_used_blocks,
            num_preemptions=self.counters.num_preemptions,
            prefix_hit_tokens=kv.hit_tokens,
            num_deferred=self._scheduler.num_deferred,
        )

    def check_integrity(self) -> None:
        """Raise AssertionError when blocks or requests were lost or counted twice (INV-1, INV-4)."""
        self._scheduler.kv.check()
        counters = self.counters
        present = self._scheduler.num_running + self._scheduler.num_waiting
        ended = sum(counters.ended.values())
        assert counters.num_enqueued == ended + present, (
            f"{counters.num_enqueued} requests queued, but {ended} ended and {present} are present"
        )

    def release(self) -> None:
        """Free the step log of an idle engine that does nothing more, and the cycle of references that holds it."""
        self._context.steps = StepLog()
        self._context.catch_up = nothing_due

    def _check_is_ahead(self, at: Micros) -> None:
        if self.now is not None and at <= self.now:
            raise ValueError(f"the engine has already done everything up to {self.now} us, so not at {at} us")

    @property
    def _blis_scheduler(self) -> "BlisScheduler":
        from blis_sim.engine.scheduler.blis import BlisScheduler  # engines of other schedulings do not need it

        if not isinstance(self._scheduler, BlisScheduler):
            raise EngineError(f"blocks can only be reserved with BLIS's scheduling, not with {self.config.engine}")
        return self._scheduler

    def _check_reports_steps(self) -> None:
        if not self._reports_steps:
            raise ValueError("an engine that does not report its steps takes many at once and cannot be interrupted")

    def _catch_up(self, until: Micros) -> Micros | None:
        """Do everything due up to and including `until`. Returns when something is due next."""
        self._do_due(until)
        return self._queue.next_at()

    def _do_due(self, until: Micros) -> None:
        queue = self._queue
        while (entry := queue.pop_due(until)) is not None:
            at, due, _, _, payload = entry
            if due == _QUEUED:
                self._context.clock = at
                self._enqueue(payload, at)
            elif due == _STEP_END:
                self._scheduler.step_ended(payload, at)
            else:
                self._execute(at, due, payload)

    def _execute(self, at: Micros, due: int, payload: Payload) -> None:
        if isinstance(payload, tuple):
            request_id, outcome = payload
            self._execute_abort(request_id, outcome, at)
        elif due == EventKind.RESERVED_QUEUED:
            assert isinstance(payload, Sequence)
            self._accept(payload, at)
        elif isinstance(payload, Sequence):
            self._context.clock = at
            self._scheduler.remove(payload, Outcome.TIMED_OUT, at)
        else:
            self._context.clock = at
            if due == EventKind.STEP:
                self._scheduler.step(at)

    def _enqueue(self, sequence: Sequence, at: Micros) -> None:
        if sequence.outcome is not None:
            return
        if self.config.front_end_us and self._front_end is not None:
            later = self._front_end.goes_on_at(sequence.request.id, at)
            if later > at:
                self._queue.push(later, _QUEUED, sequence, sequence.arrived_at)
                return
        context, request, priority = self._context, sequence.request, self._priority
        counters, input_tokens, most = context.counters, sequence.input_tokens, self._max_always_accepted_tokens
        counters.num_enqueued += 1
        is_usual = 0 < input_tokens <= most and 0 < sequence.max_output_tokens <= most
        if not is_usual and not self._passes_admission_checks(sequence, at):
            return
        counters.input_tokens += input_tokens
        if self._ends_late_requests and (deadline_us := request.deadline_us) > 0:
            if deadline_us <= at:
                context.end_and_report(sequence, Outcome.TIMED_OUT, at)
                return
            self._queue.push(deadline_us, _DEADLINE, sequence)
        sequence.priority = priority(request, sequence.arrived_at)
        sequence.queued_at = at
        self._scheduler.enqueue(sequence, at)

    def _passes_admission_checks(self, sequence: Sequence, at: Micros) -> bool:
        """Whether a request passes the admission checks; max_model_len gives a budget to one without."""
        input_tokens, max_model_len = sequence.input_tokens, self.config.max_model_len
        if sequence.max_output_tokens == 0 and input_tokens < max_model_len:
            sequence.max_output_tokens = max_model_len - input_tokens
        reason = refusal_reason(self.config, input_tokens, sequence.max_output_tokens)
        if reason is not None:
            self._context.end_and_report(sequence, Outcome.DROPPED, at, reason)
        return reason is None

    def _accept(self, sequence: Sequence, at: Micros) -> None:
        """Add a request whose computed prompt has arrived to the wait queue."""
        self._context.clock = at
        self._context.live[sequence.request.id] = sequence
        self.counters.num_enqueued += 1
        sequence.priority = self._priority(sequence.request, sequence.arrived_at)
        sequence.queued_at = at
        self._scheduler.enqueue(sequence, at)

    def _execute_abort(self, request_id: str, outcome: Outcome, at: Micros) -> None:
        sequence = self._context.live.get(request_id)
        if sequence is None or at < sequence.arrived_at:
            return
        self._context.clock = at
        if sequence.queued_at is None:
            self.counters.num_enqueued += 1  # it never reached the queue, yet it ends here and must be counted
            self._context.end_and_report(sequence, outcome, at)
        else:
            self._scheduler.remove(sequence, outcome, at)
