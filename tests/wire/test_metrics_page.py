"""GET /metrics: vLLM's names, types, labels and buckets, and correct values."""

import csv
import gzip
import re
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from mockserve.metrics.counters import SLEEP_STATES
from tests.fakes import TestLatency
from tests.wire.metric_shapes import TABLE, shapes
from tests.wire.plain_http import call, chat, complete, metric, open_request, wait_for_metric
from tests.wire.serving import TestServer, running_server

HELP_TABLE = Path(__file__).with_name("metric_help.csv")
"""Families of the genuine page in its order."""

OUR_OWN = {
    "blis_send_lag_seconds",
    "blis_send_lag_seconds_created",
    "blis_slow_readers_cut",
    "blis_slow_readers_cut_created",
}
"""Beside those of vLLM."""


def page(server: TestServer) -> str:
    return call(server, "GET", "/metrics").body.decode()


def test_the_page_is_prometheus_text(server: TestServer) -> None:
    reply = call(server, "GET", "/metrics")
    assert reply.headers["content-type"] == "text/plain; version=1.0.0; charset=utf-8"
    names = {family.name for family in text_string_to_metric_families(reply.body.decode())}
    assert {"vllm:num_requests_running", "vllm:prompt_tokens", "blis_send_lag_seconds"} <= names


def test_families_types_labels_and_buckets_are_those_of_vllm() -> None:
    with running_server() as server:
        complete(server)
        call(server, "GET", "/nowhere")
        found = shapes(page(server))
    ours = {line for line in found if line.split()[0] in OUR_OWN}
    assert len(ours) == len(OUR_OWN)
    assert found - ours == set(TABLE.read_text(encoding="utf-8").splitlines())


@pytest.mark.parametrize("capture", ["metrics1.txt", "metrics2.txt"])
def test_the_table_of_families_is_what_vllm_was_seen_to_export(reference: Path, capture: str) -> None:
    page = (reference / "golden/vllm" / capture).read_text(encoding="utf-8")
    assert shapes(page) == set(TABLE.read_text(encoding="utf-8").splitlines())


def test_the_cache_configuration_is_a_metric(server: TestServer) -> None:
    (line,) = re.findall(r"^vllm:cache_config_info\{(.*)\} 1\.0$", page(server), re.MULTILINE)
    ours = dict(re.findall(r'(\w+)="([^"]*)"', line))
    config = server.service.delivery.driver.engine.config
    assert ours["num_gpu_blocks"] == str(config.total_kv_blocks)
    assert ours["kv_cache_size_tokens"] == str(config.total_kv_blocks * 16)
    assert ours["kv_cache_max_concurrency"] == str(config.total_kv_blocks * 16 / 2048)
    assert ours["block_size"] == "16"


QUERY = "?name[]=vllm:num_requests_running&name[]=python_info"


def test_name_picks_samples_on_the_mounted_path(server: TestServer) -> None:
    reply = call(server, "GET", f"/metrics/{QUERY}").body.decode()
    assert {family.name for family in text_string_to_metric_families(reply)} == {
        "vllm:num_requests_running",
        "python_info",
    }


def test_name_is_ignored_on_the_plain_path(server: TestServer) -> None:
    assert b"vllm:prompt_tokens_total" in call(server, "GET", f"/metrics{QUERY}").body


MOUNTED = [
    ("GET", "/metrics/"),
    ("HEAD", "/metrics"),
    ("HEAD", "/metrics/"),
    ("POST", "/metrics"),
    ("PUT", "/metrics/x"),
]


@pytest.mark.parametrize(("method", "path"), MOUNTED)
def test_mounted_metrics_answer_every_method_and_path(server: TestServer, method: str, path: str) -> None:
    reply = call(server, method, path)
    assert (reply.status, reply.headers["content-type"]) == (200, "text/plain; version=0.0.4; charset=utf-8")
    assert "content-length" not in reply.headers
    assert reply.headers.get("transfer-encoding") == (None if method == "HEAD" else "chunked")


def test_mounted_metrics_apply_accept_headers(server: TestServer) -> None:
    accepted = {"Accept": "application/openmetrics-text; version=1.0.0", "Accept-Encoding": "gzip"}
    reply = call(server, "GET", "/metrics/", headers=accepted)
    assert reply.headers["content-type"].startswith("application/openmetrics-text; version=1.0.0")
    assert reply.headers["content-encoding"] == "gzip"
    assert gzip.decompress(reply.body).endswith(b"# EOF\n")


def test_help_texts_and_types_are_those_of_vllm() -> None:
    with running_server() as server:
        complete(server)
        call(server, "GET", "/nowhere")
        lines = [line for line in page(server).splitlines() if line.startswith("# ")]
    with HELP_TABLE.open(encoding="utf-8", newline="") as file:
        expected = [
            line
            for row in csv.DictReader(file)
            for line in (f"# HELP {row['name']} {row['help']}", f"# TYPE {row['name']} {row['type']}")
        ]
    assert [line for line in lines if not line.split()[2].startswith("blis_")] == expected


def test_http_is_counted_by_route() -> None:
    with running_server(api_key=("k",), root_path="/pre") as server:
        key = {"Authorization": "Bearer k"}
        for path in ("/pre/v1/models", "/v1/models"):
            call(server, "GET", path, headers=key)
        call(server, "GET", "/v1/models")
        call(server, "GET", "/nowhere")
        call(server, "POST", "/v1/completions", b"no json", headers=key)
        for path in ("/health", "/pre/ping", "/load", "/version", "/metrics"):
            call(server, "GET", path)
        lines = re.findall(r"^http_requests_total\{(.*)\} (\S+)$", page(server), re.MULTILINE)
        assert dict(lines) == {
            'handler="/v1/models",method="GET",status="2xx"': "2.0",
            'handler="none",method="GET",status="4xx"': "1.0",
            'handler="/v1/completions",method="POST",status="4xx"': "1.0",
        }
        assert metric(server, "http_request_size_bytes_sum", handler="/v1/completions") == len(b"no json")
        assert metric(server, "http_request_duration_highr_seconds_count") == 4


def test_prompt_tokens_are_computed_or_found_in_the_cache() -> None:
    with running_server() as server:
        prompt = list(range(1, 65))
        for _ in range(2):
            complete(server, prompt=prompt, max_tokens=3, ignore_eos=True)
        expected = {
            "vllm:prompt_tokens_total": 128,
            "vllm:prompt_tokens_cached_total": 48,
            "vllm:prefix_cache_queries_total": 128,
            "vllm:prefix_cache_hits_total": 48,
            "vllm:iteration_tokens_total_sum": 128 - 48 + 6,
            "vllm:request_prefill_kv_computed_tokens_sum": 80,
        }
        assert {name: metric(server, name) for name in expected} == expected
        sources = {"local_compute": 80, "local_cache_hit": 48, "external_kv_transfer": 0}
        assert {each: metric(server, "vllm:prompt_tokens_by_source_total", source=each) for each in sources} == sources
        assert metric(server, "vllm:prompt_tokens_cached_by_source_total", source="device") == 48


def test_blocks_of_all_ranks_are_counted_and_the_page_is_that_of_several_processes() -> None:
    with running_server(dp=2, total_kv_blocks=400) as server:
        first = page(server)
        complete(server, max_tokens=2)
        second = page(server)
    labels = [dict(re.findall(r'(\w+)="([^"]*)"', line)) for line in re.findall("cache_config_info{.*", first)]
    assert [each["engine"] for each in labels] == ["0", "1"]
    assert [(each["num_gpu_blocks"], each["kv_cache_size_tokens"]) for each in labels] == [("800", "6400")] * 2
    samples = [line for line in second.splitlines() if not line.startswith("#")]
    assert not [line for line in samples if re.match(r"\w+:?\w*_created[ {]|python_|process_", line)]
    assert "# TYPE vllm:num_requests_running gauge\n#" in first, "no engine has made a step"
    assert re.findall(r'^vllm:num_requests_running\{engine="(\d)"', second, re.MULTILINE) == ["0"]


@pytest.mark.parametrize(("settings", "is_multiprocess"), [({"api_server_count": 1}, False), ({}, True)])
def test_an_api_server_alone_shows_itself(settings: dict[str, Any], is_multiprocess: bool) -> None:
    with running_server(dp=2, total_kv_blocks=400, **settings) as server:
        assert ("python_info" not in page(server)) == is_multiprocess


@pytest.mark.parametrize(("num_others", "num_here", "num_loaded"), [(2, 48, 16), (3, 0, 64)])
def test_blocks_from_cpu_memory_are_external_hits_of_the_host(num_others: int, num_here: int, num_loaded: int) -> None:
    """A prompt found whole counts as cached whole, although its last token is computed."""
    with running_server(total_kv_blocks=12, max_model_len=128, kv_offloading_size=4.0) as server:
        for number in (*range(num_others + 1), 0):
            complete(server, prompt=[number + 1] * 64, max_tokens=1)
        num_asked = 64 * (num_others + 1)
        expected = {
            "vllm:prefix_cache_queries_total": num_asked + 64,
            "vllm:prefix_cache_hits_total": num_here,
            "vllm:external_prefix_cache_queries_total": num_asked + 64 - num_here,
            "vllm:external_prefix_cache_hits_total": num_loaded,
            "vllm:prompt_tokens_cached_total": 64,
            "vllm:request_prefill_kv_computed_tokens_sum": num_asked,
        }
        assert {name: metric(server, name) for name in expected} == expected
        sources = {"device": num_here, "host": num_loaded, "p2p": 0}
        name = "vllm:prompt_tokens_cached_by_source_total"
        assert {each: metric(server, name, source=each) for each in sources} == sources
        assert 'kv_offloading_size="4.0"' in page(server)


def test_the_choices_of_a_prompt_are_one_request() -> None:
    with running_server() as server:
        complete(server, prompt=["a b", "c d"], n=3, seed=1, max_tokens=9, min_tokens=2)
        lengths = metric(server, "vllm:request_max_num_generation_tokens_sum")
        expected = {
            "vllm:request_params_n_count": 2,
            "vllm:request_params_n_sum": 6,
            "vllm:request_max_num_generation_tokens_count": 2,
            "vllm:request_generation_tokens_count": 6,
        }
        assert {name: metric(server, name) for name in expected} == expected
        assert 4 <= lengths <= 18


def test_tokens_and_requests_are_counted_once() -> None:
    with running_server() as server:
        complete(server, max_tokens=5, ignore_eos=True)
        chat(server, max_tokens=7, ignore_eos=True, n=2, stream=True)
        expected = {
            "vllm:generation_tokens_total": 5 + 14,
            "vllm:prompt_tokens_total": 2 + 2 * 11,
            "vllm:request_generation_tokens_sum": 19,
            "vllm:request_generation_tokens_count": 3,
            "vllm:request_prompt_tokens_sum": 24,
            "vllm:time_to_first_token_seconds_count": 3,
            "vllm:inter_token_latency_seconds_count": 19 - 3,
            "vllm:e2e_request_latency_seconds_count": 3,
            "vllm:request_queue_time_seconds_count": 3,
            "vllm:iteration_tokens_total_sum": 19 + 24,
            "vllm:num_requests_running": 0,
            "vllm:kv_cache_usage_perc": 0,
            "blis_send_lag_seconds_count": 1 + (2 + 14 + 1),  # a whole reply, and the events of a stream
        }
        assert {name: metric(server, name) for name in expected} == expected
        assert metric(server, "vllm:request_success_total", finished_reason="length") == 3
        assert metric(server, "vllm:request_success_total", finished_reason="stop") == 0


def test_an_answer_that_ends_by_itself_counts_as_stopped() -> None:
    with running_server(default_output_tokens=9) as server:
        reply = chat(server).json
        assert reply["choices"][0]["finish_reason"] == "stop"
        assert reply["usage"]["completion_tokens"] == 9
        assert metric(server, "vllm:request_success_total", finished_reason="stop") == 1


@pytest.mark.parametrize("scheduling", ["blis", "vllm"])
def test_preempted_requests_send_every_token_once(scheduling: str) -> None:
    with running_server(total_kv_blocks=17, max_model_len=200, engine=scheduling) as server:
        replies = [chat(server, max_tokens=100, ignore_eos=True, n=4, seed=1, stream=True).body for _ in range(2)]
        whole = chat(server, max_tokens=100, ignore_eos=True, n=4, seed=1).json
        assert metric(server, "vllm:num_preemptions_total") > 0
        assert metric(server, "vllm:generation_tokens_total") == 3 * 4 * 100
    assert replies[0].count(b'"delta":{"content"') == 400
    assert whole["usage"]["completion_tokens"] == 400


@pytest.mark.parametrize("tracked", [False, True])
def test_the_load_is_tracked_only_with_the_flag(tracked: bool) -> None:
    slow = TestLatency(step_us=200_000)  # a client that leaves is out of the batch when the step under way ends
    with running_server(slow, speed=1.0, enable_server_load_tracking=tracked) as server:
        with open_request(server, stream=True, max_tokens=1000):
            wait_for_metric(server, "vllm:num_requests_running", 1)
            assert call(server, "GET", "/load").json == {"server_load": int(tracked)}
        wait_for_metric(server, "vllm:num_requests_running", 0)
        assert call(server, "GET", "/load").json == {"server_load": 0}


@pytest.mark.parametrize(("level", "state"), [(0, None), (1, "weights_offloaded"), (2, "discard_all")])
def test_sleep_shows(monkeypatch: pytest.MonkeyPatch, level: int, state: str | None) -> None:
    monkeypatch.setenv("VLLM_SERVER_DEV_MODE", "1")
    with running_server() as server:

        def shown() -> dict[str, float]:
            return {each: metric(server, "vllm:engine_sleep_state", sleep_state=each) for each in SLEEP_STATES}

        assert shown() == {each: float(each == "awake") for each in SLEEP_STATES}
        assert call(server, "POST", f"/sleep?level={level}").status == 200
        assert shown() == {each: float(each == state) for each in SLEEP_STATES}
        assert call(server, "POST", "/wake_up").status == 200
        assert shown() == {each: float(each == "awake") for each in SLEEP_STATES}


def test_requests_that_the_server_ends_count_as_aborted_and_those_that_hang_up_do_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("VLLM_SERVER_DEV_MODE", "1")
    slow = TestLatency(step_us=20_000)
    long = {"stream": True, "max_tokens": 1000, "ignore_eos": True}
    with running_server(slow, speed=1.0) as server:
        with open_request(server, **long):
            wait_for_metric(server, "vllm:num_requests_running", 1)
        wait_for_metric(server, "vllm:num_requests_running", 0)
        assert metric(server, "vllm:request_success_total", finished_reason="abort") == 0
        with open_request(server, **long):
            wait_for_metric(server, "vllm:num_requests_running", 1)
            assert call(server, "POST", "/abort_requests", {}).json == {"status": "aborted", "aborted": 1}
            assert metric(server, "vllm:request_success_total", finished_reason="abort") == 1


@pytest.mark.parametrize("instances", [1, 2])
def test_a_server_without_a_prefix_cache_looks_nothing_up(instances: int) -> None:
    with running_server(enable_prefix_caching=False, num_instances=instances) as server:
        complete(server, max_tokens=2)
        page = call(server, "GET", "/metrics").body.decode()
    found = [line for line in page.splitlines() if line.startswith("vllm:prefix_cache_queries_total{")]
    assert len(found) == instances
    assert all(line.endswith(" 0.0") for line in found)
