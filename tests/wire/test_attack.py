"""A sample of the attack over HTTP: no server fails, hangs up or logs a traceback in any set-up."""

import socket
import threading

import pytest

from tests import fork_server
from tests.examples import examples, is_nightly
from workshop.attack.drawn import Hostile, attack, problem_of
from workshop.attack.sending import Exchange, Outcome, exchange
from workshop.attack.setups import SETUPS, Setup, running

NUM_REQUESTS = examples(80)
SIMILAR = ("vidur-vllm", "lightllm", "faster-transformer", "sarathi")
"""Set-ups with the routes of `orca` behind another scheduler, which the nightly run adds."""

# Requests are drawn once for all servers with equal routes.
pytestmark = pytest.mark.xdist_group("attack")


@pytest.mark.slow
@pytest.mark.parametrize(
    "setup", [pytest.param(each, id=each.name) for each in SETUPS if is_nightly() or each.name not in SIMILAR]
)
def test_survives_hostile_requests(setup: Setup) -> None:
    pytest.importorskip("schemathesis")
    with running(setup, fork_server.Popen) as server:
        assert attack(setup, server, NUM_REQUESTS) == []
        assert server.is_alive()


def hostile(path: str, is_complete: bool = True) -> Hostile:
    return Hostile("k", path, (b"",), is_complete)


def answer(status: int | None, reply: bytes = b"", outcome: Outcome = Outcome.ANSWERED) -> Exchange:
    return Exchange(outcome, status, reply, 0.0)


def test_errors_that_the_genuine_server_does_not_give_are_found() -> None:
    assert problem_of(hostile("/tokenize?a=b"), answer(500, b"oh 12")) == "500 of /tokenize: oh N"
    assert problem_of(hostile("/pause"), answer(503, b"Generation is paused")) == ""
    assert problem_of(hostile("/v1/models"), answer(404)) == ""


def test_hang_ups_and_silence_are_found_where_a_server_owes_an_answer() -> None:
    for outcome, path, found in (
        (Outcome.CLOSED, "/tokenize", "/tokenize closes the connection"),
        (Outcome.SILENT, "/tokenize", "/tokenize does not answer"),
        (Outcome.SILENT, "/v1/completions", ""),
    ):
        assert problem_of(hostile(path), answer(None, outcome=outcome)) == found
        assert problem_of(hostile(path, is_complete=False), answer(None, outcome=outcome)) == ""


@pytest.mark.parametrize(("reply", "outcome"), [(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nab", Outcome.CLOSED)])
def test_an_answer_that_is_cut_is_no_answer(reply: bytes, outcome: Outcome) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def answer_once() -> None:
            connection, _ = listening.accept()
            with connection:
                connection.recv(1000)
                connection.sendall(reply)

        thread = threading.Thread(target=answer_once)
        thread.start()
        found = exchange("127.0.0.1", listening.getsockname()[1], [b"GET / HTTP/1.1\r\n\r\n"], 5.0)
        thread.join()
    assert found.outcome is outcome
