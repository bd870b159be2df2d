"""Figures as a table for a terminal, and as a line for anything else."""

from collections.abc import Callable, Mapping, Sequence
from math import inf

from rich.table import Table

from observe.top.figures import ALL, Figures

Cell = Callable[[Figures], str]

ROWS: Sequence[tuple[str, Cell]] = (
    ("running", lambda f: f"{f.running:.0f}"),
    ("waiting", lambda f: f"{f.waiting:.0f}"),
    ("KV cache in use", lambda f: f"{f.kv_usage_fraction:.1%}"),
    ("requests /s", lambda f: f"{f.requests_per_s:,.2f}"),
    ("prompt tokens /s", lambda f: f"{f.prompt_tokens_per_s:,.1f}"),
    ("output tokens /s", lambda f: f"{f.output_tokens_per_s:,.1f}"),
    ("steps /s", lambda f: f"{f.steps_per_s:,.1f}"),
    ("preemptions /s", lambda f: f"{f.preemptions_per_s:,.2f}"),
    ("TTFT p50 / p90 / p99 ms", lambda f: percentiles_ms(f.ttft_s)),
    ("ITL p50 / p90 / p99 ms", lambda f: percentiles_ms(f.itl_s)),
)
LAG_ROW: tuple[str, Cell] = ("send lag p50 / p90 / p99 ms", lambda f: percentiles_ms(f.lag_s or ()))


def table_of(title: str, figures: Mapping[str, Figures]) -> Table:
    """A row for each figure, a column for each engine."""
    table = Table(title=title)
    table.add_column("")
    for name in figures:
        table.add_column(name if name == ALL else f"engine {name}", justify="right")
    for label, cell in _rows(figures):
        table.add_row(label, *map(cell, figures.values()))
    return table


def line_of(figures: Mapping[str, Figures]) -> str:
    """All engines together in one line of text."""
    together = figures.get(ALL) or next(iter(figures.values()))
    return ", ".join(f"{label} {cell(together)}" for label, cell in _rows(figures))


def _rows(figures: Mapping[str, Figures]) -> Sequence[tuple[str, Cell]]:
    has_lag = any(each.lag_s is not None for each in figures.values())
    return (*ROWS, LAG_ROW) if has_lag else ROWS


def percentiles_ms(seconds: Sequence[float]) -> str:
    """Percentiles in milliseconds; a dash for none, `inf` for one beyond the last bucket."""
    return " / ".join("inf" if each == inf else f"{each * 1000:,.1f}" for each in seconds) or "-"
