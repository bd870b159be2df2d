"""Replies of a genuine vLLM server, a file of JSON lines for each setup."""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

BROKEN_OFF = b"data: (the connection was closed)\n\n"
"""The end of a reply without its end."""
FOLDER = Path(__file__).with_name("replies")


class Reply(NamedTuple):
    """The reply to one request."""

    name: str
    status: int
    content_type: str
    text: str


def write_replies(setup: str, replies: Iterable[Reply]) -> None:
    """Keep the replies of one setup."""
    lines = [json.dumps(each._asdict(), ensure_ascii=False) for each in replies]
    FOLDER.mkdir(exist_ok=True)
    _file(setup).write_text("\n".join([*lines, ""]), encoding="utf-8")


def read_replies(setup: str) -> Mapping[str, Reply]:
    """The replies of one setup by the names of their requests."""
    lines = _file(setup).read_text(encoding="utf-8").splitlines()
    found = [Reply(**json.loads(line)) for line in lines]
    return {each.name: each for each in found}


def _file(setup: str) -> Path:
    return FOLDER / f"{setup.replace(' ', '_')}.jsonl"
