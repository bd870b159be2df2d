"""Streams of text that is known beforehand send vLLM's events, one for each token, and choices in vLLM's order."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.wire.plain_http import call, chunks_of, metric
from tests.wire.serving import TestServer, running_server

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"


@pytest.fixture(scope="module")
def echoing() -> Iterator[TestServer]:
    with running_server(mode="echo") as running:
        yield running


def asked(text: str) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": text}]}


def streamed(server: TestServer, path: str, **fields: Any) -> list[Any]:
    """The choice of each event of a stream."""
    found = call(server, "POST", path, {"stream": True, **fields})
    assert found.status == 200, found.body
    return [choice for chunk in chunks_of(found.body) for choice in chunk["choices"]]


def contents(server: TestServer, **fields: Any) -> list[Any]:
    """The content of each event after the one with the role; a missing content is None."""
    return [each["delta"].get("content") for each in streamed(server, CHAT, **fields)[1:]]


def test_the_end_marker_brings_an_empty_text(echoing: TestServer) -> None:
    assert contents(echoing, **asked("Hi there")) == ["Hi", " there", ""]


def test_text_held_back_for_a_stop_brings_an_empty_text(echoing: TestServer) -> None:
    found = contents(echoing, **asked("The capital of France is Paris. So."), stop=["Paris."])
    assert found == ["", "The ca", "pit", "al of F", "ran", "ce is ", ""]
    assert contents(echoing, **asked("a b c d e"), stop=["d e"])[:3] == ["", "a", " b"]


@pytest.mark.parametrize(
    "fields",
    [
        {"structured_outputs": {"choice": ["yes"]}},
        {"structured_outputs": {"regex": "yes"}},
        {"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": {"const": True}}}},
    ],
)
def test_a_constrained_answer_ends_with_an_empty_text(server: TestServer, fields: dict[str, Any]) -> None:
    found = streamed(server, CHAT, **asked("Well?"), **fields)
    assert "".join(each["delta"]["content"] for each in found) in ("yes", "true")
    assert (found[-1]["delta"], found[-1]["finish_reason"]) == ({"content": ""}, "stop")


def test_with_a_parser_the_end_marker_brings_nothing() -> None:
    with running_server(mode="echo", enable_auto_tool_choice=True, tool_call_parser="hermes") as parsing:
        assert contents(parsing, **asked("Hi there")) == ["Hi", " there", None]


def steps_of(server: TestServer) -> float:
    return metric(server, "vllm:iteration_tokens_total_count")


def test_the_first_of_several_choices_starts_a_step_before_the_others(server: TestServer) -> None:
    before = steps_of(server)
    found = streamed(server, CHAT, **asked("Hi"), max_tokens=4, ignore_eos=True, n=2)
    assert [each["index"] for each in found if "role" in each["delta"]] == [0, 1]
    events = [(each["index"], each["finish_reason"]) for each in found if "role" not in each["delta"]]
    middle = [(0, None), (1, None)] * 2
    assert events == [(0, None), *middle, (0, "length"), (1, None), (1, "length")]
    assert steps_of(server) - before == 5


@pytest.mark.parametrize("stream", [False, True])
def test_the_first_of_several_prompts_starts_a_step_before_the_others(server: TestServer, stream: bool) -> None:
    before = steps_of(server)
    prompts = ["a", "a longer prompt than the first one", "b"]
    body = {"prompt": prompts, "max_tokens": 3, "ignore_eos": True, "stream": stream}
    assert call(server, "POST", COMPLETIONS, body).status == 200
    assert steps_of(server) - before == 4


def test_one_choice_takes_a_step_for_each_token(server: TestServer) -> None:
    before = steps_of(server)
    assert len(streamed(server, COMPLETIONS, prompt="a", max_tokens=3, ignore_eos=True)) == 3
    assert steps_of(server) - before == 3
