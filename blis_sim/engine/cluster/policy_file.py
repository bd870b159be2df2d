"""The file of `--policy-config`: who is let in, who gets whom, whose turn it is, and which instances there are.

The keys are those of BLIS's policy bundle, but for `instances`, which is ours.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from blis_sim.engine.cluster.admission import ADMISSIONS
from blis_sim.engine.cluster.autoscaling.policy import SCALING_KEYS, ScalingPolicy, scaling_policy
from blis_sim.engine.cluster.policy_section import Section
from blis_sim.engine.cluster.routing import ROUTERS
from blis_sim.engine.cluster.scorer_weights import Weights, checked_weights
from blis_sim.engine.latency.catalogue.files import read_mapping
from blis_sim.engine.scheduler.priorities import PRIORITIES
from blis_sim.engine.scheduler.waiting import ORDERS
from blis_sim.engine.slo_classes import SLO_CLASS_PRIORITIES, SloPriorities

Number = TypeVar("Number", int, float)

HIGHEST_PRIORITY = 100
"""SLO priorities are between minus this and this."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceGroup:
    """So many instances that differ from what the flags say in these settings, by their names in the options."""

    count: int
    settings: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyFile:
    """What a file says; None and empty for what it leaves open."""

    admission_policy: str | None = None
    token_bucket_capacity: float | None = None
    token_bucket_refill_rate: float | None = None
    tier_shed_threshold: int | None = None
    tier_shed_min_priority: int | None = None
    slo_priorities: SloPriorities | None = None
    routing_policy: str | None = None
    scorers: Weights = ()
    priority_policy: str | None = None
    scheduler: str | None = None
    tenant_budgets: Mapping[str, float] = field(default_factory=dict)
    """Share of all seats that each of these tenants may have before its sheddable requests are turned away."""
    instances: tuple[InstanceGroup, ...] = ()
    scaling: ScalingPolicy = field(default_factory=ScalingPolicy)
    """Machines, and an autoscaler."""


def read_policy_file(path: str | Path) -> PolicyFile:
    """Read a file. Raises EngineError that names the file and the key for what is unknown or no proper value."""
    path = Path(path)
    top = Section(path, "", read_mapping(path))
    top.demand_known("admission", "routing", "priority", "scheduler", "tenant_budgets", "instances", *SCALING_KEYS)
    admission, routing, priority = top.section("admission"), top.section("routing"), top.section("priority")
    admission.demand_known(
        "policy",
        "token_bucket_capacity",
        "token_bucket_refill_rate",
        "tier_shed_threshold",
        "tier_shed_min_priority",
        "slo_priorities",
    )
    routing.demand_known("policy", "scorers")
    priority.demand_known("policy")
    return PolicyFile(
        admission_policy=admission.choice("policy", ADMISSIONS),
        token_bucket_capacity=admission.number("token_bucket_capacity", above=0),
        token_bucket_refill_rate=admission.number("token_bucket_refill_rate", above=0),
        tier_shed_threshold=admission.whole("tier_shed_threshold", 0, None),
        tier_shed_min_priority=admission.whole("tier_shed_min_priority", -HIGHEST_PRIORITY, HIGHEST_PRIORITY),
        slo_priorities=_slo_priorities(admission),
        routing_policy=routing.choice("policy", ROUTERS),
        scorers=_scorers(routing),
        priority_policy=priority.choice("policy", PRIORITIES),
        scheduler=top.choice("scheduler", ORDERS),
        tenant_budgets=_tenant_budgets(top),
        instances=tuple(_group(each) for each in top.sections("instances")),
        scaling=scaling_policy(top),
    )


def _slo_priorities(admission: Section) -> SloPriorities | None:
    section = admission.section("slo_priorities")
    if not section.content:
        return None
    given = {
        name: _needed(section, name, section.whole(name, -HIGHEST_PRIORITY, HIGHEST_PRIORITY))
        for name in section.content
    }
    return SloPriorities({**SLO_CLASS_PRIORITIES, **given})


def _scorers(routing: Section) -> Weights:
    pairs = []
    for each in routing.sections("scorers"):
        each.demand_known("name", "weight")
        weight = _needed(each, "weight", each.number("weight", above=0))
        pairs.append((str(each.content.get("name", "")), weight))
    return checked_weights(pairs, f"{routing.path}: routing.scorers")


def _tenant_budgets(top: Section) -> dict[str, float]:
    section = top.section("tenant_budgets")
    return {name: _needed(section, name, section.number(name, at_least=0, at_most=1)) for name in section.content}


def _needed(section: Section, name: str, value: Number | None) -> Number:
    """The value of a name that a file chooses itself, and that means nothing by itself."""
    if value is None:
        raise section.error(f"{name} must be given a value")
    return value


def _group(each: Section) -> InstanceGroup:
    count = each.whole("count", 1, None)
    return InstanceGroup(
        count=1 if count is None else count,
        settings={name: value for name, value in each.content.items() if name != "count"},
    )
