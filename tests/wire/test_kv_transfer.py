"""Prefill in one instance, decode in another."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from blis_sim.options import BlisError, options_from
from mockserve.options.serve import ServeOptions
from tests.wire.plain_http import call, chat, complete, events_of, metric
from tests.wire.serving import TestServer, running_server

CONFIG = json.dumps({"kv_connector": "NixlConnector", "kv_role": "kv_both", "engine_id": "here"})
PREFILL = {"do_remote_decode": True, "do_remote_prefill": False, "remote_engine_id": None, "remote_block_ids": None}
PROMPT = list(range(1, 101))


@pytest.fixture(scope="module")
def both() -> Iterator[TestServer]:
    with running_server(kv_transfer_config=CONFIG, engine="vllm") as server:
        yield server


def handed_over(server: TestServer) -> dict[str, Any]:
    reply = complete(server, prompt=PROMPT, max_tokens=1, kv_transfer_params=PREFILL)
    params: dict[str, Any] = reply.json["kv_transfer_params"]
    return params


def test_a_prefill_names_where_its_blocks_are(both: TestServer) -> None:
    params = handed_over(both)
    assert list(params) == [
        "do_remote_prefill", "do_remote_decode", "remote_block_ids", "remote_engine_id", "remote_request_id",
        "remote_host", "remote_port", "tp_size", "dcp_size", "pp_size", "remote_num_tokens",
        "remote_blocks_expiry_time", "remote_registration_generation", "transfer_mode",
    ]  # fmt: skip
    assert (params["do_remote_prefill"], params["do_remote_decode"]) == (True, False)
    assert params["remote_block_ids"] == [list(range(1, 8))]
    assert (params["remote_engine_id"], params["remote_num_tokens"], params["tp_size"]) == ("here", 100, 1)
    assert params["remote_request_id"].startswith("cmpl-")


def test_the_last_chunk_of_a_stream_has_the_transfer_parameters(both: TestServer) -> None:
    body = chat(both, max_tokens=2, ignore_eos=True, stream=True, kv_transfer_params=PREFILL).body.decode()
    chunks = [json.loads(line.removeprefix("data: ")) for line in body.split("\n\n") if line.startswith("data: {")]
    assert [bool(chunk.get("kv_transfer_params")) for chunk in chunks] == [False] * (len(chunks) - 1) + [True]


def test_a_response_has_the_transfer_parameters_when_it_is_complete(both: TestServer) -> None:
    asked = {"model": "m", "input": "hello there", "max_output_tokens": 1, "kv_transfer_params": PREFILL}
    body = call(both, "POST", "/v1/responses", asked).json
    assert body["kv_transfer_params"]["remote_num_tokens"] == body["usage"]["input_tokens"]
    events = events_of(call(both, "POST", "/v1/responses", {**asked, "stream": True}).body)
    reported = [json.loads(each.split("\ndata: ", 1)[1]) for each in events]
    responses = [each["response"] for each in reported if "response" in each]
    assert [bool(each["kv_transfer_params"]) for each in responses] == [False, False, True]


def test_a_decode_computes_only_the_last_token(both: TestServer) -> None:
    params = handed_over(both)
    with running_server(kv_transfer_config=CONFIG, kv_transfer_latency_ms=50.0) as decoder:
        reply = complete(decoder, prompt=PROMPT, max_tokens=4, ignore_eos=True, kv_transfer_params=params)
        assert reply.json["kv_transfer_params"] is None
        expected = {
            "vllm:prompt_tokens_total": 100,
            "vllm:prompt_tokens_cached_total": 100,
            "vllm:request_prefill_kv_computed_tokens_sum": 0,
            "vllm:external_prefix_cache_queries_total": 100,
            "vllm:external_prefix_cache_hits_total": 100,
            "vllm:prefix_cache_hits_total": 0,
        }
        assert {name: metric(decoder, name) for name in expected} == expected
        assert metric(decoder, "vllm:prompt_tokens_by_source_total", source="external_kv_transfer") == 100
        assert metric(decoder, "vllm:prompt_tokens_cached_by_source_total", source="p2p") == 100
        # 50 ms and what 100 tokens of this model take at the default speed, then one step.
        assert 0.05 < metric(decoder, "vllm:time_to_first_token_seconds_sum") < 0.06
        # By now its blocks can be found here.
        complete(decoder, prompt=PROMPT, max_tokens=1)
        assert metric(decoder, "vllm:prefix_cache_hits_total") == 96
        # A connector is asked for what was not found here, whether or not another instance computed the prompt.
        assert metric(decoder, "vllm:external_prefix_cache_queries_total") == 104
        assert metric(decoder, "vllm:external_prefix_cache_hits_total") == 100


def test_without_a_connector_the_parameters_are_ignored(server: TestServer) -> None:
    reply = complete(server, prompt=PROMPT, max_tokens=1, kv_transfer_params=PREFILL)
    assert reply.json["kv_transfer_params"] is None


def test_set_times_have_one_of_their_own_for_transfers(both: TestServer) -> None:
    params = handed_over(both)
    settings = {"latency_calculator": "constant", "time_to_first_token_ms": 400.0}
    with running_server(
        kv_transfer_config=CONFIG,
        kv_cache_transfer_time_per_token_ms=1.0,
        max_num_seqs=4,
        **settings,  # type: ignore[arg-type]
    ) as server:
        complete(server, prompt=PROMPT, max_tokens=1, kv_transfer_params=params)
        assert metric(server, "vllm:time_to_first_token_seconds_sum") == pytest.approx(0.1, abs=0.01)


@pytest.mark.parametrize(
    ("config", "complaint"),
    [
        ("[]", r"--kv-transfer-config must be a JSON object, got '\[\]'"),
        ("{}", "--kv-transfer-config: kv_connector must name a connector, got None"),
        ('{"kv_connector": "X", "kv_role": "x"}', "--kv-transfer-config: kv_role must be one of kv_producer, "),
    ],
)
def test_configurations_that_vllm_would_refuse_are_refused(config: str, complaint: str) -> None:
    with pytest.raises(BlisError, match=f"^{complaint}"):
        options_from(ServeOptions, model="m", kv_transfer_config=config)


def test_the_parameters_of_a_finished_decode_are_none(both: TestServer) -> None:
    assert call(both, "POST", "/v1/completions", {"prompt": PROMPT, "max_tokens": 2}).json["kv_transfer_params"] is None


def test_the_query_route_maps_ranks_to_engines(both: TestServer) -> None:
    assert call(both, "GET", "/query").json == {
        "0": {"engine_id": "here", "worker_addr": {"0": {"0": "tcp://localhost:5600"}}}
    }


def test_the_query_route_is_unknown_without_kv_transfers() -> None:
    with running_server() as server:
        assert call(server, "GET", "/query").status == 404
