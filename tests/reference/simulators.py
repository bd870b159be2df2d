"""Runs of Vidur and SimAI as packed figures: a share of their rows with sums over all, and the operator times they use.

Whole results of a run have megabytes. Of each file every n-th row is kept, and for each column a sum in which
rows count differently, so that neither a wrong value nor a wrong order goes unnoticed.
"""

import csv
import gzip
import json
import math
from collections.abc import Collection
from io import StringIO
from pathlib import Path
from typing import Any

from tests.reference.used_places import used_places

MOST_ROWS = 12
"""Rows that are kept of a file."""
_WEIGHTS = 97
"""Rows so far apart count equally in a sum."""
_PICOS = 10**9
"""Of a millisecond."""


def read_text(path: Path) -> str:
    """Return the text of a file, which may be gzipped."""
    data = path.read_bytes()
    return (gzip.decompress(data) if path.suffix == ".gz" else data).decode()


def write_text(path: Path, text: str) -> None:
    """Write the text of a file, gzipped where its name says so."""
    path.write_bytes(gzip.compress(text.encode(), mtime=0) if path.suffix == ".gz" else text.encode())


def packed_rows(path: Path) -> Any:
    """Return the lines of a table of figures."""
    return read_text(path).split("\n")


def write_rows(path: Path, packed: Any) -> None:
    """Write the lines of a table."""
    write_text(path, "\n".join(packed))


def share_of(rows: list[dict[str, str]]) -> dict[str, Any]:
    """Return some of the rows of a result, and the sums of its columns."""
    every = -(-len(rows) // MOST_ROWS)
    sums = {name: f"{_sum([row[name] for row in rows]):.12g}" for name in rows[0]}
    kept = [{name: _short(cell) for name, cell in row.items()} for row in rows[::every]]
    return {"num_rows": len(rows), "sums": sums, "rows": kept}


def packed_share(path: Path) -> Any:
    """Return the share of a result that is kept."""
    return share_of(list(csv.DictReader(StringIO(read_text(path)))))


def write_share(path: Path, packed: Any) -> None:
    """Write the share of a result in its place."""
    write_text(path, json.dumps(packed))


def packed_operators(path: Path) -> Any:
    """Return a lookup table by columns, of the rows that the runs of the reference look up; times in picoseconds."""
    prefix, kind = path.name.split(".")[0].rsplit("_", 1)
    prefix, kind = (prefix.removesuffix("_attn"), kind) if prefix.endswith("_attn") else (prefix, kind)
    used, rows = used_places(path.parents[2])[prefix], list(csv.DictReader(StringIO(read_text(path))))
    if kind == "compute":
        found = [row for row in rows if int(row["num_tokens"]) in used.tokens]
    elif kind == "prefill":
        found = [_only(row, used.prefills) for row in rows if int(row["prefill_chunk_size"]) in used.chunks]
    else:
        found = [
            {**row, "prediction": row["prediction"] if _decode_place(row) in used.decodes else "0"}
            for row in rows
            if int(row["batch_size"]) in used.sizes
        ]
    return {"names": list(rows[0]), "columns": {name: [_picos(row[name]) for row in found] for name in rows[0]}}


def write_operators(path: Path, packed: Any) -> None:
    """Write a lookup table."""
    columns = packed["columns"]
    rows = zip(*(columns[name] for name in packed["names"]), strict=True)
    lines = [",".join(packed["names"]), *(",".join(repr(value / _PICOS) for value in row) for row in rows)]
    write_text(path, "\n".join(lines) + "\n")


def _only(row: dict[str, str], places: Collection[tuple[int, int]]) -> dict[str, str]:
    chunk = int(row["prefill_chunk_size"])
    return {
        name: cell if not name.startswith("kv") or (chunk, int(name[2:])) in places else "0"
        for name, cell in row.items()
    }


def _decode_place(row: dict[str, str]) -> tuple[int, int]:
    return int(row["batch_size"]), int(row["kv_cache_size"])


def _picos(cell: str) -> int:
    return round(float(cell) * _PICOS)


def _sum(cells: list[str]) -> float:
    """Return the sum of the cells that are finite numbers."""
    return math.fsum(
        float(cell) * (1 + place % _WEIGHTS)
        for place, cell in enumerate(cells)
        if _is_number(cell) and math.isfinite(float(cell))
    )


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True


def _short(cell: str) -> str:
    return f"{float(cell):.10g}" if _is_number(cell) else cell
