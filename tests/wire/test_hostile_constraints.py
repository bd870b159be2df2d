"""Small requests with costly constraints block no other request, and are answered or refused in bounded time."""

import http.client
import os
import signal
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest

from mockserve.executor.executor import MODULES, OffloadExecutor, WorkerPool
from tests.examples import is_nightly
from tests.patience import PATIENCE_S, attempts, wait_until
from tests.wire.hostile_constraints import HOSTILE, answer_of, doubling
from tests.wire.plain_http import call, complete, open_request, raw_completion
from tests.wire.serving import TestServer, running_server
from tests.wire.test_server_process import ask, connect, process
from workshop.attack.costly import Costly

LONGEST_PAUSE_S = 0.25
"""Server, client and watch share one interpreter here; without worker processes these demands take 0.5 to 40 s."""

TOO_BIG = "Grammar error: initial lexer configuration (grammar) too big (limit for this grammar: 1000000)"


@pytest.fixture(scope="module")
def server() -> Iterator[TestServer]:
    parsers: dict[str, Any] = {"enable_auto_tool_choice": True, "tool_call_parser": "hermes"}
    parsers["lenient_structured_outputs"] = True
    with running_server(max_model_len=40_960, speed=1e5, **parsers) as running:
        complete(running, max_tokens=1, structured_outputs={"grammar": 'start: "a"'})
        yield running
        wait_until(lambda: not running.service.delivery.open_replies.number)


def longest_pause_s(server: TestServer, during: threading.Thread) -> float:
    """How long /health takes at most while a thread runs."""
    longest_s = 0.0
    connection = http.client.HTTPConnection(server.host, server.port, timeout=PATIENCE_S)
    during.start()
    while during.is_alive():
        began_s = time.monotonic()
        connection.request("GET", "/health")
        assert connection.getresponse().read() == b""
        longest_s = max(longest_s, time.monotonic() - began_s)
        time.sleep(0.01)
    connection.close()
    return longest_s


SIMILAR = (
    *("oneOf doubling", "doubling on invocations", "doubling strict arguments", "uniqueItems of an enum", "4 MB text"),
)
"""Demands that take the way of another one, which the nightly run adds."""


@pytest.mark.slow
@pytest.mark.parametrize(
    "hostile",
    [each for each in HOSTILE if is_nightly() or each.name not in SIMILAR],
    ids=lambda each: each.name,
)
def test_health_is_answered_while_a_hostile_demand_is_met_or_refused(server: TestServer, hostile: Costly) -> None:
    statuses: list[int] = []
    body = hostile.data()
    for _ in attempts():
        asking = threading.Thread(target=lambda: statuses.append(call(server, "POST", hostile.path, body).status))
        if longest_pause_s(server, asking) < LONGEST_PAUSE_S:
            break
    assert set(statuses) <= {200, 400}


ENDLESS = doubling("allOf", 60)
GRAMMAR = {"grammar": 'start: "a"'}


@pytest.mark.slow
def test_refuses_what_takes_too_long_as_vllm_refuses_too_large_grammars(server: TestServer) -> None:
    reply = call(server, "POST", "/v1/chat/completions", answer_of(ENDLESS))
    assert reply.status == 400
    assert reply.json["error"] == {"message": TOO_BIG, "type": "BadRequestError", "param": None, "code": 400}
    streamed = call(server, "POST", "/v1/chat/completions", {**answer_of(ENDLESS), "stream": True})
    assert streamed.status == 200
    assert streamed.body.startswith(b'data: {"error":{"message":"Grammar error: initial lexer')
    assert streamed.body.endswith(b"data: [DONE]\n\n")


@pytest.mark.slow
def test_a_client_that_hangs_up_ends_its_job(server: TestServer) -> None:
    """The job has one second of CPU and more, and its client only the time until it hangs up."""
    pool = server.service.model.planner.executor.pool
    for _ in attempts():
        wait_until(lambda: pool.num_running == 0)
        with open_request(server, structured_outputs={"json": ENDLESS}):
            wait_until(lambda: pool.num_running == 1)
            began_s = time.monotonic()
        wait_until(lambda: pool.num_running == 0)
        if time.monotonic() - began_s < 1:
            break
    assert complete(server, structured_outputs=GRAMMAR).json["choices"][0]["text"] == "a"


def test_refuses_more_jobs_than_may_wait() -> None:
    with running_server() as server:
        pool = WorkerPool(num_workers=1, most_waiting=0, preloaded=MODULES)
        executor = OffloadExecutor(server.service.delivery.open_replies, pool)
        server.service.model.planner.executor = server.service.delivery.executor = executor
        reply = complete(server, structured_outputs=GRAMMAR)
    assert reply.status == 503
    assert reply.json["error"] == {
        "message": "The engine is currently busy and cannot accept new requests. "
        "Please try again later or on a different instance.",
        "type": "Service Unavailable",
        "param": None,
        "code": 503,
    }


@pytest.mark.slow
def test_a_job_that_is_under_way_is_an_open_reply_when_the_server_stops() -> None:
    with process("--port", "0") as (running, line):
        found: list[bytes] = []
        request = raw_completion("1.0", prompt="hi", structured_outputs=GRAMMAR)
        asking = threading.Thread(target=lambda: found.append(ask(line, request)))
        asking.start()
        wait_until(lambda: workers_below(running.pid))
        running.send_signal(signal.SIGTERM)
        asking.join(PATIENCE_S)
        assert running.wait(PATIENCE_S) == 0
    assert b" 200 " in found[0].partition(b"\r\n")[0]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "further"), [(signal.SIGTERM, ()), (signal.SIGKILL, ("--api-processes", "2"))], ids=["ended", "killed"]
)
def test_workers_end_with_the_server(number: signal.Signals, further: tuple[str, ...]) -> None:
    with process("--port", "0", "--lenient-structured-outputs", *further) as (running, line):
        assert workers_below(running.pid) == [], "none before there is something to do"
        assert b'"text":"a"' in ask(line, raw_completion("1.0", prompt="hi", structured_outputs=GRAMMAR))
        request = raw_completion("1.0", prompt="hi", structured_outputs={"json": ENDLESS})
        with connect(line) as connection:
            connection.sendall(request)
            wait_until(lambda: any(map(is_working, workers_below(running.pid))))
            workers = workers_below(running.pid)
            running.send_signal(number)
            running.wait(PATIENCE_S)
        wait_until(lambda: not any(map(is_alive, workers)))


def workers_below(pid: int) -> list[int]:
    """The worker processes of a server, also of those of its own processes that answer."""
    below = [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii").split()]
    own = [each for each in below if b"work_until_closed" in Path(f"/proc/{each}/cmdline").read_bytes()]
    return own + [worker for each in below if each not in own for worker in workers_below(each)]


def is_working(pid: int) -> bool:
    """Whether a process is running at this instant, or would be if it had a processor."""
    return "State:\tR" in Path(f"/proc/{pid}/status").read_text(encoding="utf-8")


def is_alive(pid: int) -> bool:
    """Whether there is such a process, and it has not ended."""
    try:
        os.kill(pid, 0)
        return "State:\tZ" not in Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
    except OSError:
        return False


CHUNKED = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"


@pytest.mark.slow
@pytest.mark.parametrize(
    "sent",
    [
        pytest.param(b"\r\n" * 400_000, id="empty lines"),
        pytest.param(b"GET /health HTTP/1.1\r\n" + b"a\n" * 400_000, id="lines without a colon"),
        pytest.param(CHUNKED + b"1\r\n \r\n" * 200_000 + b"0\r\n\r\n", id="chunks of a byte"),
    ],
)
def test_health_is_answered_beside_very_many_lines(server: TestServer, sent: bytes) -> None:
    def send() -> None:
        end = socket.create_connection((server.host, server.port), timeout=PATIENCE_S)
        with closing(end), suppress(OSError):  # refused at an early line
            end.sendall(sent)
            end.shutdown(socket.SHUT_WR)
            end.recv(4096)

    pauses_s: list[float] = []
    for _ in attempts():
        pauses_s.append(longest_pause_s(server, threading.Thread(target=send)))
        if pauses_s[-1] < LONGEST_PAUSE_S:
            break
    assert min(pauses_s) < LONGEST_PAUSE_S, pauses_s
