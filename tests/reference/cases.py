"""Requests that a genuine vLLM was asked, as figures, and the files of calls that make them."""

from pathlib import Path
from typing import Any

from tests.wire.captured.case_files import read_cases


def packed_case_file(path: Path) -> Any:
    """Return the requests of a case file: the last of each name."""
    return [
        [each.name, each.method, each.path, dict(each.headers), None if each.body is None else each.body.decode(),
         each.limit_chars]
        for each in read_cases([path])
    ]  # fmt: skip


def write_case_file(path: Path, packed: Any) -> None:
    """Write a case file with a call for each request."""
    lines = [
        f"call({name!r}, {method!r}, {url!r}, headers={headers!r}, raw={body!r}, limit={limit!r})\n"
        for name, method, url, headers, body, limit in packed
    ]
    path.write_text("".join(lines), encoding="utf-8")
