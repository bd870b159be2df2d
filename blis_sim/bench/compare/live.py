"""A comparison as a table that refreshes while simulated time passes."""

import time
from collections.abc import Sequence
from typing import TextIO

import numpy as np

from blis_sim.bench.compare.figures import mean_tbt_ms, queue_depth, ttft_percentile_ms, window_throughput
from blis_sim.bench.compare.measuring import DRAIN_S, Run
from blis_sim.bench.compare.sides import Side

_FRAMES_PER_S = 4
_HOME = "\x1b[H\x1b[J"


def play(sides: Sequence[Side], runs: Sequence[Run], speed: float, terminal: TextIO) -> None:
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


def frame(sides: Sequence[Side], runs: Sequence[Run], now_s: float) -> str:
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
        "KV Hit Rate": f"{100 * run.samples.hit_rate[sampled]:.1f}%" if sampled >= 0 else "0.0%",
        "Preemptions": str(run.samples.preemptions[sampled]) if sampled >= 0 else "0",
        "Completed Requests": str(int(done.sum())),
        "Queue Depth": str(queue_depth(run, now_s)),
        "Instances Busy": f"{len(set(run.instance[running].tolist()))}/{run.num_instances}",
    }
