"""Log records as lines on standard error."""

import json
import logging
import re
import sys
from collections.abc import Mapping

import pytest

from mockserve.options.server import JsonLines, PlainLines, fields, in_uvicorn_form, in_vllm_form


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


def line_of(level: int, message: str, *values: object, origin: Mapping[str, object]) -> str:
    record = record_of(level, message, *values, extra=origin)
    record.created, record.process = 0.0, 7
    return PlainLines().format(record)


def test_a_line_of_vllm_has_the_head_of_vllms() -> None:
    origin = in_vllm_form("loggers.py:335", engine=0)
    line = line_of(logging.INFO, "Engine %03d: x", 0, origin=origin)
    assert re.fullmatch(r"\(APIServer pid=7\) INFO \d\d-\d\d \d\d:\d\d:\d\d \[loggers\.py:335\] Engine 000: x", line)
    head, _, _ = line.partition("Engine")
    assert line_of(logging.INFO, "a\nb", origin=origin) == f"{head}a\r\n{head}b"
    assert line_of(logging.DEBUG, "a", origin=origin).startswith("(APIServer pid=7) DEBUG ")


@pytest.mark.parametrize(
    ("level", "head"), [(logging.INFO, "INFO:     "), (logging.WARNING, "WARNING:  "), (logging.ERROR, "ERROR:    ")]
)
def test_a_line_of_the_web_server_has_its_level_in_a_column(level: int, head: str) -> None:
    assert line_of(level, "Shutting down", origin=in_uvicorn_form()) == f"{head}Shutting down"


def test_a_json_line_has_no_other_form() -> None:
    reported = json.loads(JsonLines().format(record_of(logging.INFO, "x", extra=in_vllm_form("a.py:1", engine=3))))
    assert (reported["message"], reported["engine"]) == ("x", 3)
