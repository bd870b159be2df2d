"""How many requests met the latency limits of their class, recorded and simulated."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from calibrate.itl import Itl
from calibrate.pair import Floats, Latencies, Pairing
from traces import SloTargets
from traces.goodput import Attainment, Bools, attained, attainment, limits_us, members_of, share

_COUNTED_STATUSES_COMPAT = frozenset({"ok", "error", "timeout"})


@dataclass(frozen=True, slots=True)
class ClassGoodput:
    """One class of requests on both sides."""

    count: int
    real: Attainment
    sim: Attainment


@dataclass(frozen=True, slots=True)
class Goodput:
    """All classes with limits. `itl_skipped`: an ITL limit could not be checked because token times are missing."""

    targets: dict[str, SloTargets]
    classes: dict[str, ClassGoodput]
    itl_skipped: bool


def goodput(pairing: Pairing, times: Latencies, itl: Itl, targets: Mapping[str, SloTargets]) -> Goodput:
    """Attainment of each class's limits over its pairs; each limit's share is over the pairs it was checked for.

    An ITL limit is checked only for pairs with token times on both sides, so that recording and simulation are held to
    the same limits. Rates divide by the time from the first sending to the last chunk.
    """
    both = itl.both()
    real = _by_limit(times.real_ttft_us, times.real_e2e_us, np.where(both, itl.real_us, np.nan))
    sim = _by_limit(times.sim_ttft_us, times.sim_e2e_us, np.where(both, itl.sim_us, np.nan))
    duration_s = recorded_duration_s(pairing)
    classes = {}
    skipped = False
    for name, of_class in sorted(targets.items()):
        members = members_of(name, (row.slo_class for row in pairing.rows))
        limits = limits_us(of_class)
        skipped |= "itl" in limits and bool((members & ~both).any())
        classes[name] = ClassGoodput(
            count=int(members.sum()),
            real=attainment(real, limits, members, duration_s),
            sim=attainment(sim, limits, members, duration_s),
        )
    return Goodput(dict(sorted(targets.items())), classes, skipped)


def goodput_compat(pairing: Pairing, times: Latencies, itl: Itl, targets: Mapping[str, SloTargets]) -> Goodput:
    """Compute goodput as the original does: limits in the order TTFT, E2E, ITL, each checked only for requests that met
    those before.

    A request without token times misses its ITL limit, failed requests miss all of the recorded side, and the simulated
    ITL is the one in the results.
    """
    sim_itl_us = np.array([result.itl_mean_us or np.nan for result in pairing.results], dtype=np.float64)
    real = _by_limit(times.real_ttft_us, times.real_e2e_us, itl.real_us)
    sim = _by_limit(times.sim_ttft_us, times.sim_e2e_us, sim_itl_us)
    counted = np.array([row.status in _COUNTED_STATUSES_COMPAT for row in pairing.rows], dtype=np.bool_)
    answered = np.array([row.status == "ok" for row in pairing.rows], dtype=np.bool_)
    missing = np.isnan(itl.real_us) | np.isnan(sim_itl_us)
    duration_s = recorded_duration_s(pairing)
    classes = {}
    skipped = False
    for name, of_class in sorted(targets.items()):
        members = members_of(name, (row.slo_class for row in pairing.rows)) & counted
        limits = limits_us(of_class)
        skipped |= "itl" in limits and bool((members & missing).any())
        num_members = int(members.sum())
        classes[name] = ClassGoodput(
            count=num_members,
            real=_attainment_in_order(real, limits, members & answered, num_members, duration_s),
            sim=_attainment_in_order(sim, limits, members, num_members, duration_s),
        )
    return Goodput(dict(sorted(targets.items())), classes, skipped)


def recorded_duration_s(pairing: Pairing) -> float:
    """Seconds from the first sending of a matched row to the last chunk of one."""
    first_us = min(row.send_time_us for row in pairing.rows)
    return (max(row.last_chunk_time_us for row in pairing.rows) - first_us) / 1e6


def _by_limit(ttft_us: Floats, e2e_us: Floats, itl_us: Floats) -> dict[str, Floats]:
    return {"ttft": ttft_us, "e2e": e2e_us, "itl": itl_us}


def _attainment_in_order(
    values: Mapping[str, Floats], limits: Mapping[str, float], good: Bools, num_members: int, duration_s: float
) -> Attainment:
    by_limit = {}
    for name, limit in limits.items():
        num_checked = int(good.sum())
        good = good & (values[name] <= limit)
        by_limit[name] = share(int(good.sum()), num_checked)
    return attained(int(good.sum()), num_members, by_limit, duration_s)
