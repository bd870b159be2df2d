"""Latencies that are set instead of simulated."""

from typing import Any

import pytest

from blis_sim.options import options_from
from mockserve.engines import deployment_of
from mockserve.options.serve import ServeOptions
from tests.wire.plain_http import chat, complete, metric
from tests.wire.serving import running_server

TIMES: dict[str, Any] = {
    "latency_calculator": "constant",
    "time_to_first_token_ms": 100.0,
    "inter_token_latency_ms": 10.0,
    "max_num_seqs": 2,
}


def test_the_metrics_show_the_set_times() -> None:
    with running_server(**TIMES) as server:
        complete(server, prompt="a b", max_tokens=11, ignore_eos=True)
        assert metric(server, "vllm:time_to_first_token_seconds_sum") == pytest.approx(0.1, abs=0.002)
        assert metric(server, "vllm:inter_token_latency_seconds_sum") == pytest.approx(0.1, abs=0.002)
        assert metric(server, "vllm:e2e_request_latency_seconds_sum") == pytest.approx(0.2, abs=0.002)


def test_time_in_the_queue_counts() -> None:
    with running_server(**{**TIMES, "max_num_seqs": 1}) as server:
        complete(server, prompt="a b", n=3, seed=1, max_tokens=1)
        assert metric(server, "vllm:time_to_first_token_seconds_sum") == pytest.approx(0.1 + 0.2 + 0.3, abs=0.005)


def test_the_prefix_cache_shortens_the_first_token() -> None:
    with running_server(latency_calculator="per-token", prefill_time_per_token_ms=1.0) as server:
        for _ in range(2):
            complete(server, prompt=list(range(1, 65)), max_tokens=1)
        assert metric(server, "vllm:prefix_cache_hits_total") == 48
        assert metric(server, "vllm:time_to_first_token_seconds_sum") == pytest.approx(0.064 + 0.016, abs=0.002)


def test_any_model_can_be_served() -> None:
    options = options_from(ServeOptions, model="my/model", latency_calculator="constant")
    assert deployment_of(options).config.max_num_seqs == 1024
    with running_server(**TIMES) as server:
        assert chat(server, max_tokens=3).status == 200


def test_set_times_need_slots() -> None:
    with pytest.raises(Exception, match=r"^--latency-calculator constant needs --engine vllm$"):
        options_from(ServeOptions, model="m", latency_calculator="constant", engine="blis")
