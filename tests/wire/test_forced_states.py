"""Metrics and load that are set while the server runs."""

import json
import time
import urllib.error
import urllib.request
from typing import Any

from tests.patience import wait_until
from tests.wire.serving import TestServer, running_server


def ask(server: TestServer, path: str, body: Any = None, method: str | None = None) -> tuple[int, Any]:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(server.url + path, data, {"Content-Type": "application/json"}, method=method)
    try:
        with urllib.request.urlopen(request) as reply:
            return reply.status, json.load(reply)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


def series(server: TestServer, name: str) -> float:
    with urllib.request.urlopen(f"{server.url}/metrics") as reply:
        lines = reply.read().decode().splitlines()
    return float(next(line.rpartition(" ")[2] for line in lines if line.startswith(name)))


RUNNING = 'vllm:num_requests_running{engine="0"'


def test_a_series_is_pinned_until_it_is_released_or_its_time_is_over() -> None:
    with running_server(enable_state_control=True) as server:
        pins = [
            {"name": "vllm:num_requests_running", "labels": {"engine": "0"}, "value": 12},
            {"name": "vllm:e2e_request_latency_seconds_bucket", "labels": {"le": "1.0"}, "value": 7},
            {"name": "vllm:kv_cache_usage_perc", "value": 0.9, "for_s": 0.05},
        ]
        status, shown = ask(server, "/blis/metrics", {"pins": pins})
        assert (status, len(shown["pins"])) == (200, 3)
        assert series(server, RUNNING) == 12
        assert series(server, 'vllm:e2e_request_latency_seconds_bucket{engine="0",le="1.0"') == 7
        assert series(server, 'vllm:e2e_request_latency_seconds_bucket{engine="0",le="2.5"') == 0
        time.sleep(0.06)
        assert series(server, "vllm:kv_cache_usage_perc{") == 0
        assert ask(server, "/blis/metrics", {"pins": [{**pins[0], "value": 3}]})[1]["pins"][-1]["value"] == 3
        assert series(server, RUNNING) == 3
        released = ask(server, "/blis/metrics?name=vllm:num_requests_running", method="DELETE")[1]
        assert [each["name"] for each in released["pins"]] == ["vllm:e2e_request_latency_seconds_bucket"]
        assert series(server, RUNNING) == 0
        for wrong in ({"pins": [{"name": "vllm:nothing", "value": 1}]}, {"pins": 3}, {"pins": [{"value": 1}]}):
            assert ask(server, "/blis/metrics", wrong)[0] == 400


def test_synthetic_load_runs_beside_the_requests_of_clients_and_slows_them_down() -> None:
    with running_server(enable_state_control=True, max_num_seqs=4, speed=1.0) as server:
        assert ask(server, "/blis/load", {"running": 4, "kv_fraction": 0.5})[0] == 200
        wait_until(lambda: series(server, RUNNING) == 4)
        assert 0.49 < series(server, "vllm:kv_cache_usage_perc{") < 0.52
        began = time.monotonic()
        ask(server, "/v1/completions", {"prompt": "hi", "max_tokens": 1})
        assert time.monotonic() - began > 0.1, "no place is free before one of the four has had its 512 tokens"
        wait_until(lambda: series(server, RUNNING) == 4)
        assert ask(server, "/blis/load", {"running": 1})[1]["kv_fraction"] == 0.5
        wait_until(lambda: series(server, RUNNING) == 1)
        assert ask(server, "/blis/load", method="DELETE")[1]["in_engine"] == 0
        wait_until(lambda: series(server, RUNNING) == 0)
        assert series(server, "vllm:kv_cache_usage_perc{") == 0
        for wrong in ({"running": -1}, {"running": 1.5}, {"kv_fraction": 1}, {"other": 1}, {"running": True}):
            assert ask(server, "/blis/load", wrong)[0] == 400


def test_settings_of_llm_d_inference_sim_change_while_it_runs() -> None:
    with running_server(offers_ready_route=True) as server:
        assert ask(server, "/fake_metrics", {"running-requests": 5})[0] == 200
        assert series(server, RUNNING) == 5
        changed = {"failure-injection-rate": 100, "failure-types": ["server_error"], "fake-metrics": {}}
        assert ask(server, "/admin/config", changed) == (
            200,
            {"failure-injection-rate": 100.0, "failure-types": ["server_error"]},
        )
        assert ask(server, "/v1/completions", {"prompt": "hi", "max_tokens": 1})[0] == 503
        assert ask(server, "/admin/config", {"failure-injection-rate": 0})[1]["failure-injection-rate"] == 0
        assert ask(server, "/v1/completions", {"prompt": "hi", "max_tokens": 1})[0] == 200
        for wrong in ({"failure-types": ["x"]}, {"failure-injection-rate": 101}, {"seed": 1}, {"fake-metrics": [1]}):
            assert ask(server, "/admin/config", wrong)[0] == 400
