"""Several runs side by side: what each rate brought."""

from collections.abc import Sequence
from dataclasses import dataclass

from blis_sim.bench.frontier_plot import Curve, draw_frontier
from blis_sim.bench.serve.figures import Figures


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One run: the rate that was asked for, and what it amounts to."""

    label: str
    figures: Figures
    p99_ttft_ms: float
    p99_itl_ms: float


def runs_table(runs: Sequence[Run]) -> str:
    """A line per rate, with a newline at the end."""
    has_goodput = runs[0].figures.request_goodput is not None
    titles = ["rate", "req/s", *(["good req/s"] if has_goodput else []), "tok/s", "p99 TTFT ms", "p99 ITL ms", "failed"]
    lines = ["".join(f"{title:>13}" for title in titles)]
    for run in runs:
        figures = run.figures
        goodput = [] if figures.request_goodput is None else [figures.request_goodput]
        numbers = [figures.request_throughput, *goodput, figures.output_throughput, run.p99_ttft_ms, run.p99_itl_ms]
        lines.append(f"{run.label:>13}" + "".join(f"{each:>13.2f}" for each in numbers) + f"{figures.failed:>13}")
    return "\n".join([*lines, ""])


def draw_runs(runs: Sequence[Run], path: str) -> None:
    """Draw output throughput against the tails of TTFT and ITL. Raises TraceError."""
    curve = Curve(
        name="",
        throughput=[run.figures.output_throughput for run in runs],
        ttft_ms=[run.p99_ttft_ms for run in runs],
        itl_ms=[run.p99_itl_ms for run in runs],
        labels=[f"{run.label}/s" for run in runs],
    )
    draw_frontier([curve], path)
