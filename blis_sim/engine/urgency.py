"""Deadlines that requests should meet, and how a request becomes more urgent as its deadline comes near.

Priorities are vLLM's: the smaller the number, the more urgent. A level of the published adaptive scheduler, 0 to 9 with
9 the most urgent, is the priority 9 - level.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import count
from typing import Protocol

from blis_sim.engine.errors import EngineError
from blis_sim.engine.sequence import NO_DEADLINE, Sequence
from blis_sim.engine.units import Micros

DEFAULT_WINDOW_US: Micros = 50_000
DEFAULT_STEP = 2
DEFAULT_GAP = 3


class HasDeadline(Protocol):
    """The source of a deadline: the request itself, or its row of a trace or workload."""

    @property
    def slo_class(self) -> str: ...

    @property
    def deadline_us(self) -> Micros: ...

    @property
    def slo_e2e_us(self) -> Micros: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class UrgencySettings:
    """Rules of urgency and of preemption by priority. Raises EngineError for values out of bounds."""

    window_us: Micros = DEFAULT_WINDOW_US
    """Time before its deadline from which on a waiting request is more urgent."""
    step: int = DEFAULT_STEP
    """The decrement of the priority at one rise."""
    ceiling: int = 0
    """The priority that rises end at."""
    interval_us: Micros = 0
    """Time from one rise to the next; 0 for a single rise."""
    min_preempt_gap: int = DEFAULT_GAP
    """By how much the priority of a running request must exceed that of a waiting one to lose its place."""
    keeps_progress: bool = False
    """Whether a request that loses its place keeps its KV blocks and continues; else it computes all anew."""
    deadlines_us: Mapping[str, Micros] = field(default_factory=dict)
    """Time from arrival to the deadline by SLO class, for requests without a deadline of their own."""
    ends_late_requests: bool = True
    """Whether a request ends unfinished at its `deadline_us`; else that instant counts as its deadline."""

    def __post_init__(self) -> None:
        for name, least in (("window_us", 0), ("step", 1), ("interval_us", 0), ("min_preempt_gap", 1)):
            if (value := getattr(self, name)) < least:
                raise EngineError(f"{name} must be at least {least}, got {value}")

    def deadline_of(self, request: HasDeadline, arrived_at: Micros) -> Micros:
        """The instant by which a request should have ended; `NO_DEADLINE` for none."""
        target_us = request.slo_e2e_us or self.deadlines_us.get(request.slo_class or "default", 0)
        deadline_at = arrived_at + target_us if target_us else NO_DEADLINE
        if request.deadline_us > 0 and not self.ends_late_requests:
            return min(deadline_at, request.deadline_us)
        return deadline_at


DEFAULT_URGENCY = UrgencySettings()


class Urgency:
    """Raises waiting requests whose deadline is near. Each rise has its instant, whenever it is queried.

    Cost: O(log waiting) for each rise and each request that begins to wait.
    """

    def __init__(self, settings: UrgencySettings, is_waiting: Callable[[Sequence], bool] | None = None) -> None:
        """`is_waiting` decides whether a request waits; by default one that neither runs nor has ended."""
        self._settings = settings
        self._is_waiting = is_waiting or _is_waiting
        self._rises: list[tuple[Micros, int, Sequence]] = []
        self._numbers = count()
        self._num_rises: dict[Sequence, int] = {}
        """Rises so far of requests that have had some."""

    def watch(self, sequence: Sequence) -> None:
        """Raise a request from now on while it waits."""
        rise_at = self._next_rise_at(sequence)
        if rise_at is not None:
            heappush(self._rises, (rise_at, next(self._numbers), sequence))

    def forget(self, sequence: Sequence) -> None:
        """Forget a request that has ended."""
        self._num_rises.pop(sequence, None)

    def rise(self, now: Micros) -> list[Sequence]:
        """Give waiting requests all rises due by `now`. Returns those that have risen."""
        rises, settings = self._rises, self._settings
        risen: list[Sequence] = []
        while rises and rises[0][0] <= now:
            _, _, sequence = heappop(rises)
            if not self._is_waiting(sequence):
                continue
            due = self._num_due(sequence, now)
            num_new = due - self._num_rises.get(sequence, 0)
            if num_new > 0:
                sequence.priority = max(sequence.priority - settings.step * num_new, settings.ceiling)
                self._num_rises[sequence] = due
                risen.append(sequence)
            self.watch(sequence)
        return risen

    def _num_due(self, sequence: Sequence, now: Micros) -> int:
        since = now - (sequence.deadline_at - self._settings.window_us)
        interval_us = self._settings.interval_us
        return 1 + (since // interval_us if interval_us else 0)

    def _next_rise_at(self, sequence: Sequence) -> Micros | None:
        settings, num_rises = self._settings, self._num_rises.get(sequence, 0)
        if sequence.deadline_at == NO_DEADLINE or sequence.priority <= settings.ceiling:
            return None
        if num_rises and not settings.interval_us:
            return None
        return sequence.deadline_at - settings.window_us + num_rises * settings.interval_us


def _is_waiting(sequence: Sequence) -> bool:
    return not sequence.running and sequence.outcome is None
