"""Percentiles of durations counted in narrow buckets, and sums and differences of such counts."""

from collections.abc import Mapping, Sequence
from math import exp

from mockserve.metrics.engine import BUCKETS_PER_E

FRACTIONS = (0.5, 0.9, 0.99)


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
            found.append(float(f"{exp((bucket + 0.5) / BUCKETS_PER_E) / 1000:.4g}"))
    return found
