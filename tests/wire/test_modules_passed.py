"""The number of modules that take part in one chat request."""

import http.client
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import mockserve
from tests.wire.serving import TestServer, running_server

MOST_MODULES = 40
FOLDER = Path(mockserve.__file__).parent


class PassedModules:
    """Modules of the server in which a function began while `is_noting`, found by a profile function for threads."""

    def __init__(self) -> None:
        self.is_noting = False
        self.names: set[str] = set()

    def note(self, frame: FrameType, event: str, _argument: Any) -> None:
        if self.is_noting and event == "call" and frame.f_code.co_filename.startswith(f"{FOLDER}/"):
            self.names.add(f"{Path(frame.f_code.co_filename).relative_to(FOLDER)}")


@pytest.fixture
def passed() -> Iterator[PassedModules]:
    """Notes the threads that start while the fixture is in use."""
    found = PassedModules()
    threading.setprofile(found.note)
    yield found
    threading.setprofile(None)


def chat(server: TestServer, text: str) -> bytes:
    connection = http.client.HTTPConnection(server.host, server.port, timeout=30)
    body = {"model": "m", "messages": [{"role": "user", "content": text}], "max_tokens": 8, "stream": True}
    connection.request("POST", "/v1/chat/completions", json.dumps(body), {"Content-Type": "application/json"})
    reply = connection.getresponse().read()
    connection.close()
    return reply


def modules_of(server: TestServer, passed: PassedModules, text: str) -> set[str]:
    passed.names.clear()
    passed.is_noting = True
    assert chat(server, text).endswith(b"data: [DONE]\n\n")
    passed.is_noting = False
    return set(passed.names)


def test_a_streamed_chat_request_passes_at_most_40_modules_of_the_server(passed: PassedModules) -> None:
    """Counts from the connection to the last byte, after a first request has filled caches.

    The shortest way of three counts, because a busy machine makes a server log late tokens.
    """
    with running_server() as server:
        assert chat(server, "a first request").endswith(b"data: [DONE]\n\n")
        names = min((modules_of(server, passed, f"request {number}") for number in range(3)), key=len)
    assert "replies/event_stream.py" in names, "the profile function did not see the server's thread"
    assert len(names) <= MOST_MODULES, sorted(names)
