"""Answers from a file: JSON lines or a SQLite table, found by the prompt."""

import sqlite3
from array import array
from collections.abc import Iterable, Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any, Protocol

from blis_sim.options import OptionError
from blis_sim.options.text import load_json

SQLITE_HEADER = b"SQLite format 3\x00"
ANSWER_FIELDS = ("answer", "response", "completion", "output")


class Dataset(Protocol):
    """Known answers."""

    def answer(self, asked: Sequence[str], prompt: Sequence[int]) -> str | None:
        """The answer to the first of `asked` that is known, or to the token ids of the prompt; None for neither."""
        ...


class LinesDataset:
    """All answers in memory."""

    def __init__(self, answers: Mapping[str, str]) -> None:
        self._answers = answers

    def answer(self, asked: Sequence[str], prompt: Sequence[int]) -> str | None:
        return next((self._answers[each] for each in asked if each in self._answers), None)


class TableDataset:
    """A SQLite table, read as needed: `prompt` and `answer`, or `prompt_hash` and `gen_tokens`.

    The second form is that of llm-d-inference-sim: a SHA-256 of the prompt's text, or of its token ids as little-endian
    32-bit integers, and a JSON list of token texts.
    """

    def __init__(self, file: Path, table: str) -> None:
        self._connection = sqlite3.connect(f"{file.resolve().as_uri()}?mode=ro", uri=True, check_same_thread=False)
        quoted = '"' + table.replace('"', '""') + '"'
        columns = {row[1] for row in self._connection.execute(f"PRAGMA table_info({quoted})")}
        self._by_hash = "prompt_hash" in columns
        key, value = ("prompt_hash", "gen_tokens") if self._by_hash else ("prompt", "answer")
        if not {key, value} <= columns:
            raise OptionError(
                f"--dataset-path: table {table!r} of {file} must have the columns prompt and answer, or prompt_hash "
                f"and gen_tokens; it has {', '.join(sorted(columns)) or 'none, or there is no such table'}"
            )
        self._query = f"SELECT {value} FROM {quoted} WHERE {key} = ? LIMIT 1"

    def answer(self, asked: Sequence[str], prompt: Sequence[int]) -> str | None:
        for key in self._keys(asked, prompt):
            row = self._connection.execute(self._query, (key,)).fetchone()
            if row is not None:
                return _joined(row[0]) if self._by_hash else str(row[0])
        return None

    def _keys(self, asked: Sequence[str], prompt: Sequence[int]) -> Iterable[str | bytes]:
        if not self._by_hash:
            return asked
        packed = array("I", prompt).tobytes()
        return [sha256(each).digest() for each in (*(text.encode() for text in asked), packed)]


def open_dataset(path: str, table: str) -> Dataset:
    """The data set in a file of either kind. Raises OptionError for a file that is neither."""
    file = Path(path)
    try:
        with file.open("rb") as stream:
            is_database = stream.read(len(SQLITE_HEADER)) == SQLITE_HEADER
        return TableDataset(file, table) if is_database else LinesDataset(_read_lines(file))
    except (OSError, UnicodeDecodeError, sqlite3.Error) as error:
        raise OptionError(f"--dataset-path: cannot read {path}: {error}") from error


def _read_lines(file: Path) -> dict[str, str]:
    """One JSON object per line, with `prompt` and `answer` (or `response`, `completion`, `output`)."""
    answers: dict[str, str] = {}
    with file.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, start=1):
            if line.strip():
                prompt, answer = _read_line(line, f"--dataset-path: {file} line {number}")
                answers.setdefault(prompt, answer)
    return answers


def _read_line(line: str, where: str) -> tuple[str, str]:
    try:
        row: Any = load_json(line)
    except ValueError as error:
        raise OptionError(f"{where} must be a JSON object: {error}") from None
    if not isinstance(row, dict) or not isinstance(row.get("prompt"), str):
        raise OptionError(f"{where} must have a prompt as text, got {line.strip()[:80]!r}")
    answer = next((row[name] for name in ANSWER_FIELDS if isinstance(row.get(name), str)), None)
    if answer is None:
        raise OptionError(f"{where} must have one of {', '.join(ANSWER_FIELDS)} as text, got {line.strip()[:80]!r}")
    return row["prompt"], answer


def _joined(tokens: Any) -> str:
    """The text of a JSON list of token texts."""
    found = load_json(tokens)
    return "".join(map(str, found)) if isinstance(found, list) else str(found)
