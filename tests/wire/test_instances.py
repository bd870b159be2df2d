"""Several instances behind one endpoint: routing, rejected requests, and the metrics of each."""

import re
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.fakes import TestLatency
from tests.patience import wait_until
from tests.wire.instances import BODY, SLOW, at_instance, finished
from tests.wire.plain_http import (
    call,
    chat,
    complete,
    events_of,
    metric,
    open_request,
    raw_completion,
    read_all,
    read_until,
    wait_for_metric,
)
from tests.wire.serving import TestServer, running_server

REFUSED = {"type": "RateLimitError", "param": None, "code": 429}


def test_requests_go_round() -> None:
    with running_server(num_instances=4) as server:
        for _ in range(8):
            assert complete(server, **BODY).status == 200
        assert [finished(server, instance) for instance in range(4)] == [2, 2, 2, 2]


def test_a_busy_instance_gets_no_more_while_another_is_idle() -> None:
    settings: dict[str, Any] = {"routing_policy": "least-loaded", "snapshot_refresh_interval": 0}
    with running_server(SLOW, speed=1.0, num_instances=3, **settings) as server, ExitStack() as connections:
        for _ in range(3):
            connection = connections.enter_context(open_request(server, stream=True))
            read_until(connection, b"\r\n\r\n")
        for instance in range(3):
            wait_for_metric(server, "vllm:num_requests_running", 1, engine=str(instance))


def test_prompts_go_where_their_beginning_is_cached() -> None:
    settings: dict[str, Any] = {
        "routing_policy": "weighted",
        "routing_scorers": "precise-prefix-cache:1",
        "cache_signal_delay": 0,
    }
    prompts = ["red fox " * 40, "blue sky " * 40, "green hill " * 40]
    with running_server(num_instances=3, **settings) as server:
        before = [0.0] * 3
        homes = []
        for prompt in prompts * 4:
            complete(server, **{**BODY, "prompt": prompt})
            after = [finished(server, instance) for instance in range(3)]
            homes.append([now - then for now, then in zip(after, before, strict=True)].index(1))
            before = after
    assert homes[3:] == homes[:3] * 3


def test_a_client_may_choose_the_instance() -> None:
    with running_server(num_instances=3) as server:
        for _ in range(3):
            reply = call(server, "POST", "/v1/completions", BODY, {"X-data-parallel-rank": "2"})
            assert reply.status == 200
        assert [finished(server, instance) for instance in range(3)] == [0, 0, 3]
        refused = call(server, "POST", "/v1/completions", BODY, {"X-data-parallel-rank": "3"})
        assert refused.json["error"]["message"].startswith("data_parallel_rank 3 is out of range [0, 3).")


def test_every_family_of_metrics_is_there_for_each_instance() -> None:
    with running_server(num_instances=2) as server:
        page = call(server, "GET", "/metrics").body.decode()
    names = set(re.findall(r'^(vllm:\w+)\{.*engine="0"', page, re.MULTILINE))
    assert len(names) > 60
    assert names == set(re.findall(r'^(vllm:\w+)\{.*engine="1"', page, re.MULTILINE))


def wait_for_queue(server: TestServer, num_waiting: int) -> None:
    """Poll until so many wait at the gateway."""
    wait_until(lambda: call(server, "GET", "/blis/instances").json["door"]["num_waiting"] == num_waiting)


@pytest.mark.parametrize("stream", [False, True])
def test_a_rejected_request_gets_a_status(stream: bool) -> None:
    with running_server(num_instances=2, admission_policy="reject-all") as server:
        for reply in (complete(server, stream=stream), chat(server, stream=stream)):
            assert reply.status == 429
            message = reply.json["error"].pop("message")
            assert message == "the request was rejected: the cluster does not admit it"
            assert reply.json["error"] | {"message": message} == REFUSED | {"message": message}
        door = call(server, "GET", "/blis/instances").json["door"]
        assert door == {"num_waiting": 0, "num_rejected_at_admission": 2, "num_rejected_at_routing": 0}
        wait_until(lambda: not server.service.delivery.driver.num_unfinished_requests)


def test_a_request_that_waits_too_long_at_the_gateway_gets_a_status() -> None:
    gateway: dict[str, Any] = {
        "flow_control": True,
        "saturation_detector": "concurrency",
        "max_concurrency": 1,
        "request_ttl": 50_000,
    }
    with (
        running_server(SLOW, speed=1.0, num_instances=1, **gateway) as server,
        open_request(server, stream=True) as first,
    ):
        wait_for_metric(server, "vllm:num_requests_running", 1)
        reply = complete(server, stream=True)
        assert (reply.status, reply.json["error"]["type"]) == (429, "RateLimitError")
        assert b"200 OK" in read_until(first, b"\r\n\r\n")


def test_a_client_that_leaves_the_gateway_frees_its_place() -> None:
    gateway: dict[str, Any] = {"flow_control": True, "saturation_detector": "concurrency", "max_concurrency": 1}
    with (
        running_server(SLOW, speed=1.0, num_instances=1, **gateway) as server,
        open_request(server, stream=True),
    ):
        wait_for_metric(server, "vllm:num_requests_running", 1)
        with open_request(server, stream=True):
            wait_for_queue(server, 1)
        wait_for_queue(server, 0)


def test_a_stream_through_the_router_equals_a_stream_without_one() -> None:
    bodies = []
    for num_instances in (1, 3):
        with running_server(num_instances=num_instances) as server:
            reply = complete(server, max_tokens=20, ignore_eos=True, seed=3, stream=True)
            bodies.append([re.sub(r'"(id|created)":("[^"]*"|\d+)', "", event) for event in events_of(reply.body)])
    assert bodies[0] == bodies[1]
    assert len(bodies[0]) > 15


def test_many_requests_are_all_answered_and_leave_nothing() -> None:
    with running_server(num_instances=4, routing_policy="weighted") as server:
        with ThreadPoolExecutor(16) as pool:
            replies = list(
                pool.map(lambda k: complete(server, **{**BODY, "n": 2, "seed": k, "stream": k % 2 == 0}), range(60))
            )
        assert all(reply.status == 200 for reply in replies)
        assert sum(finished(server, instance) for instance in range(4)) == 120
        wait_until(lambda: not server.service.delivery.driver.num_unfinished_requests)
        for engine in server.service.engines.values():
            engine.driver.engine.check_integrity()


def test_prompts_and_answers_may_be_computed_apart() -> None:
    pools: dict[str, Any] = {"prefill_instances": 1, "decode_instances": 1, "pd_decider": "always"}
    with running_server(num_instances=2, **pools) as server:
        reply = complete(server, max_tokens=5, ignore_eos=True)
        assert reply.json["usage"]["completion_tokens"] == 5
        stream = complete(server, max_tokens=5, ignore_eos=True, stream=True)
        assert events_of(stream.body)[-1] == "[DONE]"
        assert finished(server, 1) == 2
        wait_until(lambda: not server.service.delivery.driver.num_unfinished_requests)


def test_each_instance_has_a_port_of_its_own() -> None:
    with running_server(num_instances=2, instance_ports=0) as server:
        first, second = at_instance(server, 0), at_instance(server, 1)
        assert len({server.port, first.port, second.port}) == 3
        for _ in range(3):
            assert complete(second, **BODY).status == 200
        assert [finished(server, instance) for instance in range(2)] == [0, 3]
        assert finished(second, 0) == 3
        assert 'engine="1"' not in call(second, "GET", "/metrics").body.decode()
        assert finished(first, 0) == 0
        assert call(first, "GET", "/health").status == 200
        assert call(first, "GET", "/blis/instances").status == 404


def test_the_router_sees_requests_that_go_past_it() -> None:
    settings: dict[str, Any] = {"routing_policy": "least-loaded", "snapshot_refresh_interval": 0, "instance_ports": 0}
    with running_server(SLOW, speed=1.0, num_instances=2, **settings) as server, ExitStack() as connections:
        connections.enter_context(open_request(at_instance(server, 0), stream=True))
        wait_for_metric(server, "vllm:num_requests_running", 1, engine="0")
        connections.enter_context(open_request(server, stream=True))
        wait_for_metric(server, "vllm:num_requests_running", 1, engine="1")


def test_the_dashboard_and_the_models_are_those_of_any_server() -> None:
    with running_server(num_instances=2) as server:
        assert call(server, "GET", "/dashboard").status == 200
        assert [each["id"] for each in call(server, "GET", "/v1/models").json["data"]] == ["m"]
        assert call(server, "GET", "/version").status == 200


def test_prompts_that_are_only_read_are_shared_out_too() -> None:
    with running_server(num_instances=2, runner="pooling") as server:
        for _ in range(4):
            reply = call(server, "POST", "/v1/embeddings", {"model": "m", "input": "hello there"})
            assert reply.status == 200
        queries = [metric(server, "vllm:prefix_cache_queries_total", engine=str(i)) for i in range(2)]
    assert queries[0] == queries[1] > 0


def test_typed_streams_pass_the_router() -> None:
    body = {"model": "m", "max_tokens": 8, "messages": [{"role": "user", "content": "hi"}], "stream": True}
    with running_server(TestLatency(step_us=1000), num_instances=2) as server:
        reply = call(server, "POST", "/v1/messages", body)
    assert reply.status == 200
    assert b"message_stop" in reply.body


def test_a_stream_over_http_1_0_passes_the_router() -> None:
    with running_server(num_instances=2) as server, open_request(server, stream=True, max_tokens=3) as connection:
        read_until(connection, b"[DONE]")
        connection.sendall(raw_completion("1.0", prompt="x", stream=True, max_tokens=3))
        assert read_all(connection).rstrip().endswith(b"[DONE]")


def test_classes_and_tenants_come_in_headers(tmp_path: Path) -> None:
    policy = tmp_path / "policy.yaml"
    policy.write_text("admission: {tier_shed_threshold: 1, tier_shed_min_priority: 3}\n")
    settings: dict[str, Any] = {"admission_policy": "tier-shed", "snapshot_refresh_interval": 0}
    with running_server(SLOW, speed=1.0, num_instances=1, policy_config=str(policy), **settings) as server:
        connections = ExitStack()
        with connections:
            for _ in range(2):
                connections.enter_context(open_request(server, stream=True))
            wait_for_metric(server, "vllm:num_requests_running", 1)
            wait_for_metric(server, "vllm:num_requests_waiting", 1)
            less = {"X-Gateway-Inference-Objective": "batch", "X-Gateway-Inference-Fairness-Id": "alice"}
            refused = call(server, "POST", "/v1/completions", {**BODY, "stream": True}, less)
            assert refused.status == 429
            door = call(server, "GET", "/blis/instances").json["door"]
            assert door["num_rejected_at_admission"] == 1
            connections.enter_context(open_request(server, stream=True))
            wait_for_metric(server, "vllm:num_requests_waiting", 2)


def test_every_instance_adds_its_places_to_those_that_may_wait() -> None:
    limits: dict[str, Any] = {"num_instances": 2, "max_num_seqs": 1, "max_waiting_requests": 1, "instance_ports": 0}
    with running_server(SLOW, speed=1.0, **limits) as server, ExitStack() as connections:
        for number in range(3):
            connections.enter_context(open_request(server, stream=True))
            wait_for_metric(server, "vllm:num_requests_running", min(1, number), engine="1")
        wait_for_metric(server, "vllm:num_requests_waiting", 1, engine="0")
        assert complete(server).status == 429
        assert complete(at_instance(server, 0)).status == 429
