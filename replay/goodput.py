"""How much of what arrived was served within its targets."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from replay.breakdown import ClassLatencies
from replay.record import Record
from traces import SloTargets
from traces.goodput import Attainment, attainment, limits_us, members_of, rate, share


@dataclass(frozen=True, slots=True)
class ClassGoodput:
    """One class with targets: how many requests arrived, and how these fared; None when none of them got a token."""

    count: int
    attained: Attainment
    latencies: ClassLatencies | None


@dataclass(frozen=True, slots=True)
class Goodput:
    """All classes with targets, by name, and these taken together. Classes without targets count nowhere."""

    share: float
    per_s: float
    classes: dict[str, ClassGoodput]


def goodput(
    record: Record, targets: Mapping[str, SloTargets], classes: Mapping[str, ClassLatencies], duration_s: float
) -> Goodput:
    """Attainment over the requests that arrived: one that was refused, given up or cut off met no target.

    A class's share for a single limit is over its completed requests.
    """
    completed = record.is_completed
    values_us = {
        "ttft": record.ttft_us.astype(np.float64),
        "itl": record.itl_mean_us,
        "e2e": record.e2e_us.astype(np.float64),
    }
    found = {}
    for name, of_class in sorted(targets.items()):
        members = members_of(name, (row.slo_class for row in record.rows))
        attained = attainment(values_us, limits_us(of_class), members, duration_s, completed)
        found[name] = ClassGoodput(int(members.sum()), attained, classes.get(name))
    num_good = sum(each.attained.num_good for each in found.values())
    count = sum(each.count for each in found.values())
    return Goodput(share(num_good, count), rate(num_good, duration_s), found)
