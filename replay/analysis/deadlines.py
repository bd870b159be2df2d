"""Deadlines of simulated requests: targets of a workload as deadlines of its engines, and the share missed."""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeVar

from blis_sim.engine.sequence import NO_DEADLINE
from traces.slo import class_name

if TYPE_CHECKING:
    from blis_sim.engine.cluster.options import ClusterOptions
    from blis_sim.engine.urgency import UrgencySettings
    from replay.simulation.record import Record
    from traces import SloTargets

_Cluster = TypeVar("_Cluster", bound="ClusterOptions")


def with_deadlines(cluster: _Cluster, targets: "Mapping[str, SloTargets]") -> _Cluster:
    """The options with the e2e targets of classes as deadlines, unless --slo-deadlines gives some."""
    deployment, limits = cluster.deployment, {name: each.e2e_ms for name, each in targets.items() if each.e2e_ms}
    if not limits or deployment.urgency.slo_deadlines:
        return cluster
    text = ",".join(f"{name}={limit_ms:.3f}" for name, limit_ms in limits.items())
    urgency = replace(deployment.urgency, slo_deadlines=text)
    return replace(cluster, deployment=replace(deployment, urgency=urgency))


def notes_on_targets(targets: "Mapping[str, SloTargets]", record: "Record") -> Iterator[str]:
    """Yield a line for targets that hold for no request, and one for requests without targets beside others with."""
    if not targets:
        return
    counts = Counter(class_name(row.slo_class) for row in record.rows)
    known = ", ".join(sorted(counts))
    for name in targets:
        if not counts[name]:
            yield f"warning: the targets of class {name} hold for no request: all requests are of {known or 'no class'}"
    left = {name: count for name, count in sorted(counts.items()) if name not in targets}
    if left and len(left) < len(counts):
        yield f"{sum(left.values())} of {len(record)} requests have no targets, those of {', '.join(left)}"


@dataclass(frozen=True, slots=True)
class DeadlineFigures:
    """Requests with a deadline, and requests that missed it, by SLO class."""

    counts: Mapping[str, int] = field(default_factory=dict)
    violations: Mapping[str, int] = field(default_factory=dict)

    @property
    def share(self) -> float:
        """Violations among all requests with a deadline; 0 without any."""
        count = sum(self.counts.values())
        return sum(self.violations.values()) / count if count else 0.0

    def as_json(self) -> dict[str, Any]:
        """The figures as a summary and files have them."""
        return {
            "slo_violations": sum(self.violations.values()),
            "requests_with_deadline": sum(self.counts.values()),
            "slo_violations_by_class": {
                name: {"requests": count, "violations": self.violations.get(name, 0)}
                for name, count in sorted(self.counts.items())
            },
        }


def deadline_figures(record: "Record", settings: "UrgencySettings") -> DeadlineFigures:
    """Count requests by whether they ended by their deadlines. One that did not complete has missed its deadline."""
    counts: Counter[str] = Counter()
    violations: Counter[str] = Counter()
    counted = replace(settings, ends_late_requests=False)
    for each in record:
        deadline_at = counted.deadline_of(each.row, each.arrived_at)
        if deadline_at == NO_DEADLINE:
            continue
        name = class_name(each.row.slo_class)
        counts[name] += 1
        is_late = each.e2e_us is None or each.arrived_at + each.e2e_us > deadline_at
        violations[name] += is_late or not each.is_completed
    return DeadlineFigures(counts, violations)
