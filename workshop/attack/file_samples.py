"""Files that are mutated, and the command that reads each: a table. Valid contents are in `sample_files/`."""

import csv
import io
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from blis_sim.engine.latency.catalogue_reader import LEARNED_COEFFICIENTS
from traces import TRACE_COLUMNS

FOLDER = Path(__file__).parent
NUM_ROWS = 6


@dataclass(frozen=True, slots=True)
class FileSample:
    """A file that is mutated, the others that belong to it, and the command that reads all of them.

    `kind` is csv, json, lines (of JSON) or yaml, which is how the file is taken apart. `weight` is how often the file
    is attacked, compared with others.
    """

    name: str
    kind: str
    file: str
    content: str
    weight: int
    command: tuple[str, ...]
    others: Mapping[str, str]


def content(name: str) -> str:
    """The content of one of the files in `sample_files/`, or of one made here."""
    if name == "(rows)":
        return trace_rows()
    file = LEARNED_COEFFICIENTS if name == "(learned)" else FOLDER / "sample_files" / name
    return file.read_text(encoding="utf-8")


def _row(number: int) -> list[Any]:
    sent_us = 1_000_000 + 50_000 * number
    given: dict[str, Any] = {
        "request_id": number, "client_id": f"client-{number % 2}", "slo_class": "standard",
        "session_id": f"s{number // 2}", "round_index": number % 2, "prefix_group": "" if number % 3 else "g",
        "prefix_length": 0 if number % 3 else 16, "streaming": "true", "input_tokens": 40 + number,
        "output_tokens": 5 + number, "reason_ratio": 0.25, "deadline_us": 900_000_000,
        "arrival_time_us": 50_000 * number, "send_time_us": sent_us, "first_chunk_time_us": sent_us + 30_000,
        "last_chunk_time_us": sent_us + 100_000, "num_chunks": 5 + number, "status": "ok", "finish_reason": "length",
    }  # fmt: skip
    return [given.get(column.name, 0 if column.kind in (int, float) else "") for column in TRACE_COLUMNS]


def trace_rows() -> str:
    """The rows of a trace, with a cell in every column there is."""
    text = io.StringIO()
    rows = [[column.name for column in TRACE_COLUMNS], *map(_row, range(NUM_ROWS))]
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue()


def samples() -> list[FileSample]:
    """All samples, in the order of the table, in which `FILE=NAME` is a file with the content of another name."""
    with (FOLDER / "file_samples.csv").open(encoding="utf-8", newline="") as table:
        return [
            FileSample(
                row["name"], row["kind"], row["file"], content(row["content"]), int(row["weight"]),
                tuple(shlex.split(row["command"])),
                {file: content(name or file) for file, _, name in (x.partition("=") for x in row["others"].split())},
            )
            for row in csv.DictReader(table)
        ]  # fmt: skip
