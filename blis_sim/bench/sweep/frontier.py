"""Which points of a sweep are worth a look: those that no other one beats in everything."""

from collections.abc import Iterator, Sequence

from blis_sim.bench.frontier_plot import Curve, draw_frontier
from blis_sim.bench.runner.simulate import costs
from blis_sim.bench.sweep.rows import Row

_GOALS = (("tokens_per_sec", -1), ("ttft_p99_ms", 1), ("itl_p99_ms", 1), ("gpu_hours_per_million_tokens", 1))
"""Figures that count, with 1 where less is better and -1 where more is."""

ALONG = ("rate", "concurrency")
"""Settings of the load, whose values make a curve."""


def answered(rows: Sequence[Row]) -> list[Row]:
    """The rows of points that served requests."""
    return [row for row in rows if row.outcome.figures.get("tokens_per_sec")]


def frontier(rows: Sequence[Row]) -> list[Row]:
    """The rows that no other row beats or equals in all of throughput, p99 TTFT, p99 ITL and GPU time per token."""
    scored = [(row, _score(row)) for row in answered(rows)]
    return [row for row, score in scored if not any(_beats(other, score) for _, other in scored)]


def draw(rows: Sequence[Row], path: str, gpu_cost_per_hour: float | None) -> None:
    """Draw all rows that served something, a curve for each setting but the load. Raises TraceError."""
    draw_frontier(list(_curves(answered(rows), gpu_cost_per_hour)), path)


def curves_of(rows: Sequence[Row], gpu_cost_per_hour: float | None) -> list[Curve]:
    """Return a curve for each setting but the load."""
    return list(_curves(rows, gpu_cost_per_hour))


def _curves(rows: Sequence[Row], gpu_cost_per_hour: float | None) -> Iterator[Curve]:
    groups: dict[str, list[Row]] = {}
    for row in rows:
        others = (f"{name}={value}" for name, value in row.point.varied.items() if name not in ALONG)
        groups.setdefault(" ".join(others), []).append(row)
    for name, members in groups.items():
        figures = [row.outcome.figures for row in members]
        priced = [] if gpu_cost_per_hour is None else [costs(each, gpu_cost_per_hour) for each in figures]
        yield Curve(
            name=name,
            throughput=[each["tokens_per_sec"] or 0 for each in figures],
            ttft_ms=[each["ttft_p99_ms"] or 0 for each in figures],
            itl_ms=[each["itl_p99_ms"] or 0 for each in figures],
            labels=[_load(row) for row in members],
            cost=[each["cost_per_million_tokens"] or 0 for each in priced],
        )


def _load(row: Row) -> str:
    """Return the load of a row, where that varies."""
    values = {name: row.point.varied[name] for name in ALONG if row.point.varied.get(name) is not None}
    return " ".join(f"{name} {value:g}" for name, value in values.items())


def _score(row: Row) -> tuple[float, ...]:
    return tuple(sign * (row.outcome.figures[name] or 0) for name, sign in _GOALS)


def _beats(one: Sequence[float], other: Sequence[float]) -> bool:
    return all(a <= b for a, b in zip(one, other, strict=True)) and any(a < b for a, b in zip(one, other, strict=True))
