"""Median errors of predictions by class of server, beside the goals that were set for them.

    python -m workshop.points CSV --rows ROWS.csv
    python -m workshop.classes CSV ROWS.csv [--before ROWS.csv] [--left-out ROWS.csv]

CSV and ROWS.csv are those of `points.py`. The error of a row is that of the duration of a burst, of the time of a
request elsewhere, or of the time per token where a class says so. Of several latency models the one that `auto` takes
first counts. The last column has the share of saturated rows that are predicted too fast.
"""

import argparse
import csv
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import median
from typing import NamedTuple

from workshop.ending import run_command
from workshop.points import DRAFTS, PREDICTORS

Row = Mapping[str, str]
_BURST = 900
"""Least requests of a burst."""
_HAS_EXPERTS = ("gpt-oss", "qwen3-235b", "qwen3-30b", "glm", "deepseek", "mixtral", "llama-4")


class ServerClass(NamedTuple):
    """A class of servers: its rows, the figure that counts, and the median error that is the goal, in percent."""

    name: str
    contains: Callable[[Row], bool]
    figure: str
    goal: float | None


def _is_on(row: Row, *gpus: str) -> bool:
    return row["gpu"].startswith(gpus)


def _is_burst(row: Row) -> bool:
    return row["rate"] == "inf"


CLASSES = (
    ServerClass(
        "no tables: GLM, FP8 and MXFP4 on A100",
        lambda row: row["model"].startswith("glm") or (_is_on(row, "A100") and row["precision"] in ("fp8", "mxfp4")),
        "e2e",
        15,
    ),
    ServerClass("gpt-oss on Hopper", lambda row: "gpt-oss" in row["model"] and _is_on(row, "H"), "e2e", 8),
    ServerClass("DeepSeek on H200", lambda row: "deepseek" in row["model"] and _is_on(row, "H200"), "e2e", 8),
    ServerClass(
        "small or sparse models on A100",
        lambda row: _is_on(row, "A100") and (row["model"] == "qwen3-1.7b" or row["model"].startswith(_HAS_EXPERTS)),
        "itl",
        8,
    ),
    ServerClass("bursts of 1,000", lambda row: _is_burst(row) and float(row["requests"]) > _BURST, "e2e", 15),
    ServerClass("drafts of EAGLE", lambda row: row["note"].startswith(DRAFTS), "itl", 6),
    ServerClass("users of BLIS experiments", lambda row: row["id"].startswith("bl"), "e2e", None),
    ServerClass("all", lambda row: True, "e2e", None),
)


def main() -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("csv", type=Path)
    parser.add_argument("rows", type=Path)
    parser.add_argument("--before", type=Path, default=None)
    parser.add_argument("--left-out", type=Path, default=None)
    arguments = parser.parse_args()
    with arguments.csv.open(newline="") as file:
        real = {row["id"]: row for row in csv.DictReader(file)}
    paths = [path for path in (arguments.before, arguments.rows, arguments.left_out) if path is not None]
    predicted = [_predicted(path) for path in paths]
    names = [name for name in ("before", "rows", "left_out") if getattr(arguments, name) is not None]
    sys.stdout.write(
        f"| class | figure | rows | {' | '.join(names)} | goal | too fast |\n|---{'|---' * (len(names) + 4)}|\n"
    )
    for each in CLASSES:
        ids = [row for row, described in real.items() if each.contains(described) and row in predicted[-1]]
        columns = [
            _median_text([abs(error) for row in ids if (error := _error(real[row], by_row.get(row), each.figure))])
            for by_row in predicted
        ]
        bursts = [
            error for row in ids if _is_burst(real[row]) and (error := _error(real[row], predicted[-1][row], "e2e"))
        ]
        fast = f"{sum(error < 0 for error in bursts)} of {len(bursts)}" if bursts else ""
        goal = "" if each.goal is None else f"{each.goal:g} %"
        sys.stdout.write(f"| {each.name} | {each.figure} | {len(ids)} | {' | '.join(columns)} | {goal} | {fast} |\n")
    return 0


def _predicted(path: Path) -> dict[str, Row]:
    """Return the prediction of each row by the first latency model that has one."""
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    found: dict[str, Row] = {}
    for name in PREDICTORS:
        for row in rows:
            if row["predictor"] == name:
                found.setdefault(row["id"], row)
    return found


def _error(real: Row, predicted: Row | None, figure: str) -> float | None:
    """Return the error of a figure as a share; None where it was not measured."""
    if predicted is None:
        return None
    if figure == "e2e" and _is_burst(real) and "duration" in predicted and float(predicted["duration"]):
        figure = "duration"
    value = float(predicted[figure])
    return float(predicted[f"{figure}_sim"]) / value - 1 if value > 0 else None


def _median_text(errors: list[float]) -> str:
    return f"{median(errors):.1%}" if errors else ""


if __name__ == "__main__":
    run_command(main)
