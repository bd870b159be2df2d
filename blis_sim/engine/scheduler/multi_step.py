"""The loop that takes one step after the other, which the schedulers of all rule sets share."""

from abc import abstractmethod
from collections.abc import Callable

from blis_sim.engine.batch_shape import decodes
from blis_sim.engine.context import EngineContext
from blis_sim.engine.events import Event, Finished
from blis_sim.engine.kv_cache.block_pool import FreeRuns
from blis_sim.engine.latency.decode_steps import decode_timer
from blis_sim.engine.queue import EventKind
from blis_sim.engine.scheduler.cohort_steps import MIN_STEPS_AT_ONCE, CohortSteps
from blis_sim.engine.scheduler.interface import PauseState
from blis_sim.engine.scheduler.scheduled_step import NO_NEWCOMERS, NO_TOKENS, BatchGrowth, ScheduledStep
from blis_sim.engine.sequence import Sequence
from blis_sim.engine.units import Micros


class CohortScheduler(CohortSteps):
    """Takes steps of which up to `depth` are in flight: one executes, the others are already composed.

    A subclass composes steps in `schedule` and processes their outputs in `update`. The time between steps is zero.
    """

    __slots__ = ("_decode_time", "_ends_early", "_executing", "_growth", "_has_deadlines", "_is_late", "_planned")

    def __init__(
        self,
        context: EngineContext,
        reports_steps: bool,
        depth: int,
        max_decodes: int,
        free: FreeRuns,
        take: Callable[[int], None],
    ) -> None:
        """`free` and `take` are the free blocks of the cohort and how they are taken."""
        super().__init__(context, reports_steps, depth, max_decodes, free, take)
        self._executing = False
        """Whether the first step in flight has begun."""
        self._planned = False
        self._ends_early = False
        """Whether the outputs of a step are processed when it begins, and only reported when it ends."""
        self._decode_time = decode_timer(context.latency)
        self._has_deadlines = False
        """Whether `note_deadline` has anything to do."""
        self._growth: BatchGrowth | None = None
        """The largest batch so far, where larger ones make the host wait."""
        self._is_late = False
        """Whether the outputs of the first step in flight are processed when the second one ends."""

    @abstractmethod
    def schedule(self, at: Micros) -> bool:
        """Compose one step behind those in flight. False when no sequence can be granted a token now."""

    @abstractmethod
    def update(self, at: Micros) -> list[Event]:
        """Process the outputs of the first step in flight, which ends at `at`. Returns what is reported then."""

    @abstractmethod
    def give_first_tokens(self, newcomers: list[Sequence], step_index: int, at: Micros) -> list[Sequence]:
        """The step that computed the prompts of newcomers to the cohort ended. Returns those with a token from it."""

    @abstractmethod
    def complete(self, sequence: Sequence, at: Micros, finished: list[Event]) -> None:
        """The last token of a sequence has come."""

    @abstractmethod
    def begin(self, step: ScheduledStep, at: Micros) -> Micros:
        """Begin a step in which not only the cohort computes, or none does. Returns its end."""

    @abstractmethod
    def rest(self, at: Micros, ends_at: Micros, last: Micros) -> tuple[Micros, Micros]:
        """Repeat an empty step while nothing changes, up to one that begins by `last`. Returns its start and end."""

    @abstractmethod
    def join_cohort(self) -> None:
        """Let sequences that only decode join the cohort."""

    def note_deadline(self, sequence: Sequence) -> None:
        """Note the deadline of a request that begins to wait."""

    @property
    def num_running(self) -> int:
        return len(self.explicit) + len(self.cohort.members)

    @property
    def num_waiting(self) -> int:
        return len(self.waiting)

    @property
    def num_processed(self) -> int:
        """Index of the first step whose outputs have not been processed."""
        return self.next_step - len(self.in_flight)

    @property
    def num_begun_steps(self) -> int:
        return self.next_step - len(self.in_flight) + self._executing + self._is_late

    def enqueue(self, sequence: Sequence, at: Micros) -> None:
        if self._has_deadlines:
            self.note_deadline(sequence)
        self.waiting.append(sequence)
        if not self.in_flight:
            self._plan(at)

    def set_pause_state(self, pause_state: PauseState, at: Micros) -> None:
        self._admits = pause_state is PauseState.NONE
        self._composes = pause_state is not PauseState.EVERYTHING
        if not self.in_flight:
            self._plan(at)

    def step(self, at: Micros) -> None:
        self._planned = False
        if self._executing:
            self._compose(at)
        else:
            self._multi_step(at, self._last_free_instant())

    def step_ended(self, report: object, at: Micros) -> None:
        if self._ends_early:
            assert isinstance(report, list)
            self._context.events += report
            return
        self._executing = False
        if self._is_late:
            if (ends_at := self._update_late(at, [at])) is not None:
                self._pause(ends_at, at, [at, ends_at])
                return
        else:
            self._context.events += self.update(at)
        last = self._last_free_instant()
        if last >= at:
            self._multi_step(at, last)
            return
        if self.in_flight:
            ends_at = self._begin(at)
            self._pause(ends_at, at, [at, ends_at])
        self._plan(at)  # what else is due at this instant comes first

    def _plan(self, at: Micros) -> None:
        """Compose at `at`, after everything else of that instant."""
        if not self._planned:
            self._planned = True
            self._context.queue.push(at, EventKind.STEP)

    def _multi_step(self, at: Micros, last: Micros) -> None:  # noqa: C901 - one loop: calls would double its cost
        """Take steps from `at` on, at which none executes, up to the first that ends after `last`."""
        in_flight, cohort, waiting, depth, growth = self.in_flight, self.cohort, self.waiting, self._depth, self._growth
        needs, members, size, ends, free = cohort.needs, cohort.members, self._block_size, cohort.ends, self._free
        decode_time, most_decodes, most_running = self._decode_time, self._max_decode_only, self._most_running
        ends_early, reports_steps, counts_taken = self._ends_early, self._reports_steps, self._counts_taken_blocks
        most_calm, num_decodes, context, joins_freely = 0, 0, 0, self._admits and not self._limits_admission
        tokens, newcomers, index, instants = NO_TOKENS, NO_NEWCOMERS, self.next_step - len(in_flight), [at]
        while True:
            num_next, num_blocks = cohort.num_decodes, needs[(step := self.next_step) % size]
            may_join = waiting and len(members) < most_running
            if may_join or num_next > most_calm or not num_next or num_blocks > free.num_next:
                joins = may_join and 0 < most_calm >= num_next and joins_freely and self._blocked is None
                is_composed = self.compose_newcomers(at) if joins else not self.explicit and self.compose_cohort(at)
                if not is_composed or len(in_flight) < depth:
                    self._compose(at)
                    if not in_flight:
                        self._stop(at, instants, 0 if tokens or newcomers else num_decodes, context)
                        return
                    most_calm = most_decodes if self._is_decode_only() else 0
                elif not most_calm and self._is_decode_only():
                    most_calm = most_decodes
            else:  # as in `compose_cohort`
                if counts_taken:
                    self._take_blocks(num_blocks)
                elif num_blocks:  # as `CountingKVCache.take` takes them
                    free.num_next -= num_blocks
                    free.num_free -= num_blocks
                in_flight.append((num_next, cohort.offset + num_next * step, NO_TOKENS, NO_NEWCOMERS))
                self.next_step = step + 1
                if step in ends:
                    cohort.composed(step)
            num_decodes, context, tokens, newcomers = in_flight[0]
            if tokens or newcomers or not num_decodes:
                ends_at = self.begin(in_flight[0], at)
            else:
                ends_at = at + (step_us := decode_time(num_decodes, context))
                if ends_at < last and num_decodes == cohort.num_decodes:
                    most = (last - at) // step_us + 1  # contexts grow, so no more begin by `last`
                    if most >= MIN_STEPS_AT_ONCE and (most := self._num_equal_steps(most)) >= MIN_STEPS_AT_ONCE:
                        at, ends_at, context, index = self._take_many_steps(at, last, most, instants)
            instants.append(ends_at)
            if ends_early or (growth is not None and len(in_flight) > 1 and growth.is_exceeded(in_flight[1])):
                at, last = (self._end_early if ends_early else self._end_late)(ends_at, at, last, instants)
                if at > last:
                    return
                index, most_calm = self.next_step - len(in_flight), most_calm if self._is_decode_only() else 0
                continue
            if ends_at > last and ends_at > (last := self._caught_up(ends_at)):
                self._pause(ends_at, at, instants)
                return
            at = ends_at
            if tokens or self._must_update or reports_steps:
                self._context.steps.move_contiguous(instants)
                self._context.events += self.update(at)
            else:
                in_flight.popleft()  # what `update` does, where no more is to do
                if newcomers or index in ends:
                    self._give_outputs(newcomers, index, at)
            index += 1

    def _give_outputs(self, newcomers: list[Sequence], index: int, at: Micros) -> None:
        """Process the first tokens and the last tokens that the step of this index brought to members at `at`."""
        if newcomers:
            self.give_first_tokens(newcomers, index, at)
        if index in self.cohort.ends:
            for sequence in self.cohort.pop_ended(index):
                self.complete(sequence, at, self._context.events)

    def _is_decode_only(self) -> bool:
        """Whether the cohort alone computes, and takes blocks by their sums alone."""
        return (
            self._composes and not self.explicit and not self.cohort.num_filling and len(self.in_flight) == self._depth
        )

    def _end_late(self, ends_at: Micros, at: Micros, last: Micros, instants: list[Micros]) -> tuple[Micros, Micros]:
        """Begin the second step in flight at `ends_at`, the end of the first, which began at `at`, and process the
        outputs of both when it ends: the host waits for a step that it has just launched.

        Returns that instant and the last free one; if that is before, nothing more can be done now.
        """
        self._is_late, at = True, ends_at
        next_end: Micros | None = self.begin(self.in_flight[1], at)
        while next_end is not None:
            instants.append(next_end)
            if next_end > last and next_end > (last := self._caught_up(next_end)):
                self._pause(next_end, at, instants)
                return next_end, last
            at = next_end
            next_end = self._update_late(at, instants)
        return at, last

    def _update_late(self, at: Micros, instants: list[Micros]) -> Micros | None:
        """Process the outputs of a step that has long ended, and of the one that ends at `at`.

        The second of them waits as well where the step composed in between is the largest batch so far: that step has
        begun then, and its end is returned.
        """
        self._context.steps.move_contiguous(instants)
        self._context.steps.note_late(self.num_processed, at)
        self._context.events += self.update(at)
        if self.explicit or not self.compose_cohort(at):
            self._compose(at)
        if self._growth is not None and len(self.in_flight) > 1 and self._growth.is_exceeded(self.in_flight[1]):
            return self.begin(self.in_flight[1], at)
        self._is_late = False
        self._context.events += self.update(at)
        return None

    def _compose(self, at: Micros) -> None:
        """Compose steps until `depth` are in flight or nothing can be composed."""
        in_flight = self.in_flight
        if not self._composes:
            return
        while len(in_flight) < self._depth:
            if self.explicit:
                self.join_cohort()
            if not self.explicit and self.compose_cohort(at):
                continue
            if not (self.explicit or self.cohort.members or self.waiting):
                return
            # Evicting alone may be all it does; what that frees can be granted at once.
            if not self.schedule(at) and (in_flight or not self.preempted):
                return

    def _begin(self, at: Micros) -> Micros:
        """Begin the first step in flight. Returns its end."""
        step = self.in_flight[0]
        return self.begin(step, at) if step[2] or step[3] else at + self._decode_time(step[0], step[1])

    def _stop(self, at: Micros, instants: list[Micros], num_decodes: int, context: int) -> None:
        """Stop at `at`, where nothing can be computed after a step in which so many of the cohort decoded, if any."""
        engine_context = self._context
        engine_context.steps.move_contiguous(instants)
        engine_context.clock = max(at, engine_context.clock)
        if num_decodes:
            engine_context.last_shape = decodes(num_decodes, context)

    def _pause(self, ends_at: Micros, at: Micros, instants: list[Micros]) -> None:
        """Wait for the end of the executing step, which began at `at`: something else is due before.

        `instants` are the starts of steps that are not in the log, and the end of the last of these.
        """
        self._context.steps.move_contiguous(instants)
        engine_context = self._context
        num_decodes, context, tokens, newcomers = self.in_flight[0]
        if not tokens and not newcomers:
            engine_context.last_shape = decodes(num_decodes, context)
        self._executing = True
        engine_context.clock = max(at, engine_context.clock)
        engine_context.queue.push(ends_at, EventKind.STEP_END)

    def _end_early(self, ends_at: Micros, at: Micros, last: Micros, instants: list[Micros]) -> tuple[Micros, Micros]:
        """Process the outputs of the step that began at `at`, to be reported when it ends.

        Returns its end and the last free instant; if that is before, nothing more can be done now. Of `instants`, the
        starts of steps that are not in the log and the end of the last of these, the last one alone stays.
        """
        self._context.steps.move_contiguous(instants)
        engine_context = self._context
        num_decodes, context, tokens, newcomers = self.in_flight[0]
        if not num_decodes and not tokens and not newcomers and ends_at <= last:
            at, ends_at = self.rest(at, ends_at, last)
            instants[0] = ends_at
        events = self.update(ends_at)
        if ends_at <= last:
            engine_context.events += events
            return ends_at, last
        if num_decodes and not tokens and not newcomers:
            engine_context.last_shape = decodes(num_decodes, context)
        has_finished = bool(events) and isinstance(events[-1], Finished)
        self._planned = bool(self.num_running or self.waiting)
        # With nothing left to do, an arrival begins the next step at once, even before this one ends.
        last = self._caught_up(ends_at) if self._planned else self._last_free_instant()
        if ends_at > last:
            engine_context.clock = max(at, engine_context.clock)
            if events:
                engine_context.queue.push(ends_at, EventKind.STEP_END, events)
            if has_finished:
                engine_context.queue.push(ends_at, EventKind.DEPARTURE)
            if self._planned:
                engine_context.queue.push(ends_at, EventKind.STEP)
            return ends_at, last
        self._planned = False
        engine_context.events += events
        return ends_at, last

    def _last_free_instant(self) -> Micros:
        """Up to when steps may be taken without looking at anything else."""
        others_at, until = self._context.queue.next_at(), self._context.until
        return until if others_at is None or others_at > until else others_at - 1

    def _caught_up(self, ends_at: Micros) -> Micros:
        """Let requests come and go that do so during a step: they only queue up. Returns the last free instant."""
        engine_context = self._context
        until = engine_context.until
        next_at = engine_context.queue.next_at() if ends_at > until else engine_context.catch_up(ends_at - 1)
        return until if next_at is None or next_at > until else next_at - 1
