"""One server in several processes, over real sockets: shared engine, shared metrics, common shutdown."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests import fork_server
from tests.children import num_importing
from tests.patience import PATIENCE_S, wait_until
from tests.wire.plain_http import raw_completion, read_all, read_until
from tests.wire.test_server_process import ARGUMENTS, ask, ask_for_stream, connect, get, own_lines, process

TWO = ("--port", "0", "--api-processes", "2")
FAST = ("--latency-model", "blackbox", "--alpha-coeffs", "0,0,0", "--beta-coeffs", "2000,0,0")
CACHED = ("--enable-prompt-tokens-details", "--served-model-name", "m", "--enable-fault-control")


@pytest.fixture(scope="module")
def line() -> Iterator[str]:
    """The report of a server that is shared by all tests which leave nothing behind."""
    with process(*TWO, *FAST, *CACHED) as (running, said):
        yield said
        running.send_signal(signal.SIGTERM)
        assert running.wait(PATIENCE_S) == 0


def completion(**fields: Any) -> bytes:
    """A completion request that ends its connection."""
    return raw_completion("1.0", ignore_eos=True, **fields)


def figures(line: str) -> dict[str, float]:
    """Samples by name and labels, from whichever process is asked."""
    page = ask(line, get("/metrics")).partition(b"\r\n\r\n")[2].decode()
    found = re.findall(r"^(\w[\w:]*(?:{.*})?) (\S+)$", page, re.MULTILINE)
    return {name: float(value) for name, value in found}


def figure(line: str, name: str, label: str = "") -> float:
    """The sum of the samples of this name that have this label."""
    return sum(value for key, value in figures(line).items() if key.partition("{")[0] == name and label in key)


def wait_for(line: str, name: str, value: float) -> None:
    wait_until(lambda: figure(line, name) == value, lambda: f"{name} is {figure(line, name)}, not {value}")


def wait_until_not_ready(line: str) -> None:
    wait_until(lambda: ask(line, get("/health")).startswith(b"HTTP/1.1 503 "))


def children(pid: int) -> list[int]:
    """Return the API server processes of a server."""
    found = [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return [each for each in found if "resource_tracker" not in Path(f"/proc/{each}/cmdline").read_text()]


def num_sockets(pid: int) -> int:
    return sum(os.readlink(each).startswith("socket:") for each in Path(f"/proc/{pid}/fd").iterdir())


def test_the_page_has_no_times_of_creation_and_nothing_of_one_process(line: str) -> None:
    names = {key.partition("{")[0] for key in figures(line)}
    assert {each for each in names if each.endswith("_created") or each.startswith(("python_", "process_"))} == set()
    assert "vllm:request_success_total" in names


@pytest.mark.slow
def test_connections_are_shared_out_and_all_are_served() -> None:
    with process(*TWO, *FAST) as (running, line), ExitStack() as opened:
        before = [num_sockets(pid) for pid in children(running.pid)]
        assert len(before) == 2
        streams = [opened.enter_context(connect(line)) for _ in range(24)]
        for stream in streams:
            ask_for_stream(stream, 20_000)
        after = [num_sockets(pid) for pid in children(running.pid)]
        assert all(now > then for now, then in zip(after, before, strict=True)), "one process has them all"
        wait_for(line, "vllm:num_requests_running", 24)
        for stream in streams:
            read_until(stream, b"data: ")


def test_a_stream_has_all_its_tokens_and_a_reply_its_usage(line: str) -> None:
    reply = ask(line, completion(prompt="hello", max_tokens=50, stream=True))
    assert reply.count(b"data: ") == 51
    whole = ask(line, completion(prompt="hello", max_tokens=7, n=3))
    usage = json.loads(whole.partition(b"\r\n\r\n")[2])["usage"]
    assert (usage["prompt_tokens"], usage["completion_tokens"]) == (1, 21)


def test_blocks_of_one_process_are_in_the_cache_for_all(line: str) -> None:
    prompt = "a prompt that is asked again and again " * 20
    replies = [ask(line, completion(prompt=prompt, max_tokens=1)) for _ in range(8)]
    cached = [json.loads(each.partition(b"\r\n\r\n")[2])["usage"]["prompt_tokens_details"] for each in replies]
    assert cached[0]["cached_tokens"] == 0
    assert all(each["cached_tokens"] > 0 for each in cached[1:])


def test_the_figures_of_all_processes_add_up_in_any_process(line: str) -> None:
    names = ("vllm:request_success_total", "http_requests_total", "vllm:request_params_n_count")
    before = {name: figure(line, name) for name in names}
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda _: ask(line, completion(prompt="hello", max_tokens=2, n=2)), range(20)))
    wait_for(line, "http_requests_total", before["http_requests_total"] + 20)  # counted when a reply has been sent
    for _ in range(4):
        after = figures(line)
        total = {name: sum(value for key, value in after.items() if key.startswith(name)) for name in names}
        assert {name: total[name] - before[name] for name in names} == dict(zip(names, (40, 20, 20), strict=True))
        assert after["blis_send_lag_seconds_count"] >= 40  # one for each choice
        assert "process_resident_memory_bytes" not in after


def json_of(line: str, request: bytes) -> Any:
    """The body of a reply, from whichever process answers."""
    return json.loads(ask(line, request).partition(b"\r\n\r\n")[2])


def change_faults(line: str, **body: Any) -> Any:
    text = json.dumps(body).encode()
    head = f"POST /blis/faults HTTP/1.0\r\nContent-Type: application/json\r\nContent-Length: {len(text)}\r\n\r\n"
    return json_of(line, head.encode() + text)


def statuses(line: str, count: int) -> set[bytes]:
    return {ask(line, completion(prompt="x", max_tokens=1)).split(b" ", 2)[1] for _ in range(count)}


def until_all_answer(line: str, status: bytes) -> None:
    """Wait until every process answers with a status: a change reaches the others after its reply."""
    wait_until(lambda: statuses(line, 10) == {status})


def test_faults_set_through_one_process_apply_to_all(line: str) -> None:
    """Of 10 connections all go to one of the two processes once in 512 times."""
    try:
        reported = change_faults(line, rates={"rate_limit": 1.0}, slow_factor=2, engine={"slow": None})
        assert (reported["engine"], reported["rates"], reported["slow_factor"]) == (["slow"], {"rate_limit": 1.0}, 2.0)
        until_all_answer(line, b"429")
        servers = [json_of(line, get("/dashboard/figures"))["server"] for _ in range(10)]
        assert all((each["engine_faults"], each["faults"]) == (["slow"], {"rate_limit": 1.0}) for each in servers)
        refused = change_faults(line, rank=7, engine={"hang": None})
        assert refused["error"]["message"] == "rank must be at most 0, got 7"
    finally:
        assert json_of(line, get("/blis/faults").replace(b"GET", b"DELETE"))["engine"] == []
    until_all_answer(line, b"200")


def test_requests_with_equal_ids_stay_apart(line: str) -> None:
    request = completion(prompt="hello", max_tokens=20).replace(b"Host: x\r\n", b"Host: x\r\nX-Request-Id: same\r\n")
    with ThreadPoolExecutor(8) as pool:
        replies = list(pool.map(lambda _: ask(line, request), range(16)))
    assert [reply.partition(b"\r\n")[0] for reply in replies] == [b"HTTP/1.1 200 OK"] * 16


def test_disconnected_clients_leave_nothing_behind(line: str) -> None:
    streams = [connect(line) for _ in range(10)]
    for stream in streams:
        ask_for_stream(stream, 20_000)
    for stream in streams:
        stream.close()
    for name in ("vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc"):
        wait_for(line, name, 0)


def test_a_refused_request_has_its_reason(line: str) -> None:
    reply = ask(line, completion(prompt="hello", max_tokens=1, model="other"))
    assert b"The model `other` does not exist." in reply


@pytest.mark.slow
def test_open_streams_of_all_processes_finish_on_a_signal_to_stop() -> None:
    with process(*TWO, *FAST, "--shutdown-timeout", "60") as (running, line), ExitStack() as opened:
        streams = [opened.enter_context(connect(line)) for _ in range(8)]
        for stream in streams:
            ask_for_stream(stream, 4000)
        running.send_signal(signal.SIGTERM)
        wait_until_not_ready(line)
        assert b"The server is shutting down." in ask(line, completion(prompt="hello", max_tokens=1))
        for stream in streams:
            assert b"[DONE]" in read_all(stream)
        assert running.wait(PATIENCE_S) == 0
        assert own_lines(running) == "stopping: open replies: 8, cut after 60 s\n"


@pytest.mark.slow
def test_a_second_signal_cuts_open_streams() -> None:
    with process(*TWO, *FAST, "--shutdown-timeout", "600") as (running, line), connect(line) as stream:
        ask_for_stream(stream, 20_000)
        running.send_signal(signal.SIGTERM)
        wait_until_not_ready(line)
        running.send_signal(signal.SIGTERM)
        assert b"[DONE]" not in read_all(stream)
        assert running.wait(PATIENCE_S) == 0


@pytest.mark.slow
def test_processes_that_are_still_starting_print_nothing_on_an_interrupt() -> None:
    command = [sys.executable, "-m", "blis_sim.cli", *ARGUMENTS, *TWO, *FAST]
    # Ctrl-C reaches all processes of a terminal.
    with fork_server.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True) as running:
        try:
            wait_until(lambda: num_importing(running.pid) == 2)
            os.killpg(running.pid, signal.SIGINT)
            _, said = running.communicate(timeout=PATIENCE_S)
        finally:
            running.kill()
    assert (running.returncode, said) == (0, "")


@pytest.mark.slow
def test_the_death_of_a_process_ends_the_server_as_it_ends_vllms() -> None:
    with process(*TWO, *FAST, "--shutdown-timeout", "0") as (running, _):
        pids = children(running.pid)
        os.kill(pids[0], signal.SIGKILL)
        assert running.wait(PATIENCE_S) == 1
        assert own_lines(running) == f"error: stopping: process {pids[0]} has ended with code -9\n"
        assert not Path(f"/proc/{pids[1]}").exists()


@pytest.mark.slow
def test_api_servers_end_when_the_engine_process_dies() -> None:
    with process(*TWO, *FAST) as (running, _):
        pids = children(running.pid)
        running.kill()
        wait_until(lambda: not any(is_alive(pid) for pid in pids))


def is_alive(pid: int) -> bool:
    """Whether a process has not ended, though its exit code may not have been read yet."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.slow
def test_a_dead_engine_ends_all_replies_and_the_server() -> None:
    with process(*TWO, *FAST, "--fault-engine", "death@5") as (running, line), ExitStack() as opened:
        streams = [opened.enter_context(connect(line)) for _ in range(8)]
        for stream in streams:
            stream.sendall(completion(prompt="hello", stream=True, max_tokens=20_000))
        for stream in streams:
            read_until(stream, b"data: ")
        for stream in streams:
            assert b"The server had an error while processing your request." in read_until(stream, b"[DONE]")
        assert running.wait(PATIENCE_S) == 0
        assert own_lines(running) == "error: stopping: the engine has failed: the engine died on purpose\n"


@pytest.mark.slow
def test_several_engines_are_shared_by_all() -> None:
    with process(*TWO, *FAST, "--data-parallel-size", "2") as (_, line):
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(lambda _: ask(line, completion(prompt="hello", max_tokens=30)), range(16)))
        numbers = [figure(line, "vllm:request_success_total", f'engine="{rank}"') for rank in (0, 1)]
        assert sum(numbers) == 16
        assert min(numbers) > 0


def test_a_port_in_use_is_not_joined() -> None:
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with process("--port", str(port), "--api-processes", "2") as (running, line):
            assert running.wait(PATIENCE_S) == 1
        assert line.startswith(f"blis serve: error: cannot listen on 127.0.0.1:{port}: ")


@pytest.mark.slow
def test_vllms_own_flag_has_the_same_effect() -> None:
    with process("--port", "0", "-asc", "2") as (running, line):
        assert line.endswith(", 2 processes answer\n")
        assert len(children(running.pid)) == 2


@pytest.mark.slow
def test_settings_that_only_an_answering_process_can_refuse_are_one_line_and_code_1() -> None:
    with process(*TWO, "--tokenizer", "/nowhere") as (running, line):
        assert running.wait(PATIENCE_S) == 1
        assert line == "blis serve: error: --tokenizer must be a tokenizer.json or a folder with one, got '/nowhere'\n"
        assert own_lines(running) == ""


@pytest.mark.slow
def test_processes_share_the_backend_of_structured_outputs() -> None:
    first = completion(prompt="x", structured_outputs={"json": {"type": "integer"}})
    other = completion(prompt="x", structured_outputs={"json": {"type": "integer", "multipleOf": 7}})
    with process(*TWO, *FAST, *CACHED) as (_, line):
        assert b" 200 " in ask(line, first).partition(b"\r\n")[0]
        for _ in range(12):  # the kernel chooses the process
            reply = ask(line, other)
            assert b" 400 " in reply.partition(b"\r\n")[0]
            assert b"The engine is already using 'xgrammar', but this request resolved to 'guidance'" in reply
