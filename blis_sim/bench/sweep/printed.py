"""A sweep on standard output: the frontier, or with targets all points with their verdicts and the cheapest."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from blis_sim.bench.runner.simulate import Figures, costs
from blis_sim.bench.sweep.frontier import ALONG, answered, frontier
from blis_sim.bench.sweep.rows import Row, Table
from blis_sim.options.provenance import Provenance
from blis_sim.options.text_table import TextTable, counted, csv_text
from traces import dump_json

FORMATS = ("table", "json", "csv", "markdown")
_MOST_LINES = 40


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepResult:
    """All points of a sweep, and which of them are worth a look."""

    table: Table
    rows: Sequence[Row]
    least_attainment: float
    """The share of requests within their targets from which a point meets them."""
    ttft_limits_ms: Mapping[str, float] = field(default_factory=dict)
    """Limits of the time to first token, by SLO class."""

    @property
    def answered(self) -> list[Row]:
        """The points that served requests."""
        return answered(self.rows)

    @property
    def frontier(self) -> list[Row]:
        """The points that no other one beats in everything."""
        return frontier(self.rows)

    @property
    def has_targets(self) -> bool:
        """Whether there are latency targets."""
        return any(row.outcome.figures.get("slo_attainment") is not None for row in self.rows)

    @property
    def varies_load(self) -> bool:
        """Whether points differ in their load, so that only their costs per token can be compared."""
        return any(name in ALONG for name in self.table.varied)

    def meets_targets(self, row: Row) -> bool:
        """Return whether a point meets its targets; False without any."""
        attainment = row.outcome.figures.get("slo_attainment")
        return attainment is not None and attainment >= self.least_attainment

    @property
    def cheapest(self) -> Row | None:
        """The point that meets the targets at least cost: per hour, or per token where the load varies."""
        name = "gpu_hours_per_million_tokens" if self.varies_load else "num_gpus"
        passing = [row for row in self.answered if self.meets_targets(row)]
        return min(passing, key=lambda row: (_figure(row, name), -_figure(row, "tokens_per_sec")), default=None)


def _figure(row: Row, name: str) -> float:
    return row.outcome.figures.get(name) or 0.0


def printed(result: SweepResult, form: str, origin: Provenance) -> str:
    """Return the sweep in one of `FORMATS`, with a newline at the end."""
    if form == "csv":
        return _csv(result)
    if form == "json":
        return dump_json({"provenance": asdict(origin), **_content(result)}) + "\n"
    if form == "markdown":
        head, notes = head_of(result), "".join(f"- {line}\n" for line in notes_of(result))
        origins = "".join(f"- {name}: `{value}`\n" for name, value in origin.rows)
        return "\n".join(part for part in (f"{head}\n", shown_table(result).markdown, notes, origins) if part)
    return "\n".join([head_of(result), *shown_table(result).lines, *notes_of(result)]) + "\n"


def _marks(result: SweepResult, row: Row) -> dict[str, Any]:
    known: dict[str, Any] = {"on_frontier": row in result.frontier}
    return {**known, "meets_targets": result.meets_targets(row)} if result.has_targets else known


def _csv(result: SweepResult) -> str:
    rows = [{**result.table.cells(row), **_marks(result, row)} for row in result.rows]
    return csv_text([list(rows[0]), *(list(row.values()) for row in rows)])


def _content(result: SweepResult) -> dict[str, Any]:
    cheapest = result.cheapest
    return {
        "least_attainment": result.least_attainment if result.has_targets else None,
        "cheapest_point": None if cheapest is None else cheapest.key,
        "points": [{**result.table.cells(row), **_marks(result, row)} for row in result.rows],
    }


def head_of(result: SweepResult) -> str:
    """Return the first line, how many points are worth a look."""
    if not result.has_targets:
        return f"{len(result.frontier)} of {len(result.rows)} points are beaten by no other one:"
    passing = sum(result.meets_targets(row) for row in result.rows)
    share = f"{100 * result.least_attainment:.4g} %"
    return f"{passing} of {len(result.rows)} points meet the targets ({share} of requests within all of them):"


def notes_of(result: SweepResult) -> list[str]:
    """Return the lines below the table: points left out, and with targets the cheapest that meets them."""
    shown = _shown(result)
    more = len(result.answered if result.has_targets else result.frontier) - len(shown)
    notes = [f"and {more} more"] if more else []
    if not result.has_targets:
        return notes
    cheapest = result.cheapest
    if cheapest is None:
        best = max(result.answered, key=lambda row: _figure(row, "slo_attainment"))
        return [*notes, f"none meets the targets, nearest is {best.point.label} with {_attainment(best)}"]
    gpus = counted(int(_figure(cheapest, "num_gpus")), "GPU")
    price = result.table.gpu_cost_per_hour
    if price is not None:
        cost = costs(cheapest.outcome.figures, price)
        gpus += f", ${cost['cost_per_hour'] or 0:,.2f} an hour, ${cost['cost_per_million_tokens'] or 0:,.2f}/M tokens"
    measure = "per token" if result.varies_load else "per hour"
    return [
        *notes,
        f"cheapest {measure} that meets them: {cheapest.point.label} ({gpus}, {_attainment(cheapest)} within)",
    ]


def _attainment(row: Row) -> str:
    return f"{_figure(row, 'slo_attainment'):.1%}"


def _shown(result: SweepResult) -> list[Row]:
    return (result.answered if result.has_targets else result.frontier)[:_MOST_LINES]


def shown_table(result: SweepResult) -> TextTable:
    """Return the points worth a look: the frontier, or with targets all points with their verdicts."""
    shown, price = _shown(result), result.table.gpu_cost_per_hour
    figures = [row.outcome.figures for row in shown]
    varied = list(result.table.varied)
    has_rejected = any(each.get("rejected_requests") for each in figures)
    titles = [*varied, "GPUs", *(["rejected"] if has_rejected else []), "requests/s", "steady/s", "tokens/s"]
    titles += ["TTFT p50 ms", "p99 ms", "ITL p50 ms", "p99 ms"]
    titles += [*(["$/M tokens"] if price is not None else []), *(["within", "verdict"] if result.has_targets else [])]
    lines = [
        [str(row.point.varied[name]) for name in varied] + _cells(each, price, has_rejected) + _verdict(result, row)
        for row, each in zip(shown, figures, strict=True)
    ]
    return TextTable(titles, lines, num_left=0)


def _cells(figures: Figures, price: float | None, has_rejected: bool) -> list[str]:
    names = ["responses_per_sec", "steady_requests_per_s", "tokens_per_sec"]
    names += ["ttft_p50_ms", "ttft_p99_ms", "itl_p50_ms", "itl_p99_ms"]
    values = [figures.get(name) for name in names]
    if price is not None:
        values.append(costs(figures, price)["cost_per_million_tokens"])
    counts = [str(figures[name] or 0) for name in ("num_gpus", *(["rejected_requests"] if has_rejected else []))]
    return [*counts, *("-" if value is None else f"{value:,.2f}" for value in values)]


def _verdict(result: SweepResult, row: Row) -> list[str]:
    if not result.has_targets:
        return []
    verdict = "meets" if result.meets_targets(row) else "misses"
    if row is result.cheapest:
        verdict = "cheapest"
    overloaded = ", overloaded" if _figure(row, "overload_queue_growth_per_min") else ""
    return [_attainment(row), verdict + overloaded]
