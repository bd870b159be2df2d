"""Log lines on standard error: plain lines for people, or a JSON object per line for collectors."""

import logging
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import orjson

FORMATS = ("text", "json")
_PREFIXES = {logging.INFO: "", logging.WARNING: "warning: "}


class PlainLines(logging.Formatter):
    """The message, after a word for its severity."""

    def format(self, record: logging.LogRecord) -> str:
        """Return one line, or several where there is a traceback."""
        return _PREFIXES.get(record.levelno, f"{record.levelname.lower()}: ") + super().format(record)


class JsonLines(logging.Formatter):
    """Time, level, logger and message, what `fields` gave besides, and a traceback if there is one, in one line."""

    def format(self, record: logging.LogRecord) -> str:
        """Return one line of JSON."""
        entry: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            entry["exception"] = self.formatException(record.exc_info)
        return orjson.dumps(entry, default=str).decode()


def fields(**values: Any) -> Mapping[str, Any]:
    """Return the `extra` of a log call: values that a JSON line has as keys of their own."""
    return {"fields": values}


def set_up_logging(log_format: str) -> None:
    """Send to standard error what this process logs: our own notices, and the warnings of libraries."""
    handler = logging.StreamHandler()
    handler.setFormatter(JsonLines() if log_format == "json" else PlainLines())
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)
    logging.getLogger("mockserve").setLevel(logging.INFO)
