"""A server with speculative decoding: a step's tokens travel in one event, and every token is counted."""

from collections.abc import Iterator

import pytest

from tests.wire.plain_http import call, chat, chunks_of, complete, metric
from tests.wire.serving import TestServer, running_server

SETTINGS = '{"method": "ngram", "num_speculative_tokens": 3}'


@pytest.fixture(scope="module")
def speculating() -> Iterator[TestServer]:
    """Exactly two of three drafts hold in every step."""
    with running_server(speculative_config=SETTINGS, speculative_acceptance_rate=(1.0, 1.0, 0.0)) as server:
        yield server


def test_one_event_carries_the_text_of_all_tokens_of_a_step(speculating: TestServer) -> None:
    fields = {"seed": 7, "max_tokens": 10, "ignore_eos": True}
    whole = complete(speculating, **fields).json
    options = {"include_usage": True, "continuous_usage_stats": True}
    stream = chunks_of(complete(speculating, stream=True, stream_options=options, **fields).body)
    assert "".join(chunk["choices"][0]["text"] for chunk in stream[:-1]) == whole["choices"][0]["text"]
    assert [chunk["usage"]["completion_tokens"] for chunk in stream] == [1, 4, 7, 10, 10]


def test_chat_streams_the_same_way(speculating: TestServer) -> None:
    fields = {"seed": 7, "max_tokens": 9, "ignore_eos": True}
    whole = chat(speculating, **fields).json
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks_of(chat(speculating, stream=True, **fields).body)]
    assert len(deltas) == 1 + 4, "the role, then 1, 3, 3 and 2 tokens"
    assert "".join(delta.get("content", "") for delta in deltas) == whole["choices"][0]["message"]["content"]


def test_the_metrics_page_counts_drafts_as_vllm_does(speculating: TestServer) -> None:
    def figures() -> dict[str, float]:
        names = ("num_drafts", "num_draft_tokens", "num_accepted_tokens")
        found = {name: metric(speculating, f"vllm:spec_decode_{name}_total") for name in names}
        found["generation"] = metric(speculating, "vllm:generation_tokens_total")
        found["gaps"] = metric(speculating, "vllm:inter_token_latency_seconds_count")
        for position in range(3):
            name = "vllm:spec_decode_num_accepted_tokens_per_pos_total"
            found[f"at {position}"] = metric(speculating, name, engine="0", position=str(position))
        return found

    before = figures()
    complete(speculating, max_tokens=10, ignore_eos=True)
    counted = {name: value - before[name] for name, value in figures().items()}
    assert counted == {
        "num_drafts": 3, "num_draft_tokens": 9, "num_accepted_tokens": 6, "generation": 10, "gaps": 3,
        "at 0": 3, "at 1": 3, "at 2": 0,
    }  # fmt: skip


def test_without_speculative_decoding_the_page_does_not_mention_it(server: TestServer) -> None:
    assert b"spec_decode" not in call(server, "GET", "/metrics").body
