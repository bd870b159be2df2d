"""Routes for operators: pausing, sleeping, caches, adapters, tokens; and the conditions of these routes."""

import threading
from collections.abc import Iterator
from http.client import IncompleteRead
from typing import Any

import pytest

from tests.patience import PATIENCE_S, wait_until
from tests.wire.plain_http import PlainReply, call, chat, chunks_of, complete
from tests.wire.serving import TestServer, running_server


@pytest.fixture(scope="module")
def dev_server() -> Iterator[TestServer]:
    """A server in development mode that takes adapters at any time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VLLM_SERVER_DEV_MODE", "1")
        patch.setenv("VLLM_ALLOW_RUNTIME_LORA_UPDATING", "1")
        with running_server(enable_lora=True, lora_modules=("fixed=/weights/fixed",), speed=2.0) as running:
            yield running


class Background:
    """One request that is answered while the test goes on."""

    def __init__(self, server: TestServer, **fields: Any) -> None:
        self._replies: list[PlainReply] = []
        self._thread = threading.Thread(target=lambda: self._replies.append(complete(server, **fields)))
        before = set(server.service.delivery.driver.request_ids)
        self._thread.start()
        wait_until(lambda: set(server.service.delivery.driver.request_ids) - before)

    def reply(self) -> PlainReply:
        self._thread.join(PATIENCE_S)
        return self._replies[0]

    @property
    def is_answered(self) -> bool:
        return bool(self._replies)


def post(server: TestServer, path: str, body: Any = None) -> PlainReply:
    return call(server, "POST", path, body)


LONG = {"max_tokens": 1900, "ignore_eos": True}


@pytest.mark.parametrize(
    "path", ["/pause", "/resume", "/sleep", "/wake_up", "/reset_prefix_cache", "/abort_requests", "/collective_rpc"]
)
def test_without_development_mode_its_routes_are_unknown(server: TestServer, path: str) -> None:
    assert post(server, path).json == {"detail": "Not Found"}


def test_a_pause_ends_what_is_under_way_and_refuses_what_comes(dev_server: TestServer) -> None:
    running = Background(dev_server, **LONG)
    assert post(dev_server, "/pause").json == {"status": "paused"}
    choice = running.reply().json["choices"][0]
    assert choice["finish_reason"] == "abort"
    refused = chat(dev_server)
    assert (refused.status, refused.json["error"]["type"]) == (503, "ServiceUnavailableError")
    streamed = chat(dev_server, stream=True)
    assert (streamed.status, chunks_of(streamed.body)[0]["error"]["code"]) == (200, 503)
    post(dev_server, "/resume")
    assert chat(dev_server, max_tokens=3).status == 200


def test_a_pause_breaks_a_new_stream_of_a_response_off_after_its_opening(dev_server: TestServer) -> None:
    body = {"model": "m", "input": "hello there", "max_output_tokens": 3, "stream": True}
    post(dev_server, "/pause")
    try:
        with pytest.raises(IncompleteRead) as broken_off:
            post(dev_server, "/v1/responses", body)
    finally:
        post(dev_server, "/resume")
    names = [each.partition(b"\n")[0] for each in broken_off.value.partial.strip().split(b"\n\n")]
    assert names == [b"event: response.created", b"event: response.in_progress"]
    assert b"response.incomplete" in post(dev_server, "/v1/responses", body).body


def test_a_pause_may_wait_for_what_is_under_way(dev_server: TestServer) -> None:
    running = Background(dev_server, **LONG)
    post(dev_server, "/pause?mode=wait")
    assert dev_server.service.delivery.driver.num_unfinished_requests == 0
    assert running.reply().json["usage"]["completion_tokens"] == 1900
    post(dev_server, "/resume")


def test_a_pause_may_keep_what_is_under_way(dev_server: TestServer) -> None:
    running = Background(dev_server, **LONG)
    post(dev_server, "/pause?mode=keep")
    assert call(dev_server, "GET", "/is_paused").json == {"is_paused": True}
    steps = len(dev_server.service.engines[0].driver.engine.steps)
    queued = Background(dev_server, max_tokens=3)
    assert len(dev_server.service.engines[0].driver.engine.steps) == steps
    assert not running.is_answered
    assert not queued.is_answered
    post(dev_server, "/resume")
    assert running.reply().json["usage"]["completion_tokens"] == 1900
    assert queued.reply().status == 200


def test_a_sleeping_server_answers_when_it_is_fully_awake(dev_server: TestServer) -> None:
    assert post(dev_server, "/sleep?level=2").json == {"status": "sleeping", "level": 2}
    queued = Background(dev_server, max_tokens=3)
    assert post(dev_server, "/wake_up?tags=weights").json == {"status": "sleeping", "tags": ["weights"]}
    assert call(dev_server, "GET", "/is_sleeping").json == {"is_sleeping": True}
    assert not queued.is_answered
    assert post(dev_server, "/wake_up?tags=kv_cache").json == {"status": "awake", "tags": ["kv_cache"]}
    assert queued.reply().status == 200


def test_a_reset_prefix_cache_is_empty(dev_server: TestServer) -> None:
    prompt = list(range(1000, 1064))
    complete(dev_server, prompt=prompt, max_tokens=1)
    stats = dev_server.service.delivery.driver.engine.stats
    complete(dev_server, prompt=prompt, max_tokens=1)
    hits = dev_server.service.delivery.driver.engine.stats.prefix_hit_tokens
    assert hits > stats.prefix_hit_tokens
    assert post(dev_server, "/reset_prefix_cache").json == {"success": True}
    complete(dev_server, prompt=prompt, max_tokens=1)
    assert dev_server.service.delivery.driver.engine.stats.prefix_hit_tokens == hits


def test_the_logged_hit_rate_begins_anew_with_a_reset_and_counters_do_not(dev_server: TestServer) -> None:
    (engine,) = dev_server.service.engines.values()
    complete(dev_server, prompt=list(range(2000, 2064)), max_tokens=1)
    assert engine.metrics.recent_hit_rate.percent is not None
    queries = engine.metrics.prefix_cache_queries
    assert post(dev_server, "/reset_prefix_cache").json == {"success": True}
    assert engine.metrics.recent_hit_rate.percent is None
    assert engine.metrics.prefix_cache_queries == queries


def test_a_prefix_cache_in_use_is_reset_only_by_preempting(dev_server: TestServer) -> None:
    running = Background(dev_server, **LONG)
    (engine,) = dev_server.service.engines.values()
    assert post(dev_server, "/reset_prefix_cache").json == {"success": False}
    assert engine.metrics.recent_hit_rate.percent is not None
    assert post(dev_server, "/reset_prefix_cache?reset_running_requests=true").json == {"success": True}
    assert running.reply().json["usage"]["completion_tokens"] == 1900


def test_requests_can_be_aborted_by_name(dev_server: TestServer) -> None:
    kept = Background(dev_server, request_id="kept", **LONG)
    ended = Background(dev_server, request_id="ended", **LONG)
    assert post(dev_server, "/abort_requests", {"request_ids": ["cmpl-ended"]}).json["aborted"] == 1
    assert ended.reply().json["choices"][0]["finish_reason"] == "abort"
    assert kept.reply().json["choices"][0]["finish_reason"] == "length"


def test_names_of_requests_are_hashed_while_requests_run(dev_server: TestServer) -> None:
    running = Background(dev_server, request_id="running", **LONG)
    refused = post(dev_server, "/abort_requests", {"request_ids": [["running"]]})
    assert (refused.status, refused.json) == (500, {"error": "Failed to abort requests: unhashable type: 'list'"})
    running.reply()
    assert post(dev_server, "/abort_requests", {"request_ids": [["running"]]}).json["aborted"] == 1


def test_an_adapter_is_served_under_its_own_name_until_it_is_unloaded(dev_server: TestServer) -> None:
    post(dev_server, "/v1/load_lora_adapter", {"lora_name": "tuned", "lora_path": "/weights/tuned"})
    cards = {each["id"]: each for each in call(dev_server, "GET", "/v1/models").json["data"]}
    assert (cards["tuned"]["root"], cards["tuned"]["parent"]) == ("/weights/tuned", "m")
    assert cards["fixed"]["root"] == "/weights/fixed"
    assert chat(dev_server, model="tuned", max_tokens=1).json["model"] == "tuned"
    post(dev_server, "/v1/unload_lora_adapter", {"lora_name": "tuned"})
    assert chat(dev_server, model="tuned").status == 404


def test_adapters_do_not_share_cached_prefixes_with_their_base_model(dev_server: TestServer) -> None:
    prompt = list(range(2000, 2064))
    complete(dev_server, prompt=prompt, max_tokens=1)
    hits = dev_server.service.delivery.driver.engine.stats.prefix_hit_tokens
    complete(dev_server, model="fixed", prompt=prompt, max_tokens=1)
    assert dev_server.service.delivery.driver.engine.stats.prefix_hit_tokens == hits
    complete(dev_server, model="fixed", prompt=prompt, max_tokens=1)
    assert dev_server.service.delivery.driver.engine.stats.prefix_hit_tokens > hits


def test_a_server_without_adapters_refuses_to_load_one() -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VLLM_ALLOW_RUNTIME_LORA_UPDATING", "1")
        with running_server() as server:
            reply = post(server, "/v1/load_lora_adapter", {"lora_name": "a", "lora_path": "b"})
    assert reply.status == 500
    assert "--enable-lora" in reply.json["error"]["message"]


def test_tokenizing_and_back_gives_the_text(server: TestServer) -> None:
    found = post(server, "/tokenize", {"prompt": "hello there, you", "return_token_strs": True}).json
    assert found["count"] == len(found["tokens"]) == len(found["token_strs"])
    assert post(server, "/detokenize", {"tokens": found["tokens"]}).json == {"prompt": "hello there, you"}


def test_a_conversation_has_as_many_tokens_as_its_usage(server: TestServer) -> None:
    messages = [{"role": "user", "content": "hello there"}]
    count = post(server, "/tokenize", {"messages": messages}).json["count"]
    assert chat(server, max_tokens=1).json["usage"]["prompt_tokens"] == count


@pytest.mark.parametrize(
    ("path", "body", "message"),
    [
        ("/tokenize", {"prompt": ["a"]}, "2 validation errors"),
        ("/tokenize", {"messages": [], "tools": [{}]}, "body.tools.0.function"),
        ("/detokenize", {"tokens": [-1]}, "greater than or equal to 0"),
        ("/detokenize", {"tokens": "x"}, "Input should be a valid list"),
        ("/scale_elastic_ep", {"new_data_parallel_size": 0}, "must be a positive integer"),
    ],
)
def test_bad_bodies_are_refused_by_name(server: TestServer, path: str, body: Any, message: str) -> None:
    reply = post(server, path, body)
    assert reply.status == 400
    assert message in reply.json["error"]["message"]


def test_elastic_scaling_accepts_only_the_present_number_of_engines(server: TestServer) -> None:
    assert post(server, "/scale_elastic_ep", {"new_data_parallel_size": 1}).status == 200
    assert post(server, "/scale_elastic_ep", {"new_data_parallel_size": 4}).status == 500
    assert post(server, "/is_scaling_elastic_ep").json["is_scaling_elastic_ep"] is False


def test_weights_have_the_version_they_were_given(dev_server: TestServer) -> None:
    post(dev_server, "/update_weight_version", {"new_version": "step-7"})
    assert call(dev_server, "GET", "/weight_info").json == {"weight_version": "step-7"}


def test_server_info_names_the_model_in_both_formats(dev_server: TestServer) -> None:
    assert "served_model_name=m" in call(dev_server, "GET", "/server_info").json["vllm_config"]
    found = call(dev_server, "GET", "/server_info?config_format=json").json
    assert found["vllm_config"]["model_config"]["served_model_name"] == "m"
    assert found["vllm_env"]["VLLM_SERVER_DEV_MODE"] == "1"


def test_all_ranks_pause_end_early_and_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_SERVER_DEV_MODE", "1")
    with running_server(dp=2, speed=0.1) as ranks:  # so that none ends before all are under way
        under_way = [Background(ranks, **LONG) for _ in range(4)]
        post(ranks, "/pause?mode=keep")
        assert all(rank.driver.engine.next_event_at() is None for rank in ranks.service.engines.values())
        assert not any(each.is_answered for each in under_way)
        post(ranks, "/resume")
        assert post(ranks, "/abort_requests", {}).json == {"status": "aborted", "aborted": 4}
        reasons = {each.reply().json["choices"][0]["finish_reason"] for each in under_way}
        assert reasons == {"abort"}
        wait_until(lambda: not ranks.service.delivery.driver.num_unfinished_requests)
        assert complete(ranks, max_tokens=2).status == 200
