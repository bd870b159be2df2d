"""A process ends soon after a signal although its receiver of spans is dead, or its pipe has no reader."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.client import HTTPException
from pathlib import Path
from urllib.request import Request, urlopen

import pytest

from tests import fork_server
from tests.patience import PATIENCE_S, attempts
from tests.wire.test_server_process import process

ENDS_WITHIN_S = 3.0


@contextmanager
def receiver(kind: str) -> Iterator[int]:
    """The port of a receiver that refuses connections, or accepts them and never answers."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        if kind == "silent":
            listening.listen(50)
        yield listening.getsockname()[1]


def stream(url: str) -> None:
    """Begin a long stream, and read it to its end or that of the server."""
    body = {"model": "m", "prompt": "x", "max_tokens": 2_000, "ignore_eos": True, "stream": True}
    with (
        suppress(OSError, HTTPException, ValueError),
        urlopen(Request(url, json.dumps(body).encode(), {"content-type": "application/json"})) as it,
    ):
        it.read()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("protocol", "kind", "stopped_by"),
    [
        ("http/protobuf", "refused", signal.SIGTERM),
        ("http/protobuf", "silent", signal.SIGINT),
        ("grpc", "refused", signal.SIGINT),
        ("grpc", "silent", signal.SIGTERM),
    ],
)
def test_a_server_with_a_dead_receiver_of_spans_ends_within_three_seconds_while_streams_run(
    protocol: str, kind: str, stopped_by: signal.Signals, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("opentelemetry.sdk")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", protocol)
    for _ in attempts():
        with receiver(kind) as port:
            endpoint = f"http://127.0.0.1:{port}" + ("" if protocol == "grpc" else "/v1/traces")
            flags = ("--served-model-name", "m", "--shutdown-timeout", "0", "--otlp-traces-endpoint", endpoint)
            with process("--port", "0", "--host", "127.0.0.1", *flags) as (running, line):
                url = "http://127.0.0.1:" + line.split("http://127.0.0.1:")[1].split(" ")[0] + "/v1/completions"
                body = json.dumps({"model": "m", "prompt": "x", "max_tokens": 2}).encode()
                for _ in range(3):  # their spans wait to be exported
                    urlopen(Request(url, body, {"content-type": "application/json"})).read()
                threads = [threading.Thread(target=stream, args=(url,), daemon=True) for _ in range(3)]
                for thread in threads:
                    thread.start()
                time.sleep(0.5)
                before_s = time.monotonic()
                running.send_signal(stopped_by)
                assert running.wait(PATIENCE_S) == 0
                took_s = time.monotonic() - before_s
        if took_s < ENDS_WITHIN_S:
            break


COMMANDS = {
    "a file of results": ("run", "--model", "qwen/qwen3-14b", "--num-requests", "5", "--results-path"),
    "a recording": ("observe", "--proxy", "0", "--url", "http://127.0.0.1:9", "--proxy-host", "127.0.0.1", "--output"),
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "stopped_by"), [("a file of results", signal.SIGTERM), ("a recording", signal.SIGINT)]
)
def test_a_command_that_waits_for_the_reader_of_a_pipe_ends_with_the_signal(
    command: str, stopped_by: signal.Signals, tmp_path: Path
) -> None:
    pipe = tmp_path / "pipe.csv"
    os.mkfifo(pipe)
    name = str(pipe) if command == "a file of results" else str(tmp_path / "pipe")
    running = fork_server.Popen(
        [sys.executable, "-m", "blis_sim.cli", *COMMANDS[command], name], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    try:
        time.sleep(4)
        assert running.poll() is None
        running.send_signal(stopped_by)
        _, messages = running.communicate(timeout=PATIENCE_S)
    finally:
        running.kill()
    assert b"Traceback" not in messages
    assert running.returncode in (-stopped_by, 128 + stopped_by)
