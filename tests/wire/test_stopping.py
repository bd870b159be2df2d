"""A stopping server is not ready, finishes open replies and refuses new ones; a second signal cuts open replies."""

import json
import re
import signal
import time
import urllib.error
import urllib.request

import pytest

from tests.patience import PATIENCE_S, wait_until
from tests.wire.plain_http import read_all
from tests.wire.test_keep_alive_comments import all_for_now
from tests.wire.test_server_process import ask_for_stream, connect, own_lines, process


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


def is_refused(line: str) -> bool:
    try:
        connect(line).close()
    except ConnectionRefusedError:
        return True
    return False


def wait_until_refused(line: str) -> None:
    wait_until(lambda: is_refused(line), "the port is open")


def wait_until_not_ready(url: str) -> None:
    wait_until(lambda: status_of(f"{url}/health")[0] == 503, "it is still ready")


@pytest.mark.slow
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
        assert own_lines(running) == "stopping: open replies: 1, cut after 60 s\n"


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


@pytest.mark.slow
def test_the_server_listens_only_after_the_delay() -> None:
    started = time.monotonic()
    with process("--port", "0", "--startup-delay", "2") as (_, line):
        assert status_of(f"{address(line)}/health")[0] == 200
        assert time.monotonic() - started >= 2


@pytest.mark.slow
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
        *_, last = map(json.loads, own_lines(running).splitlines())
        assert (last["logger"], last["open"]) == ("mockserve.server", 1)


@pytest.mark.parametrize(("value", "code"), [("-1", 1), ("soon", 2)])
def test_an_invalid_shutdown_timeout_is_refused(value: str, code: int) -> None:
    with process("--port", "0", "--shutdown-timeout", value) as (running, line):
        assert running.wait(PATIENCE_S) == code
        assert "--shutdown-timeout" in line


def test_an_abrupt_end_closes_the_port_and_leaves_streams_to_their_clients() -> None:
    with process("--port", "0", "--abrupt-shutdown") as (running, line), connect(line) as stream:
        with connect(line) as idle:
            ask_for_stream(stream, 20_000)
            running.send_signal(signal.SIGTERM)
            assert idle.recv(1) == b""
        with pytest.raises(ConnectionRefusedError):
            connect(line)
        stream.settimeout(0.5)
        received = all_for_now(stream)
        assert b"[DONE]" not in received
        assert running.poll() is None
        stream.close()
        assert running.wait(PATIENCE_S) == 0
        assert own_lines(running) == ""


def test_a_second_signal_ends_an_abrupt_end() -> None:
    with process("--port", "0", "--abrupt-shutdown") as (running, line), connect(line) as stream:
        ask_for_stream(stream, 20_000)
        for _ in range(2):
            running.send_signal(signal.SIGTERM)
            wait_until_refused(line)
        assert b"[DONE]" not in read_all(stream)
        assert running.wait(PATIENCE_S) == 0


@pytest.mark.slow
def test_several_processes_end_abruptly_together() -> None:
    two = ("--port", "0", "--abrupt-shutdown", "--api-server-count", "2")
    with process(*two) as (running, line), connect(line) as stream:
        ask_for_stream(stream, 20_000)
        running.send_signal(signal.SIGTERM)
        wait_until_refused(line)
        stream.settimeout(0.5)
        assert b"[DONE]" not in all_for_now(stream)
        assert running.poll() is None
        stream.close()
        assert running.wait(PATIENCE_S) == 0
