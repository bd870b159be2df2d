"""The file of `--policy-config`: who is let in, who gets whom, whose turn it is, and which instances there are.

The keys are those of BLIS's policy bundle, but for `instances`, which is ours.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from engine.cluster.admission.registry import ADMISSIONS
from engine.cluster.routing.registry import ROUTERS
from engine.cluster.scorers.registry import Weights, checked_weights
from engine.errors import EngineError
from engine.latency.catalogue.files import read_mapping
from engine.scheduler.priorities import PRIORITIES, SLO_CLASS_PRIORITIES, SloPriorities
from engine.scheduler.waiting import ORDERS

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


def read_policy_file(path: str | Path) -> PolicyFile:
    """Read a file. Raises EngineError that names the file and the key for what is unknown or no proper value."""
    path = Path(path)
    top = _Section(path, "", read_mapping(path))
    top.demand_known("admission", "routing", "priority", "scheduler", "tenant_budgets", "instances")
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
    )


def _slo_priorities(admission: "_Section") -> SloPriorities | None:
    section = admission.section("slo_priorities")
    if not section.content:
        return None
    given = {name: section.whole(name, -HIGHEST_PRIORITY, HIGHEST_PRIORITY) or 0 for name in section.content}
    return SloPriorities({**SLO_CLASS_PRIORITIES, **given})


def _scorers(routing: "_Section") -> Weights:
    pairs = []
    for each in routing.sections("scorers"):
        each.demand_known("name", "weight")
        pairs.append((str(each.content.get("name", "")), each.number("weight", above=0) or 0.0))
    return checked_weights(pairs, f"{routing.path}: routing.scorers")


def _tenant_budgets(top: "_Section") -> dict[str, float]:
    section = top.section("tenant_budgets")
    return {name: section.number(name, at_least=0, at_most=1) or 0.0 for name in section.content}


def _group(each: "_Section") -> InstanceGroup:
    count = each.whole("count", 1, None)
    return InstanceGroup(
        count=1 if count is None else count,
        settings={name: value for name, value in each.content.items() if name != "count"},
    )


@dataclass(frozen=True, slots=True)
class _Section:
    """One mapping of a file, which says in one line what is wrong with it."""

    path: Path
    name: str
    content: Mapping[str, Any]

    def demand_known(self, *keys: str) -> None:
        for key in self.content:
            if key not in keys:
                raise self._error(f"unknown key {key!r}, known are {', '.join(keys)}")

    def section(self, key: str) -> "_Section":
        value = self.content.get(key)
        if value is None:
            value = {}
        if not isinstance(value, Mapping) or not all(isinstance(name, str) for name in value):
            raise self._error(f"{key} must be a mapping of names to values, got {value!r}")
        return _Section(self.path, self._label(key), value)

    def sections(self, key: str) -> "list[_Section]":
        value = self.content.get(key)
        if value is None:
            return []
        if not isinstance(value, Sequence) or not all(isinstance(each, Mapping) for each in value):
            raise self._error(f"{key} must be a list of mappings, got {value!r}")
        return [_Section(self.path, f"{self._label(key)}[{number}]", each) for number, each in enumerate(value)]

    def choice(self, key: str, choices: Mapping[str, object]) -> str | None:
        value = self.content.get(key)
        if value is not None and value not in choices:
            raise self._error(f"{key} must be one of {', '.join(choices)}, got {value!r}")
        return value

    def whole(self, key: str, at_least: int, at_most: int | None) -> int | None:
        value = self.content.get(key)
        if value is None:
            return None
        bounds = f"of at least {at_least}" if at_most is None else f"between {at_least} and {at_most}"
        is_whole = isinstance(value, int) and not isinstance(value, bool)
        if not is_whole or value < at_least or (at_most is not None and value > at_most):
            raise self._error(f"{key} must be a whole number {bounds}, got {value!r}")
        return int(value)

    def number(
        self, key: str, above: float | None = None, at_least: float | None = None, at_most: float | None = None
    ) -> float | None:
        value = self.content.get(key)
        if value is None:
            return None
        is_number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
        if not is_number:
            raise self._error(f"{key} must be a number, got {value!r}")
        if above is not None and value <= above:
            raise self._error(f"{key} must be above {above:g}, got {value}")
        if (at_least is not None and value < at_least) or (at_most is not None and value > at_most):
            raise self._error(f"{key} must be between {at_least:g} and {at_most:g}, got {value}")
        return float(value)

    def _label(self, key: str) -> str:
        return f"{self.name}.{key}" if self.name else key

    def _error(self, message: str) -> EngineError:
        return EngineError(f"{self.path}: {self.name + ': ' if self.name else ''}{message}")
