"""Comparison of our server's replies with those of a genuine vLLM."""

import http.client
from pathlib import Path
from typing import Any

import pytest

from tests.wire.asked.folders import write_folders
from tests.wire.asked.replies import BROKEN_OFF, read_replies
from tests.wire.asked.setups import FOLDERS_MARK, MAX_MODEL_LEN, Asked, Setup
from tests.wire.captured.case_files import Case
from tests.wire.captured.differences import Difference, differences
from tests.wire.captures import Capture
from tests.wire.plain_http import PlainReply, call
from tests.wire.serving import TestServer, running_server

NO_LIMIT = 10**9


def _reply(server: TestServer, asked: Asked) -> PlainReply:
    try:
        return call(server, asked.method, asked.path, asked.body, asked.headers)
    except http.client.IncompleteRead as cut:  # only a stream is broken off, which has begun with status 200
        return PlainReply(200, {"content-type": "text/event-stream; charset=utf-8"}, cut.partial + BROKEN_OFF)


def found_differences(setup: Setup, folders: Path) -> list[Difference]:
    """All differences between the replies of a genuine server and those of ours, in order."""
    write_folders(folders)
    replies = read_replies(setup.name)
    settings: dict[str, Any] = {
        name: value.replace(FOLDERS_MARK, str(folders)) if isinstance(value, str) else value
        for name, value in {**setup.settings, **setup.own_settings}.items()
    }
    folder = str(folders / setup.folder)
    found: list[Difference] = []
    with pytest.MonkeyPatch.context() as patch:
        for name, value in setup.environment.items():
            patch.setenv(name, value)
        with running_server(model=folder, max_model_len=MAX_MODEL_LEN, **settings) as server:
            for asked in setup.cases():
                theirs = replies[asked.name]
                ours = _reply(server, asked)
                case = Case(asked.name, asked.method, asked.path, asked.headers, None, NO_LIMIT)
                head = {"content-type": theirs.content_type} if theirs.content_type else {}
                capture = Capture(
                    *(asked.name, asked.method, asked.path, asked.headers, b""),
                    theirs.status,
                    head,
                    theirs.text.rstrip("\n"),
                )
                shown = {name: value for name, value in ours.headers.items() if name == "content-type"}
                found += differences(f"asked {setup.name}", case, capture, PlainReply(ours.status, shown, ours.body))
    return found
