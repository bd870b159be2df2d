"""Reads captures of a genuine vLLM server: requests with the bytes of their replies."""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

_REQUEST = re.compile(r"> (?P<method>\w+) (?P<path>\S+) (?P<headers>\{.*?\})? (?P<body>.*)", re.DOTALL)
_STATUS = re.compile(r"< (?P<status>\d+) .*? (?P<headers>\{.*\})")


@dataclass(frozen=True, slots=True)
class Capture:
    """One request and its reply."""

    name: str
    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes
    status: int
    reply_headers: Mapping[str, str]
    reply: str


def read_captures(path: Path) -> Iterator[Capture]:
    """All captures of a file, in order."""
    for part in path.read_text().split("### ")[1:]:
        name, request_line, status_line, reply = part.split("\n", 3)
        request = _REQUEST.match(request_line)
        status = _STATUS.match(status_line)
        assert request is not None, request_line
        assert status is not None, status_line
        yield Capture(
            name=name,
            method=request["method"],
            path=request["path"],
            headers=json.loads(request["headers"] or "{}"),
            body=request["body"].encode(),
            status=int(status["status"]),
            reply_headers=json.loads(status["headers"]),
            reply=reply.rstrip("\n"),
        )


def captures_by_name(path: Path) -> dict[str, Capture]:
    """The last capture of each name: a name that was captured twice was wrong the first time."""
    return {each.name: each for each in read_captures(path)}
