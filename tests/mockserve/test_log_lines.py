"""Log records as lines on standard error."""

import json
import logging
import sys

from mockserve.options.observability import JsonLines, PlainLines, fields


def record_of(level: int, message: str, *values: object, **extra: object) -> logging.LogRecord:
    return logging.getLogger("mockserve.x").makeRecord("mockserve.x", level, "file", 1, message, values, None, **extra)  # type: ignore[arg-type]


def test_a_plain_line_is_the_message_after_its_severity() -> None:
    lines = [PlainLines().format(record_of(level, "late by %d ms", 7)) for level in (logging.INFO, logging.WARNING)]
    assert lines == ["late by 7 ms", "warning: late by 7 ms"]
    assert PlainLines().format(record_of(logging.ERROR, "no")) == "error: no"


def test_a_json_line_is_one_object_with_the_fields_given() -> None:
    line = JsonLines().format(record_of(logging.WARNING, 'a "b"\nc', extra=fields(open=3, path=sys)))
    reported = json.loads(line)
    assert "\n" not in line
    assert (reported["level"], reported["message"], reported["open"], reported["logger"]) == (
        "warning",
        'a "b"\nc',
        3,
        "mockserve.x",
    )


def test_a_traceback_is_part_of_the_object() -> None:
    try:
        raise ValueError("broken")
    except ValueError:
        record = record_of(logging.ERROR, "failed")
        record.exc_info = sys.exc_info()
    line = JsonLines().format(record)
    assert json.loads(line)["exception"].endswith("ValueError: broken")
    assert "\n" not in line
