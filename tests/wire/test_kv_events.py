"""KV-cache events as an indexer receives them."""

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from blis_sim.options import options_from
from mockserve.options.serve import ServeOptions
from tests.patience import PATIENCE_S
from tests.ports import reserved_port
from tests.wire.plain_http import call, complete
from tests.wire.serving import TestServer, running_server

zmq = pytest.importorskip("zmq")
msgspec = pytest.importorskip("msgspec")

FULL_REPORT = {"kv_cache_report_mode": "full"}
PROMPT = list(range(2000, 2048))
END = (-1).to_bytes(8, "big", signed=True)


class Indexer:
    """Asks a server for its events, and subscribes to those to come."""

    def __init__(self, events: int, replay: int) -> None:
        self._context = zmq.Context()
        self._sub = self._context.socket(zmq.SUB)
        self._sub.setsockopt(zmq.SUBSCRIBE, b"kv")
        self._sub.RCVTIMEO = 100
        self._dealer = self._context.socket(zmq.DEALER)
        self._dealer.RCVTIMEO = round(1000 * PATIENCE_S)
        for each in (self._sub, self._dealer):
            each.LINGER = 0
        self._sub.connect(f"tcp://127.0.0.1:{events}")
        self._dealer.connect(f"tcp://127.0.0.1:{replay}")

    def receive(self) -> list[bytes] | None:
        """The frames of the next message, if one comes soon."""
        try:
            frames: list[bytes] = self._sub.recv_multipart()
        except zmq.Again:
            return None
        return frames

    def replay(self, first: int = 0) -> list[list[bytes]]:
        """Return the batches that the server sends again from batch `first` on, the end included."""
        self._dealer.send_multipart([b"", first.to_bytes(8, "big")])
        answers = [self._dealer.recv_multipart()]
        while answers[-1][2] != END:
            answers.append(self._dealer.recv_multipart())
        return answers

    def batches(self) -> list[Any]:
        """All batches so far."""
        return [msgspec.msgpack.decode(each[3]) for each in self.replay()[:-1]]

    def events(self) -> list[list[dict[str, Any]]]:
        """The events of each batch so far."""
        return [events for _, events, _ in self.batches()]

    def close(self) -> None:
        self._sub.close()
        self._dealer.close()
        self._context.term()


@contextmanager
def publishing(**settings: Any) -> Iterator[tuple[TestServer, Indexer]]:
    with reserved_port() as events, reserved_port() as replay:
        config = {
            "enable_kv_cache_events": True,
            "endpoint": f"tcp://*:{events}",
            "replay_endpoint": f"tcp://*:{replay}",
            "topic": "kv",
        }
        with running_server(kv_events_config=json.dumps(config), **settings) as server:
            indexer = Indexer(events, replay)
            try:
                yield server, indexer
            finally:
                indexer.close()


def stored(tokens: list[int], hashes: list[int], parent: int | None, salt: str | None = None) -> dict[str, Any]:
    return {
        "type": "BlockStored",
        "block_hashes": hashes,
        "parent_block_hash": parent,
        "token_ids": tokens,
        "block_size": 16,
        "lora_id": None,
        "medium": "GPU",
        "lora_name": None,
        "extra_keys": [[salt] if salt and not index and parent is None else None for index in range(len(hashes))],
        "group_idx": 0,
        "kv_cache_spec_kind": "full_attention",
    }


def test_subscribers_get_every_batch() -> None:
    with publishing() as (server, indexer):
        heard = None
        for start in range(0, 5000, 16):  # a subscription takes a moment to arrive
            complete(server, prompt=list(range(start, start + 16)), max_tokens=1)
            heard = indexer.receive()
            if heard is not None:
                break
        assert heard is not None
        topic, number, batch = heard
        assert topic == b"kv"
        assert indexer.replay(int.from_bytes(number, "big"))[0] == [b"", topic, number, batch]


def test_a_prompt_is_stored_when_it_is_scheduled_and_an_answer_block_by_block() -> None:
    with publishing() as (server, indexer):
        complete(server, prompt=PROMPT, max_tokens=40, ignore_eos=True)
        first, second, third = indexer.batches()
        hashes = [14861522777702955888, 10186821764735471867, 1693549148520061288]
        assert first[0] > 1.7e9
        assert first[1:] == [[stored(PROMPT, hashes, None)], 0]
        last = hashes[-1]
        for _, (event,), _ in (second, third):
            assert event["parent_block_hash"] == last
            assert len(event["token_ids"]) == 16
            (last,) = event["block_hashes"]


def test_a_salt_is_published_with_the_first_block() -> None:
    with publishing() as (server, indexer):
        complete(server, prompt=PROMPT, max_tokens=1, cache_salt="pepper")
        hashes = [2913099910042579508, 12326628870204010927, 13738406578299225915]
        assert indexer.events() == [[stored(PROMPT, hashes, None, "pepper")]]


def test_blocks_found_in_the_cache_are_not_stored_again() -> None:
    with publishing() as (server, indexer):
        complete(server, prompt=PROMPT, max_tokens=1)
        complete(server, prompt=[*PROMPT, *range(100, 116)], max_tokens=1)
        (first,), (second,) = indexer.events()
        assert second["parent_block_hash"] == first["block_hashes"][-1]
        assert second["token_ids"] == list(range(100, 116))


def test_blocks_found_in_the_cache_are_published_with_full_reports() -> None:
    with publishing() as (server, indexer):
        complete(server, prompt=PROMPT, max_tokens=1)
        complete(server, prompt=[*PROMPT[:32], *range(100, 116)], max_tokens=1, vllm_xargs=FULL_REPORT)
        (first,), found_and_stored = indexer.events()
        found, new = found_and_stored
        assert found == stored(PROMPT[:32], first["block_hashes"][:2], None)
        assert (new["parent_block_hash"], new["token_ids"]) == (first["block_hashes"][1], list(range(100, 116)))


def test_blocks_that_are_overwritten_are_removed_one_by_one() -> None:
    with publishing(total_kv_blocks=6, max_model_len=80) as (server, indexer):
        complete(server, prompt=PROMPT, max_tokens=1)
        complete(server, prompt=list(range(100, 164)), max_tokens=1)
        (known,), batch = indexer.events()
        # Two of the five blocks never held anything; of the first prompt's three the last goes first.
        assert batch[:-1] == [
            {"type": "BlockRemoved", "block_hashes": [each], "medium": "GPU", "group_idx": 0}
            for each in reversed(known["block_hashes"][1:])
        ]
        assert batch[-1]["type"] == "BlockStored"


def test_missed_batches_are_sent_again() -> None:
    with publishing() as (server, indexer):
        for start in (100, 200, 300):
            complete(server, prompt=list(range(start, start + 16)), max_tokens=1)
        answers = indexer.replay(1)
        assert [each[:2] for each in answers] == [[b"", b"kv"], [b"", b"kv"], [b"", b""]]
        assert [int.from_bytes(each[2], "big", signed=True) for each in answers] == [1, 2, -1]
        assert msgspec.msgpack.decode(answers[0][3])[1][0]["token_ids"] == list(range(200, 216))
        assert indexer.replay(7)[0][2] == END


def test_whole_digests_can_be_had_instead_of_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_KV_EVENTS_USE_INT_BLOCK_HASHES", "0")
    with publishing() as (server, indexer):
        complete(server, prompt=PROMPT[:16], max_tokens=1)
        ((event,),) = indexer.events()
        assert len(event["block_hashes"][0]) == 32
        assert int.from_bytes(event["block_hashes"][0][-8:], "big") == 14861522777702955888


@pytest.mark.parametrize(
    ("config", "complaint"),
    [
        ("[]", "--kv-events-config must be a JSON object, got '[]'"),
        ('{"topics": ""}', "--kv-events-config: unknown field 'topics', known are enable_kv_cache_events"),
        ('{"hwm": "1"}', "--kv-events-config: hwm has a value of the wrong type: '1'"),
        ('{"publisher": "nats"}', "--kv-events-config: publisher must be zmq or null, got 'nats'"),
    ],
)
def test_a_configuration_that_vllm_would_refuse_is_refused(config: str, complaint: str) -> None:
    with pytest.raises(Exception, match="^" + complaint.replace("[", r"\[").replace("]", r"\]")):
        options_from(ServeOptions, model="m", kv_events_config=config)


def test_too_many_requests_are_refused_and_counted() -> None:
    with running_server(max_num_queued_reqs=2) as server:
        reply = complete(server, prompt="a b", n=3, seed=1)
        assert reply.status == 503
        assert reply.json["error"] == {
            "message": "The engine is currently busy and cannot accept new requests. "
            "Please try again later or on a different instance.",
            "type": "Service Unavailable",
            "param": None,
            "code": 503,
        }
        assert complete(server, prompt="a b", n=2, seed=1, max_tokens=2).status == 200
        page = call(server, "GET", "/metrics").body.decode()
        assert 'vllm:admission_rejections_total{model_name="m",reason="max_num_queued_reqs"} 1.0' in page


def test_each_group_of_layers_has_events_of_its_own() -> None:
    """gpt-oss-20b has layers with a window of 128 tokens, of which the last blocks of a prompt alone are kept."""
    prompt = list(range(2000, 2000 + 20 * 16))
    with publishing(model="openai/gpt-oss-20b", hardware="H100") as (server, indexer):
        complete(server, prompt=prompt, max_tokens=1)
        (events,) = indexer.events()
        by_kind = {event["kv_cache_spec_kind"]: event for event in events}
        assert by_kind.keys() == {"full_attention", "sliding_window"}
        whole, window = by_kind["full_attention"], by_kind["sliding_window"]
        assert "kv_cache_spec_sliding_window" not in whole
        assert window["kv_cache_spec_sliding_window"] == 128
        assert sorted((whole["group_idx"], window["group_idx"])) == [0, 1]
        assert len(whole["block_hashes"]) == 20
        assert window["block_hashes"] == whole["block_hashes"][-len(window["block_hashes"]) - 1 : -1]
        assert window["token_ids"] == whole["token_ids"] == prompt


def test_latent_attention_is_named() -> None:
    with publishing(model="deepseek-ai/deepseek-v3", hardware="H200", tp=8) as (server, indexer):
        complete(server, prompt=PROMPT, max_tokens=1)
        ((event,),) = indexer.events()
        assert event["kv_cache_spec_kind"] == "mla_attention"


def test_a_device_behind_cpu_memory_names_the_blocks_that_came_to_it_and_its_locality() -> None:
    tiers = [
        {
            "type": "fs",
            "root_dir": "/nowhere",
            "device_class": "cpu_dram",
            "enable_kv_events": True,
            "locality": "LOCAL",
        },
        {"type": "fs", "root_dir": "/nowhere", "device_class": "cpu_dram"},
    ]
    transfer = {
        "kv_connector": "OffloadingConnector",
        "kv_role": "kv_both",
        "kv_connector_extra_config": {
            "spec_name": "TieringOffloadingSpec",
            "cpu_bytes_to_use": 2**30,
            "secondary_tiers": tiers,
        },
    }
    with publishing(kv_transfer_config=json.dumps(transfer)) as (server, indexer):
        complete(server, prompt=PROMPT, max_tokens=2, ignore_eos=True)
        found: list[dict[str, Any]] = []
        come: list[dict[str, Any]] = []
        deadline = time.monotonic() + PATIENCE_S
        while len(come) < len(PROMPT) // 16 and time.monotonic() < deadline:
            found = [event for events in indexer.events() for event in events]
            come = [event for event in found if event["medium"] == "STORAGE"]
    hashes = found[0]["block_hashes"]
    assert [event["block_hashes"] for event in come] == [[each] for each in hashes]
    assert come[0] == {
        "type": "BlockStored",
        "block_hashes": hashes[:1],
        "parent_block_hash": None,
        "token_ids": [],
        "block_size": 0,
        "lora_id": None,
        "medium": "STORAGE",
        "lora_name": None,
        "group_idx": 0,
        "locality": "LOCAL",
    }
