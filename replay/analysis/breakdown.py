"""The figures of a run by class, model, tenant and conversation, and the deadlines of its requests."""

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from blis_sim.engine.sequence import NO_DEADLINE
from blis_sim.options.addition import sequential_sum
from replay.arrivals import Origin, known_labels
from replay.simulation.record import NEVER, Distribution, Record, distribution, values_of
from traces.slo import class_name

if TYPE_CHECKING:
    from blis_sim.engine.cluster.options import ClusterOptions
    from blis_sim.engine.urgency import UrgencySettings
    from traces import SloTargets

# Deadlines of simulated requests: targets of a workload as deadlines of its engines, and the share missed.

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

    counts = groups_of(record.rows, "slo_class", class_name).counts()
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


# The figures of a run by class, model, tenant and conversation.

Ints = npt.NDArray[np.int64]


class Groups(NamedTuple):
    """The labels that occur, ascending, and for each request the index of its label."""

    names: list[str]
    codes: Ints

    def counts(self) -> Counter[str]:
        """How many requests have each label."""
        numbers = np.bincount(self.codes, minlength=len(self.names)).tolist()
        return Counter(dict(zip(self.names, numbers, strict=True)))

    def members(self, order: Ints) -> Iterator[tuple[str, Ints]]:
        """Each name that occurs among the requests at these places, with their places in this order."""
        if len(self.names) == 1:
            if len(order):
                yield self.names[0], order
            return
        codes = self.codes[order]
        by_code = order[np.argsort(codes, kind="stable")]
        start = 0
        for name, count in zip(self.names, np.bincount(codes, minlength=len(self.names)).tolist(), strict=True):
            if count:
                yield name, by_code[start : start + count]
            start += count


def groups_of(rows: SequenceOf[Origin], field: str, name_of: Callable[[str], str] = str) -> Groups:
    """Group the rows of requests by the name of the label that they have in a field."""
    known = known_labels(rows, field)
    given = list(values_of(rows, field)) if known is None else known[0]
    named = {label: name_of(label) for label in set(given)}
    names = sorted(set(named.values()))
    if len(names) == 1:
        return Groups(names, np.zeros(len(rows), np.int8))
    ranks = {name: rank for rank, name in enumerate(names)}
    codes = np.array([ranks[named[label]] for label in given], np.int64)
    return Groups(names, codes if known is None else codes[known[1]])


class ClassLatencies(NamedTuple):
    """Latencies of one SLO class in microseconds: TTFT of requests with a token, the others of completed requests.

    ITL is each request's mean.
    """

    ttft: Distribution
    itl: Distribution
    e2e: Distribution


class ModelFigures(NamedTuple):
    """One model's latencies in microseconds, as of a class; its completed requests and their tokens per second."""

    ttft: Distribution
    e2e: Distribution
    requests_per_s: float
    tokens_per_s: float


class TenantFigures(NamedTuple):
    """Completed requests of one tenant, and their output tokens."""

    num_requests: int
    num_tokens: int


class SessionFigures(NamedTuple):
    """Conversations: TTFT of first rounds (cold) and of later ones (warm), and how long each lasted, in milliseconds.

    A conversation lasts from the arrival of its first completed request to its last answer.
    """

    num_sessions: int
    ttft_cold: Distribution
    ttft_warm: Distribution
    duration: Distribution


def by_slo_class(record: Record) -> dict[str, ClassLatencies]:
    """Each class with a request that got a token, by name. Requests without a class are `default`."""
    ttft_us, e2e_us, itl_us = record.ttft_us, record.e2e_us, record.itl_mean_us
    completed, has_e2e = record.is_completed, e2e_us != NEVER
    groups = groups_of(record.rows, "slo_class", class_name)
    by_id = record.by_id
    started = by_id[ttft_us[by_id] != NEVER]
    found = {}
    for name, places in groups.members(started):
        found[name] = ClassLatencies(
            ttft=distribution(ttft_us[places]),
            itl=distribution(itl_us[places[completed[places]]]),
            e2e=distribution(e2e_us[places[has_e2e[places]]]),
        )
    return found


def by_model(record: Record, duration_s: float) -> dict[str, ModelFigures]:
    """Each model that a request with a token names, by name."""
    ttft_us, e2e_us, tokens = record.ttft_us, record.e2e_us, record.planned_output_tokens
    has_e2e = e2e_us != NEVER
    groups = groups_of(record.rows, "model")
    started = np.flatnonzero(ttft_us != NEVER)
    found = {}
    for name, places in groups.members(started):
        ended = places[has_e2e[places]]
        if name:
            found[name] = ModelFigures(
                ttft=distribution(ttft_us[places]),
                e2e=distribution(e2e_us[ended]),
                requests_per_s=len(ended) / duration_s if duration_s > 0 else 0.0,
                tokens_per_s=int(tokens[ended].sum()) / duration_s if duration_s > 0 else 0.0,
            )
    return found


def by_tenant(record: Record) -> dict[str, TenantFigures]:
    """Figures by name of each tenant with a request that has an E2E."""
    tokens = record.planned_output_tokens
    groups = groups_of(record.rows, "tenant_id")
    return {
        name: TenantFigures(len(places), int(tokens[places].sum()))
        for name, places in groups.members(np.flatnonzero(record.e2e_us != NEVER))
        if name
    }


def jain_index(shares: Collection[float]) -> float:
    """Jain's fairness index, (sum x)^2 / (n * sum x^2): 1 when all get equal shares, 1/n when one gets all.

    The index is also 1 when all get nothing.
    """
    squares = sequential_sum(share * share for share in shares)
    return sequential_sum(shares) ** 2 / (len(shares) * squares) if squares else 1.0


def by_session(record: Record) -> SessionFigures | None:
    """The conversations with a request that got a token; None without any."""
    ttft_us, e2e_us, arrived_at = record.ttft_us, record.e2e_us, record.arrived_at
    groups = groups_of(record.rows, "session_id")
    has_session = np.array([bool(name) for name in groups.names], np.bool_)[groups.codes]
    started = has_session & (ttft_us != NEVER)
    if not started.any():
        return None
    is_first = np.fromiter(values_of(record.rows, "round_index"), np.int64, len(record)) == 0
    ended = has_session & record.is_completed
    firsts_us = np.full(len(groups.names), np.iinfo(np.int64).max)
    lasts_us = np.full(len(groups.names), -1)
    np.minimum.at(firsts_us, groups.codes[ended], arrived_at[ended])
    np.maximum.at(lasts_us, groups.codes[ended], (arrived_at + e2e_us)[ended])
    answered = lasts_us >= 0
    return SessionFigures(
        num_sessions=int(np.count_nonzero(np.bincount(groups.codes[started]))),
        ttft_cold=distribution(ttft_us[started & is_first] / 1000),
        ttft_warm=distribution(ttft_us[started & ~is_first] / 1000),
        duration=distribution((lasts_us - firsts_us)[answered] / 1000),
    )
