"""The answer of a sweep: all points with their figures, the frontier among them, and with targets the cheapest."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from blis_sim.bench.points import TITLES, Row, Table, costs
from blis_sim.options.custom_metrics import COLUMN_PREFIX
from blis_sim.options.provenance import Provenance
from blis_sim.report.figures import Curve, Panel, Target, draw_panels, frontier_panels
from blis_sim.report.report import Report, Section, with_origin
from blis_sim.report.tables import TextTable, cell, counted, duration
from replay.analysis.steady import Overload
from replay.output.table import overload_text

_GOALS = (("tokens_per_sec", -1), ("ttft_p99_ms", 1), ("itl_p99_ms", 1), ("gpu_hours_per_million_tokens", 1))
"""Figures that count, with 1 where less is better and -1 where more is."""

LOAD_SETTINGS = ("rate", "concurrency")
"""Settings of the load, whose values make a curve."""


def served_rows(rows: Sequence[Row]) -> list[Row]:
    """The rows of points that served requests."""
    return [row for row in rows if row.outcome.figures.get("tokens_per_sec")]


def frontier(rows: Sequence[Row]) -> list[Row]:
    """The rows that no other row beats or equals in all of throughput, p99 TTFT, p99 ITL and GPU time per token."""
    scored = [(row, _score(row)) for row in served_rows(rows)]
    return [row for row, score in scored if not any(_beats(other, score) for _, other in scored)]


def draw(rows: Sequence[Row], path: str, gpu_cost_per_hour: float | None) -> None:
    """Draw all rows that served something, a curve for each setting but the load. Raises TraceError."""
    draw_panels(frontier_panels(list(_curves(served_rows(rows), gpu_cost_per_hour))), path)


def _curves(rows: Sequence[Row], gpu_cost_per_hour: float | None) -> Iterator[Curve]:
    groups: dict[str, list[Row]] = {}
    for row in rows:
        others = (f"{name}={value}" for name, value in row.point.varied.items() if name not in LOAD_SETTINGS)
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
    values = {name: row.point.varied[name] for name in LOAD_SETTINGS if row.point.varied.get(name) is not None}
    return " ".join(f"{name} {value:g}" for name, value in values.items())


def _score(row: Row) -> tuple[float, ...]:
    return tuple(sign * (row.outcome.figures[name] or 0) for name, sign in _GOALS)


def _beats(one: Sequence[float], other: Sequence[float]) -> bool:
    return all(a <= b for a, b in zip(one, other, strict=True)) and any(a < b for a, b in zip(one, other, strict=True))


_JUDGED = ("slo_attainment", "percentile_targets_met")
"""The figures that say whether targets are met: a share of requests, and 0 or 1. None without such targets."""
MOST_ROWS = 60
"""Most points that a table has; those on the frontier come before others, with targets those that meet them."""
BEST = "*"
"""The mark of a point on the frontier."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepResult:
    """All points of a sweep, its frontier, and its targets."""

    table: Table
    rows: Sequence[Row]
    least_attainment: float
    """The share of requests within their targets from which a point meets them."""
    ttft_limits_ms: Mapping[str, float] = field(default_factory=dict)
    """Limits of the time to first token, by SLO class."""
    path: str = ""
    """The file with all points."""
    step_times: str = ""
    """The latency model of all points with its expected error; empty where points name their own."""

    @property
    def served_rows(self) -> list[Row]:
        """The points that served requests."""
        return served_rows(self.rows)

    @property
    def frontier(self) -> list[Row]:
        """The Pareto frontier of the points."""
        return frontier(self.rows)

    @property
    def has_targets(self) -> bool:
        """Whether there are latency targets."""
        return any(row.outcome.figures.get(name) is not None for row in self.rows for name in _JUDGED)

    @property
    def has_goodput(self) -> bool:
        """Whether there are latency targets for each request, of which a share must meet them."""
        return any(row.outcome.figures.get("slo_attainment") is not None for row in self.rows)

    @property
    def varies_load(self) -> bool:
        """Whether points differ in their load, so that only their costs per token can be compared."""
        return any(name in LOAD_SETTINGS for name in self.table.varied)

    def meets_targets(self, row: Row) -> bool:
        """Return whether a point meets its targets; False without any, or where an overload would end that."""
        attainment, is_met = (row.outcome.figures.get(name) for name in _JUDGED)
        if attainment is None and is_met is None:
            return False
        return (attainment is None or attainment >= self.least_attainment) and is_met != 0 and not is_overloaded(row)

    @property
    def cheapest(self) -> Row | None:
        """The point that meets the targets at least cost: per hour, or per token where the load varies."""
        name = "gpu_hours_per_million_tokens" if self.varies_load else "num_gpus"
        passing = [row for row in self.served_rows if self.meets_targets(row)]
        return min(passing, key=lambda row: (_figure(row, name), -_figure(row, "tokens_per_sec")), default=None)


def is_overloaded(row: Row) -> bool:
    """Whether a point is offered more than it serves."""
    return row.outcome.figures.get("overload_queue_growth_per_min") is not None


def _figure(row: Row, name: str) -> float:
    return row.outcome.figures.get(name) or 0.0


def sweep_report(result: SweepResult, origin: Callable[[], Provenance]) -> Report:
    """Return the sweep as an answer."""

    def rows() -> Iterator[dict[str, Any]]:
        best = frontier_keys(result)
        for row in result.rows:
            yield {**result.table.cells(row), **_marks(result, row, best)}

    def data() -> dict[str, Any]:
        cheapest = result.cheapest
        found = {
            "step_times": result.step_times or None,
            "least_attainment": result.least_attainment if result.has_goodput else None,
            "cheapest_point": None if cheapest is None else cheapest.key,
            "points": list(rows()),
        }
        return with_origin(found, origin())

    return Report(
        title="Sweep of",
        origin=origin,
        data=data,
        rows=rows,
        lead=lambda: [line for line in (result.step_times, head_of(result)) if line],
        sections=lambda: [Section(table=shown_table(result))],
        remarks=lambda: notes_of(result),
        panels=lambda: _panels(result),
    )


def frontier_keys(result: SweepResult) -> frozenset[str]:
    """Return the keys of the points on the frontier."""
    return frozenset(row.key for row in result.frontier)


def _marks(result: SweepResult, row: Row, best: frozenset[str]) -> dict[str, Any]:
    known: dict[str, Any] = {"on_frontier": row.key in best}
    return {**known, "meets_targets": result.meets_targets(row)} if result.has_targets else known


def head_of(result: SweepResult) -> str:
    """Return the first line: the number of points on the frontier, or within the targets."""
    if not result.has_targets:
        num_best, num_points = len(result.frontier), len(result.rows)
        mark = f", marked {BEST}" if 0 < num_best < num_points else ""
        return f"{num_best} of {num_points} points are beaten by no other one{mark}:"
    passing = sum(result.meets_targets(row) for row in result.rows)
    share = f" ({100 * result.least_attainment:.4g} % of requests within all of them)" if result.has_goodput else ""
    return f"{passing} of {len(result.rows)} points meet the targets{share}:"


def notes_of(result: SweepResult) -> list[str]:
    """Return the lines below the table: points left out, and with targets the cheapest that meets them."""
    shown = _shown(result)
    more = len(result.rows) - len(shown)
    notes = [f"{more} of {len(result.rows)} points are not printed; all are in {result.path}"] if more else []
    notes += _load_notes(shown)
    if not result.has_targets or not result.served_rows:
        return notes
    cheapest = result.cheapest
    if cheapest is None:
        if any(row.outcome.figures.get("percentile_targets_met") is not None for row in result.rows):
            return [*notes, "none meets the targets"]
        best = max(result.served_rows, key=lambda row: _figure(row, "slo_attainment"))
        return [*notes, f"none meets the targets, nearest is {best.point.label} with {_attainment(best)}"]
    gpus = counted(int(_figure(cheapest, "num_gpus")), "GPU")
    price = result.table.gpu_cost_per_hour
    if price is not None:
        cost = costs(cheapest.outcome.figures, price)
        gpus += f", ${cost['cost_per_hour'] or 0:,.2f} an hour, ${cost['cost_per_million_tokens'] or 0:,.2f}/M tokens"
    within = f", {_attainment(cheapest)} within" if result.has_goodput else ""
    measure = "per token" if result.varies_load else "per hour"
    return [
        *notes,
        f"cheapest {measure} that meets them: {cheapest.point.label} ({gpus}{within})",
    ]


def _load_notes(shown: Sequence[Row]) -> Iterator[str]:
    """Yield a line for each overloaded point, and one for those that are too short to tell."""
    for row in shown:
        if is_overloaded(row):
            found = {name: _figure(row, f"overload_{name}") for name in Overload.__dataclass_fields__}
            yield f"{row.point.label}: {overload_text(Overload(**found))}"
    short = [row.point.label for row in shown if row.outcome.figures.get("is_steady") == 0 and not is_overloaded(row)]
    failed = [row.point.label for row in shown if row.outcome.error]
    if failed:
        yield f"failed: {', '.join(failed)}"
    if short:
        yield f"too short for a steady state: {', '.join(short)}"


def _attainment(row: Row) -> str:
    share = row.outcome.figures.get("slo_attainment")
    return "-" if share is None else f"{share:.1%}"


def _shown(result: SweepResult) -> list[Row]:
    """Return the points of the table, in their order."""
    if len(result.rows) <= MOST_ROWS:
        return list(result.rows)
    best = (
        {row.key for row in result.rows if result.meets_targets(row)} if result.has_targets else frontier_keys(result)
    )
    first = {row.key for row in sorted(result.rows, key=lambda row: row.key not in best)[:MOST_ROWS]}
    return [row for row in result.rows if row.key in first]


def shown_table(result: SweepResult) -> TextTable:
    """Return the table of the points, with their verdicts where there are targets.

    Without targets those on the frontier are marked, unless all are on it or none is.
    """
    shown = _shown(result)
    best = frozenset() if result.has_targets else frontier_keys(result)
    has_marks = 0 < len(best) < len(result.rows)
    has_rejected = any(row.outcome.figures.get("rejected_requests") for row in shown)
    rows = [_shown_row(result, row, has_rejected) for row in shown]
    if has_marks:
        rows = [{"": BEST * (row.key in best), **cells} for row, cells in zip(shown, rows, strict=True)]
    return TextTable.of(rows, num_left_aligned=0, num_labels=has_marks + len(result.table.varied))


def _shown_row(result: SweepResult, row: Row, has_rejected: bool) -> dict[str, str]:
    figures, price = row.outcome.figures, result.table.gpu_cost_per_hour
    known = {name: str(row.point.varied[name]) for name in result.table.varied}
    known["GPUs"] = "-" if row.outcome.error else str(figures["num_gpus"] or 0)
    if has_rejected:
        known["rejected"] = "-" if row.outcome.error else str(figures["rejected_requests"] or 0)
    titles = {**TITLES, **{name: name.removeprefix(COLUMN_PREFIX) for name in result.table.custom}}
    known |= {title: cell(figures.get(name)) for name, title in titles.items()}
    if price is not None:
        known["$/M tokens"] = "-" if row.outcome.error else cell(costs(figures, price)["cost_per_million_tokens"])
    if result.has_goodput:
        known["within"] = _attainment(row)
    if result.has_targets:
        known["verdict"] = _verdict(result, row)
    return known


def _verdict(result: SweepResult, row: Row) -> str:
    if row.outcome.error:
        return "failed"
    verdict = "cheapest" if row is result.cheapest else "meets" if result.meets_targets(row) else "misses"
    return verdict + (", overloaded" if is_overloaded(row) else "")


def _panels(result: SweepResult) -> list[Panel]:
    limits = result.ttft_limits_ms
    targets = [Target(limit_ms, f"target of {name}, {duration(limit_ms)}") for name, limit_ms in limits.items()]
    return frontier_panels(list(_curves(result.served_rows, result.table.gpu_cost_per_hour)), {"ttft_ms": targets})
