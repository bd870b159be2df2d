"""Profiles of genai-perf: bodies that were sent, inputs of Triton, and replies in any of their forms."""

import json
from pathlib import Path
from typing import Any

import pytest

from blis_sim.options import BlisError
from tests.traces.importers.test_formats import imported, left_out
from tests.wings.trace_formats.test_recordings import genai_request
from traces import TraceRow
from traces.importers.registry import Imported


def profile(tmp_path: Path, *requests: dict[str, Any]) -> Imported:
    given = {"service_kind": "openai", "experiments": [{"requests": list(requests)}]}
    return imported("genai-perf", tmp_path / "t.json", json.dumps(given))


def triton(inputs: dict[str, Any], *outputs: dict[str, Any]) -> dict[str, Any]:
    stamps = [1_010_000_000 + 5_000_000 * number for number in range(len(outputs))]
    known = {"timestamp": 1_000_000_000, "request_inputs": {"stream": True, **inputs}}
    return {**known, "response_timestamps": stamps, "response_outputs": list(outputs)}


def figures(row: TraceRow) -> tuple[str, int, int, bool | None]:
    return row.status, row.input_tokens, row.output_tokens, row.streaming


def test_requests_of_triton_have_texts_or_ids_of_tokens(tmp_path: Path) -> None:
    texts = triton({"text_input": "This is test"}, {"text_output": "I like"}, {"text_output": " dogs"})
    ids = triton({"input_ids": [1, 2, 3]}, {"output_ids": [7]}, {"output_ids": 8}, {"output_ids": [9, 10]})
    empty_end = triton({"input_ids": [[1, 2]]}, {"output_ids": [7]}, {"output_ids": ""})
    found = profile(tmp_path, texts, ids, empty_end)
    assert [figures(row) for row in found.rows] == [("ok", 3, 3, True), ("ok", 3, 4, True), ("ok", 2, 1, True)]
    assert found.chunks[0] == [1_010_000, 1_015_000]
    assert len(found.chunks[2]) == 1
    assert found.notes == ("tokens are estimated as one per 4 characters, give --tokenizer",)


def delta(**content: Any) -> str:
    return f"data: {json.dumps({'choices': [{'delta': content}]})}\n\n"


def test_calls_of_tools_and_parts_are_replies(tmp_path: Path) -> None:
    named = delta(tool_calls=[{"index": 0, "function": {"name": "look", "arguments": ""}}])
    told = delta(tool_calls=[{"index": 0, "function": {"arguments": '{"a": 1}'}}])
    body = {"choices": [{"message": {"content": None, "tool_calls": [{"function": {"name": "f", "arguments": "{}"}}]}}]}
    older = {"choices": [{"message": {"content": None, "function_call": {"name": "f", "arguments": "{}"}}}]}
    parts = {"choices": [{"message": {"content": [{"type": "text", "text": "abc"}]}}]}
    ask: dict[str, Any] = {"messages": [{"role": "user", "content": "abcd"}]}
    found = profile(
        tmp_path,
        genai_request(1000, [(1010, named), (1020, told)], **ask),
        genai_request(2000, [(2010, json.dumps(body))], **ask),
        genai_request(3000, [(3010, json.dumps(older))], **ask),
        genai_request(4000, [(4010, json.dumps(parts))], **ask),
    )
    assert [(row.status, row.output_tokens, row.num_chunks) for row in found.rows] == [("ok", 3, 2)] + [
        ("ok", 1, 1)
    ] * 3


def test_replies_of_the_responses_api_are_read_with_its_names_of_counts(tmp_path: Path) -> None:
    message = {"type": "message", "content": [{"type": "output_text", "text": "A big dog."}]}
    call = {"type": "function_call", "name": "f", "arguments": "{}"}
    counted = {"output": [message], "usage": {"input_tokens": 7, "output_tokens": 3}}
    ask: dict[str, Any] = {"input": "abcd", "stream": False}
    found = profile(
        tmp_path,
        genai_request(1000, [(1010, json.dumps(counted))], **ask),
        genai_request(2000, [(2010, json.dumps({"output": [message, call]}))], **ask),
    )
    assert [(row.status, row.input_tokens, row.output_tokens) for row in found.rows] == [("ok", 7, 3), ("ok", 1, 4)]


def test_a_reply_in_no_known_form_is_no_failed_request(tmp_path: Path) -> None:
    reply = json.dumps({"data": [{"embedding": [0.5]}], "usage": {"prompt_tokens": 7, "total_tokens": 7}})
    with pytest.raises(BlisError, match=r"request 0 response 0: expected one of choices, .*, found data, usage"):
        profile(tmp_path, genai_request(1000, [(1010, reply)], input="abcd"))


MEDIA = [
    {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 4000}},
    {"type": "input_audio", "input_audio": {"data": "B" * 4000, "format": "wav"}},
]


def test_images_of_a_prompt_are_not_counted_as_text(tmp_path: Path) -> None:
    content = [{"type": "text", "text": "What is in this picture?"}, *MEDIA, MEDIA[0]]
    found = profile(
        tmp_path, genai_request(1000, [(1010, delta(content="A dog"))], messages=[{"role": "user", "content": content}])
    )
    assert found.rows[0].input_tokens == 6
    assert left_out(found) == {
        "images in prompts, whose tokens are not counted": 2,
        "sounds in prompts, whose tokens are not counted": 1,
    }


@pytest.mark.parametrize(
    ("body", "num_tokens"),
    [
        ({"prompt": [5, 6, 7]}, 3),
        ({"prompt": ["abcd", "efgh"]}, 2),
        ({"prompt": [[5, 6], [7]]}, 3),
        ({"inputs": "abcdefgh"}, 2),
        ({"text_input": ["abcdefgh"]}, 2),
        ({"input": [{"role": "user", "content": "abcd"}]}, 1),
        ({"messages": [{"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "abcd"}}]}]}, 1),
    ],
)
def test_prompts_have_many_forms(body: dict[str, Any], num_tokens: int, tmp_path: Path) -> None:
    found = profile(tmp_path, genai_request(1000, [(1010, delta(content="word"))], **body))
    assert found.rows[0].input_tokens == num_tokens


def test_an_event_in_two_pieces_counts_when_it_is_whole(tmp_path: Path) -> None:
    text = delta(content="word")
    both = [(1010, delta(content="a")), (1020, text[:20]), (1030, text[20:])]
    found = profile(tmp_path, genai_request(1000, both, prompt="abcd"))
    assert found.chunks[0] == [1_010_000, 1_030_000]
    assert found.rows[0].output_tokens == 2


@pytest.mark.parametrize(
    ("reply", "problem"),
    [
        ('{"error": {"message": "too long"}}', "too long"),
        ("Service Unavailable", "Service Unavailable"),
        ('{"choices": [{"text": ""}]}', "the reply has no text"),
    ],
)
def test_a_reply_without_text_failed_and_says_why(reply: str, problem: str, tmp_path: Path) -> None:
    (row,) = profile(tmp_path, genai_request(1000, [(1010, reply)], prompt="abcd")).rows
    assert (row.status, row.error_message) == ("error", problem)


def test_a_form_that_is_not_known_is_refused(tmp_path: Path) -> None:
    unknown = genai_request(1000, [(1010, '{"outputs": ["word"]}')], prompt="abcd")
    with pytest.raises(BlisError, match=r"request 0 response 0: expected one of choices, .*, found outputs"):
        profile(tmp_path, unknown)
    with pytest.raises(
        BlisError, match=r"request_inputs.payload: expected messages or prompt, .*, found stream, query"
    ):
        profile(tmp_path, genai_request(1000, [(1010, delta(content="word"))], query="abcd"))
