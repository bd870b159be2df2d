"""The flags of deadlines, urgency and preemption by priority."""

from dataclasses import dataclass
from typing import Protocol

from blis_sim.engine.engine_defaults import ADAPTIVE_ENGINES
from blis_sim.engine.units import LONGEST_DELAY_US, Micros
from blis_sim.engine.urgency import DEFAULT_GAP, DEFAULT_STEP, DEFAULT_WINDOW_US, UrgencySettings
from blis_sim.options import OptionError, check_options, option

DEFAULT_TIMER_US: Micros = 1080
"""asyncio waits in whole milliseconds on Linux, and wakes a little later."""
RESUMES = ("recompute", "keep")
LATE_ACTIONS = ("", "count", "end")
COMPATIBILITY = ("", "adaptive")
_PUBLISHED_INTERVAL_US: Micros = 1000
"""The published adaptive scheduler looks at its queue every millisecond."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UrgencyOptions:
    """When requests should have ended, and what is done for those that run out of time."""

    slo_deadlines: str = option(
        "",
        "Milliseconds from arrival to deadline by SLO class, such as critical=500,batch=5000, for requests without a "
        "deadline of their own; default is the class of requests without one. Without the flag, the e2e targets of a "
        "workload or trace, or of --slo-e2e, are the deadlines.",
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
        "Rules of --priority-policy slo-urgency, which this implies, as the published adaptive scheduler has them: "
        "waiting requests are in order of priority, then of the time allowed from arrival to deadline, and rise every "
        "millisecond. --engine adaptive has these rules anyway.",
        choices=COMPATIBILITY,
    )
    min_preempt_priority_gap: int = option(
        DEFAULT_GAP,
        "With --preemption-policy gap, by how much the priority of a running request must exceed that of a waiting one "
        "to lose its place.",
        at_least=1,
    )
    preemption_resume: str = option(
        RESUMES[0],
        "With --preemption-policy gap, how a request that lost its place continues: it computes its tokens anew, or it "
        "keeps its KV blocks, as long as no other request needs them.",
        choices=RESUMES,
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
