"""State shared by the parts of one engine, and the log of steps: the single source of all token times."""

from array import array
from bisect import bisect_right
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from blis_sim.engine.batch_shape import BatchShape, RecentPrompts
from blis_sim.engine.config import EngineConfig
from blis_sim.engine.errors import EngineError
from blis_sim.engine.events import Event, EventQueue, Finished
from blis_sim.engine.kv_cache.changes import CacheChange
from blis_sim.engine.latency.model import LatencyModel
from blis_sim.engine.sequence import Outcome, Sequence
from blis_sim.engine.stats import EngineCounters
from blis_sim.engine.units import Micros

# Instants at which each step started and ended: the single source of all token times.

MAX_INSTANT_US: Micros = 2**63 - 1


class StepLog:
    """Start and end of every step, by index, at most 16 bytes a step. Consecutive busy steps touch.

    Steps keep their indices when earlier ones are forgotten; asking for the times of those raises IndexError.
    `durations`, `ends` and `output_instants` give the steps that are left.
    """

    __slots__ = ("_ends", "_late", "_shift", "_shifted_by", "_shifted_from", "_starts", "num_forgotten")

    def __init__(self) -> None:
        self._late: dict[int, Micros] = {}
        """Instants at which the outputs of steps were processed, of those that waited for the next one to end."""
        self._starts = array("q")
        """Starts of the first steps; each of the others starts when the one before it ends."""
        self._ends = array("q")
        """Ends of all steps; the latest ends lack shifts, which are added to all at once when an end is read."""
        self._shift: Micros = 0
        """The shift that the end of the latest step lacks."""
        self._shifted_from: list[int] = []
        """The first steps that lack a shift other than that of the step before."""
        self._shifted_by: list[Micros] = []
        self.num_forgotten = 0
        """The steps before this index have no times any more."""

    def __len__(self) -> int:
        return self.num_forgotten + len(self._ends)

    def append(self, started_at: Micros, ended_at: Micros) -> int:
        """Record a step and return its index. Raises EngineError when its end is beyond what 63 bits hold."""
        if ended_at > MAX_INSTANT_US:
            raise too_late(started_at)
        self._begin(started_at, 0)
        self._ends.append(ended_at)
        return self.num_forgotten + len(self._ends) - 1

    def extend(self, started_at: Micros, ends: npt.NDArray[np.int64]) -> None:
        """Record steps that follow each other, the first from `started_at` on."""
        if ends.item(-1) < started_at:  # the sum of durations has wrapped around
            raise too_late(started_at)
        self._begin(started_at, 0)
        self._ends.frombytes(ends.tobytes())

    def extend_shifted(self, started_at: Micros, ends: "array[int]", shift: Micros) -> None:
        """`extend` by steps that end `shift` after `ends`, which must be within 63 bits."""
        self._begin(started_at, shift)
        self._ends += ends

    def move_contiguous(self, instants: list[Micros]) -> None:
        """`extend` by steps given as the start of each and the end of the last, which alone stays in the list."""
        if len(instants) < 2:
            return
        if instants[-1] > MAX_INSTANT_US:
            raise too_late(instants[bisect_right(instants, MAX_INSTANT_US) - 1])
        ends = self._ends
        if self._shift or not ends or ends[-1] != instants[0]:
            self._begin(instants[0], 0)
        del instants[0]
        ends.fromlist(instants)
        del instants[:-1]

    def repeat_last(self, count: int) -> None:
        """`extend` by so many steps that take as long as the last one, which must be there."""
        started_at = self._all_starts()[-1]
        first, step_us = self._ends[-1], self._ends[-1] - started_at
        if first + count * step_us > MAX_INSTANT_US:
            raise too_late(first)
        self.extend(first, np.arange(1, count + 1, dtype=np.int64) * step_us + first)

    def start(self, index: int) -> Micros:
        place = index - self.num_forgotten
        if place < 0 or self._shifted_from:
            place = self._place(index)
            self._all_ends()
        starts, ends = self._starts, self._ends
        return ends[place - 1] if len(starts) <= place < len(ends) else starts[place]

    def end(self, index: int) -> Micros:
        return self._all_ends()[self._place(index)]

    def run_time(self, first: int, count: int) -> Micros:
        """Summed duration of `count` steps from `first` on, which must be consecutive without an idle gap."""
        place = self._place(first)
        started_at = self._all_starts()[place]
        return self._ends[place + count - 1] - started_at

    def span(self, first: int, count: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Starts and ends of `count` steps from `first` on, as new arrays."""
        place = self._place(first)
        part = slice(place, place + count)
        return np.array(self._all_starts()[part], np.int64), np.array(self._all_ends()[part], np.int64)

    def ends_in(self, runs: list[list[int]]) -> npt.NDArray[np.int64]:
        """Ends of the steps of `runs`, each a first step and how many in a row, as a new array."""
        found, ends = array("q"), self._all_ends()
        for first, count in runs:
            place = self._place(first)
            found += ends[place : place + count]
        return np.array(found, np.int64)

    def durations(self) -> npt.NDArray[np.int64]:
        """Duration of every step, as a new array."""
        return np.frombuffer(self._all_ends(), np.int64) - np.frombuffer(self._all_starts(), np.int64)

    def note_late(self, index: int, at: Micros) -> None:
        """Note that the outputs of a step are processed at `at`, after its end."""
        self._late[index] = at

    def output_instants(self) -> npt.NDArray[np.int64]:
        """When the outputs of every step were processed, mostly its end, as a new array."""
        instants = self.ends()
        instants[[index - self.num_forgotten for index in self._late]] = list(self._late.values())
        return instants

    def ends(self) -> npt.NDArray[np.int64]:
        """End of every step, as a new array."""
        return np.array(self._all_ends(), np.int64)

    def forget(self, until: int) -> None:
        """Forget the times of the steps before `until`, at least one of the others of which must be there."""
        count = until - self.num_forgotten
        if count > 0:
            del self._all_starts()[:count]
            del self._ends[:count]
            self.num_forgotten = until
            self._late = {index: at for index, at in self._late.items() if index >= until}

    def _place(self, index: int) -> int:
        """Return where the times of a step are. Raises IndexError when they are forgotten."""
        place = index - self.num_forgotten
        if place < 0:
            raise IndexError(f"the times of step {index} are forgotten, those from {self.num_forgotten} on are known")
        return place

    def _begin(self, at: Micros, shift: Micros) -> None:
        """Note the start of the next steps, if it is not the end of the latest one, and what their ends lack."""
        ends = self._ends
        if not ends or ends[-1] + self._shift != at:
            self._all_starts().append(at)
        if shift != self._shift:
            self._shift = shift
            self._shifted_from.append(len(ends))
            self._shifted_by.append(shift)

    def _all_ends(self) -> "array[int]":
        """Return the ends of all steps, which lack nothing any more."""
        ends, firsts = self._ends, self._shifted_from
        if firsts:
            lacking = np.frombuffer(ends, np.int64)[firsts[0] :]
            lacking += np.repeat(self._shifted_by, np.diff(firsts, append=len(ends)))
            firsts.clear()
            self._shifted_by.clear()
            self._shift = 0
        return ends

    def _all_starts(self) -> "array[int]":
        """Return the starts of all steps."""
        starts, ends = self._starts, self._all_ends()
        if (num_known := len(starts)) < len(ends):
            starts += ends[num_known - 1 : -1]
        return starts


class RecentSteps(StepLog):
    """The latest steps, at least `keep` of them: for an engine that runs for good."""

    __slots__ = ("_keep",)

    def __init__(self, keep: int) -> None:
        super().__init__()
        self._keep = keep

    def append(self, started_at: Micros, ended_at: Micros) -> int:
        index = super().append(started_at, ended_at)
        self._forget()
        return index

    def extend(self, started_at: Micros, ends: npt.NDArray[np.int64]) -> None:
        super().extend(started_at, ends)
        self._forget()

    def extend_shifted(self, started_at: Micros, ends: "array[int]", shift: Micros) -> None:
        super().extend_shifted(started_at, ends, shift)
        self._forget()

    def move_contiguous(self, instants: list[Micros]) -> None:
        super().move_contiguous(instants)
        if len(self._ends) >= 2 * self._keep:
            self._forget()

    def _forget(self) -> None:
        """Moving what is kept costs little when it is done once for as many steps."""
        num_excess = len(self._ends) - self._keep
        if num_excess >= self._keep:
            self.forget(self.num_forgotten + num_excess)


def too_late(started_at: Micros) -> EngineError:
    """Return the error of steps that end after the largest instant."""
    return EngineError(f"the step that starts at {started_at} us ends after the largest instant, {MAX_INSTANT_US} us")


# State shared by the parts of one engine: configuration, latency model, event queue and records.


def nothing_due(_until: Micros) -> Micros | None:
    """Return None: without an engine nothing is ever due."""
    return None


class EngineContext:
    """The shared state of an engine and its scheduler: both report events and plan entries of the queue here."""

    __slots__ = (
        "allows_multi_step",
        "cache_changes",
        "catch_up",
        "clock",
        "config",
        "counters",
        "events",
        "last_shape",
        "latency",
        "live",
        "note_load",
        "queue",
        "recent_prompts",
        "reports_admissions",
        "reports_batches",
        "steps",
        "until",
    )

    def __init__(
        self,
        config: EngineConfig,
        latency: LatencyModel,
        catch_up: Callable[[Micros], Micros | None] = nothing_due,
        steps: StepLog | None = None,
        reports_admissions: bool = True,
    ) -> None:
        self.catch_up = catch_up
        """Does everything due up to and including an instant, which `until` allows. Returns when something is due next.
        """
        self.config = config
        self.latency = latency
        self.queue = EventQueue()
        self.steps = StepLog() if steps is None else steps
        self.recent_prompts = RecentPrompts()
        self.counters = EngineCounters()
        self.events: list[Event] = []
        """Events since the last call of `advance`."""
        self.live: dict[str, Sequence] = {}
        """Requests that have not ended, by id."""
        self.cache_changes: list[CacheChange] | None = [] if config.reports_kv_changes else None
        """Changes of the content of the prefix cache since the last step ended; None unless they are reported."""
        self.clock: Micros = 0
        """Instant of the last event."""
        self.until: Micros = 0
        """The instant up to which the driver advances the engine."""
        self.reports_admissions = reports_admissions
        """Whether an event is logged when requests join the running batch."""
        self.reports_batches = False
        """Whether an event is logged with the batch of each step; steps must be reported, too."""
        self.allows_multi_step = False
        """Whether the driver accepts steps that are reported together."""
        self.last_shape = BatchShape()
        """Shape of the latest step."""
        self.note_load: Callable[[Micros, bool], None] | None = None
        """Called where vLLM's core reports how many requests it has. It is given the instant, and whether the outputs
        of a step have been processed there. Otherwise a step is about to be composed. None for no reports."""

    def end(self, sequence: Sequence, outcome: Outcome) -> None:
        """Count a request's end. The end is reported separately, when its instant comes."""
        sequence.outcome = outcome
        self.counters.ended[outcome] += 1
        del self.live[sequence.request.id]

    def end_and_report(self, sequence: Sequence, outcome: Outcome, at: Micros, detail: str = "") -> None:
        """Count a request's end and report it."""
        sequence.outcome = outcome  # as in `end`
        self.counters.ended[outcome] += 1
        del self.live[sequence.request.id]
        self.events.append(Finished(at, sequence, outcome, detail))
