"""Adding and removing instances at runtime, and control routes of single instances."""

import gc
import json
import os
import re
import socket
import weakref
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

import pytest

from blis_sim.engine.cluster.policies import with_policies
from blis_sim.engine.context import RecentSteps
from blis_sim.options import BlisError, options_from
from mockserve.options.serve import ServeOptions
from mockserve.realtime.cluster import ClusterDriver
from tests.fakes import TestLatency
from tests.patience import wait_until
from tests.wire.instances import BODY, SLOW, at_instance, finished, instances, kill, lives
from tests.wire.plain_http import (
    call,
    complete,
    events_of,
    metric,
    open_request,
    read_until,
    wait_for_metric,
)
from tests.wire.serving import TestServer, running_server

DEAD = {"message": "The server had an error while processing your request.", "code": 500}


@contextmanager
def controlled(latency: TestLatency | None = None, **settings: Any) -> Iterator[TestServer]:
    with running_server(latency, enable_instance_control=True, **settings) as server:
        yield server


def wait_for_lives(server: TestServer, wanted: list[str]) -> None:
    """Poll until the instances are in these states."""
    wait_until(lambda: lives(server) == wanted, lambda: str(lives(server)))


def test_the_instances_are_listed_with_their_load() -> None:
    with running_server(SLOW, speed=1.0, num_instances=2) as server, open_request(server, stream=True):
        wait_for_metric(server, "vllm:num_requests_running", 1, engine="0")
        first, second = instances(server)
        assert first["kv_cache_usage"] > 0
        assert first | {"kv_cache_usage": 0} == {
            "instance": 0, "life": "ready", "num_running": 1, "num_waiting": 0, "num_in_flight": 1,
            "kv_cache_usage": 0, "num_completed": 0, "port": None,
        }  # fmt: skip
        assert (second["instance"], second["num_running"]) == (1, 0)


def test_instances_cannot_be_changed_without_the_flag_for_it() -> None:
    with running_server(num_instances=2) as server:
        assert call(server, "POST", "/blis/instances").status == 405
        assert kill(server, 0).status == 404
    with running_server() as server:
        assert call(server, "GET", "/blis/instances").status == 404


@pytest.mark.slow
def test_requests_of_a_killed_instance_fail_and_others_go_on() -> None:
    # A step takes 0.4 s, so the one under way when the instance is killed ends soon.
    with controlled(TestLatency(step_us=400_000), speed=1.0, num_instances=2) as server, ThreadPoolExecutor(4) as pool:
        asked = []
        for number in range(4):
            asked.append(pool.submit(complete, server, max_tokens=6, ignore_eos=True, stream=number >= 2))
            wait_for_metric(server, "vllm:num_requests_running", number // 2 + 1, engine=str(number % 2))
        assert kill(server, 0).json["life"] == "killed"
        whole, other, stream, other_stream = (each.result() for each in asked)
        assert (whole.status, whole.json["error"]["type"]) == (500, "InternalServerError")
        *_, error, done = events_of(stream.body)
        assert json.loads(error)["error"].items() >= DEAD.items()
        assert done == "[DONE]"
        assert (other.status, other_stream.status) == (200, 200)
        assert finished(server, 1) == 2
        assert call(server, "GET", "/health").status == 200
        wait_until(lambda: not server.service.delivery.driver.num_unfinished_requests)
        wait_until(lambda: [each["num_in_flight"] for each in instances(server)] == [0, 0])


def test_a_killed_instance_gets_no_more_requests_and_stays_dead() -> None:
    with controlled(num_instances=2) as server:
        kill(server, 1)
        for _ in range(4):
            assert complete(server, **BODY).status == 200
        assert finished(server, 0) == 4
        for method, path in (("DELETE", "/blis/instances/1"), ("POST", "/blis/instances/1/drain")):
            again = call(server, method, path)
            assert (again.status, again.json["error"]["message"]) == (409, "instance 1 is gone")
        chosen = call(server, "POST", "/v1/completions", BODY, {"X-data-parallel-rank": "1"})
        assert chosen.status == 429


@pytest.mark.parametrize("stream", [False, True])
def test_without_instances_the_server_is_not_ready(stream: bool) -> None:
    with controlled(num_instances=2) as server:
        for instance in range(2):
            kill(server, instance)
        assert call(server, "GET", "/health").status == 503
        refused = complete(server, stream=stream)
        assert (refused.status, refused.json["error"]["type"]) == (503, "ServiceUnavailableError")
        assert refused.json["error"]["message"] == "the request was rejected: no instance takes requests"
        added = call(server, "POST", "/blis/instances")
        assert (added.status, added.json["instance"], added.json["life"]) == (201, 2, "ready")
        assert call(server, "GET", "/health").status == 200
        assert complete(server, **BODY, stream=stream).status == 200
        assert finished(server, 2) == 1


def test_a_drained_instance_finishes_what_it_has() -> None:
    with controlled(TestLatency(step_us=100_000), speed=1.0, num_instances=2) as server:
        with open_request(server, stream=True, max_tokens=20, ignore_eos=True) as connection:
            wait_for_metric(server, "vllm:num_requests_running", 1, engine="0")
            drained = call(server, "POST", "/blis/instances/0/drain")
            assert (drained.json["life"], drained.json["num_running"]) == ("draining", 1)
            read_until(connection, b"[DONE]")
        wait_for_lives(server, ["drained", "ready"])
        for _ in range(2):
            complete(server, **{**BODY, "max_tokens": 1})
        assert [each["num_completed"] for each in instances(server)] == [1, 2]
        assert call(server, "GET", "/health").status == 200


def engines_on_page(server: TestServer) -> set[str]:
    """Values of the label `engine` on the metrics page."""
    return set(re.findall(r'engine="(\d+)"', call(server, "GET", "/metrics").body.decode()))


@pytest.mark.parametrize("how", ["DELETE", "POST"])
def test_series_of_removed_instances_leave_the_metrics_page(how: str) -> None:
    with controlled(num_instances=2) as server:
        complete(server, **BODY)
        assert engines_on_page(server) == {"0", "1"}
        path = "/blis/instances/0" + ("/drain" if how == "POST" else "")
        ended = call(server, how, path).json
        assert (ended["life"], ended["num_completed"]) == ("drained" if how == "POST" else "killed", 1)
        assert engines_on_page(server) == {"1"}
        complete(server, **BODY)
        assert finished(server, 1) == 1
        assert metric(server, "http_requests_total", handler="/v1/completions") == 2
        for again in (path, "/pause?instance=0"):
            assert call(server, "POST" if "drain" in again else how, again).status in (404, 409)


@pytest.mark.slow
def test_many_instances_that_come_and_go_leave_no_memory() -> None:
    with controlled(num_instances=1, routing_policy="weighted", instance_ports=0) as server:
        left: weakref.WeakSet[object] = weakref.WeakSet()
        pages = []
        for number in range(1, 121):
            added = call(server, "POST", "/blis/instances").json["instance"]
            assert added == number
            for _ in range(2):
                complete(server, **BODY)
            left.add(server.service.engines[number].metrics)
            left.add(server.service.engines[number].driver.engine)
            call(server, *(("DELETE", f"/blis/instances/{number}") if number % 2 else drain_of(number)))
            pages.append(len(call(server, "GET", "/metrics").body))
        wait_until(lambda: all(each["port"] is None for each in instances(server)[1:]))
        gc.collect()
        assert len(left) == 0
        assert pages[-1] < 1.1 * pages[0]
        assert len(instances(server)) == 1 + 100
        assert list(server.service.engines) == [0]
        assert isinstance(server.service.delivery.driver, ClusterDriver)
        assert list(server.service.delivery.driver.cluster.members) == [0]


def test_an_instance_that_has_left_is_freed_without_the_collector_of_cyclic_garbage() -> None:
    with controlled(num_instances=1) as server:
        left: weakref.WeakSet[object] = weakref.WeakSet()
        gc.disable()
        try:
            for number in (1, 2):
                call(server, "POST", "/blis/instances")
                call(server, "POST", "/v1/completions?instance=1", BODY)
                left.add(server.service.engines[number].metrics)
                left.add(server.service.engines[number].driver.engine)
                call(server, *(("DELETE", f"/blis/instances/{number}") if number == 1 else drain_of(number)))
            wait_until(lambda: not left, lambda: str(list(left)))
        finally:
            gc.enable()


@pytest.mark.slow
def test_no_step_log_of_an_instance_that_has_left_waits_for_the_collector_of_cyclic_garbage() -> None:
    with controlled(num_instances=1, instance_ports=0) as server:
        gc.collect()
        gc.disable()
        try:
            call(server, "POST", "/blis/instances")
            log = id(server.service.engines[1].driver.engine.steps)
            call(server, *drain_of(1))
            wait_until(lambda: list(server.service.engines) == [0])
            assert log not in [id(each) for each in gc.get_objects() if isinstance(each, RecentSteps)]
        finally:
            gc.enable()


def drain_of(number: int) -> tuple[str, str]:
    return "POST", f"/blis/instances/{number}/drain"


def test_all_instances_may_be_replaced() -> None:
    with controlled(num_instances=2) as server:
        for number in range(2):
            kill(server, number)
        assert engines_on_page(server) == set()
        assert metric(server, "blis_slow_readers_cut_total") == 0
        call(server, "POST", "/blis/instances")
        assert complete(server, **BODY).status == 200
        assert engines_on_page(server) == {"2"}


def test_one_instance_becomes_several() -> None:
    with controlled() as server:
        for _ in range(2):
            assert call(server, "POST", "/blis/instances", {}).status == 201
        for _ in range(6):
            complete(server, **BODY)
        assert [finished(server, instance) for instance in range(3)] == [2, 2, 2]
        assert metric(server, "vllm:cache_config_info", engine="2") == 1


def test_an_instance_takes_a_while_to_start() -> None:
    with controlled(speed=1.0) as server:
        added = call(server, "POST", "/blis/instances", {"startup_s": 0.3})
        assert added.json["life"] == "loading"
        complete(server, **BODY)
        complete(server, **BODY)
        assert finished(server, 1) == 0
        wait_for_lives(server, ["ready", "ready"])
        complete(server, **BODY)
        complete(server, **BODY)
        assert finished(server, 1) >= 1


@pytest.mark.parametrize(
    "body", [{"startup_s": -1}, {"startup_s": 86_401}, {"startup_s": 1e300}, {"startup_s": True}, {"count": 2}]
)
def test_an_invalid_request_for_a_new_instance_is_refused(body: dict[str, Any]) -> None:
    with controlled() as server:
        refused = call(server, "POST", "/blis/instances", body)
        assert refused.status == 400
        assert refused.json["error"]["message"].startswith("the body may have startup_s, seconds from 0 to 86400, got ")
        assert lives(server) == ["ready"]
        assert complete(server, **BODY).status == 200


def test_a_missing_instance_cannot_be_killed() -> None:
    with controlled(num_instances=2) as server:
        for instance in ("2", "-1", "x", "9" * 5000):
            assert call(server, "DELETE", f"/blis/instances/{instance}").status == 404


def test_instances_cannot_be_added_to_pools_with_roles() -> None:
    with controlled(num_instances=2, prefill_instances=1, decode_instances=1, pd_decider="always") as server:
        refused = call(server, "POST", "/blis/instances")
        assert (refused.status, refused.json["error"]["type"]) == (409, "ConflictError")


@pytest.mark.parametrize(("gone", "why"), [(0, "no instance computes prompts"), (1, "no instance takes requests")])
def test_a_pool_without_instances_is_a_server_error(gone: int, why: str) -> None:
    with controlled(num_instances=2, prefill_instances=1, decode_instances=1, pd_decider="always") as server:
        kill(server, gone)
        refused = complete(server, **BODY)
        assert (refused.status, refused.json["error"]["message"]) == (503, f"the request was rejected: {why}")
        assert call(server, "GET", "/health").status == (200 if gone == 0 else 503)


def test_every_request_ends_once_while_instances_come_and_go() -> None:
    with controlled(TestLatency(step_us=2000), speed=1.0, num_instances=3) as server, ThreadPoolExecutor(12) as pool:
        fields = {"max_tokens": 20, "ignore_eos": True}
        asked = [pool.submit(complete, server, **fields, seed=k, stream=k % 3 == 0) for k in range(90)]
        kill(server, 0)
        call(server, "POST", "/blis/instances")
        call(server, "POST", "/blis/instances/1/drain")
        kill(server, 2)
        replies = [each.result() for each in asked]
        wait_until(lambda: lives(server) == ["killed", "drained", "killed", "ready"])
        completed = sum(each["num_completed"] for each in instances(server))
        good = [each for each in replies if each.status == 200 and b'"error"' not in each.body]
        assert len(good) == completed > 0
        assert {each.status for each in replies} <= {200, 500}
        wait_until(lambda: not server.service.delivery.driver.num_unfinished_requests)
        for engine in server.service.engines.values():
            engine.driver.engine.check_integrity()


def test_a_new_instance_listens_and_a_killed_one_hangs_up() -> None:
    with controlled(num_instances=1, instance_ports=0) as server:
        call(server, "POST", "/blis/instances")
        second = at_instance(server, 1)
        assert complete(second, **BODY).status == 200
        assert finished(server, 1) == 1
        kill(server, 1)
        wait_until(lambda: instances(server)[1]["port"] is None)
        with pytest.raises(ConnectionRefusedError):
            call(second, "GET", "/health")


def free_pair() -> int:
    """Return the first of two free ports, below those that the system hands out, lest another process gets them."""
    for port in range(20_000 + os.getpid() % 5_000, 32_000):
        with socket.socket() as one, socket.socket() as other, suppress(OSError):
            one.bind(("127.0.0.1", port))
            other.bind(("127.0.0.1", port + 1))
            return port
    raise AssertionError("no two ports in a row are free")


def test_an_instance_whose_port_is_taken_is_not_added() -> None:
    free = free_pair()
    with socket.socket() as other:
        other.bind(("127.0.0.1", free + 1))
        other.listen()
        with controlled(num_instances=1, instance_ports=free) as server:
            refused = call(server, "POST", "/blis/instances")
            assert (refused.status, refused.json["error"]["type"]) == (409, "ConflictError")
            assert f":{free + 1}: " in refused.json["error"]["message"]
            assert lives(server) == ["ready", "killed"]
            assert complete(server, **BODY).status == 200


def paused_states(server: TestServer) -> list[bool]:
    """Whether all are, and whether each of two is."""
    places = ("", "?instance=0", "?instance=1")
    return [call(server, "GET", f"/is_paused{place}").json["is_paused"] for place in places]


def cache_hits(server: TestServer) -> list[float]:
    return [metric(server, "vllm:prefix_cache_hits_total", engine=str(number)) for number in range(2)]


def test_one_instance_may_be_paused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_SERVER_DEV_MODE", "1")
    with running_server(num_instances=2) as server:
        assert call(server, "POST", "/pause?instance=1").json == {"status": "paused"}
        assert paused_states(server) == [False, False, True]
        assert complete(server, **BODY).status == 200
        with open_request(server, stream=True, max_tokens=2, ignore_eos=True) as connection:
            wait_for_metric(server, "vllm:num_requests_waiting", 1, engine="1")
            call(server, "POST", "/resume?instance=1")
            read_until(connection, b"[DONE]")
        call(server, "POST", "/pause")
        assert paused_states(server) == [True, True, True]
        assert complete(server, **BODY).status == 503
        call(server, "POST", "/resume")
        assert complete(server, **BODY).status == 200
        assert call(server, "POST", "/pause?instance=2").status == 404


def test_one_instance_may_forget_its_prefixes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_SERVER_DEV_MODE", "1")
    with running_server(num_instances=2) as server:
        prompt = {**BODY, "prompt": "again and again " * 20}
        for _ in range(2):
            complete(server, **prompt)
        assert cache_hits(server) == [0, 0]
        assert call(server, "POST", "/reset_prefix_cache?instance=1").json == {"success": True}
        for _ in range(2):
            complete(server, **prompt)
        first, second = cache_hits(server)
        assert (first > 0, second) == (True, 0)
        assert call(server, "POST", "/reset_prefix_cache").json == {"success": True}
        for _ in range(2):
            complete(server, **prompt)
        assert cache_hits(server) == [first, second]


def test_sleep_is_shown_for_the_instance_that_sleeps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_SERVER_DEV_MODE", "1")
    with running_server(num_instances=2) as server:
        call(server, "POST", "/sleep?instance=1")
        state = {"sleep_state": "weights_offloaded"}
        assert [metric(server, "vllm:engine_sleep_state", engine=str(i), **state) for i in range(2)] == [0, 1]
        assert call(server, "GET", "/is_sleeping").json == {"is_sleeping": False}
        assert call(server, "POST", "/wake_up").json["status"] == "awake"
        assert [metric(server, "vllm:engine_sleep_state", engine=str(i), **state) for i in range(2)] == [0, 0]


def test_one_instance_may_be_slow_or_die() -> None:
    with running_server(num_instances=2, enable_fault_control=True) as server:
        call(server, "POST", "/blis/faults", {"rank": 1, "slow_factor": 10, "engine": {"slow": None}})
        for _ in range(2):
            complete(server, **BODY)
        name = "vllm:e2e_request_latency_seconds_sum"
        fast, slow = (metric(server, name, engine=str(instance)) for instance in (0, 1))
        assert slow == pytest.approx(10 * fast, rel=0.1)
        call(server, "POST", "/blis/faults?instance=0", {"engine": {"death": None}})
        wait_for_lives(server, ["killed", "ready"])
        assert call(server, "GET", "/health").status == 200
        assert complete(server, **BODY).status == 200


def test_an_instance_that_hangs_can_be_killed() -> None:
    with controlled(num_instances=2, enable_fault_control=True) as server:
        call(server, "POST", "/blis/faults?instance=0", {"engine": {"hang": None}})
        with ThreadPoolExecutor(1) as pool:
            asked = pool.submit(complete, server, **BODY)
            wait_for_metric(server, "vllm:num_requests_waiting", 1, engine="0")
            kill(server, 0)
            assert asked.result().status == 500
        assert complete(server, **BODY).status == 200


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"num_instances": 2, "api_server_count": 2}, "--api-server-count cannot be used with --num-instances 2"),
        ({"instance_ports": 0, "uds": "/tmp/x"}, "--uds cannot be used with --instance-ports"),
        (
            {"num_instances": 2, "kv_transfer_config": '{"kv_connector": "NixlConnector", "kv_role": "kv_both"}'},
            "--kv-transfer-config cannot be used with --num-instances 2",
        ),
        ({"num_instances": 9, "instance_ports": 65_530}, "--instance-ports must be at most 65527 with 9 instances"),
        ({"num_instances": 2, "routing_scorers": "x:1"}, "routing-scorers"),
    ],
)
def test_options_that_do_not_go_together_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(BlisError, match=message):
        options_from(ServeOptions, model="qwen/qwen3-14b", **settings)


def test_instances_may_differ_by_a_policy_file(tmp_path: Any) -> None:
    policy = tmp_path / "policy.yaml"
    policy.write_text(
        "routing: {policy: least-loaded}\ninstances:\n  - {count: 1, max_num_seqs: 3}\n  - {count: 1, tp: 2}\n"
    )
    given = options_from(ServeOptions, model="qwen/qwen3-14b", hardware="H100", policy_config=str(policy))
    cluster = with_policies(given.cluster)
    assert (cluster.num_instances, cluster.routing_policy) == (2, "least-loaded")
    with running_server(policy_config=str(policy), num_instances=2, routing_policy="least-loaded") as server:
        first, second = (each.driver.engine.config for each in server.service.engines.values())
        assert first.max_num_seqs == 3 < second.max_num_seqs
        assert second.total_kv_blocks > 2 * first.total_kv_blocks
        assert complete(server, **BODY).status == 200


def test_an_autoscaler_starts_instances_while_the_server_runs(tmp_path: Any) -> None:
    policy = tmp_path / "policy.yaml"
    policy.write_text(
        "node_pools: [{name: a, gpu_type: H100, gpus_per_node: 3, gpu_memory_gib: 80, initial_nodes: 1}]\n"
        "instance_lifecycle: {loading_delay: {mean: 0.1}, warm_start_initial_instances: true}\n"
        "autoscaler: {interval_us: 50000}\n"
    )
    settings: dict[str, Any] = {"policy_config": str(policy), "total_kv_blocks": 300, "instance_ports": 0}
    with controlled(SLOW, speed=1.0, **settings) as server, ExitStack() as connections:
        for _ in range(30):
            connections.enter_context(open_request(server, stream=True, max_tokens=1000))
        wait_for_lives(server, ["ready"] * 3)
        assert all(each["port"] for each in instances(server))
        assert call(at_instance(server, 2), "GET", "/health").status == 200
        refused = call(server, "POST", "/blis/instances")
        assert (refused.status, refused.json["error"]["type"]) == (409, "ConflictError")
