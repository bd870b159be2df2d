"""No request makes the process of a server open a file or a connection: its system calls are traced.

All requests that a genuine vLLM answered are sent, and all that name addresses. Functions of Python that open something
are watched in `tests/wire/test_nothing_reaches_out.py`; here libraries written in C cannot hide a call, nor can a look
at a file that opens nothing.
"""

import http.client
import json
import re
import socket
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from itertools import cycle
from pathlib import Path
from typing import Any

import pytest

from tests.patience import PATIENCE_S
from tests.wire.asked import table
from tests.wire.asked.folders import write_folder
from tests.wire.captured.case_files import read_cases
from tests.wire.captured.setups import SETUPS, Setup
from tests.wire.captures import captures_by_name
from tests.wire.hostile_constraints import answer_of, doubling
from tests.wire.plain_http import call_on
from tests.wire.test_nothing_reaches_out import ADDRESS, CHAT, bodies
from tests.wire.test_route_replies import DEV_MODE, ROWS
from tests.wire.test_route_replies import body_of as body_of_row
from tests.wire.tracing import SystemCall, calls_in, can_trace, reaching_out, traced

pytestmark = pytest.mark.skipif(not can_trace(), reason="strace is not installed, or may not attach to a process")

SentRequest = tuple[str, str, Any, Mapping[str, str] | None]
"""Method, path, body and headers."""

SERVER = (
    *("--host", "127.0.0.1", "--port", "0", "--speed", "100000"),
    *("--hardware", "H100", "--tp", "1", "--served-model-name", "m"),
)
ALL_ROUTES = (
    *("--max-model-len", "2048", "--enable-scale-out", "--enable-lora", "--trust-request-chat-template"),
    *("--enable-auto-tool-choice", "--tool-call-parser", "hermes", "--tokens-per-medium", "8"),
)
HARMLESS: tuple[SentRequest, ...] = (
    ("POST", CHAT, answer_of({**doubling("allOf"), "not": {"type": "string"}}), {"Authorization": "Bearer k1"}),
    ("GET", "/metrics", None, None),
)
"""Requests that name no address and start a worker process: the files of its start are the server's own."""


@contextmanager
def traced_server(log: Path, *flags: str) -> Iterator[http.client.HTTPConnection]:
    """A server that is traced once it listens, and stops when the block ends."""
    command = [sys.executable, "-m", "blis_sim.cli", "serve", *flags, *SERVER]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None
            found = next(each for line in process.stderr if (each := re.search(r"http://([\d.]+):(\d+)", line)))
            with traced(process, log):
                yield http.client.HTTPConnection(found[1], int(found[2]), timeout=PATIENCE_S)
        finally:
            process.kill()


def send(connection: http.client.HTTPConnection, requests: Iterable[SentRequest]) -> int:
    """The number of requests that were answered, each on a connection of its own."""
    num_answered = 0
    for each in requests:
        with suppress(http.client.IncompleteRead):  # a stream that the genuine server broke off, too
            assert call_on(connection, *each).status >= 200
        connection.close()
        num_answered += 1
    return num_answered


def own_paths(calls: list[SystemCall]) -> set[str]:
    return {path for each in calls for path in each.paths}


@pytest.mark.slow
@pytest.mark.parametrize("setup", SETUPS, ids=lambda setup: setup.name)
def test_no_request_of_a_captured_conversation_makes_a_server_open_anything(
    reference: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, setup: Setup
) -> None:
    captures = captures_by_name(reference / setup.capture_file)
    cases = read_cases([reference / "oracle" / f"{name}.py" for name in setup.case_files])
    requests = [(each.method, each.path, each.body, each.headers) for each in cases if each.name in captures]
    for name, value in setup.environment.items():
        monkeypatch.setenv(name, value)
    log = tmp_path / "calls"
    with traced_server(log, *setup.arguments(reference)) as connection:
        send(connection, HARMLESS)
        own = own_paths(calls_in(log))
        assert send(connection, requests) == len(captures)
    assert reaching_out(calls_in(log), {*own, *map(str, setup.folders(reference))}) == []


@pytest.fixture(scope="module")
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as made:
        yield made


@pytest.mark.slow
def test_no_other_request_makes_a_server_or_its_workers_open_anything(
    listener: socket.socket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in DEV_MODE.items():
        monkeypatch.setenv(name, value)
    file, log = tmp_path / "schema-of-a-client.json", tmp_path / "calls"
    file.write_text('{"type": "string"}', encoding="utf-8")
    addresses = cycle((f"http://127.0.0.1:{listener.getsockname()[1]}/schema.json", file.as_uri(), str(file)))
    asked = [(each.method, each.path, each.body, each.headers) for setup in table.SETUPS for each in setup.cases()]
    rows = [(row["method"], row["path"], body_of_row(row), row["headers"]) for row in ROWS]
    naming = [
        ("POST", path, json.dumps(body).replace(ADDRESS, address).encode(), None)
        for path, body in (*bodies(), (CHAT, answer_of({**doubling("allOf"), "not": {"$ref": ADDRESS}})))
        for address in (next(addresses),)
    ]
    folder = write_folder(tmp_path / "usual")
    with traced_server(log, str(folder), *ALL_ROUTES) as connection:
        send(connection, HARMLESS)
        own = own_paths(calls_in(log))
        assert send(connection, (*asked, *rows, *naming)) > 1000
    calls = calls_in(log)
    assert reaching_out(calls, {*own, str(folder)}) == []
    assert any(each.name == "execve" for each in calls), "no worker process was started"


EXECUTES_LINES = """
import pathlib, signal, socket, subprocess, sys
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
for line in sys.stdin:
    exec(line)
    print("done", flush=True)
"""


def execute_in(process: subprocess.Popen[str], line: str) -> None:
    """Return when the process has executed a line of Python."""
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(f"{line}\n")
    process.stdin.flush()
    assert process.stdout.readline() == "done\n"


@pytest.mark.parametrize(
    "line",
    [
        "pathlib.Path('{file}').read_bytes()",
        "pathlib.Path('{file}').exists()",
        "pathlib.Path('{file}').unlink()",
        "subprocess.run([sys.executable, '-c', 'open(\\'{file}\\')'])",
        "socket.create_connection(('127.0.0.1', {port}))",
    ],
)
def test_a_file_or_a_connection_that_a_traced_process_opens_is_found(
    listener: socket.socket, tmp_path: Path, line: str
) -> None:
    file, log = tmp_path / "file-of-a-test", tmp_path / "calls"
    file.touch()
    port = listener.getsockname()[1]
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", EXECUTES_LINES], text=True, **pipes) as process:
        execute = partial(execute_in, process)
        execute("pass")
        with traced(process, log):
            execute("subprocess.run([sys.executable, '-c', ''])")
            own = own_paths(calls_in(log))
            execute(line.format(file=file, port=port))
    found = reaching_out(calls_in(log), own)
    assert [each for each in found if str(file) in each or f"htons({port})" in each] != []
