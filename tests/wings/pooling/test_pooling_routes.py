"""Embeddings, classes, scores and rankings over real sockets."""

import base64
import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from tests.fakes import TestLatency
from tests.wire.plain_http import PlainReply, call
from tests.wire.serving import TestServer, running_server


@pytest.fixture(scope="module")
def embedder() -> Iterator[TestServer]:
    overrides = json.dumps({"hidden_size": 64, "matryoshka_dimensions": [16, 32]})
    with running_server(runner="pooling", hf_overrides=overrides, max_model_len=512) as running:
        yield running


@pytest.fixture(scope="module")
def classifier() -> Iterator[TestServer]:
    overrides = json.dumps({"id2label": {"0": "calm", "1": "cross"}})
    with running_server(convert="classify", hf_overrides=overrides) as running:
        yield running


@pytest.fixture(scope="module")
def reranker() -> Iterator[TestServer]:
    with running_server(convert="classify") as running:
        yield running


def embed(server: TestServer, given: Any, **fields: Any) -> PlainReply:
    return call(server, "POST", "/v1/embeddings", {"model": "m", "input": given, **fields})


def first_vector(reply: PlainReply) -> list[float]:
    vector: list[float] = reply.json["data"][0]["embedding"]
    return vector


@pytest.mark.parametrize("path", ["/v1/embeddings", "/pooling", "/classify", "/score", "/rerank", "/v2/embed"])
def test_a_generating_model_has_no_pooling_routes(server: TestServer, path: str) -> None:
    assert call(server, "POST", path, {}).status == 404


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions", "/is_scaling_elastic_ep"])
def test_a_pooling_model_has_no_generating_routes(embedder: TestServer, path: str) -> None:
    assert call(embedder, "POST", path, {}).status == 404


def test_vectors_have_the_models_size_and_length_1(embedder: TestServer) -> None:
    vector = first_vector(embed(embedder, "hello there"))
    assert len(vector) == 64
    assert float(np.linalg.norm(vector)) == pytest.approx(1, abs=1e-5)


def test_text_and_its_token_ids_have_the_same_vector(embedder: TestServer) -> None:
    ids = call(embedder, "POST", "/tokenize", {"prompt": "hello there"}).json["tokens"]
    assert first_vector(embed(embedder, "hello there")) == first_vector(embed(embedder, [ids]))


def test_shorter_vectors_are_the_scaled_beginning_of_the_whole_one(embedder: TestServer) -> None:
    whole = np.array(first_vector(embed(embedder, "hello there you")))
    short = np.array(first_vector(embed(embedder, "hello there you", dimensions=16)))
    assert short == pytest.approx(whole[:16] / np.linalg.norm(whole[:16]), abs=1e-5)
    assert "only supports Matryoshka dimensions [16, 32]" in embed(embedder, "x", dimensions=8).json["error"]["message"]


def test_bytes_carry_the_vectors_and_a_header_has_their_places(embedder: TestServer) -> None:
    reply = embed(embedder, ["a", "b"], encoding_format="bytes", embed_dtype="float16")
    places = json.loads(reply.headers["metadata"])["data"]
    assert [(each["start"], each["end"]) for each in places] == [(0, 128), (128, 256)]
    assert np.frombuffer(reply.body, np.float16).shape == (128,)
    assert "metadata" not in embed(embedder, "a", encoding_format="bytes_only").headers


def test_base64_is_the_same_vector(embedder: TestServer) -> None:
    packed = base64.b64decode(str(embed(embedder, "a", encoding_format="base64").json["data"][0]["embedding"]))
    assert np.frombuffer(packed, np.float32).tolist() == pytest.approx(first_vector(embed(embedder, "a")))


def test_a_prompt_may_fill_the_context_and_no_more(embedder: TestServer) -> None:
    assert embed(embedder, [1] * 512).json["usage"]["prompt_tokens"] == 512
    assert embed(embedder, [1] * 513).json["error"]["param"] == "input_tokens"
    assert embed(embedder, "this " * 1000, truncate_prompt_tokens=-1).json["usage"]["prompt_tokens"] == 512


@pytest.mark.parametrize(("side", "kept"), [("left", [3, 4]), ("right", [1, 2])])
def test_truncation_keeps_the_side_that_was_not_named(embedder: TestServer, side: str, kept: list[int]) -> None:
    cut = embed(embedder, [1, 2, 3, 4], truncate_prompt_tokens=2, truncation_side=side)
    assert first_vector(cut) == first_vector(embed(embedder, kept))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ([], "You must pass at least one prompt"),
        ([[]], "The decoder prompt cannot be empty"),
        ([10**9], "Token id 1000000000 is out of vocabulary"),
    ],
)
def test_invalid_pooling_prompts_are_refused(embedder: TestServer, given: Any, message: str) -> None:
    assert embed(embedder, given).json["error"]["message"] == message


def test_time_is_that_of_prefill_alone() -> None:
    with running_server(TestLatency(step_us=1_000_000), runner="pooling") as server:
        call(server, "POST", "/v1/embeddings", {"input": "hello"})
        assert len(server.service.engines[0].driver.engine.steps) == 1


def test_classes_have_names_and_probabilities(classifier: TestServer) -> None:
    found = call(classifier, "POST", "/classify", {"input": ["a", "b"]}).json["data"]
    assert len(found) == 2
    for each in found:
        assert each["num_classes"] == 2
        assert each["label"] == ("calm", "cross")[int(np.argmax(each["probs"]))]
        assert sum(each["probs"]) == pytest.approx(1, abs=1e-5)


def test_a_model_with_several_classes_does_not_score(classifier: TestServer) -> None:
    assert call(classifier, "POST", "/score", {"text_1": "a", "text_2": "b"}).status == 404


@pytest.mark.parametrize("kind", ["embedder", "reranker"])
def test_documents_like_the_query_rank_first(request: pytest.FixtureRequest, kind: str) -> None:
    server: TestServer = request.getfixturevalue(kind)
    documents = ["snow on far hills", "how much is the fish", "price of a ticket"]
    ask = {"query": "how much is the ticket", "documents": documents}
    results = call(server, "POST", "/v1/rerank", ask).json["results"]
    assert results[0]["index"] == 1
    scores = [each["relevance_score"] for each in results]
    assert scores == sorted(scores, reverse=True)
    best = call(server, "POST", "/v2/rerank", {**ask, "top_n": 1}).json["results"]
    assert best == results[:1]


def test_scores_are_those_of_the_pairs(embedder: TestServer) -> None:
    pairs = {"text_1": ["a b", "c d"], "text_2": ["a b", "x y"]}
    first, second = (each["score"] for each in call(embedder, "POST", "/score", pairs).json["data"])
    assert first == pytest.approx(1, abs=1e-5)
    assert second < 0.9
    refused = call(embedder, "POST", "/score", {"text_1": ["a", "b"], "text_2": ["c"]})
    assert refused.json["error"]["message"] == "Input lengths must be either 1:1, 1:N or N:N"


def test_token_vectors_have_a_row_for_each_token() -> None:
    with running_server(task=("token_embed",), hf_overrides='{"hidden_size": 8}') as server:
        found = call(server, "POST", "/pooling", {"input": [5, 6, 7]}).json["data"][0]["data"]
        assert [len(row) for row in found] == [8, 8, 8]
        item = call(server, "POST", "/v1/embeddings", {"input": [5, 6, 7]}).json["data"][0]
        assert (item["object"], item["embedding"]) == ("embedding", found)
        asked = {
            "input": "a",
            "dimensions": 3,
            "encoding_format": "base64",
            "late_chunking_params": {"chunk_size": 1, "x": 2},
        }
        complaints = call(server, "POST", "/v1/embeddings", asked).json["error"]["message"]
        assert [each in complaints for each in ("'literal_error'", "'none_required'", "'extra_forbidden'")] == [
            True
        ] * 3


def test_cohere_vectors_have_the_requested_types(embedder: TestServer) -> None:
    ask = {"texts": ["a b"], "embedding_types": ["float", "binary", "ubinary"]}
    found = call(embedder, "POST", "/v2/embed", ask).json["embeddings"]
    signs = np.unpackbits(np.array(found["ubinary"][0], np.uint8)).astype(bool).tolist()
    assert signs == [value >= 0 for value in found["float"][0]]
    assert [each + 128 for each in found["binary"][0]] == found["ubinary"][0]


def test_an_unknown_model_is_refused_with_the_message_of_pooling_routes(embedder: TestServer) -> None:
    error = embed(embedder, "x", model="zz").json["error"]
    assert (error["message"], error["param"], error["code"]) == ("The model `zz` does not exist.", None, 404)


@pytest.mark.parametrize("messages", [[], ["a"], [{}], 5])
def test_an_input_counts_when_the_messages_are_none(embedder: TestServer, messages: Any) -> None:
    assert first_vector(embed(embedder, "hello", messages=messages)) == first_vector(embed(embedder, "hello"))


@pytest.mark.parametrize(
    "content", [5, [5], [{"type": "hologram"}], [{"type": "image_url", "image_url": {"url": "http://a.example/a.png"}}]]
)
def test_a_conversation_to_embed_has_only_readable_content(embedder: TestServer, content: Any) -> None:
    messages = [{"role": "user", "content": content}]
    assert call(embedder, "POST", "/v1/embeddings", {"messages": messages}).status == 400
