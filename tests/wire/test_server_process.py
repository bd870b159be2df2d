"""The command as a process: it prints its address and shuts down cleanly."""

import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests import fork_server
from tests.patience import PATIENCE_S, wait_until
from tests.wire.plain_http import raw_completion, read_all, read_until

ARGUMENTS = (
    *("serve", "qwen/qwen3-14b", "--hardware", "H100", "--tp", "1", "--host", "127.0.0.1"),
    *("--latency-model", "trained-physics"),
)
MORTAL = ("--port", "0", "--enable-fault-control")


@contextmanager
def process(*arguments: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A server process and the first line it wrote."""
    command = [sys.executable, "-m", "blis_sim.cli", *ARGUMENTS, *arguments]
    with fork_server.Popen(command, stderr=subprocess.PIPE, text=True) as running:
        try:
            assert running.stderr is not None
            yield running, running.stderr.readline()
        finally:
            running.kill()


IN_FORMS_OF_VLLM = ("INFO:     ", "(APIServer pid=")
"""Beginnings of the lines that vLLM and its web server write as well."""


def own_lines(running: subprocess.Popen[str]) -> str:
    """Return the further lines of a server until its end that are not in the forms of vLLM."""
    assert running.stderr is not None
    return "".join(line for line in running.stderr if not line.startswith(IN_FORMS_OF_VLLM))


def connect(line: str) -> socket.socket:
    found = re.search(r"http://([\d.]+):(\d+)", line)
    assert found, line
    return socket.create_connection((found[1], int(found[2])), timeout=PATIENCE_S)


def ask(line: str, request: bytes) -> bytes:
    """All that comes back on a connection of its own."""
    with connect(line) as connection:
        connection.sendall(request)
        return read_all(connection)


def get(path: str) -> bytes:
    """A request that ends its connection."""
    return f"GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode()


def ask_for_stream(connection: socket.socket, max_tokens: int) -> None:
    connection.sendall(raw_completion(prompt="hello", ignore_eos=True, stream=True, max_tokens=max_tokens))
    read_until(connection, b"data: ")


def ask_for_whole_reply(line: str, connection: socket.socket) -> None:
    """Return when the engine is at work for it."""
    connection.sendall(raw_completion(prompt="hello", ignore_eos=True, max_tokens=20_000))
    running = b'\nvllm:num_requests_running{engine="0",model_name="qwen/qwen3-14b"} 1.0\n'
    wait_until(lambda: running in ask(line, get("/metrics")))


def test_the_process_names_the_model_and_stops_on_a_signal_with_code_0() -> None:
    with process("--port", "0") as (running, line):
        assert re.fullmatch(
            r"serving qwen/qwen3-14b on http://127\.0\.0\.1:\d+ \(H100, tp 1, 17,676 KV blocks, trained-physics\)\n",
            line,
        )
        running.send_signal(signal.SIGTERM)
        assert running.wait(PATIENCE_S) == 0
        assert own_lines(running) == ""


@pytest.mark.slow
def test_the_process_names_the_source_of_step_times_before_it_serves_with_them() -> None:
    with process("--port", "0", "--latency-model", "fitted", "--hardware", "A100-SXM") as (running, line):
        assert line.startswith("warning: the shipped coefficients were learned for qwen3-14b on H100 with tp 1, ")
        assert running.stderr is not None
        assert running.stderr.readline().endswith(" KV blocks, fitted)\n")


@pytest.mark.slow
def test_a_short_stream_may_finish_and_a_long_one_is_cut_when_it_stops() -> None:
    with process("--port", "0") as (running, line), connect(line) as short, connect(line) as long:
        ask_for_stream(long, 4000)
        ask_for_stream(short, 100)  # more than a second
        running.send_signal(signal.SIGINT)
        assert b"[DONE]" in read_all(short)
        assert b"[DONE]" not in read_all(long)
        assert running.wait(PATIENCE_S) == 0
        assert own_lines(running) == "stopping: open replies: 2, cut after 3 s\n"


@pytest.mark.parametrize(
    ("arguments", "code", "complaint"),
    [
        (("--speed", "0"), 2, "--speed must be above 0, got 0.0"),
        (("--tokenizer", "/nowhere"), 1, "--tokenizer must be a tokenizer.json or a folder with one, got '/nowhere'"),
        (("--model", "other/model"), 2, "MODEL and --model must agree, got 'qwen/qwen3-14b' and 'other/model'"),
    ],
)
def test_bad_settings_are_one_line_and_a_code(arguments: tuple[str, ...], code: int, complaint: str) -> None:
    """Values that vLLM refuses after it has read its command line have its exit code 1."""
    command = [sys.executable, "-m", "blis_sim.cli", *ARGUMENTS, "--port", "0", *arguments]
    result = fork_server.run(command, stderr=subprocess.PIPE, text=True, timeout=PATIENCE_S, check=False)
    assert result.returncode == code
    assert result.stderr == f"blis serve: error: {complaint}\n"


def test_a_port_in_use_is_one_line_and_code_1() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        command = [sys.executable, "-m", "blis_sim.cli", *ARGUMENTS, "--port", str(port)]
        result = fork_server.run(command, stderr=subprocess.PIPE, text=True, timeout=PATIENCE_S, check=False)
    assert result.returncode == 1
    assert result.stderr.startswith(f"blis serve: error: cannot listen on 127.0.0.1:{port}: ")
    assert len(result.stderr.splitlines()) == 1


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_a_server_that_listens_has_started_no_threads_of_the_event_loop(host: str) -> None:
    with process("--port", "0", "--host", host) as (server, line):
        assert line.startswith("serving ")
        names = [each.read_text().strip() for each in Path(f"/proc/{server.pid}/task").glob("*/comm")]
    assert [name for name in names if "libuv" in name] == []


def test_the_model_may_be_given_as_a_flag() -> None:
    command = [sys.executable, "-m", "blis_sim.cli", "serve", "--port", "0"]
    result = fork_server.run(command, stderr=subprocess.PIPE, text=True, timeout=PATIENCE_S, check=False)
    assert result.stderr == "blis serve: error: MODEL must be given, such as qwen/qwen3-14b\n"


def let_its_engine_die(line: str) -> None:
    """Send a control command to a server that was started with MORTAL."""
    body = b'{"engine":{"death":null}}'
    head = b"POST /blis/faults HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Type: application/json\r\n"
    ask(line, head + b"Content-Length: %d\r\n\r\n%b" % (len(body), body))


@pytest.mark.slow
def test_the_process_ends_after_its_engine_has() -> None:
    with process(*MORTAL) as (running, line), connect(line) as stream:
        ask_for_stream(stream, 20_000)
        let_its_engine_die(line)
        assert b"The server had an error while processing your request." in read_all(stream)
        assert running.wait(PATIENCE_S) == 0
        assert own_lines(running).endswith("error: stopping: the engine has failed: the engine died on purpose\n")


def test_a_client_that_gets_the_status_ends_it_at_once() -> None:
    with process(*MORTAL) as (running, line), connect(line) as whole:
        ask_for_whole_reply(line, whole)
        let_its_engine_die(line)
        assert read_all(whole).startswith(b"HTTP/1.1 500 Internal Server Error")
        assert running.wait(PATIENCE_S) == 0


def test_the_process_stays_with_the_variable_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_KEEP_ALIVE_ON_ENGINE_DEATH", "1")
    with process(*MORTAL) as (running, line), connect(line) as whole:
        ask_for_whole_reply(line, whole)
        let_its_engine_die(line)
        read_until(whole, b"The server had an error while processing your request.")
        assert ask(line, get("/health")).startswith(b"HTTP/1.1 503 ")
        assert running.poll() is None
