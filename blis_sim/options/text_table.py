"""Results as text: a title in one line, and rows as an aligned table, as Markdown or as CSV."""

import csv
from collections.abc import Sequence
from io import StringIO
from typing import NamedTuple


def run_title(
    *,
    model: str,
    gpu: str = "",
    gpus_per_instance: int | None = None,
    instances: int | None = None,
    engine: str = "",
    latency_model: str = "",
    step_error: float | None = None,
) -> str:
    """Return model, GPUs, engine and latency model in one line, of which all but the model may be unknown."""
    parts = []
    if gpu:
        num_gpus = f"{gpus_per_instance} x " if gpus_per_instance else ""
        times = f"{instances} instances of " if (instances or 1) > 1 else ""
        parts.append(f"{model} on {times}{num_gpus}{gpu}")
    elif model:
        parts.append(model)
    if engine:
        parts.append(f"{engine} engine")
    if latency_model:
        error = "" if step_error is None else f" (expected error {step_error:.0%})"
        parts.append(f"{latency_model} step times{error}")
    return ", ".join(parts)


class TextTable(NamedTuple):
    """A table of cells that are text already. All rows are as long as the line of titles."""

    titles: Sequence[str]
    rows: Sequence[Sequence[str]]
    num_left_aligned: int = 1
    """Columns from the left whose cells begin at the left edge; all others end at the right edge."""

    @property
    def lines(self) -> list[str]:
        """The lines of an aligned table, without spaces at their ends."""
        table = [self.titles, *self.rows]
        widths = [max(len(row[place]) for row in table) for place in range(len(self.titles))]
        return ["  ".join(self._aligned(row, widths)).rstrip() for row in table]

    def _aligned(self, row: Sequence[str], widths: Sequence[int]) -> list[str]:
        return [
            cell.ljust(width) if place < self.num_left_aligned else cell.rjust(width)
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]

    @property
    def markdown(self) -> str:
        """The table in GitHub's Markdown, with a newline at the end."""
        rule = [":--" if place < self.num_left_aligned else "--:" for place in range(len(self.titles))]
        rows = [[cell.replace("|", "\\|") for cell in row] for row in (self.titles, *self.rows)]
        return "".join(f"| {' | '.join(row)} |\n" for row in (rows[0], rule, *rows[1:]))

    @property
    def csv(self) -> str:
        """The table as CSV, with a newline at the end."""
        return csv_text([self.titles, *self.rows])


def csv_text(rows: Sequence[Sequence[object]]) -> str:
    """Return rows as CSV, with a newline at the end; nothing stands for None."""
    written = StringIO()
    csv.writer(written, lineterminator="\n").writerows(rows)
    return written.getvalue()


def number(value: float, digits: int = 2) -> str:
    """Return a number with thousands separated: whole where it is an integer, else with so many digits."""
    return f"{value:,}" if isinstance(value, int) else f"{value:,.{digits}f}"


def counted(count: int, name: str) -> str:
    """Return a count with the name of what is counted, such as `1 GPU` or `2 GPUs`."""
    return f"{count:,} {name}{'' if count == 1 else 's'}"


def duration(value_ms: float) -> str:
    """Return a duration with the unit in which it has one to three digits before the point."""
    if value_ms < 1:
        return f"{value_ms * 1000:.3g} us" if value_ms else "0 ms"
    if value_ms < 999.5:
        return f"{value_ms:.3g} ms"
    if value_ms < 599_500:
        return f"{value_ms / 1000:.3g} s"
    return f"{value_ms / 60_000:,.3g} min" if value_ms < 59_970_000 else f"{value_ms / 60_000:,.0f} min"
