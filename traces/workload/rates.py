"""How the aggregate rate is divided: in proportion to weights, among those who are active at the same time."""

from collections.abc import Iterable, Sequence
from typing import TypeAlias

from blis_sim.options.addition import added_up

Span: TypeAlias = tuple[int, int]
"""Start and end of a stretch of time in microseconds, the end excluded."""
Spans: TypeAlias = tuple[Span, ...] | None
"""When somebody is active; None is always."""


def merged(spans: Iterable[Span]) -> tuple[Span, ...]:
    """The same time as ascending spans that do not touch."""
    result: list[Span] = []
    for start, end in sorted(spans):
        if result and start <= result[-1][1]:
            result[-1] = (result[-1][0], max(end, result[-1][1]))
        else:
            result.append((start, end))
    return tuple(result)


def shares(weights: Sequence[tuple[float, Spans]]) -> list[float]:
    """The share of each: its weight among all whose time overlaps its own, itself included."""
    totals: dict[Spans, float] = {}
    for weight, spans in weights:
        totals[spans] = totals.get(spans, 0.0) + weight
    active = {
        spans: added_up(total for other, total in totals.items() if spans == other or _overlap(spans, other))
        for spans in totals
    }
    return [weight / active[spans] for weight, spans in weights]


def _overlap(one: Spans, other: Spans) -> bool:
    if one is None or other is None:
        return True
    # Most pairs are apart as a whole.
    if one[-1][1] <= other[0][0] or other[-1][1] <= one[0][0]:
        return False
    return any(start < end2 and start2 < end for start, end in one for start2, end2 in other)
