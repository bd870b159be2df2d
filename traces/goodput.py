"""How many requests stayed within the latency targets of their class: one rule for recordings and simulations."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from traces.slo import SloTargets, class_name

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Attainment:
    """Number of requests that met all limits of their class, as a share and per second too, and the share for each
    limit."""

    num_good: int
    share: float
    per_s: float
    by_limit: dict[str, float]


@dataclass(frozen=True, slots=True)
class ClassAttainment:
    """One class with targets: how many requests there were, and how many of them met these."""

    count: int
    attained: Attainment


@dataclass(frozen=True, slots=True)
class Goodput:
    """All classes with targets, by name, and these taken together. Classes without targets count nowhere."""

    share: float
    per_s: float
    classes: dict[str, ClassAttainment]


def goodput_of(
    values_us: Mapping[str, Floats],
    slo_classes: Sequence[str],
    answered: Bools,
    targets: Mapping[str, SloTargets],
    duration_s: float,
) -> Goodput:
    """Attainment over all requests: one that was not `answered` met no target.

    `values_us` has `ttft`, `itl` and `e2e`, NaN where unknown. The share of a single limit is over answered requests.
    """
    classes = {}
    for name, of_class in sorted(targets.items()):
        members = members_of(name, slo_classes)
        attained = attainment(values_us, limits_us(of_class), members, duration_s, answered)
        classes[name] = ClassAttainment(int(members.sum()), attained)
    num_good = sum(each.attained.num_good for each in classes.values())
    count = sum(each.count for each in classes.values())
    return Goodput(share(num_good, count), rate(num_good, duration_s), classes)


def limits_us(targets: SloTargets) -> dict[str, float]:
    """The limits that targets set, in microseconds, in the order in which the original checks them."""
    limits_ms = {"ttft": targets.ttft_ms, "e2e": targets.e2e_ms, "itl": targets.itl_ms}
    return {name: limit_ms * 1000 for name, limit_ms in limits_ms.items() if limit_ms > 0}


def members_of(name: str, slo_classes: Iterable[str]) -> Bools:
    """Return the requests of the class `name`, to which its targets apply; `default` is for requests without a
    class."""
    return np.array([class_name(slo_class) == name for slo_class in slo_classes], dtype=np.bool_)


def attainment(
    values_us: Mapping[str, Floats],
    limits: Mapping[str, float],
    members: Bools,
    duration_s: float,
    answered: Bools | None = None,
) -> Attainment:
    """Return the attainment of `limits` by `members`. A request that was not `answered` met none.

    A limit is checked only where the value is known (not NaN), and leaves other requests as they are. Its own share is
    over the answered requests that it was checked for.
    """
    good = members if answered is None else members & answered
    candidates = good
    by_limit = {}
    for name, limit in limits.items():
        checked = candidates & ~np.isnan(values_us[name])
        met = values_us[name] <= limit
        by_limit[name] = share(int((met & checked).sum()), int(checked.sum()))
        good = good & (met | ~checked)
    return attained(int(good.sum()), int(members.sum()), by_limit, duration_s)


def attained(num_good: int, num_members: int, by_limit: Mapping[str, float], duration_s: float) -> Attainment:
    """An attainment from its counts."""
    return Attainment(
        num_good, share(num_good, num_members), rate(num_good, duration_s), dict(sorted(by_limit.items()))
    )


def share(num_good: int, count: int) -> float:
    """Return `num_good` as a fraction of `count`; 0 for a count of 0."""
    return num_good / count if count else 0.0


def rate(count: float, duration_s: float) -> float:
    """Return the rate per second; 0 for a duration of 0."""
    return count / duration_s if duration_s > 0 else 0.0
