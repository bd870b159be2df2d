"""Texts of a run without secrets: columns of rows, errors that repeat what was sent, and messages."""

from collections.abc import Iterable
from dataclasses import replace
from functools import lru_cache
from typing import Any

from traces import TRACE_COLUMNS, TraceRow
from traces.redaction import Redactor, secrets_in

_FIXED = frozenset({"status", "parents", "context_of", "x_request_id"})
"""Columns whose texts the program makes itself."""
_TEXTS = tuple(column.name for column in TRACE_COLUMNS if column.kind is str and column.name not in _FIXED)


def redacted_row(row: TraceRow, redactor: Redactor, others: Iterable[str] = ()) -> TraceRow:
    """The row with all texts of users redacted, those in the `others` columns included."""
    texts = {name: getattr(row, name) for name in (*_TEXTS, *others)}
    changed: dict[str, Any] = {name: redactor.text(text) for name, text in texts.items() if text}
    return replace(row, **changed) if changed else row


def without_echoes(message: str, request: bytes) -> str:
    """An error text without the keys in the head of the request that it may repeat, and without other known keys."""
    lines = request.partition(b"\r\n\r\n")[0].decode("latin-1").split("\r\n")
    fields = (line.partition(":") for line in lines[1:])
    return _redactor(tuple(secrets_in((name, value.strip()) for name, _, value in fields))).text(message)


@lru_cache(maxsize=16)
def _redactor(secrets: tuple[str, ...]) -> Redactor:
    return Redactor(()).hiding(secrets)
