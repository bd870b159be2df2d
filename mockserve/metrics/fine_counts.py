"""Counts of durations in buckets so narrow that percentiles of them are those of the durations."""

from collections.abc import Mapping, Sequence
from math import exp, log

_BUCKETS_PER_E = 50
"""Buckets by which a duration grows by the factor e; each is 2 % wide, so its middle is within 1 % of its durations."""

FRACTIONS = (0.5, 0.9, 0.99)


class FineCounts:
    """Counts of durations by bucket; only buckets in use take memory, about 1,000 at most."""

    __slots__ = ("counts",)

    def __init__(self) -> None:
        self.counts: dict[int, int] = {}

    def observe(self, duration_us: float, times: int = 1) -> None:
        """Count `times` durations; those below a microsecond count as one."""
        bucket = int(log(duration_us) * _BUCKETS_PER_E) if duration_us > 1 else 0
        self.counts[bucket] = self.counts.get(bucket, 0) + times


def increase(before: Mapping[int, int], after: Mapping[int, int]) -> dict[int, int]:
    """Return the counts that came since `before`."""
    return {bucket: count - known for bucket, count in after.items() if count != (known := before.get(bucket, 0))}


def add_to(total: dict[int, int], counts: Mapping[int, int]) -> None:
    """Add counts to a total."""
    for bucket, count in counts.items():
        total[bucket] = total.get(bucket, 0) + count


def percentiles_ms(counts: Mapping[int, int]) -> Sequence[float] | None:
    """Return p50, p90 and p99 in milliseconds, within 1 %; None without a duration."""
    total = sum(counts.values())
    if not total:
        return None
    found: list[float] = []
    seen = 0
    for bucket in sorted(counts):
        seen += counts[bucket]
        while len(found) < len(FRACTIONS) and seen >= FRACTIONS[len(found)] * total:
            found.append(float(f"{exp((bucket + 0.5) / _BUCKETS_PER_E) / 1000:.4g}"))
    return found
