"""The figures of a run by class, model, tenant and conversation."""

from collections.abc import Callable, Collection, Iterable, Iterator
from operator import attrgetter
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from blis_sim.options.addition import sequential_sum
from replay.simulation.pool import Distribution, distribution
from replay.simulation.record import NEVER, Record
from traces.slo import class_name

Ints = npt.NDArray[np.int64]


class Groups(NamedTuple):
    """The labels that occur, ascending, and for each request the index of its label."""

    names: list[str]
    codes: Ints

    def members(self, order: Ints) -> Iterator[tuple[str, Ints]]:
        """Each name that occurs among the requests at these places, with their places in this order."""
        codes = self.codes[order]
        by_code = order[np.argsort(codes, kind="stable")]
        start = 0
        for name, count in zip(self.names, np.bincount(codes, minlength=len(self.names)).tolist(), strict=True):
            if count:
                yield name, by_code[start : start + count]
            start += count


def groups_of(labels: Iterable[str], name_of: Callable[[str], str] = str) -> Groups:
    """Group a sequence of requests by the name of each request's label."""
    given = list(labels)
    named = {label: name_of(label) for label in set(given)}
    names = sorted(set(named.values()))
    if len(names) == 1:
        return Groups(names, np.zeros(len(given), np.int64))
    ranks = {name: rank for rank, name in enumerate(names)}
    codes = {label: ranks[name] for label, name in named.items()}
    return Groups(names, np.fromiter(map(codes.__getitem__, given), np.int64, len(given)))


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
    """Each class of which a request got a token, by name; requests without a class are `default`."""
    ttft_us, e2e_us, itl_us = record.ttft_us, record.e2e_us, record.itl_mean_us
    completed, has_e2e = record.is_completed, e2e_us != NEVER
    groups = groups_of(map(attrgetter("slo_class"), record.rows), class_name)
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
    """Each model that requests name and of which one got a token, by name."""
    ttft_us, e2e_us, tokens = record.ttft_us, record.e2e_us, record.planned_output_tokens
    has_e2e = e2e_us != NEVER
    groups = groups_of(map(attrgetter("model"), record.rows))
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
    groups = groups_of(map(attrgetter("tenant_id"), record.rows))
    return {
        name: TenantFigures(len(places), int(tokens[places].sum()))
        for name, places in groups.members(np.flatnonzero(record.e2e_us != NEVER))
        if name
    }


def jain_index(shares: Collection[float]) -> float:
    """Jain's fairness index, (sum x)^2 / (n * sum x^2): 1 when all get the same, 1/n when one gets all.

    The index is also 1 when all get nothing.
    """
    squares = sequential_sum(share * share for share in shares)
    return sequential_sum(shares) ** 2 / (len(shares) * squares) if squares else 1.0


def by_session(record: Record) -> SessionFigures | None:
    """The conversations of which a request got a token; None without any."""
    ttft_us, e2e_us, arrived_at = record.ttft_us, record.e2e_us, record.arrived_at
    groups = groups_of(map(attrgetter("session_id"), record.rows))
    has_session = np.array([bool(name) for name in groups.names], np.bool_)[groups.codes]
    started = has_session & (ttft_us != NEVER)
    if not started.any():
        return None
    is_first = np.array([row.round_index == 0 for row in record.rows], np.bool_)
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
