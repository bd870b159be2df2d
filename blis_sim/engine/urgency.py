"""Urgency of requests: importance of SLO classes, deadlines, how requests become more urgent, and the flags of it.

Priorities are vLLM's: the smaller the number, the more urgent. A level of the published adaptive scheduler, 0 to 9
with 9 the most urgent, is the priority 9 - level.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import count
from typing import Protocol

from blis_sim.engine.engine_defaults import ADAPTIVE_ENGINES
from blis_sim.engine.errors import EngineError
from blis_sim.engine.sequence import NO_DEADLINE, Sequence
from blis_sim.engine.units import LONGEST_DELAY_US, Micros
from blis_sim.options import OptionError, check_options, option

SLO_CLASS_PRIORITIES: dict[str, int] = {"critical": 4, "standard": 3, "batch": -1, "sheddable": -2, "background": -3}
"""BLIS's importance of each SLO class (sim/slo_priority.go), larger is more important."""

DEFAULT_SLO_PRIORITY = 3


@dataclass(frozen=True, slots=True)
class SloPriorities:
    """The importance of each SLO class; classes not named have `DEFAULT_SLO_PRIORITY`."""

    by_class: Mapping[str, int]

    def importance(self, slo_class: str) -> int:
        """Return the importance of a class; larger is more important."""
        return self.by_class.get(slo_class, DEFAULT_SLO_PRIORITY)

    @property
    def highest(self) -> int:
        """The importance of the most important class."""
        return max(DEFAULT_SLO_PRIORITY, *self.by_class.values())

    def urgency(self, slo_class: str) -> int:
        """The priority of a class in vLLM's sense: 0 for the most important one, more for the others."""
        return self.highest - self.importance(slo_class)

    def is_sheddable(self, slo_class: str) -> bool:
        """Whether requests of the class may be rejected to make room for others."""
        return self.importance(slo_class) < 0


DEFAULT_SLO_PRIORITIES = SloPriorities(SLO_CLASS_PRIORITIES)


@dataclass(frozen=True, slots=True)
class AgeScores:
    """Scores of requests that grow, or fall, with their age: a base, by SLO class, and a weight of each microsecond."""

    base: float = 0.0
    """The base of classes not named."""
    base_by_class: Mapping[str, float] = field(default_factory=dict)
    weight: float = 1e-6

    def priority(self, slo_class: str, arrived_at: Micros, sign: int = 1) -> int:
        """Return a priority in whose order scores fall at every instant: they differ by base and arrival alone.

        The priority is in millionths of a score; with `sign` -1 scores fall with age.
        """
        base = self.base_by_class.get(slo_class or "default", self.base)
        return round((sign * self.weight * arrived_at - base) * 1e6)


DEFAULT_AGE_SCORES = AgeScores()


def parse_base_scores(text: str) -> tuple[float, dict[str, float]]:
    """Return the base of all classes and those of single ones. Raises OptionError."""
    flag, base = "--priority-base", 0.0
    by_class: dict[str, float] = {}
    for item in text.split(","):
        slo_class, has_class, score = (part.strip() for part in item.rpartition("="))
        try:
            value = float(score)
        except ValueError:
            value = math.nan
        if not abs(value) <= _LARGEST_SCORE or bool(has_class) != bool(slo_class):
            raise OptionError(
                f"{flag} must be a score, CLASS=SCORE or several of these with commas, up to {_LARGEST_SCORE:g}, "
                f"got {item!r}"
            )
        if slo_class in by_class or (not slo_class and base):
            raise OptionError(f"{flag} has two scores for {slo_class or 'all classes'}")
        if slo_class:
            by_class[slo_class] = value
        else:
            base = value
    return base, by_class


_LARGEST_SCORE = 1e9


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
    """Least difference of priorities for which a running request loses its place to a waiting one."""
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


DEFAULT_TIMER_US: Micros = 1080
"""asyncio waits in whole milliseconds on Linux, and wakes a little later."""
RESUME_MODES = ("recompute", "keep")
LATE_ACTIONS = ("", "count", "end")
COMPATIBILITY = ("", "adaptive")
_PUBLISHED_INTERVAL_US: Micros = 1000
"""The published adaptive scheduler checks its queue every millisecond."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UrgencyOptions:
    """When requests should have ended, and what is done for those that run out of time."""

    slo_deadlines: str = option(
        "",
        "Milliseconds from arrival to deadline by SLO class, such as critical=500,batch=5000, for requests without a "
        "deadline of their own. default is the class of requests without one. Without the flag, the e2e targets of a "
        "workload or trace, or of --goodput, are the deadlines.",
        metavar="CLASS=MS,...",
        heading="Deadlines and urgency",
    )
    late_requests: str = option(
        "",
        "What happens to a request at its deadline_us: it ends (end), or its violation is counted and it goes on "
        "(count). Default: count with --priority-policy slo-urgency, else end.",
        choices=LATE_ACTIONS,
    )
    urgency_window: int = option(
        DEFAULT_WINDOW_US,
        "Microseconds before its deadline from which on --priority-policy slo-urgency raises a waiting request.",
        at_least=0,
        at_most=LONGEST_DELAY_US,
        metavar="US",
    )
    urgency_step: int = option(
        DEFAULT_STEP, "What one rise of --priority-policy slo-urgency takes off the priority.", at_least=1
    )
    urgency_ceiling: int = option(
        0, "Priority at which rises of --priority-policy slo-urgency end; smaller is more urgent.", at_least=-(10**9)
    )
    urgency_interval: int = option(
        0,
        "Microseconds from one rise of --priority-policy slo-urgency to the next, up to --urgency-ceiling; 0 for a "
        "single rise.",
        at_least=0,
        at_most=LONGEST_DELAY_US,
        metavar="US",
    )
    compat: str = option(
        "",
        "Rules of --priority-policy slo-urgency, which this implies, as the published adaptive scheduler has them. "
        "Waiting requests are in order of priority, then of the time allowed from arrival to deadline. They rise "
        "every millisecond. --engine adaptive has these rules anyway.",
        choices=COMPATIBILITY,
    )
    min_preempt_priority_gap: int = option(
        DEFAULT_GAP,
        "With --preemption-policy gap, by how much the priority of a running request must exceed that of a waiting one "
        "to lose its place.",
        at_least=1,
    )
    preemption_resume: str = option(
        RESUME_MODES[0],
        "With --preemption-policy gap, how a request that lost its place continues. It computes its tokens anew, or "
        "it keeps its KV blocks, as long as no other request needs them.",
        choices=RESUME_MODES,
    )
    timer_resolution: int = option(
        DEFAULT_TIMER_US,
        "With --engine adaptive, microseconds between two instants at which a sleep of the simulated program can end; "
        "0 for any instant.",
        at_least=0,
        at_most=LONGEST_DELAY_US,
        metavar="US",
    )

    def __post_init__(self) -> None:
        check_options(self)
        _ = self.deadlines_us  # raises for bad text

    @property
    def deadlines_us(self) -> dict[str, Micros]:
        """Time from arrival to deadline by class. Raises OptionError."""
        deadlines: dict[str, Micros] = {}
        for item in self.slo_deadlines.split(",") if self.slo_deadlines.strip() else ():
            slo_class, _, text = (part.strip() for part in item.partition("="))
            try:
                deadline_us = int(float(text) * 1000)
            except (ValueError, OverflowError):
                deadline_us = 0
            if not slo_class or not 0 < deadline_us <= LONGEST_DELAY_US:
                raise OptionError(
                    "--slo-deadlines must be CLASS=MS[,CLASS=MS] with milliseconds above 0, up to 31 years, "
                    f"got {item!r}"
                )
            if slo_class in deadlines:
                raise OptionError(f"--slo-deadlines names the class {slo_class!r} twice")
            deadlines[slo_class] = deadline_us
        return deadlines

    def settings(self, priority_policy: str, engine: str) -> UrgencySettings:
        """The rules of the flags."""
        is_published = engine in ADAPTIVE_ENGINES or self.compat == "adaptive"
        ends_late = self.late_requests == "end" or (not self.late_requests and priority_policy != "slo-urgency")
        return UrgencySettings(
            window_us=self.urgency_window,
            step=self.urgency_step,
            ceiling=self.urgency_ceiling,
            interval_us=self.urgency_interval or (_PUBLISHED_INTERVAL_US if is_published else 0),
            min_preempt_gap=self.min_preempt_priority_gap,
            keeps_progress=self.preemption_resume == "keep",
            deadlines_us=self.deadlines_us,
            ends_late_requests=ends_late,
        )


class HasPolicies(Protocol):
    """An engine and its policies by name."""

    @property
    def engine(self) -> str: ...

    @property
    def priority_policy(self) -> str: ...

    @property
    def preemption_policy(self) -> str: ...

    @property
    def scheduler(self) -> str: ...

    @property
    def urgency(self) -> UrgencyOptions: ...


def implied_policies(options: HasPolicies) -> dict[str, str]:
    """Settings that follow from others: urgency needs an order of its own, and the adaptive engine has urgency.

    Raises OptionError for an engine without urgency, and for rules of urgency with another policy.
    """
    implied: dict[str, str] = {}
    engine, priority_policy, preemption_policy = options.engine, options.priority_policy, options.preemption_policy
    if engine == "adaptive" and priority_policy == "slo-class":
        priority_policy = implied["priority_policy"] = "slo-urgency"
        if preemption_policy == "fcfs":
            preemption_policy = implied["preemption_policy"] = "gap"
    is_compatible = options.urgency.compat == "adaptive"
    if is_compatible and priority_policy == "slo-class":
        priority_policy = implied["priority_policy"] = "slo-urgency"
    elif is_compatible and priority_policy != "slo-urgency":
        raise OptionError(f"--compat adaptive needs --priority-policy slo-urgency, got {priority_policy}")
    given = {
        "--compat adaptive": is_compatible,
        "--priority-policy slo-urgency": priority_policy == "slo-urgency",
        "--preemption-policy gap": preemption_policy == "gap",
    }
    for flag, is_given in given.items():
        if is_given and engine not in ("vllm", *ADAPTIVE_ENGINES):
            raise OptionError(f"{flag} needs --engine vllm or adaptive, got {engine}")
        if is_given and options.scheduler == "fcfs":
            is_relative = engine == "adaptive" or is_compatible
            implied["scheduler"] = "priority-slo-target" if is_relative else "priority-deadline"
    return implied
