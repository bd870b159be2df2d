"""Files of reference results as packed figures, and written again from them.

Sentences stay behind: of printed text the numbers and a digest are kept, of reports the figures, of refusals the case.
"""

import ast
import csv
import hashlib
import json
import re
import shlex
from difflib import SequenceMatcher
from io import StringIO
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

import orjson
import yaml

from tests.reference.columns import pack, unpack
from tests.wire.captures import captures_by_name

ARRIVAL = "arrival_time_us"
PLAIN = "t07_version_1"
"""The trace that odd ones are variants of."""
LATER = ("send_time_us", "first_chunk_time_us", "last_chunk_time_us")
"""Instants that are kept as the time since the arrival of their row."""

_NUMBER = re.compile(r"-?\d+(?:\.\d+)?(?:e[-+]?\d+)?")
_QUOTED = re.compile(r""": '([^'"\\\n]*)'$""", re.MULTILINE)
"""Quoted text, for which the reference uses the other quotes."""
_WHOLE = re.compile(r"-?[1-9]\d*|0")


def figures_of(text: str) -> dict[str, Any]:
    """Return the numbers of a printed text and a digest of all of it."""
    return {"figures": _NUMBER.findall(text), "sha256": hashlib.sha256(text.encode()).hexdigest()}


def packed_json(path: Path) -> Any:
    """Return a JSON file as columns."""
    return pack(json.loads(path.read_text()))


def write_json(path: Path, packed: Any) -> None:
    """Write a JSON file as the reference lays it out."""
    path.write_bytes(orjson.dumps(unpack(packed), option=orjson.OPT_INDENT_2))


def write_json_line(path: Path, packed: Any) -> None:
    """Write a JSON file that ends with its line."""
    path.write_bytes(orjson.dumps(unpack(packed), option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE))


def packed_report(path: Path) -> Any:
    """Return a report without the sentences in its lists."""
    return pack(_without_sentences(json.loads(path.read_text())))


def packed_csv(path: Path) -> Any:
    """Return a table by columns, numbers as such and instants of a row as the time since its arrival."""
    header, *lines = csv.reader(StringIO(path.read_text(), newline=""))
    columns = {name: _cells([line[place] for line in lines]) for place, name in enumerate(header)}
    rows = [dict(zip(header, cells, strict=True)) for cells in zip(*_moved(columns, -1).values(), strict=True)]
    return {"header": header, "rows": pack(rows)}


def write_csv(path: Path, packed: Any) -> None:
    """Write a table with a row for each request."""
    rows = unpack(packed["rows"])
    columns = _moved({name: [row[name] for row in rows] for name in packed["header"]}, 1)
    with path.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(packed["header"])
        writer.writerows(zip(*columns.values(), strict=True))


def packed_cells(path: Path) -> Any:
    """Return the cells of a table without a header."""
    return list(csv.reader(StringIO(path.read_text(), newline="")))


def write_cells(path: Path, packed: Any) -> None:
    """Write a table without a header."""
    with path.open("w", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows(packed)


def packed_seconds(path: Path) -> Any:
    """Return a table of numbers, those with a fraction to the millionth."""
    header, *lines = csv.reader(StringIO(path.read_text(), newline=""))
    return {
        "header": header,
        "rows": pack([dict(zip(header, map(_to_the_millionth, line), strict=True)) for line in lines]),
    }


def packed_yaml(path: Path) -> Any:
    """Return the values of a YAML file; pairs where a key is no word."""
    return _with_pairs(yaml.load(path.read_text(), Loader=yaml.CSafeLoader))


def write_yaml(path: Path, packed: Any) -> None:
    """Write the values as YAML."""
    text = yaml.dump(_without_pairs(packed), Dumper=yaml.CSafeDumper, sort_keys=False, indent=4, width=1000)
    path.write_text(_QUOTED.sub(r': "\1"', text))


def packed_lines(path: Path) -> Any:
    """Return the lines of a file of JSON values."""
    return pack([json.loads(line) for line in path.read_text().splitlines()])


def write_lines(path: Path, packed: Any) -> None:
    """Write one JSON value a line."""
    path.write_text("".join(f"{json.dumps(each)}\n" for each in unpack(packed)))


def packed_numbers(path: Path) -> Any:
    """Return the whole numbers of a file of nothing else."""
    return [int(each) for each in path.read_text().split()]


def write_numbers(path: Path, packed: Any) -> None:
    """Write one number a line."""
    path.write_text("".join(f"{each}\n" for each in packed))


def packed_flags(path: Path) -> Any:
    """Return the arguments of a command."""
    return shlex.split(path.read_text())


def write_flags(path: Path, packed: Any) -> None:
    """Write arguments as a shell takes them."""
    path.write_text(shlex.join(packed))


def packed_text(path: Path) -> Any:
    """Return the figures of a printed text."""
    return figures_of(path.read_text())


def write_text(path: Path, packed: Any) -> None:
    """Write the figures of a printed text in its place."""
    path.write_text(json.dumps(packed))


def packed_metrics_page(path: Path) -> Any:
    """Return the types and samples of a page of metrics, without its help texts."""
    return [line for line in path.read_text(encoding="utf-8").splitlines() if not line.startswith("# HELP")]


def write_page(path: Path, packed: Any) -> None:
    """Write lines."""
    path.write_text("\n".join([*packed, ""]), encoding="utf-8")


def packed_captures(path: Path) -> Any:
    """Return requests with their replies: the last of each name."""
    return [
        [each.name, each.method, each.path, dict(each.headers), each.body.decode(), each.status,
         dict(each.reply_headers), each.reply]
        for each in captures_by_name(path).values()
    ]  # fmt: skip


def write_captures(path: Path, packed: Any) -> None:
    """Write requests with their replies as they were captured."""
    path.write_text(
        "".join(
            f"### {name}\n> {method} {url} {json.dumps(headers) if headers else ''} {body}\n"
            f"< {status} x {json.dumps(reply_headers)}\n{reply}\n\n"
            for name, method, url, headers, body, status, reply_headers, reply in packed
        )
    )


def packed_cases(path: Path) -> Any:
    """Return the first two cells of lines and the command that they end with; what was answered is left out."""
    found = []
    for line in path.read_text().splitlines():
        name, code = line.split("\t")[:2]
        found.append([name, code, line.partition("cmd: ")[2]])
    return found


def write_cases(path: Path, packed: Any) -> None:
    """Write lines of cases."""
    path.write_text("".join(f"{name}\t{code}\tcmd: {command}\n" for name, code, command in packed))


def packed_edits(path: Path) -> Any:
    """Return how an odd file differs from the plain one beside it: lines that others take the place of."""
    plain, odd = _lines(path.with_name(PLAIN + path.suffix)), _lines(path)
    if path.stem == PLAIN:
        return [[0, 0, odd]]
    changes = SequenceMatcher(None, plain, odd, autojunk=False).get_opcodes()
    return [[begin, end, odd[first:last]] for tag, begin, end, first, last in changes if tag != "equal"]


def write_edits(path: Path, packed: Any) -> None:
    """Write an odd file; the plain one must have been written."""
    lines = [] if path.stem == PLAIN else _lines(path.with_name(PLAIN + path.suffix))
    for begin, end, others in reversed(packed):
        lines[begin:end] = others
    path.write_bytes("".join(lines).encode())


def packed_gaps(path: Path) -> Any:
    """Return the gaps between arrivals in order of size, by their steps."""
    arrivals = [int(row[ARRIVAL]) for row in csv.DictReader(path.read_text().splitlines())]
    return _steps(sorted(_steps(arrivals)))


def packed_lengths(path: Path) -> Any:
    """Return the lengths of prompts in order of size, by their steps."""
    return _steps(sorted(int(row["input_tokens"]) for row in csv.DictReader(path.read_text().splitlines())))


def write_sorted(path: Path, packed: Any) -> None:
    """Write values in order of size, one a line."""
    write_numbers(path, accumulate(packed))


def packed_stored_event(path: Path) -> Any:
    """Return the tokens and block hashes of the event in which blocks were stored."""
    (line,) = re.findall(r"^b'kv' 0 \S+ (.*)$", path.read_text(), re.MULTILINE)
    event = ast.literal_eval(line)[1][0]
    return {"token_ids": event["token_ids"], "block_hashes": event["block_hashes"]}


def _steps(values: list[int]) -> list[int]:
    return [after - before for before, after in pairwise([0, *values])]


def _lines(path: Path) -> list[str]:
    return path.read_bytes().decode().splitlines(keepends=True)


def _cells(cells: list[str]) -> list[Any]:
    return [int(cell) for cell in cells] if all(_WHOLE.fullmatch(cell) for cell in cells) else cells


def _moved(columns: dict[str, list[Any]], sign: int) -> dict[str, list[Any]]:
    arrivals = columns.get(ARRIVAL, [])
    is_number = bool(arrivals) and all(isinstance(each, int) for each in arrivals)
    return {
        name: [sign * at + value for at, value in zip(arrivals, values, strict=True)]
        if is_number and name in LATER and all(isinstance(each, int) for each in values)
        else values
        for name, values in columns.items()
    }


def _to_the_millionth(cell: str) -> int | float:
    return int(cell) if _WHOLE.fullmatch(cell) else round(float(cell) * 1e6) / 1e6


def _without_sentences(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_sentences(each) for key, each in value.items()}
    if isinstance(value, list):
        return ["" if isinstance(each, str) else _without_sentences(each) for each in value]
    return value


def _with_pairs(value: Any) -> Any:
    if isinstance(value, dict):
        pairs = [[key, _with_pairs(each)] for key, each in value.items()]
        return {"pairs": pairs} if any(not isinstance(key, str) for key in value) else {"map": dict(pairs)}
    return [_with_pairs(each) for each in value] if isinstance(value, list) else value


def _without_pairs(packed: Any) -> Any:
    if isinstance(packed, dict):
        pairs = packed["pairs"] if "pairs" in packed else packed["map"].items()
        return {key: _without_pairs(each) for key, each in pairs}
    return [_without_pairs(each) for each in packed] if isinstance(packed, list) else packed
