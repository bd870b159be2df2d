"""What a search has found, for people, as rows and as a picture."""

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from blis_sim.bench.frontier_plot import Curve, draw_frontier
from blis_sim.bench.points.simulate import FIGURES
from blis_sim.bench.tune.setup import Setup
from traces.text_file import writing

_SHOWN = ("responses_per_sec", "tokens_per_sec", "ttft_p99_ms", "itl_p99_ms", "e2e_p99_ms")
_TITLES = ("rate", "requests/s", "tokens/s", "TTFT p99 ms", "ITL p99 ms", "E2E p99 ms")


def table_text(setups: Sequence[Setup], varied: Sequence[str]) -> str:
    """A line per combination with the highest rate it can keep up, the best one marked, with a newline at the end."""
    lines = [[*varied, *_TITLES, ""]]
    winner = best_of(setups)
    for setup in setups:
        settings = [str(setup.point.varied[name]) for name in varied]
        best = setup.best
        if best is None:
            reason = "cannot be simulated" if setup.error else "never within the limits"
            lines.append([*settings, *[""] * len(_TITLES), reason])
            continue
        figures = [f"{best.found.figures[name] or 0:.2f}" for name in _SHOWN]
        lines.append([*settings, rate_text(best.rate), *figures, "best" if setup is winner else ""])
    widths = [max(len(line[place]) for line in lines) for place in range(len(lines[0]) - 1)]
    return "".join(
        "  ".join([*(cell.rjust(width) for cell, width in zip(line, widths, strict=False)), line[-1]]).rstrip() + "\n"
        for line in lines
    )


def best_of(setups: Sequence[Setup]) -> Setup | None:
    """The combination that serves most requests per second within the limits, the first one of equals."""
    able = [(setup, setup.best) for setup in setups]
    found = [(setup, best.found.figures["responses_per_sec"] or 0) for setup, best in able if best is not None]
    return max(found, key=lambda each: each[1])[0] if found else None


def rate_text(rate: float | None) -> str:
    """A rate; all at once is inf, as with vLLM's benchmarks."""
    return "inf" if rate is None else f"{rate:.2f}"


def write_trials(path: str, setups: Sequence[Setup], varied: Sequence[str]) -> None:
    """Write every simulation of the search, in order. Raises TraceError."""
    with writing(Path(path)) as file:
        rows = csv.writer(file, lineterminator="\n")
        rows.writerow([*varied, "rate", "within_limits", *FIGURES, "error"])
        for setup in setups:
            settings = [setup.point.varied[name] for name in varied]
            for trial in setup.trials:
                figures: list[Any] = [trial.found.figures.get(name) for name in FIGURES]
                rate = "inf" if trial.rate is None else trial.rate
                rows.writerow([*settings, rate, str(trial.is_good).lower(), *figures, trial.found.error])


def draw(path: str, setups: Sequence[Setup]) -> None:
    """Draw all simulations, a colour per combination. Raises TraceError."""
    curves = []
    for setup in setups:
        tries = [trial for trial in setup.trials if trial.found.figures.get("tokens_per_sec")]
        figures = [trial.found.figures for trial in tries]
        curves.append(
            Curve(
                name=setup.point.label,
                throughput=[each["tokens_per_sec"] or 0 for each in figures],
                ttft_ms=[each["ttft_p99_ms"] or 0 for each in figures],
                itl_ms=[each["itl_p99_ms"] or 0 for each in figures],
                labels=[f"{rate_text(trial.rate)}/s" if trial is setup.best else "" for trial in tries],
            )
        )
    draw_frontier([curve for curve in curves if curve.throughput], path)
