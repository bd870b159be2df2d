"""The figures of a comparison as text, JSON, a live table, a picture and a page."""

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import TextIO

import numpy as np
import numpy.typing as npt

from blis_sim.bench.compare.measuring import DRAIN_S, WINDOW_S, Configuration, Run
from blis_sim.options.provenance import Provenance
from blis_sim.options.text_table import TextTable
from blis_sim.pictures.page import figures_html, page, table_html, write_page
from blis_sim.pictures.panels import cdf_panel, time_panel
from blis_sim.pictures.style import Panel, draw_panels
from traces import dump_json

_QUANTILES = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131, 2.120,
    2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
)  # fmt: skip
"""Of Student's t at 97.5 %, by degrees of freedom from 1."""
_NORMAL_QUANTILE = 1.96


@dataclass(frozen=True, slots=True)
class Figure:
    """A row of the table of a comparison."""

    label: str
    of: Callable[[Run], float]
    digits: int = 1
    divides_first: bool = False
    """Whether the row has the first configuration's value divided by that of each."""

    def value(self, of_seed: Sequence[Run], place: int) -> float:
        """The cell of the configuration at this place, from the runs of all of them with the same requests."""
        value = self.of(of_seed[place])
        if not self.divides_first:
            return value
        return self.of(of_seed[0]) / value if value else 0.0


def throughput(run: Run) -> float:
    """Output tokens per second, from the first arrival to the last token."""
    if not len(run.token_s):
        return 0.0
    span_s = float(run.token_s[-1] - run.arrived_s.min())
    return float(run.token_counts.sum()) / span_s if span_s > 0 else 0.0


def window_throughput(run: Run, at_s: float | None = None) -> float:
    """Output tokens per second of the last ten seconds before an instant, by default two seconds after the load."""
    at_s = run.duration_s + DRAIN_S if at_s is None else at_s
    inside = (run.token_s > at_s - WINDOW_S) & (run.token_s <= at_s)
    return float(run.token_counts[inside].sum()) / WINDOW_S


def ttft_percentile_ms(run: Run, percent: float, until_s: float = math.inf) -> float:
    """A percentile of the time to the first token, of requests that had it by an instant."""
    seen = run.first_s <= until_s
    waits = (run.first_s - run.arrived_s)[seen]
    return float(np.percentile(waits, percent)) * 1000 if len(waits) else 0.0


def mean_tbt_ms(run: Run, until_s: float = math.inf) -> float:
    """Mean time between the tokens of a request."""
    done = (run.ended_s <= until_s) & (run.output_tokens > 1)
    gaps = (run.output_tokens[done] - 1).sum()
    return float((run.ended_s - run.first_s)[done].sum() / gaps) * 1000 if gaps else 0.0


def hit_rate(run: Run, until_s: float = math.inf) -> float:
    """The share of requests whose prompt was found in a prefix cache, at least in part, of those scheduled by then."""
    seen = run.scheduled_s <= until_s
    return float(run.has_hit[seen].mean()) if seen.any() else 0.0


def mean_queue_depth(run: Run) -> float:
    """Mean number of requests that wait to be scheduled for the first time, by Little's law."""
    waits = np.nan_to_num(run.scheduled_s - run.arrived_s)
    span_s = float(np.nanmax(run.ended_s, initial=0.0) - run.arrived_s.min()) if run.submitted else 0.0
    return float(waits.sum()) / span_s if span_s > 0 else 0.0


def queue_depth(run: Run, at_s: float) -> int:
    """Requests that wait to be scheduled for the first time at an instant."""
    return int(((run.arrived_s <= at_s) & ~(run.scheduled_s <= at_s)).sum())


def figures_of(runs: Sequence[Run]) -> list[Figure]:
    """The rows for these runs."""
    classes = sorted({name for run in runs for name in run.deadlines.counts})
    rows = [
        Figure("Requests", lambda run: run.submitted, 0),
        Figure("Completed", lambda run: int((run.ended_s >= 0).sum()), 0),
        Figure("Throughput (tok/s)", throughput, 0),
        Figure("Throughput, last 10 s (tok/s)", window_throughput, 0),
        Figure("TTFT p50 (ms)", lambda run: ttft_percentile_ms(run, 50)),
        Figure("TTFT p99 (ms)", lambda run: ttft_percentile_ms(run, 99)),
        Figure("TBT mean (ms)", mean_tbt_ms, 2),
    ]
    if classes:
        rows.append(Figure("SLO violations (%)", lambda run: 100 * run.deadlines.share, 2))
        rows += [Figure(f"SLO violations, {name} (%)", _share_of(name), 2) for name in classes]
    rows += [
        Figure("KV hit rate (%)", lambda run: 100 * hit_rate(run)),
        Figure("KV hit rate, tokens (%)", lambda run: 100 * run.token_hit_rate),
        Figure("Preemptions", lambda run: run.preemptions, 0),
        Figure("Queue depth, mean", mean_queue_depth, 2),
    ]
    if any(run.expected_per_draft for run in runs):
        rows += [
            Figure("Accepted per draft", lambda run: run.accepted_per_draft, 2),
            Figure("Accepted per draft, expected", lambda run: run.expected_per_draft, 2),
            Figure("Speed-up of decoding", mean_tbt_ms, 2, divides_first=True),
            Figure("Speed-up of drafts, by formula", lambda run: run.speedup_estimate, 2),
        ]
    return rows


def _share_of(name: str) -> Callable[[Run], float]:
    def share(run: Run) -> float:
        count = run.deadlines.counts.get(name, 0)
        return 100 * run.deadlines.violations.get(name, 0) / count if count else 0.0

    return share


@dataclass(frozen=True, slots=True)
class Difference:
    """Mean of paired differences, and half the width of its 95 % interval."""

    mean: float
    half_width: float

    @property
    def is_significant(self) -> bool:
        """Whether the interval leaves out 0."""
        return abs(self.mean) > self.half_width


def paired_difference(first: Sequence[float], other: Sequence[float]) -> Difference | None:
    """How much `other` exceeds `first` in runs with the same requests; None with fewer than two."""
    if len(first) < 2:
        return None
    differences = [after - before for before, after in zip(first, other, strict=True)]
    quantile = _QUANTILES[len(first) - 2] if len(first) - 2 < len(_QUANTILES) else _NORMAL_QUANTILE
    return Difference(fmean(differences), quantile * stdev(differences) / math.sqrt(len(differences)))


Runs = Sequence[Sequence[Run]]
"""For each seed the run of each side."""


def rows_of(sides: Sequence[Configuration], runs: Runs) -> tuple[list[str], list[list[str]]]:
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


def table_text(sides: Sequence[Configuration], runs: Runs) -> str:
    """Return the table, and below it the flags of each configuration."""
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


def as_json(sides: Sequence[Configuration], runs: Runs) -> str:
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


_FRAMES_PER_S = 4
_HOME = "\x1b[H\x1b[J"


def play(sides: Sequence[Configuration], runs: Sequence[Run], speed: float, terminal: TextIO) -> None:
    """Show one run of each side, in seconds of simulated time by `speed`; with 0 a frame per second, without pause.

    A terminal shows each frame in the place of the one before; elsewhere frames follow each other.
    """
    last_s = max(max(run.duration_s + DRAIN_S, float(np.nanmax(run.ended_s, initial=0.0))) for run in runs)
    step_s = speed / _FRAMES_PER_S if speed else 1.0
    begun_s = time.monotonic()
    now_s, number = 0.0, 0
    while now_s < last_s:
        number += 1
        now_s = min(number * step_s, last_s)
        if speed:
            time.sleep(max(0.0, begun_s + number / _FRAMES_PER_S - time.monotonic()))
        terminal.write((_HOME if terminal.isatty() else "") + frame(sides, runs, now_s) + "\n")
        terminal.flush()


def frame(sides: Sequence[Configuration], runs: Sequence[Run], now_s: float) -> str:
    """The table at an instant."""
    rows = [["Metric", *(side.name for side in sides)]]
    columns = [_column(run, now_s) for run in runs]
    rows += [[label, *(column[label] for column in columns)] for label in columns[0]]
    widths = [max(len(row[place]) for row in rows) for place in range(len(rows[0]))]
    lines = [f"{now_s:.2f} s of simulated time"]
    lines += ["  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]) for row in rows]
    return "\n".join(lines)


def _column(run: Run, now_s: float) -> dict[str, str]:
    done = run.ended_s <= now_s
    running = (run.scheduled_s <= now_s) & ~done
    sampled = int(np.searchsorted(run.samples.at_s, now_s, side="right")) - 1
    late = run.late[done].mean() if done.any() else 0.0
    return {
        "Throughput (tok/s)": f"{window_throughput(run, now_s):,.0f}",
        "TTFT P50 (ms)": f"{ttft_percentile_ms(run, 50, now_s):.1f}",
        "TTFT P99 (ms)": f"{ttft_percentile_ms(run, 99, now_s):.1f}",
        "Avg TBT (ms)": f"{mean_tbt_ms(run, now_s):.2f}",
        "SLO Violation %": f"{100 * late:.1f}%",
        "KV Hit Rate": f"{100 * hit_rate(run, now_s):.1f}%",
        "Preemptions": str(run.samples.preemptions[sampled]) if sampled >= 0 else "0",
        "Completed Requests": str(int(done.sum())),
        "Queue Depth": str(queue_depth(run, now_s)),
        "Instances Busy": f"{len(set(run.instance[running].tolist()))}/{run.num_instances}",
    }


_BINS = 44


def draw(sides: Sequence[Configuration], runs: Sequence[Run], path: str) -> None:
    """Draw one run of each side to a file in the format of its suffix. Raises TraceError."""
    draw_panels(panels_of(sides, runs), path)


def panels_of(sides: Sequence[Configuration], runs: Sequence[Run]) -> list[Panel]:
    """Return throughput, time to the first token, queue and missed deadlines over time, and how TTFT is distributed."""
    end_s = max((float(np.nanmax(run.ended_s, initial=0.0)) for run in runs), default=0.0) or 1.0
    edges = np.linspace(0, end_s, _BINS + 1)
    middles, width_s = (edges[1:] + edges[:-1]) / 2, end_s / _BINS
    rates, halves, tails, depths, late, ttfts = ({} for _ in range(6))
    for side, run in zip(sides, runs, strict=True):
        tokens, _ = np.histogram(run.token_s, edges, weights=run.token_counts)
        missed, _ = np.histogram(run.arrived_s[run.late], edges)
        rates[side.name] = (middles, tokens / width_s)
        halves[side.name] = (middles, np.array(_ttft_ms(run, edges, 50)))
        tails[side.name] = (middles, np.array(_ttft_ms(run, edges, 99)))
        depths[side.name] = (edges, np.array([queue_depth(run, float(at_s)) for at_s in edges], np.float64))
        late[side.name] = (edges[1:], np.cumsum(missed).astype(np.float64))
        ttfts[side.name] = ((run.first_s - run.arrived_s)[np.isfinite(run.first_s)]) * 1000
    panels = [
        time_panel("Output tokens per second", "output tokens/s", rates),
        time_panel("Median TTFT by arrival", "TTFT, ms", halves, may_be_log=True),
        time_panel("p99 TTFT by arrival", "TTFT, ms", tails, may_be_log=True),
        time_panel("Requests waiting", "requests", depths, is_stepped=True),
        cdf_panel("Distribution of TTFT", "TTFT, ms", ttfts),
    ]
    if any(run.late.any() for run in runs):
        panels.append(time_panel("Deadlines missed so far", "requests", late, is_stepped=True))
    return panels


def _ttft_ms(run: Run, edges: npt.NDArray[np.float64], percent: int) -> list[float]:
    """A percentile of the time to the first token by when requests arrived; not a number where none did."""
    seen = np.isfinite(run.first_s)
    places = np.digitize(run.arrived_s[seen], edges) - 1
    waits_ms = (run.first_s - run.arrived_s)[seen] * 1000
    groups = [waits_ms[places == place] for place in range(len(edges) - 1)]
    return [float(np.percentile(group, percent)) if len(group) else float("nan") for group in groups]


def write_comparison(sides: Sequence[Configuration], runs: Runs, origin: Provenance, path: str) -> None:
    """Write the table, the pictures of the first run, and the flags of each side. Raises TraceError."""
    head, rows = rows_of(sides, runs)
    lead = [f"{side.name}: {side.flags or 'the defaults'}" for side in sides]
    remark = f"Means of {len(runs)} seeds. The pictures show the first one." if len(runs) > 1 else ""
    parts = [table_html(TextTable(head, rows)), f"<p>{remark}</p>", figures_html(panels_of(sides, runs[0]))]
    title = f"Comparison of {' and '.join(side.name for side in sides)}"
    write_page(path, page(title, origin, (), parts, lead))
