"""Rows of a file that another program wrote: values of a known kind, selection, times, and counts of tokens."""

import json
from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from itertools import accumulate, islice, pairwise
from math import inf
from pathlib import Path
from random import Random
from typing import Any

import orjson

from blis_sim.options import OptionError
from blis_sim.options.file_fields import shortened
from blis_sim.options.option import LATEST_US
from traces.graph import restricted_to
from traces.importers.registry import ConvertOptions, Imported, in_order, workload_header
from traces.rows import TraceRow
from traces.table import Table
from traces.text_file import TraceError, read_bytes

MAX_S = 9_000_000_000
"""Times in seconds are below: in microseconds they fit into the columns of a trace."""


def drawn_arrivals_us(options: ConvertOptions, count: int) -> list[int]:
    """Poisson arrivals at --rate, the first at 0. Raises OptionError without a rate."""
    if options.rate is None:
        raise OptionError(f"--rate is required, as {options.name} has no arrival times")
    random = Random(f"{options.seed}/arrivals")
    gaps_us = (1e6 * random.expovariate(options.rate) for _ in range(count - 1))
    arrivals_us = [round(at) for at in accumulate(gaps_us, initial=0.0)][:count]
    if arrivals_us and arrivals_us[-1] > LATEST_US:
        raise OptionError(f"--rate is too low for {count} requests: the last would come after {LATEST_US:.2g} us")
    return arrivals_us


def workload(
    options: ConvertOptions, rows: Sequence[TraceRow], left_out: Counter[str], notes: Iterable[str] = ()
) -> Imported:
    """The rows that can be sent, without recorded replies. Raises OptionError."""
    header = workload_header(options.path.name)
    return Imported(header=header, rows=sendable_rows(options, rows, left_out), left_out=left_out, notes=tuple(notes))


def sendable_rows(options: ConvertOptions, rows: Sequence[TraceRow], left_out: Counter[str]) -> list[TraceRow]:
    """The first rows by arrival that can be sent; adds the others to `left_out`."""
    has_tokens = [row for row in rows if row.input_tokens + row.prefix_length > 0 and row.output_tokens > 0]
    usable = in_order(restricted_to(rows, has_tokens))
    if usable and usable[-1].arrival_time_us > LATEST_US:
        raise OptionError(f"{options.name}: the last request would come after {LATEST_US:.2g} us")
    left_out["requests without prompt or output tokens"] += len(rows) - len(usable)
    first = usable[: options.num_requests]
    left_out["requests beyond --num-requests"] += len(usable) - len(first)
    return first


_KINDS: Mapping[str, tuple[tuple[type, ...], float]] = {
    "a number": ((int, float), 2**53),
    "a whole number": ((int,), 2**53),
    "a time in seconds": ((int, float), MAX_S),
    "a time in milliseconds": ((int, float), MAX_S * 1000),
    "a time in nanoseconds": ((int,), 2**63),
    "a list": ((list,), inf),
    "an object": ((dict,), inf),
    "text": ((str,), inf),
}
"""Types of each kind of value, and what all numbers are below."""


_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


def json_lines(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """The objects of a JSON-lines file, each with its place for errors. Raises TraceError."""
    yield from _lines(path, read_bytes(path))


def _lines(path: Path, content: bytes) -> Iterator[tuple[str, dict[str, Any]]]:
    for number, line in enumerate(content.removeprefix(_BYTE_ORDER_MARK).split(b"\n"), start=1):
        place = f"{path} line {number}"
        if not line.strip():
            continue
        try:
            value = orjson.loads(line)
        except orjson.JSONDecodeError as error:
            value = _with_nan(line)
            if value is None:
                raise TraceError(f"{place}: expected a JSON object, {error.msg}") from error
        yield place, expect(place, "an object", value)


def json_files(path: Path) -> list[Path]:
    """The path itself, or the JSON and JSON-lines files of a folder. Raises TraceError where it has none."""
    paths = sorted([*path.glob("*.json"), *path.glob("*.jsonl")]) if path.is_dir() else [path]
    if not paths:
        raise TraceError(f"{path}: expected .json or .jsonl files in this folder, got none")
    return paths


def json_documents(path: Path) -> Iterator[tuple[str, Any]]:
    """The value of a JSON file, or the objects of a JSON-lines file, each with its place for errors.

    Raises TraceError.
    """
    content = read_bytes(path)
    try:
        documents: Iterable[tuple[str, Any]] = [(str(path), _value(path, content))]
    except TraceError as problem:
        try:
            _value(path, content.lstrip().partition(b"\n")[0])
        except TraceError:
            raise problem from None
        documents = _lines(path, content)
    yield from documents


def json_objects(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """The objects of a JSON file, which may stand in a list, or one a line; each with its place for errors.

    Raises TraceError.
    """
    for place, document in json_documents(path):
        for number, each in enumerate(document if isinstance(document, list) else [document]):
            inside = f"{place} entry {number}" if isinstance(document, list) else place
            yield inside, expect(inside, "an object", each)


def json_value(path: Path) -> Any:
    """The value of a JSON file, which may have the words NaN and Infinity. Raises TraceError."""
    return _value(path, read_bytes(path))


def _value(path: Path, content: bytes) -> Any:
    content = content.removeprefix(_BYTE_ORDER_MARK)
    try:
        return orjson.loads(content)
    except orjson.JSONDecodeError as error:
        value = _with_nan(content)
        if value is None:
            raise TraceError(f"{path} line {error.lineno}: expected JSON, {error.msg}") from error
        return value


def _with_nan(text: bytes) -> Any:
    """The value of JSON with the words NaN and Infinity, as Python writes it; None of any other text."""
    if not (b"NaN" in text or b"Infinity" in text):
        return None
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def at(place: str, holder: Mapping[str, Any], key: str, kind: str) -> Any:
    """The value of a key that must be there. Raises TraceError."""
    if key not in holder:
        raise TraceError(f"{place}: the key {key} is missing, found {', '.join(map(str, holder)) or 'none'}")
    return expect(f"{place} key {key}", kind, holder[key])


def first_at(place: str, holder: Mapping[str, Any], keys: Sequence[str], kind: str) -> Any:
    """The value of the first of several keys, names of one figure, that has one. Raises TraceError where none has."""
    for key in keys:
        if holder.get(key) is not None:
            return expect(f"{place} key {key}", kind, holder[key])
    return at(place, holder, keys[0], kind)


def count_at(place: str, holder: Mapping[str, Any], key: str, *, is_needed: bool = False) -> int:
    """A count, 0 where there is none. Raises TraceError for one that is needed."""
    return int(at(place, holder, key, "a whole number")) if is_needed or holder.get(key) is not None else 0


def seconds_us(place: str, holder: Mapping[str, Any], key: str) -> int:
    """The microseconds of a time in seconds that must be there. Raises TraceError."""
    return round(float(at(place, holder, key, "a time in seconds")) * 1e6)


def unix_us(time: str) -> int:
    """The Unix time of a time of a day, which is UTC where it names no zone. Raises ValueError."""
    found = datetime.fromisoformat(time)
    since = (found if found.tzinfo else found.replace(tzinfo=UTC)) - datetime(1970, 1, 1, tzinfo=UTC)
    return (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds


OTHER_BLOCKS = "; --block-tokens gives blocks another size"


def block_hashes(
    place: str, entry: Mapping[str, Any], input_tokens: int, block_tokens: int, hint: str = ""
) -> list[int]:
    """The hashes of a prompt's blocks, or of the first ones. Raises TraceError where a prompt has not that many."""
    given = at(place, entry, "hash_ids", "a list")
    hash_ids = [expect(f"{place} key hash_ids", "a whole number", each) for each in given]
    most = -(-input_tokens // block_tokens)
    if len(hash_ids) > most:
        raise TraceError(
            f"{place} key hash_ids: expected at most {most} blocks of {block_tokens} tokens, as the prompt has"
            f" {input_tokens} tokens, got {len(hash_ids)}{hint}"
        )
    return hash_ids


_MOST_NAMED = 40


class Unread:
    """Counts the values that a conversion finds and has no place for, to name all of them in one note."""

    def __init__(self, table: Table | None = None) -> None:
        """Begin with the cells of a table's columns that were not read."""
        self._counts = Counter({} if table is None else {name: count for name, count in table.unread.items() if count})

    def add(self, found: Mapping[str, Any], known: Container[str], inside: str = "") -> None:
        """Count the values below keys that are not known; `inside` stands before their names."""
        for key, value in found.items():
            if key not in known and value not in (None, "", [], {}):
                self._counts[f"{inside}{key}"[:60]] += 1

    def note(self) -> tuple[str, ...]:
        """The note, none where nothing was found."""
        if not self._counts:
            return ()
        named = [f"{name} ({count})" for name, count in islice(self._counts.items(), _MOST_NAMED)]
        further = [f"{len(self._counts) - len(named)} more"] if len(self._counts) > len(named) else []
        return (f"values left out, by key or column: {', '.join(named + further)}",)


def check_order(place: str, *instants: tuple[str, int]) -> None:
    """Raise TraceError where a later one of these instants, each with its name, comes before an earlier one.

    An instant of 0 was not recorded.
    """
    known = [each for each in instants if each[1]]
    for (before, at_us), (name, later_us) in pairwise(known):
        if later_us < at_us:
            raise TraceError(f"{place}: expected {name} not before {before}, got {(at_us - later_us) / 1e6:g} s before")


_ROUNDING_US = 1000


def check_times(place: str, row: TraceRow, *, end_us: int = 0) -> None:
    """Raise TraceError where a reply of a recording begins before its request, or ends before it begins.

    `end_us` is when the request is said to have ended, by a millisecond too early at most; 0 where nothing says so.
    """
    check_order(
        place,
        ("the sending", row.send_time_us),
        ("the first token", row.first_chunk_time_us),
        ("the last token", row.last_chunk_time_us),
        ("the end of the request", end_us and end_us + _ROUNDING_US),
    )


def expect(place: str, kind: str, value: Any) -> Any:
    """The value, if it is of this kind; numbers are not negative. Raises TraceError."""
    types, limit = _KINDS[kind]
    fits = isinstance(value, types) and not isinstance(value, bool)
    if not fits or (isinstance(value, int | float) and not 0 <= value < limit):
        raise TraceError(f"{place}: expected {kind}, got {shortened(repr(value))}")
    return value


_CHARACTERS_PER_TOKEN = 4


def token_counter(options: ConvertOptions) -> tuple[Callable[[str], int], str]:
    """Return the function that counts the tokens of a text, and a note about it. Raises OptionError."""
    if options.tokenizer is None:
        return _estimate, f"tokens are estimated as one per {_CHARACTERS_PER_TOKEN} characters, give --tokenizer"
    from tokenizers import Tokenizer

    try:
        tokenizer = Tokenizer.from_file(options.tokenizer)
    except Exception as error:  # the library raises nothing more precise
        raise OptionError(f"--tokenizer must be a tokenizer.json, got {options.tokenizer}: {error}") from error

    def count(text: str) -> int:
        known = text.encode("utf-8", "replace").decode()  # half of a pair of surrogates is no text
        return len(tokenizer.encode(known, add_special_tokens=False).ids)

    return count, "tokens are those of --tokenizer"


def _estimate(text: str) -> int:
    return -(-len(text) // _CHARACTERS_PER_TOKEN)
