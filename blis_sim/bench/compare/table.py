"""The figures of a comparison as text, and as JSON."""

from collections.abc import Iterator, Sequence
from statistics import fmean

from blis_sim.bench.compare.figures import Figure, figures_of, paired_difference
from blis_sim.bench.compare.measuring import Run
from blis_sim.bench.compare.sides import Side
from traces import dump_json

Runs = Sequence[Sequence[Run]]
"""For each seed the run of each side."""


def rows_of(sides: Sequence[Side], runs: Runs) -> tuple[list[str], list[list[str]]]:
    """The head and the rows of the table: means over seeds, and differences to the first side."""
    has_intervals = len(runs) > 1
    head = ["", *(side.name for side in sides)]
    if has_intervals:
        head += [f"{side.name} - {sides[0].name} (95 %)" for side in sides[1:]]
    rows = []
    for figure in figures_of([run for of_seed in runs for run in of_seed]):
        values = [[figure.value(of_seed, place) for of_seed in runs] for place in range(len(sides))]
        cells = [_number(fmean(of_side), figure.digits) for of_side in values]
        if has_intervals:
            cells += [_difference(values[0], other, figure) for other in values[1:]]
        rows.append([figure.label, *cells])
    return head, rows


def table_text(sides: Sequence[Side], runs: Runs) -> str:
    """The table, and below it what the configurations are."""
    head, rows = rows_of(sides, runs)
    widths = [max(len(row[place]) for row in (head, *rows)) for place in range(len(head))]
    lines = [*_lines(head, rows, widths), ""]
    lines += [f"{side.name}: {side.flags or 'the defaults'}" for side in sides]
    if len(runs) > 1:
        lines.append(f"Means of {len(runs)} seeds. * marks differences whose 95 % interval leaves out 0.")
    return "\n".join(lines) + "\n"


def _lines(head: Sequence[str], rows: Sequence[Sequence[str]], widths: Sequence[int]) -> Iterator[str]:
    for row in (head, *rows):
        label, *cells = row
        yield "  ".join(
            [label.ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(cells, widths[1:], strict=True))]
        ).rstrip()


def _number(value: float, digits: int) -> str:
    return f"{value:,.{digits}f}"


def _difference(first: Sequence[float], other: Sequence[float], figure: Figure) -> str:
    found = paired_difference(first, other)
    assert found is not None
    digits = max(1, figure.digits)
    star = "*" if found.is_significant else " "
    return f"{found.mean:+,.{digits}f} ± {found.half_width:,.{digits}f}{star}"


def as_json(sides: Sequence[Side], runs: Runs) -> str:
    """The figures of each run of each side."""
    figures = figures_of([run for of_seed in runs for run in of_seed])
    content = {
        side.name: {
            "flags": side.flags,
            "runs": [{figure.label: round(figure.value(of_seed, place), 6) for figure in figures} for of_seed in runs],
        }
        for place, side in enumerate(sides)
    }
    return dump_json(content) + "\n"
