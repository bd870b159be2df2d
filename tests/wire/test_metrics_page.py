"""GET /metrics: vLLM's names, types, labels and buckets, and figures that are true."""

import re
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.fakes import TestLatency
from tests.wire.plain_http import call, chat, complete, metric, open_request, wait_for_metric
from tests.wire.serving import TestServer, running_server

OUR_OWN = {"blis_send_lag_seconds", "blis_send_lag_seconds_created"}


def page(server: TestServer) -> str:
    return call(server, "GET", "/metrics").body.decode()


def types(text: str) -> dict[str, str]:
    """Name to type of every family."""
    return dict(re.findall(r"^# TYPE (\S+) (\w+)$", text, re.MULTILINE))


def labels(text: str, name: str) -> set[str]:
    """The label sets of a sample, values of `le` included, the model's name left out."""
    return {
        re.sub(r'model_name="[^"]*"', "", found) for found in re.findall(rf"^{name}\{{(.*)\}} \S+$", text, re.MULTILINE)
    }


def test_it_is_prometheus_text(server: TestServer) -> None:
    reply = call(server, "GET", "/metrics")
    assert reply.headers["content-type"] == "text/plain; version=1.0.0; charset=utf-8"
    names = {family.name for family in text_string_to_metric_families(reply.body.decode())}
    assert {"vllm:num_requests_running", "vllm:prompt_tokens", "blis_send_lag_seconds"} <= names


def test_every_family_of_vllm_has_its_type_labels_and_buckets(server: TestServer, shared: Path) -> None:
    theirs = (shared / "golden/vllm/metrics2.txt").read_text()
    ours = page(server)
    families = {name: kind for name, kind in types(ours).items() if name not in OUR_OWN}
    assert len(families) > 40
    assert families.items() <= types(theirs).items()
    for name, kind in families.items():
        for sample in (name, f"{name}_bucket", f"{name}_count", f"{name}_sum") if kind == "histogram" else (name,):
            if name != "vllm:cache_config_info":
                assert labels(ours, sample) == labels(theirs, sample), sample


def test_the_cache_configuration_has_names_and_values_that_vllm_has(server: TestServer, shared: Path) -> None:
    theirs = (shared / "golden/vllm/metrics2.txt").read_text()

    def fields(text: str) -> dict[str, str]:
        (line,) = re.findall(r"^vllm:cache_config_info\{(.*)\} 1\.0$", text, re.MULTILINE)
        return dict(re.findall(r'(\w+)="([^"]*)"', line))

    ours = fields(page(server))
    assert set(ours) <= set(fields(theirs))
    assert ours["num_gpu_blocks"] == str(server.service.driver.engine.config.total_kv_blocks)
    assert ours["block_size"] == "16"


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
            "blis_send_lag_seconds_count": 19,
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
    with running_server(total_kv_blocks=17, max_model_len=200, scheduling=scheduling) as server:
        replies = [chat(server, max_tokens=100, ignore_eos=True, n=4, seed=1, stream=True).body for _ in range(2)]
        whole = chat(server, max_tokens=100, ignore_eos=True, n=4, seed=1).json
        assert metric(server, "vllm:num_preemptions_total") > 0
        assert metric(server, "vllm:generation_tokens_total") == 3 * 4 * 100
    assert replies[0].count(b'"delta":{"content"') == 400
    assert whole["usage"]["completion_tokens"] == 400


@pytest.mark.parametrize("tracked", [False, True])
def test_the_load_is_tracked_only_when_asked_for(tracked: bool) -> None:
    slow = TestLatency(step_us=200_000)  # a client that leaves is out of the batch when the step under way ends
    with running_server(slow, speed=1.0, enable_server_load_tracking=tracked) as server:
        with open_request(server, stream=True, max_tokens=1000):
            wait_for_metric(server, "vllm:num_requests_running", 1)
            assert call(server, "GET", "/load").json == {"server_load": int(tracked)}
        wait_for_metric(server, "vllm:num_requests_running", 0)
        assert call(server, "GET", "/load").json == {"server_load": 0}
