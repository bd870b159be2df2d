"""The common part of the schedulers of all rule sets: steps in flight, a cohort of decodes, and many steps taken at
once."""

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from blis_sim.engine.batch_shape import decodes
from blis_sim.engine.events import Event, Finished, StepsDone
from blis_sim.engine.instance import Instance
from blis_sim.engine.kv_cache.free_runs import FreeRuns
from blis_sim.engine.latency.decode_steps import decode_timer
from blis_sim.engine.queue import Due
from blis_sim.engine.scheduler.cohort import DecodeCohort, running_number
from blis_sim.engine.scheduler.hold import Hold
from blis_sim.engine.scheduler.leap import MAX_LEAP_STEPS, MIN_LEAP_STEPS, Leaper
from blis_sim.engine.sequence import Sequence
from blis_sim.engine.units import Micros

MOST_TOLD_STEPS = 64
"""Most steps reported in one event: they are also sent at once, so a larger number is of no use."""


@dataclass(slots=True)
class ScheduledTokens:
    """Tokens that one sequence computes in a step, and whether the step will sample a token for it."""

    sequence: Sequence
    num_tokens: int
    context_tokens: int
    """Computed before the step, those in flight included."""
    known_tokens: int
    """Prompt and output that existed when the step was composed."""
    samples: bool


ScheduledStep: TypeAlias = tuple[int, int, list[ScheduledTokens], list[Sequence]]
"""How many sequences of the cohort decode, the sum of their contexts, the tokens of other sequences, and newcomers to
the cohort, which compute their whole prompts."""

NO_TOKENS: list[ScheduledTokens] = []
"""Tokens of steps in which only the cohort and newcomers to it compute. The list is never changed."""
NO_NEWCOMERS: list[Sequence] = []
"""Newcomers of all other steps. The list is never changed."""


class CohortScheduler(ABC):
    """Takes steps of which up to `depth` are in flight: one executes, the others are already composed.

    A subclass composes steps in `schedule` and processes their outputs in `update`. The time between steps is zero.
    """

    def __init__(
        self,
        instance: Instance,
        reports_steps: bool,
        depth: int,
        max_decodes: int,
        free: FreeRuns,
        take: Callable[[int], None],
    ) -> None:
        """`free` and `take` are the free blocks of the cohort and how they are taken."""
        self._instance = instance
        self._depth = depth
        self._max_decodes = max_decodes
        """With more decodes the order of admission decides which of them fit the budget."""
        self._free = free
        self._take_blocks = take
        self._block_size = instance.config.block_size_tokens
        self.cohort = DecodeCohort(self._block_size)
        self.explicit: list[Sequence] = []
        """Running and not in the cohort, in order of admission."""
        self.waiting: deque[Sequence] = deque()
        self.preempted: list[Sequence] = []
        """Sequences preempted by the latest `schedule`."""
        self.flight: deque[ScheduledStep] = deque()
        """Steps that have not ended, at most `depth`."""
        self.next_step = 0
        """Index of the step to be composed next."""
        self._executing = False
        """Whether the first step in flight has begun."""
        self._planned = False
        self._admits = True
        """Whether waiting sequences may join."""
        self._composes = True
        """Whether steps may be composed."""
        self._latest_explicit = -1
        """The latest composed step with sequences that are not in the cohort."""
        self._ends_early = False
        """Whether the outputs of a step are processed when it begins, and only reported when it ends."""
        self._must_update = False
        """Whether the end of the executing step changes more than the number of tokens."""
        self._reports_steps = reports_steps
        self._decode_time = decode_timer(instance.latency)
        self._take_steps = Leaper(instance).take

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
    def complete(self, sequence: Sequence, at: Micros, finished: list[Finished]) -> None:
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

    @abstractmethod
    def compose_newcomers(self, at: Micros) -> bool:
        """Compose a step of the cohort and of sequences that join it at once. False, and nothing changed, otherwise."""

    @abstractmethod
    def is_blocked(self) -> bool:
        """Whether no waiting sequence can join while nothing but the number of tokens changes."""

    @property
    def num_running(self) -> int:
        return len(self.explicit) + len(self.cohort.members)

    @property
    def num_waiting(self) -> int:
        return len(self.waiting)

    @property
    def num_processed(self) -> int:
        """Index of the first step whose outputs have not been processed."""
        return self.next_step - len(self.flight)

    @property
    def num_begun_steps(self) -> int:
        return self.next_step - len(self.flight) + self._executing

    def enqueue(self, sequence: Sequence, at: Micros) -> None:
        self.waiting.append(sequence)
        if not self.flight:
            self._plan(at)

    def set_hold(self, hold: Hold, at: Micros) -> None:
        self._admits = hold is Hold.NONE
        self._composes = hold is not Hold.EVERYTHING
        if not self.flight:
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
            self._instance.events += report
            return
        self._executing = False
        self._instance.events += self.update(at)
        last = self._last_free_instant()
        if last >= at:
            self._multi_step(at, last)
            return
        if self.flight:
            self._pause(self._begin(at), at)
        self._plan(at)  # what else is due at this instant comes first

    def _plan(self, at: Micros) -> None:
        """Compose at `at`, after everything else of that instant."""
        if not self._planned:
            self._planned = True
            self._instance.queue.push(at, Due.STEP)

    def _multi_step(self, at: Micros, last: Micros) -> None:  # noqa: C901 - one loop: calls would double its cost
        """Take steps from `at` on, at which none executes, up to the first that ends after `last`."""
        flight, cohort, ends, depth = self.flight, self.cohort, self.cohort.ends, self._depth
        record, decode_time, ends_early = self._instance.steps.append, self._decode_time, self._ends_early
        num_decodes, context, tokens, newcomers = 0, 0, NO_TOKENS, NO_NEWCOMERS
        while True:
            if self.explicit or not self.compose_cohort(at) or len(flight) < depth:
                self._compose(at)
                if not flight:
                    self._instance.clock = max(at, self._instance.clock)
                    if num_decodes and not tokens and not newcomers:
                        self._instance.last_shape = decodes(num_decodes, context)
                    return
            num_decodes, context, tokens, newcomers = flight[0]
            if tokens or newcomers or not num_decodes:
                ends_at = self.begin(flight[0], at)
                record(at, ends_at)
                if not tokens and not newcomers and ends_at <= last:
                    at, ends_at = self.rest(at, ends_at, last)
            else:
                ends_at = at + decode_time(num_decodes, context)
                # Steps take ever longer as contexts grow, so this is how many can begin by `last` at most.
                is_steady = ends_at < last and num_decodes == cohort.num_decodes
                most = self._num_equal_steps((last - at) // (ends_at - at) + 1) if is_steady else 0
                if most >= MIN_LEAP_STEPS:
                    at, ends_at = self._leap(at, last, most)
                    context = flight[0][1]
                else:
                    record(at, ends_at)
            if ends_early:
                last = self._end_early(ends_at, at, last)
                if ends_at > last:
                    return
                at = ends_at
                continue
            if ends_at > last:
                last = self._caught_up(ends_at)
                if ends_at > last:
                    self._pause(ends_at, at)
                    return
            at = ends_at
            if tokens or self._must_update or self._reports_steps:
                self._instance.events += self.update(at)
                continue
            index = self.next_step - len(flight)
            flight.popleft()  # what `update` does, where no more is to do
            if newcomers:
                self.give_first_tokens(newcomers, index, at)
            if index in ends:
                finished: list[Finished] = []
                for sequence in cohort.pop_ended(index):
                    self.complete(sequence, at, finished)
                self._instance.events += finished

    def _compose(self, at: Micros) -> None:
        """Compose steps until `depth` are in flight or nothing can be composed."""
        flight = self.flight
        if not self._composes:
            return
        while len(flight) < self._depth:
            if self.explicit:
                self.join_cohort()
            if not self.explicit and self.compose_cohort(at):
                continue
            if not (self.explicit or self.cohort.members or self.waiting):
                return
            # Evicting alone may be all it does; what that frees can be granted at once.
            if not self.schedule(at) and (flight or not self.preempted):
                return

    def compose_cohort(self, at: Micros) -> bool:
        """Compose a step of the cohort and newcomers to it. False, and nothing changed, if others may compute, too."""
        cohort, step = self.cohort, self.next_step
        num_decodes = cohort.num_decodes
        if num_decodes > self._max_decodes or not self._composes:
            return False
        if self.waiting and not self.is_blocked():
            return self.compose_newcomers(at)
        num_blocks, free = cohort.needs[step % self._block_size], self._free
        if num_blocks > free.num_free or not num_decodes:
            return False
        if num_blocks:
            self._take_blocks(num_blocks)
        self.flight.append((num_decodes, cohort.offset + num_decodes * step, NO_TOKENS, NO_NEWCOMERS))
        self.next_step = step + 1
        if step in cohort.ends:
            cohort.composed(step)
        return True

    def _num_equal_steps(self, most: int) -> int:
        """How many of the next `most` steps can be taken at once: the cohort alone computes and stays what it is."""
        cohort, step, depth = self.cohort, self.next_step, self._depth
        first = step - depth
        if most < MIN_LEAP_STEPS or cohort.latest_join > first or self._latest_explicit >= first:
            return 0
        if self.explicit or self._must_update or len(self.flight) < depth or (self.waiting and not self.is_blocked()):
            return 0
        if self._reports_steps and (not self._instance.leaps or most > MOST_TOLD_STEPS):
            most = MOST_TOLD_STEPS if self._instance.leaps else 0
        end = cohort.next_end()
        # The last step may be composed without members whose end is foreseen, but not without all.
        until_end = end - step + (3 if depth > 1 and len(cohort.ends[end]) < cohort.num_decodes else 2)
        if most > until_end:
            most = until_end
        if most < MIN_LEAP_STEPS:
            return 0
        if most > MAX_LEAP_STEPS:
            most = MAX_LEAP_STEPS
        if cohort.num_decodes * (most // self._block_size + 1) <= self._free.num_free:  # at most a block more each
            return most
        return 1 + cohort.num_steps_within(step, most - 1, self._free.num_free)

    def _leap(self, at: Micros, last: Micros, most: int) -> tuple[Micros, Micros]:
        """Take up to `most` steps from `at` on, each of which begins by `last`. Returns start and end of the last."""
        flight, cohort, step, depth = self.flight, self.cohort, self.next_step, self._depth
        num_decodes, context, _, _ = flight[0]
        count, started_at, ends_at = self._take_steps(at, last, num_decodes, context, most)
        if count == 1:
            return started_at, ends_at
        last_step = step + count - 2
        flight.clear()
        for before in range(depth - 1, 0, -1):
            flight.append((num_decodes, cohort.offset + num_decodes * (last_step - before), NO_TOKENS, NO_NEWCOMERS))
        if last_step - 1 in cohort.ends and count > 2:
            num_blocks = cohort.num_blocks_in(step, count - 2)
            cohort.composed(last_step - 1)
            num_blocks += cohort.needs[last_step % self._block_size]
        else:
            num_blocks = cohort.num_blocks_in(step, count - 1)
        if num_blocks:
            self._take_blocks(num_blocks)
        num_decodes = cohort.num_decodes
        flight.append((num_decodes, cohort.offset + num_decodes * last_step, NO_TOKENS, NO_NEWCOMERS))
        self.next_step = last_step + 1
        if last_step in cohort.ends:
            cohort.composed(last_step)
        if self._reports_steps:
            first = step - depth
            ends = [self._instance.steps.end(index) for index in range(first, first + count - 1)]
            self._instance.events.append(StepsDone(ends, first, self._decoding_in(first)))
        return started_at, ends_at

    def _decoding_in(self, step: int) -> list[Sequence]:
        """Members of the cohort that have a token from `step`, in order of admission."""
        found: list[Sequence] = []
        for sequence in self.cohort.members:
            span = sequence.span
            if span is not None and span.first_step <= step <= span.last_step:
                found.append(sequence)
        found.sort(key=running_number)
        return found

    def _begin(self, at: Micros) -> Micros:
        """Begin the first step in flight. Returns its end."""
        step = self.flight[0]
        ends_at = self.begin(step, at) if step[2] or step[3] else at + self._decode_time(step[0], step[1])
        self._instance.steps.append(at, ends_at)
        return ends_at

    def _pause(self, ends_at: Micros, at: Micros) -> None:
        """Wait for the end of the executing step, which began at `at`: something else is due before."""
        instance = self._instance
        num_decodes, context, tokens, newcomers = self.flight[0]
        if not tokens and not newcomers:
            instance.last_shape = decodes(num_decodes, context)
        self._executing = True
        instance.clock = max(at, instance.clock)
        instance.queue.push(ends_at, Due.STEP_END)

    def _end_early(self, ends_at: Micros, at: Micros, last: Micros) -> Micros:
        """Process the outputs of the step that began at `at`, to be reported when it ends.

        Returns the last free instant; before its end nothing more can be done now.
        """
        instance = self._instance
        num_decodes, context, tokens, newcomers = self.flight[0]
        events = self.update(ends_at)
        if ends_at <= last:
            instance.events += events
            return last
        if num_decodes and not tokens and not newcomers:
            instance.last_shape = decodes(num_decodes, context)
        has_finished = bool(events) and isinstance(events[-1], Finished)
        self._planned = bool(self.num_running or self.waiting)
        # With nothing left to do, an arrival begins the next step at once, even before this one ends.
        last = self._caught_up(ends_at) if self._planned else self._last_free_instant()
        if ends_at > last:
            instance.clock = max(at, instance.clock)
            if events:
                instance.queue.push(ends_at, Due.STEP_END, events)
            if has_finished:
                instance.queue.push(ends_at, Due.DEPARTURE)
            if self._planned:
                instance.queue.push(ends_at, Due.STEP)
            return last
        self._planned = False
        instance.events += events
        return last

    def _last_free_instant(self) -> Micros:
        """Up to when steps may be taken without looking at anything else."""
        others_at, until = self._instance.queue.next_at(), self._instance.until
        return until if others_at is None or others_at > until else others_at - 1

    def _caught_up(self, ends_at: Micros) -> Micros:
        """Let requests come and go that do so during a step: they only queue up. Returns the last free instant."""
        instance = self._instance
        until = instance.until
        next_at = instance.queue.next_at() if ends_at > until else instance.catch_up(ends_at - 1)
        return until if next_at is None or next_at > until else next_at - 1
