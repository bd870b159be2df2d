"""A stopping server is not ready, finishes open replies and refuses new ones; a second signal cuts open replies."""

import json
import re
import signal
import subprocess
import time
import urllib.error
import urllib.request

import pytest

from tests.patience import PATIENCE_S, wait_until
from tests.wire.plain_http import read_all
from tests.wire.test_server_process import ask_for_stream, connect, process


def address(line: str) -> str:
    found = re.search(r"http://[\d.]+:\d+", line)
    assert found, line
    return found[0]


def status_of(url: str, body: bytes | None = None) -> tuple[int, bytes]:
    request = urllib.request.Request(url, body, {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=PATIENCE_S) as reply:
            return reply.status, reply.read()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read()


def wait_until_not_ready(url: str) -> None:
    wait_until(lambda: status_of(f"{url}/health")[0] == 503, "it is still ready")


def output_of(running: subprocess.Popen[str]) -> str:
    assert running.stderr is not None
    return running.stderr.read()


def test_the_server_is_not_ready_and_takes_nothing_new_while_open_replies_finish() -> None:
    with process("--port", "0", "--shutdown-timeout", "60") as (running, line), connect(line) as stream:
        url = address(line)
        assert status_of(f"{url}/health")[0] == 200
        ask_for_stream(stream, 400)
        running.send_signal(signal.SIGTERM)
        wait_until_not_ready(url)
        assert status_of(f"{url}/ping", b"")[0] == 503
        assert status_of(f"{url}/metrics")[0] == 200
        status, body = status_of(f"{url}/v1/completions", b'{"prompt": "x"}')
        assert status == 503
        assert json.loads(body)["error"]["message"] == "The server is shutting down."
        assert b"[DONE]" in read_all(stream)
        assert running.wait(PATIENCE_S) == 0
        assert output_of(running) == "stopping: open replies: 1, cut after 60 s\n"


def test_a_second_signal_cuts_what_is_open() -> None:
    with process("--port", "0", "--shutdown-timeout", "600") as (running, line), connect(line) as stream:
        ask_for_stream(stream, 20_000)
        running.send_signal(signal.SIGTERM)
        wait_until_not_ready(address(line))
        running.send_signal(signal.SIGTERM)
        assert b"[DONE]" not in read_all(stream)
        assert running.wait(PATIENCE_S) == 0


def test_without_a_shutdown_timeout_open_replies_are_cut_at_once() -> None:
    with process("--port", "0", "--shutdown-timeout", "0") as (running, line), connect(line) as stream:
        ask_for_stream(stream, 20_000)
        running.send_signal(signal.SIGTERM)
        assert b"[DONE]" not in read_all(stream)
        assert running.wait(PATIENCE_S) == 0


def test_the_server_listens_only_after_the_delay() -> None:
    started = time.monotonic()
    with process("--port", "0", "--startup-delay", "2") as (_, line):
        assert status_of(f"{address(line)}/health")[0] == 200
        assert time.monotonic() - started >= 2


def test_in_json_each_line_is_an_object() -> None:
    with process("--port", "0", "--log-format", "json") as (running, line), connect(line) as stream:
        ready = json.loads(line)
        assert ready["level"] == "info"
        assert ready["message"].startswith("serving qwen/qwen3-14b on ")
        assert (ready["model"], ready["address"]) == ("qwen/qwen3-14b", address(line))
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}\+00:00", ready["time"])
        ask_for_stream(stream, 40)
        running.send_signal(signal.SIGTERM)
        assert running.wait(PATIENCE_S) == 0
        (last,) = map(json.loads, output_of(running).splitlines())
        assert (last["logger"], last["open"]) == ("mockserve.server", 1)


@pytest.mark.parametrize(("value", "code"), [("-1", 1), ("soon", 2)])
def test_an_invalid_shutdown_timeout_is_refused(value: str, code: int) -> None:
    with process("--port", "0", "--shutdown-timeout", value) as (running, line):
        assert running.wait(PATIENCE_S) == code
        assert "--shutdown-timeout" in line
