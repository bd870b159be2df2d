"""LoRA adapters from the command line to the metrics page."""

from typing import Any

import pytest

from blis_sim.engine.kv_cache.changes import BlocksStored
from blis_sim.engine.request import Request
from blis_sim.options import BlisError, options_from
from mockserve.kv_events.naming import Scope, VllmNaming, root_hash
from mockserve.options.serve import ServeOptions
from mockserve.serving.model import Adapter
from tests.fakes import TestLatency
from tests.wire.plain_http import call, complete, metric, open_request, wait_for_metric
from tests.wire.serving import TestServer, running_server

ADAPTERS: dict[str, Any] = {"enable_lora": True, "lora_modules": ("ad1=adapters/one", "ad2=adapters/two")}
PROMPT = list(range(2000, 2064))


def ask(server: TestServer, model: str, **fields: Any) -> Any:
    return complete(server, **{"model": model, "prompt": PROMPT, "max_tokens": 2, "ignore_eos": True, **fields}).json


def test_a_reply_bears_the_name_of_its_adapter() -> None:
    with running_server(**ADAPTERS) as server:
        assert ask(server, "ad1")["model"] == "ad1"
        cards = call(server, "GET", "/v1/models").json["data"]
        assert [(card["id"], card["root"], card["parent"]) for card in cards[1:]] == [
            ("ad1", "adapters/one", "m"),
            ("ad2", "adapters/two", "m"),
        ]


def test_adapters_share_no_cache() -> None:
    with running_server(**ADAPTERS) as server:
        for model in ("m", "ad1", "ad2"):
            ask(server, model)
        assert metric(server, "vllm:prefix_cache_hits_total") == 0
        ask(server, "ad1")
        assert metric(server, "vllm:prefix_cache_hits_total") == 48


def test_a_request_whose_adapter_finds_no_slot_is_deferred() -> None:
    slow = TestLatency(step_us=60_000_000)
    with running_server(slow, speed=1.0, **ADAPTERS) as server, open_request(server, model="ad1", stream=True):
        wait_for_metric(server, "vllm:num_requests_running", 1)
        with open_request(server, model="ad2", stream=True):
            wait_for_metric(server, "vllm:num_requests_waiting", 1)


def test_the_page_names_adapters_while_they_are_in_use() -> None:
    with running_server(**ADAPTERS) as server:
        ask(server, "ad1")
        ask(server, "ad2")
        page = call(server, "GET", "/metrics").body.decode()
        for names in ("", "ad1", "ad2"):
            labels = f'max_lora="1",running_lora_adapters="{names}",waiting_lora_adapters="{names}"'
            assert f"vllm:lora_requests_info{{{labels}}} 1." in page


def test_a_first_request_waits_for_its_adapter() -> None:
    with running_server(lora_load_ms=200.0, lora_swap_ms=50.0, max_cpu_loras=2, **ADAPTERS) as server:
        waits = []
        for model in ("ad1", "ad1", "ad2", "ad1"):
            before = metric(server, "vllm:time_to_first_token_seconds_sum")
            ask(server, model)
            waits.append(metric(server, "vllm:time_to_first_token_seconds_sum") - before)
        assert waits == pytest.approx([0.25, 0, 0.25, 0.05], abs=0.02)


def test_events_name_the_adapter() -> None:
    msgspec = pytest.importorskip("msgspec")
    from mockserve.kv_events.events import BatchEncoder

    naming = VllmNaming(16, "sha256", root_hash("sha256", None))
    blocks = naming("r", PROMPT, Scope("pepper", Adapter("ad1", "adapters/one", 7, "m")))
    batch = BatchEncoder(16, True).encode([BlocksStored(Request("r", 64, 1, blocks), 0, 2)], 1.0, 0)
    assert batch is not None
    (event,) = msgspec.msgpack.decode(batch)[1]
    assert (event["lora_id"], event["lora_name"]) == (7, "ad1")
    assert event["extra_keys"] == [["ad1", "pepper"], ["ad1"]]


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({"engine": "blis"}, "--enable-lora needs --engine vllm"),
        ({"max_loras": 3, "max_cpu_loras": 2}, "--max-cpu-loras must be at least --max-loras, 3, got 2"),
    ],
)
def test_settings_that_do_not_fit_together_are_refused(settings: dict[str, Any], complaint: str) -> None:
    with pytest.raises(BlisError, match=f"^{complaint}$"):
        options_from(ServeOptions, model="m", enable_lora=True, **settings)
