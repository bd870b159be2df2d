"""How much of what arrived was served within its targets."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from replay.figures.breakdown import ClassLatencies
from replay.running.record import Record
from traces import SloTargets
from traces.goodput import Attainment, goodput_of


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
    """Attainment over the requests that arrived: one that was refused, given up or cut off met no target."""
    values_us = {
        "ttft": record.ttft_us.astype(np.float64),
        "itl": record.itl_mean_us,
        "e2e": record.e2e_us.astype(np.float64),
    }
    slo_classes = [row.slo_class for row in record.rows]
    found = goodput_of(values_us, slo_classes, record.is_completed, targets, duration_s)
    by_class = {
        name: ClassGoodput(each.count, each.attained, classes.get(name)) for name, each in found.classes.items()
    }
    return Goodput(found.share, found.per_s, by_class)
