"""Injected faults, as a client observes them."""

import json
import logging
import math
import socket
import struct
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import pytest

from blis_sim.options import OptionError, options_from
from mockserve.options.faults import ERRORS, SHAPES
from mockserve.options.serve import ServeOptions
from tests.fakes import TestLatency
from tests.patience import PATIENCE_S, wait_until
from tests.wire.plain_http import call, chat, complete, metric, raw_completion, read_all, wait_for_metric
from tests.wire.serving import TestServer, running_server

BODY = {"model": "m", "prompt": "a b", "max_tokens": 6, "ignore_eos": True}


def ask(server: TestServer, fault: str, **fields: Any) -> Any:
    return call(server, "POST", "/v1/completions", {**BODY, **fields}, {"X-Blis-Fault": fault})


STATUSES = {
    "invalid_request": 400,
    "context_length": 400,
    "invalid_api_key": 401,
    "permission_denied": 403,
    "model_not_found": 404,
    "timeout": 408,
    "conflict": 409,
    "too_large": 413,
    "unprocessable": 422,
    "rate_limit": 429,
    "server_error": 500,
    "bad_gateway": 502,
    "overloaded": 503,
    "gateway_timeout": 504,
}


@pytest.mark.parametrize("kind", ERRORS)
def test_a_header_selects_an_error(server: TestServer, kind: str) -> None:
    reply = ask(server, kind)
    assert reply.status == STATUSES[kind]
    error, fault = reply.json["error"], ERRORS[kind]
    assert (error["type"], error["param"], error["code"]) == (fault.type, fault.param, STATUSES[kind])
    assert reply.headers.get("retry-after") == ("1" if kind in ("rate_limit", "overloaded") else None)


def test_settings_can_come_with_the_header(server: TestServer) -> None:
    assert ask(server, "429; retry_after_s=7").headers["retry-after"] == "7"
    reply = ask(server, "nonsense")
    assert reply.status == 400
    assert reply.json["error"]["message"].startswith("X-Blis-Fault must be one of invalid_request, ")
    assert ask(server, "stall; stall_s=x").json["error"]["message"] == "stall_s must be a number, got 'x'"


def test_the_header_of_another_mock_server_is_understood(server: TestServer) -> None:
    reply = call(server, "POST", "/v1/completions", BODY, {"X-Return-Error": "503"})
    assert reply.status == 503


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("kind", ["slow_first_token", "stall", "trickle"])
def test_a_delayed_reply_has_unchanged_content(server: TestServer, kind: str, stream: bool) -> None:
    figures = "first_token_delay_s=0.2; stall_s=0.2; trickle_pause_s=0.001; trickle_bytes=64"
    usual = complete(server, **{**BODY, "stream": stream, "seed": 1})
    started = time.monotonic()
    late = ask(server, f"{kind}; {figures}", stream=stream, seed=1)
    assert late.status == 200
    if kind != "trickle":
        assert time.monotonic() - started >= 0.2

    def texts(body: bytes) -> list[str]:
        events = body.decode().split("\n\n") if stream else [body.decode()]
        parsed = [json.loads(each.removeprefix("data: ")) for each in events if each and not each.endswith("[DONE]")]
        return [each["choices"][0]["text"] for each in parsed]

    assert texts(late.body) == texts(usual.body)


@pytest.mark.parametrize("after_events", [0, 2])
def test_a_connection_is_cut_after_some_events(server: TestServer, after_events: int) -> None:
    with socket.create_connection((server.host, server.port), timeout=PATIENCE_S) as connection:
        request = raw_completion(prompt="a b", max_tokens=50, ignore_eos=True, stream=True)
        header = f"X-Blis-Fault: disconnect; after_events={after_events}\r\n\r\n".encode()
        connection.sendall(request.replace(b"\r\n\r\n", b"\r\n" + header, 1))
        try:
            seen = read_all(connection)
        except ConnectionResetError:
            seen = b""
    assert b"[DONE]" not in seen
    assert seen.count(b"data: ") <= after_events
    wait_for_metric(server, "vllm:num_requests_running", 0)


def test_one_event_is_no_json_and_the_others_are(server: TestServer) -> None:
    events = ask(server, "malformed; after_events=1", stream=True).body.split(b"\n\n")[:-1]
    broken = [index for index, each in enumerate(events) if each.startswith(b"data: <")]
    assert broken == [1]
    assert events[-1] == b"data: [DONE]"


def test_a_whole_reply_is_no_json(server: TestServer) -> None:
    reply = ask(server, "malformed")
    assert reply.status == 200
    with pytest.raises(ValueError, match="Expecting value"):
        _ = reply.json


@pytest.mark.parametrize("kind", SHAPES)
def test_a_connection_serves_the_next_request_as_usual(server: TestServer, kind: str) -> None:
    ask(server, f"{kind}; first_token_delay_s=0.01; stall_s=0.01; trickle_pause_s=0") if kind != "disconnect" else None
    assert complete(server, **BODY).status == 200


def test_faults_by_chance_hit_that_share_of_the_requests_to_a_model() -> None:
    with running_server(fault_rates=("rate_limit=0.3", "server_error=0.2")) as server:
        statuses = [complete(server, **BODY).status for _ in range(200)]
        assert statuses.count(429) == pytest.approx(60, abs=25)
        assert statuses.count(500) == pytest.approx(40, abs=25)
        assert statuses.count(200) == 200 - statuses.count(429) - statuses.count(500)
        assert all(call(server, "GET", path).status == 200 for path in ["/health", "/metrics", "/version"] * 20)
        assert metric(server, "vllm:request_success_total", finished_reason="length") == statuses.count(200)
    with running_server(fault_rates=("rate_limit=0.3", "server_error=0.2")) as server:
        assert [complete(server, **BODY).status for _ in range(50)] == statuses[:50]


def test_faults_are_changed_while_running() -> None:
    with running_server(enable_fault_control=True) as server:
        assert call(server, "GET", "/blis/faults").json["rates"] == {}
        changed = call(server, "POST", "/blis/faults", {"rates": {"overloaded": 1.0}, "retry_after_s": 9})
        assert (changed.status, changed.json["rates"]) == (200, {"overloaded": 1.0})
        reply = complete(server, **BODY)
        assert (reply.status, reply.headers["retry-after"]) == (503, "9")
        assert call(server, "DELETE", "/blis/faults").json["rates"] == {}
        assert complete(server, **BODY).status == 200


@pytest.mark.parametrize(
    ("body", "complaint"),
    [
        ({"rates": {"flood": 1}}, "unknown fault 'flood', known are invalid_request, "),
        ({"rates": {"stall": 2}}, "the rate of stall must be from 0 to 1, got 2"),
        ({"rates": {"stall": 0.6, "trickle": 0.6}}, "the rates of faults must add up to at most 1, got 1.2"),
        ({"rate": {}}, "unknown setting 'rate', known are rates, "),
        ({"slow_factor": 0.5}, "slow_factor must be at least 1, got 0.5"),
        ({"slow_factor": 1e300}, "slow_factor must be at most 1e+06, got 1e+300"),
        ({"stall_s": 1e300}, "stall_s must be at most 1e+09, got 1e+300"),
        ({"retry_after_s": 1e300}, "retry_after_s must be at most 1e+09, got 1e+300"),
        ({"trickle_bytes": 0}, "trickle_bytes must be at least 1, got 0"),
        ({"rank": 1, "engine": {"hang": None}}, "rank must be at most 0, got 1"),
        ({"engine": {"hang": "x"}}, "engine must map hang to seconds from 0 to 1e+09, null or false, got 'x'"),
        ({"engine": {"hang": 1e300}}, "engine must map hang to seconds from 0 to 1e+09, null or false, got 1e+300"),
        ({"engine": {"flood": 1}}, "an engine fault must be one of hang, death, kv_exhaustion, slow, got 'flood'"),
    ],
)
def test_an_impossible_setting_is_refused(body: dict[str, Any], complaint: str) -> None:
    with running_server(enable_fault_control=True) as server:
        reply = call(server, "POST", "/blis/faults", body)
        assert reply.status == 400
        assert reply.json["error"]["message"].startswith(complaint)


@pytest.mark.parametrize(
    "refused",
    [
        {"stall_s": 7, "engine": {"hang": None, "flood": None}},
        {"stall_s": 7, "engine": {"hang": None, "slow": -1}},
        {"stall_s": 7, "rank": 3, "engine": {"hang": None}},
        {"stall_s": 7, "slow_factor": 0, "engine": {"hang": None}},
        {"stall_s": 7, "rates": {"stall": 9}},
    ],
)
def test_a_refused_change_changes_nothing(refused: dict[str, Any]) -> None:
    with running_server(enable_fault_control=True) as server:
        call(server, "POST", "/blis/faults", {"stall_s": 5, "rates": {"malformed": 0}})
        before = call(server, "GET", "/blis/faults").json
        assert call(server, "POST", "/blis/faults", refused).status == 400
        assert call(server, "GET", "/blis/faults").json == before
        assert complete(server, **BODY).status == 200


def test_kv_exhaustion_with_the_scheduling_of_blis_is_refused() -> None:
    with running_server(enable_fault_control=True, engine="blis") as server:
        refused = call(server, "POST", "/blis/faults", {"stall_s": 7, "engine": {"hang": None, "kv_exhaustion": None}})
        assert (refused.status, refused.json["error"]["message"]) == (
            400,
            "kv_exhaustion needs vLLM's scheduling, got blis",
        )
        assert call(server, "GET", "/blis/faults").json["engine"] == []


def test_the_largest_factor_ends_no_server() -> None:
    with running_server(TestLatency(step_us=1_000_000), speed=math.inf, enable_fault_control=True) as server:
        call(server, "POST", "/blis/faults", {"slow_factor": 1e6, "engine": {"slow": None}})
        assert complete(server, **BODY).status == 200
        assert call(server, "GET", "/health").status == 200


def test_a_restarted_fault_lasts_for_its_latest_duration() -> None:
    with running_server(enable_fault_control=True) as server:
        call(server, "POST", "/blis/faults", {"engine": {"slow": 0.2}})
        call(server, "POST", "/blis/faults", {"engine": {"slow": None}})
        time.sleep(0.4)
        assert call(server, "GET", "/blis/faults").json["engine"] == ["slow"]


RESET_AT_ONCE = struct.pack("ii", 1, 0)
"""The value of SO_LINGER with which closing a connection resets it."""


def errors_logged(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("fault", ["trickle; trickle_bytes=1; trickle_pause_s=0.0005", "stall; stall_s=0.1"])
def test_clients_that_hang_up_on_a_faulty_reply_leave_no_traceback(
    fault: str, stream: bool, caplog: pytest.LogCaptureFixture
) -> None:
    data = raw_completion(prompt="a b", stream=stream, max_tokens=40, ignore_eos=True)
    data = data.replace(b"Host: x", f"Host: x\r\nX-Blis-Fault: {fault}".encode())
    with running_server() as server:
        for _ in range(5):
            with ExitStack() as connections:
                for _ in range(20):
                    connection = socket.create_connection((server.host, server.port))
                    connections.enter_context(connection)
                    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET_AT_ONCE)
                    connection.sendall(data)
                time.sleep(0.05)
        time.sleep(0.1)
        assert call(server, "GET", "/health").status == 200
        wait_until(lambda: server.service.delivery.open_replies.number == 0)
    assert errors_logged(caplog) == []


def test_clients_that_hang_up_before_they_may_send_leave_no_traceback(caplog: pytest.LogCaptureFixture) -> None:
    head = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 9\r\n\r\n"
    with running_server() as server:
        for _ in range(20):
            with socket.create_connection((server.host, server.port)) as connection:
                connection.sendall(head)
        time.sleep(0.2)
        assert call(server, "GET", "/health").status == 200
    assert errors_logged(caplog) == []


def test_control_must_be_switched_on(server: TestServer) -> None:
    assert call(server, "GET", "/blis/faults").status == 404


def test_an_engine_that_hangs_takes_requests_and_answers_them_later() -> None:
    with running_server(enable_fault_control=True) as server:
        started = time.monotonic()
        reply = call(server, "POST", "/blis/faults", {"engine": {"hang": 0.4}})
        assert reply.json["engine"] == ["hang"]
        assert call(server, "GET", "/health").status == 200
        assert complete(server, **BODY).status == 200
        assert time.monotonic() - started >= 0.4
        assert call(server, "GET", "/blis/faults").json["engine"] == []


def test_an_engine_without_kv_cache_lets_requests_wait_until_it_has_some() -> None:
    with running_server(enable_fault_control=True, total_kv_blocks=200) as server:
        call(server, "POST", "/blis/faults", {"kv_fraction": 1.0, "engine": {"kv_exhaustion": None}})
        assert metric(server, "vllm:kv_cache_usage_perc") == 1
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(complete, server, **BODY)
            wait_for_metric(server, "vllm:num_requests_waiting", 1)
            assert not waiting.done()
            call(server, "POST", "/blis/faults", {"engine": {"kv_exhaustion": False}})
            assert waiting.result().status == 200
        assert metric(server, "vllm:kv_cache_usage_perc") == 0


def test_a_slow_engine_takes_longer_steps() -> None:
    with running_server(enable_fault_control=True) as server:
        complete(server, **BODY)
        usual = metric(server, "vllm:e2e_request_latency_seconds_sum")
        call(server, "POST", "/blis/faults", {"slow_factor": 10, "engine": {"slow": None}})
        complete(server, **BODY)
        both = metric(server, "vllm:e2e_request_latency_seconds_sum")
        assert both - usual == pytest.approx(10 * usual, rel=0.05)
        assert call(server, "POST", "/blis/faults", {"engine": {"slow": False}}).json["engine"] == []


def test_a_dead_engine_stays_dead() -> None:
    with running_server(fault_engine=("death@0.05",), enable_fault_control=True) as server:
        wait_until(lambda: call(server, "GET", "/health").status != 200)
        assert call(server, "GET", "/health").status == 503
        assert chat(server).status == 500
        assert call(server, "DELETE", "/blis/faults").json["engine"] == ["death"]


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({"fault_rates": ("rate_limit",)}, "--fault-rates: 'rate_limit' must be name=value"),
        ({"fault_rates": ("flood=1",)}, "--fault-rates: unknown fault 'flood', known are "),
        ({"fault_settings": ("stall=1",)}, "--fault-settings: unknown setting 'stall', known are rates, "),
        ({"fault_engine": ("nap@1",)}, "--fault-engine must name one of hang, death, kv_exhaustion, slow, got 'nap@1'"),
        ({"fault_engine": ("hang",)}, "--fault-engine must be kind@seconds or kind@seconds.seconds, got 'hang'"),
        (
            {"fault_engine": ("hang@nan",)},
            "--fault-engine must be kind@seconds or kind@seconds.seconds, each from 0 to",
        ),
        ({"fault_engine": ("hang@1e300",)}, "--fault-engine must be kind@seconds or kind@seconds.seconds, each from"),
        ({"fault_settings": ("slow_factor=1e300",)}, "--fault-settings: slow_factor must be at most 1e.06, got 1e.300"),
    ],
)
def test_invalid_fault_flags_are_refused(settings: dict[str, tuple[str, ...]], complaint: str) -> None:
    with pytest.raises(OptionError, match=f"^{complaint}"):
        options_from(ServeOptions, model="m", **settings)
