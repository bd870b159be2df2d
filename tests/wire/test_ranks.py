"""Data-parallel ranks: several engines behind one endpoint."""

import re
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from blis_sim.engine.batch_shape import BatchShape
from blis_sim.engine.deployment import resolve
from blis_sim.options import options_from
from mockserve.engines import deployment_of
from mockserve.options.serve import ServeOptions
from tests.fakes import TestLatency
from tests.patience import wait_until
from tests.wire.plain_http import call, complete, metric, open_request, wait_for_metric
from tests.wire.serving import TestServer, running_server

BODY = {"model": "m", "prompt": "a b", "max_tokens": 4, "ignore_eos": True}


def ask(server: TestServer, rank: object) -> Any:
    return call(server, "POST", "/v1/completions", BODY, {"X-data-parallel-rank": str(rank)})


def finished(server: TestServer, engine: int) -> float:
    return metric(server, "vllm:request_success_total", finished_reason="length", engine=str(engine))


def test_requests_take_turns_when_all_ranks_are_idle() -> None:
    with running_server(dp=3) as server:
        for _ in range(6):
            complete(server, **BODY)
        assert [finished(server, rank) for rank in range(3)] == [2, 2, 2]


def test_a_busy_rank_gets_no_more_while_another_is_idle() -> None:
    slow = TestLatency(step_us=60_000_000)
    with running_server(slow, speed=1.0, dp=2) as server, open_request(server, stream=True):
        wait_for_metric(server, "vllm:num_requests_running", 1)
        with open_request(server, stream=True):
            for rank in ("0", "1"):
                wait_for_metric(server, "vllm:num_requests_running", 1, engine=rank)
    assert server.service.num_engines == 2


def test_a_client_may_choose_the_rank() -> None:
    with running_server(dp=2) as server:
        for _ in range(3):
            assert ask(server, 1).status == 200
        assert [finished(server, rank) for rank in range(2)] == [0, 3]
        refused = ask(server, 2)
        assert refused.json["error"]["message"].startswith("data_parallel_rank 2 is out of range [0, 2).")
        assert ask(server, "x").status == 200


def test_every_family_of_metrics_is_there_for_each_rank() -> None:
    with running_server(dp=2) as server:
        page = call(server, "GET", "/metrics").body.decode()
    names = set(re.findall(r'^(vllm:\w+)\{.*engine="0"', page, re.MULTILINE))
    assert len(names) > 60
    assert names == set(re.findall(r'^(vllm:\w+)\{.*engine="1"', page, re.MULTILINE))


def test_many_requests_are_all_answered_and_leave_nothing() -> None:
    with running_server(dp=4) as server:
        with ThreadPoolExecutor(16) as pool:
            replies = list(pool.map(lambda index: complete(server, **{**BODY, "n": 2, "seed": index}), range(60)))
        assert all(reply.status == 200 for reply in replies)
        assert sum(finished(server, rank) for rank in range(4)) == 120
        assert all(finished(server, rank) > 10 for rank in range(4))
        wait_until(lambda: not server.service.delivery.driver.num_unfinished_requests)


def test_one_rank_can_lag_behind() -> None:
    with running_server(dp=2, enable_fault_control=True) as server:
        call(server, "POST", "/blis/faults", {"rank": 1, "slow_factor": 10, "engine": {"slow": None}})
        for rank in (0, 1):
            ask(server, rank)
        name = "vllm:e2e_request_latency_seconds_sum"
        fast, slow = (metric(server, name, engine=str(rank)) for rank in (0, 1))
        assert slow == pytest.approx(10 * fast, rel=0.05)
        refused = call(server, "POST", "/blis/faults", {"rank": 2, "engine": {"hang": 1}})
        assert refused.json["error"]["message"] == "rank must be at most 1, got 2"


def test_a_dead_rank_takes_the_server_down() -> None:
    with running_server(dp=2, enable_fault_control=True) as server:
        call(server, "POST", "/blis/faults", {"engine": {"death": None}})
        assert call(server, "GET", "/health").status == 503


EXPERTS = {"model": "mixtral-8x7b-v0.1", "hardware": "H100", "tp": 2}


def test_a_rank_with_experts_has_its_own_kv_cache() -> None:
    options = options_from(ServeOptions, **EXPERTS, dp=4)
    together, rank = resolve(options.deployment), deployment_of(options)
    assert rank.config.total_kv_blocks == together.config.total_kv_blocks // 4
    given = options_from(ServeOptions, **EXPERTS, dp=4, total_kv_blocks=9000)
    assert deployment_of(given).config.total_kv_blocks == 9000
    assert not [note for note in rank.notes if "ranks" in note]


def test_experts_that_fit_on_the_gpus_of_all_ranks_alone_are_served() -> None:
    settings = {"model": "deepseek-ai/DeepSeek-V3", "hardware": "H200", "tp": 1, "max_model_len": 8192}
    rank = deployment_of(options_from(ServeOptions, **settings, dp=8))
    assert (rank.num_gpus, rank.config.max_model_len) == (8, 8192)


def test_with_pipeline_stages_each_step_is_as_long_as_if_all_ranks_had_its_batch() -> None:
    options = options_from(ServeOptions, **EXPERTS, dp=4, pp=2)
    together, rank = resolve(options.deployment), deployment_of(options)
    decodes = BatchShape(decode_requests=10, decode_context_tokens=5000)
    of_all = BatchShape(decode_requests=40, decode_context_tokens=20_000)
    assert rank.latency.step_time(decodes) == together.latency.step_time(of_all)
    assert rank.latency.decode_times(decodes, 3).tolist() == together.latency.decode_times(of_all, 3).tolist()
    assert "ranks that share experts take their steps apart" in rank.notes[-1]


def test_ranks_with_experts_take_their_steps_together_and_are_counted_apart() -> None:
    with running_server(TestLatency(step_us=1000, decode_us=500), **EXPERTS, dp=2, enable_fault_control=True) as server:
        assert [ask(server, rank).status for rank in (0, 1, 1)] == [200] * 3
        assert [finished(server, rank) for rank in range(2)] == [1, 2]
        assert metric(server, "vllm:inter_token_latency_seconds_sum", engine="0") == pytest.approx(3 * 0.0015)
        call(server, "POST", "/blis/faults", {"rank": 1, "slow_factor": 10, "engine": {"slow": None}})
        assert ask(server, 0).status == 200
        assert metric(server, "vllm:inter_token_latency_seconds_sum", engine="0") == pytest.approx(3 * 0.0165)
        call(server, "POST", "/blis/faults", {"engine": {"death": None}})
        assert call(server, "GET", "/health").status == 503


def test_ranks_of_a_dense_model_do_not_slow_each_other_down() -> None:
    options = options_from(ServeOptions, model="qwen/qwen3-14b", hardware="H100", tp=1, dp=2)
    alone = options_from(ServeOptions, model="qwen/qwen3-14b", hardware="H100", tp=1)
    assert deployment_of(options).latency == resolve(alone.deployment).latency
    assert deployment_of(options).config == resolve(alone.deployment).config
