"""Which points of a sweep are worth a look: those that no other one beats in everything."""

from collections.abc import Iterator, Sequence

from blis_sim.bench.frontier_plot import Curve, draw_frontier
from blis_sim.bench.points.simulate import costs
from blis_sim.bench.sweep.rows import Row

_GOALS = (("tokens_per_sec", -1), ("ttft_p99_ms", 1), ("itl_p99_ms", 1), ("gpu_hours_per_million_tokens", 1))
"""Figures that count, with 1 where less is better and -1 where more is."""

_ALONG = ("rate", "concurrency")
"""Settings of the load, whose values make a curve."""


def answered(rows: Sequence[Row]) -> list[Row]:
    """The rows of points that served requests."""
    return [row for row in rows if row.outcome.figures.get("tokens_per_sec")]


def frontier(rows: Sequence[Row]) -> list[Row]:
    """The rows that no other row beats or equals in all of throughput, p99 TTFT, p99 ITL and GPU time per token."""
    scored = [(row, _score(row)) for row in answered(rows)]
    return [row for row, score in scored if not any(_beats(other, score) for _, other in scored)]


def table_text(rows: Sequence[Row], gpu_cost_per_hour: float | None) -> str:
    """The rows for people, with a newline at the end; how many requests were turned away where there are such."""
    varied = list(rows[0].point.varied)
    price = [] if gpu_cost_per_hour is None else ["$/M tokens"]
    away = ["rejected"] if any(row.outcome.figures.get("rejected_requests") for row in rows) else []
    lines = [[*varied, "GPUs", *away, "requests/s", "tokens/s", "TTFT p99 ms", "ITL p99 ms", *price]]
    for row in rows:
        figures = row.outcome.figures
        numbers = [figures[name] for name in ("responses_per_sec", "tokens_per_sec", "ttft_p99_ms", "itl_p99_ms")]
        if gpu_cost_per_hour is not None:
            numbers.append(costs(figures, gpu_cost_per_hour)["cost_per_million_tokens"])
        settings = [str(row.point.varied[name]) for name in varied]
        counts = [str(figures[name] or 0) for name in ("num_gpus", *(["rejected_requests"] if away else []))]
        lines.append([*settings, *counts, *(f"{number or 0:.2f}" for number in numbers)])
    widths = [max(len(line[place]) for line in lines) for place in range(len(lines[0]))]
    return "".join(
        "  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)) + "\n" for line in lines
    )


def draw(rows: Sequence[Row], path: str, gpu_cost_per_hour: float | None) -> None:
    """Draw all rows that served something, a curve for each setting but the load. Raises TraceError."""
    draw_frontier(list(_curves(answered(rows), gpu_cost_per_hour)), path)


def _curves(rows: Sequence[Row], gpu_cost_per_hour: float | None) -> Iterator[Curve]:
    groups: dict[str, list[Row]] = {}
    for row in rows:
        others = (f"{name}={value}" for name, value in row.point.varied.items() if name not in _ALONG)
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
    values = {name: row.point.varied[name] for name in _ALONG if row.point.varied.get(name) is not None}
    return " ".join(f"{name} {value:g}" for name, value in values.items())


def _score(row: Row) -> tuple[float, ...]:
    return tuple(sign * (row.outcome.figures[name] or 0) for name, sign in _GOALS)


def _beats(one: Sequence[float], other: Sequence[float]) -> bool:
    return all(a <= b for a, b in zip(one, other, strict=True)) and any(a < b for a, b in zip(one, other, strict=True))
