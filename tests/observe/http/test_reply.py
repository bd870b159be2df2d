import json
from typing import Any

import pytest

from observe.responses import Reply

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n"


def event(value: Any) -> bytes:
    return b"data: " + (value if isinstance(value, bytes) else json.dumps(value).encode()) + b"\n\n"


def text(content: str, finish_reason: str | None = None) -> dict[str, Any]:
    return {"choices": [{"text": content, "finish_reason": finish_reason}]}


def delta(finish_reason: str | None = None, **content: Any) -> dict[str, Any]:
    return {"choices": [{"delta": content, "finish_reason": finish_reason}]}


def usage(prompt: int, completion: int) -> dict[str, Any]:
    return {"choices": [], "usage": {"prompt_tokens": prompt, "completion_tokens": completion}}


def streamed(*events: Any) -> Reply:
    """A reply whose head comes at 10 and whose events come at 20, 30, ..."""
    reply = Reply(streaming=True)
    reply.feed(HEAD, 10)
    for place, each in enumerate(events):
        reply.feed(event(each), 20 + 10 * place)
    reply.end(1000)
    return reply


@pytest.mark.parametrize(
    ("events", "is_all_content"),
    [
        ([delta(role="assistant", content=""), delta(content="a"), delta("stop")], True),
        ([text("a"), text("", "length")], True),
        ([delta(reasoning_content="hm"), delta(content="a")], False),
        ([delta(reasoning="hm"), delta(content="a")], False),
        ([delta(tool_calls=[{"index": 0}])], False),
        ([{"type": "response.output_text.delta", "delta": "a"}, {"type": "response.output_text.done"}], True),
        ([{"type": "response.reasoning_text.delta", "delta": "hm"}], False),
    ],
)
def test_a_reply_with_reasoning_or_tool_calls_is_not_all_content(events: list[Any], is_all_content: bool) -> None:
    assert streamed(*events, b"[DONE]").is_all_content is is_all_content


def test_every_data_event_but_done_is_a_chunk_with_its_own_time() -> None:
    reply = streamed(
        delta(role="assistant", content=""), delta(content="a"), delta("stop", content="b"), usage(3, 2), b"[DONE]"
    )
    assert reply.chunk_times == [20, 30, 40, 50]
    assert reply.done


def test_role_and_usage_events_carry_no_tokens() -> None:
    reply = streamed(delta(role="assistant", content=""), delta(content="a"), delta("stop", content="b"), usage(3, 2))
    assert list(reply.carries_tokens) == [0, 1, 1, 0]


def test_a_token_without_text_counts_unless_it_only_ends_the_stream() -> None:
    reply = streamed(text("a"), text(""), text("b"), text("", "stop"))
    assert list(reply.carries_tokens) == [1, 1, 1, 0]


def test_reasoning_counts_as_tokens() -> None:
    assert list(streamed(delta(role="assistant", reasoning_content="hm"), b"[DONE]").carries_tokens) == [1]


ROLE = delta(role="assistant", content="")
OPENED = {"type": "message_start", "message": {"usage": {"input_tokens": 3}}}
TEXT_BLOCK = {"type": "content_block_start", "content_block": {"type": "text", "text": ""}}
CALL_BLOCK = {"type": "content_block_start", "content_block": {"type": "tool_use", "name": "f"}}
TEXT_DELTA = {"type": "content_block_delta", "delta": {"type": "text_delta", "text": "a"}}
CREATED = {"type": "response.created", "response": {"status": "in_progress"}}
CALL_ADDED = {"type": "response.output_item.added", "item": {"type": "function_call", "name": "f"}}


@pytest.mark.parametrize(
    ("events", "first_token"),
    [
        ([ROLE, delta(content="a"), delta("stop")], 30),
        ([ROLE, delta(reasoning=" r"), delta(content="a")], 30),
        ([ROLE, delta(), delta(tool_calls=[{"index": 0}])], 40),
        ([{"choices": [], "prompt_filter_results": []}, ROLE, delta(content=None), delta(content="a")], 50),
        ([ROLE, delta(content=""), delta(content="é")], 30),
        ([ROLE | {"choices": [{"delta": {"role": "assistant"}, "token_ids": [7]}]}, delta(content="a")], 20),
        ([{"choices": [{"text": None}]}, text("a")], 30),
        ([ROLE, delta("stop")], 30),
        ([OPENED, TEXT_BLOCK, {"type": "ping"}, TEXT_DELTA], 50),
        ([OPENED, CALL_BLOCK], 30),
        ([CREATED, CALL_ADDED], 30),
        ([CREATED, {"type": "response.output_text.delta", "delta": "a"}], 30),
        ([ROLE], 0),
    ],
)
def test_the_first_token_is_the_first_event_with_content_and_the_first_event_is_kept_beside_it(
    events: list[Any], first_token: int
) -> None:
    reply = streamed(*events)
    assert (reply.first_token, reply.first_event) == (first_token, 20)


VLLM_ROLE = ROLE | {"prompt_token_ids": None}
VLLM_OPENED = {"type": "message_start", "message": {"id": "chatcmpl-1", "usage": {"input_tokens": 3}}}
MESSAGE_DELTA = {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 2}}


@pytest.mark.parametrize(
    ("events", "first_token"),
    [
        ([VLLM_ROLE, delta(reasoning=" r"), delta("stop", content="a"), usage(9, 4)], 20),  # <think> and </think>
        ([VLLM_ROLE, delta("tool_calls", tool_calls=[{"index": 0}]), usage(9, 40)], 20),
        ([VLLM_OPENED, TEXT_DELTA, MESSAGE_DELTA], 20),
        ([VLLM_ROLE, delta(content="a"), delta("stop", content="b"), usage(9, 2)], 30),
        ([VLLM_ROLE, delta(reasoning=" r"), delta("stop", content="a")], 30),  # not counted
        ([ROLE, delta(reasoning=" r"), delta("stop", content="a"), usage(9, 4)], 30),  # opened before it computes
        ([{"prompt_token_ids": [1], **text("")}, text("a"), usage(9, 4)], 20),
        ([OPENED, TEXT_DELTA, MESSAGE_DELTA], 30),
    ],
)
def test_a_first_token_without_an_event_came_with_the_event_by_which_vllm_opens_a_stream(
    events: list[Any], first_token: int
) -> None:
    assert streamed(*events).first_token == first_token


def test_usage_is_that_of_the_last_event_that_has_it() -> None:
    reply = streamed(
        text("a") | {"usage": {"prompt_tokens": 9, "completion_tokens": 1}}, text("b"), usage(9, 2), b"[DONE]"
    )
    assert (reply.prompt_tokens, reply.completion_tokens) == (9, 2)


def test_the_finish_reason_is_the_last_one_that_is_not_empty() -> None:
    assert streamed(text("a", "length"), text("", ""), text("")).finish_reason == "length"


def test_several_events_in_one_read_share_its_time() -> None:
    reply = Reply(streaming=True)
    reply.feed(HEAD + event(text("a")) + event(text("b")), 7)
    assert reply.chunk_times == [7, 7]


def test_an_event_has_the_time_of_the_read_that_completes_it() -> None:
    reply = Reply(streaming=True)
    reply.feed(HEAD + event(text("a"))[:-5], 7)
    reply.feed(event(text("a"))[-5:], 9)
    assert reply.chunk_times == [9]


def test_malformed_events_count_as_chunks_without_tokens() -> None:
    reply = streamed(b"{not json", b"[1]", text("a"), b"[DONE]")
    assert list(reply.carries_tokens) == [0, 0, 1]


def test_an_error_inside_a_stream_is_a_problem() -> None:
    assert streamed(text("a"), {"error": {"message": "engine died"}}, b"[DONE]").problem == "engine died"


def test_a_stream_that_ends_with_neither_done_nor_finish_reason_is_a_problem() -> None:
    assert streamed(text("a")).problem == "the stream ended without [DONE]"
    assert streamed(text("a", "stop")).problem == ""


def test_a_json_answer_to_a_request_for_a_stream_is_a_problem() -> None:
    reply = Reply(streaming=True)
    reply.feed(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{}", 1)
    assert "application/json" in reply.problem


def test_an_answer_in_one_piece_has_the_times_of_its_first_and_last_byte() -> None:
    body = json.dumps(text("abc", "stop") | {"usage": {"prompt_tokens": 5, "completion_tokens": 3}}).encode()
    reply = Reply(streaming=False)
    reply.feed(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(body), 1)
    reply.feed(body[:4], 2)
    assert reply.feed(body[4:], 3)
    assert (reply.chunk_times, reply.completion_tokens, reply.finish_reason) == ([2, 3], 3, "stop")


@pytest.mark.parametrize("body", [b"[]", b"oops", b""])
def test_an_answer_in_one_piece_must_be_a_json_object(body: bytes) -> None:
    reply = Reply(streaming=False)
    reply.feed(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%s" % (len(body), body), 1)
    assert reply.problem


def test_the_body_of_an_http_error_is_kept_as_text() -> None:
    reply = Reply(streaming=True)
    assert reply.feed(b"HTTP/1.1 503 Busy\r\ncontent-length: 9\r\n\r\ntry later", 1)
    assert (reply.status_code, reply.text, reply.chunk_times) == (503, "try later", [])


def test_every_place_to_cut_a_stream_gives_the_same() -> None:
    events = [
        delta(role="assistant", content=""),
        delta(content="é\n"),
        delta("stop", content="b"),
        usage(3, 2),
        b"[DONE]",
    ]
    stream = b"".join(map(event, events))
    whole = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n%x\r\n%s\r\n0\r\n\r\n" % (len(stream), stream)
    for cut in range(len(whole) + 1):
        reply = Reply(streaming=True)
        reply.feed(whole[:cut], 1)
        reply.feed(whole[cut:], 2)
        assert (reply.complete, reply.done, reply.problem, reply.finish_reason) == (True, True, "", "stop")
        assert (list(reply.carries_tokens), reply.completion_tokens) == ([0, 1, 1, 0], 2)
        assert reply.chunk_times == sorted(reply.chunk_times)


def test_events_of_the_responses_api_count_where_they_carry_tokens() -> None:
    used = {"input_tokens": 3, "output_tokens": 2}
    reply = streamed(
        {"type": "response.created", "response": {"status": "in_progress"}},
        {"type": "response.reasoning_text.delta", "delta": "hm"},
        {"type": "response.output_text.delta", "delta": "a"},
        {"type": "response.completed", "response": {"status": "completed", "usage": used}},
    )
    assert reply.chunk_times == [30, 40]
    assert list(reply.carries_tokens) == [1, 1]
    assert (reply.prompt_tokens, reply.completion_tokens, reply.finish_reason) == (3, 2, "stop")
    assert (reply.done, reply.problem) == (True, "")


def test_a_failed_response_has_its_error() -> None:
    failed = {"type": "response.failed", "response": {"status": "failed", "error": {"message": "boom"}}}
    assert streamed({"type": "response.output_text.delta", "delta": "a"}, failed).problem == "boom"
    assert streamed({"type": "error", "message": "bad"}).problem == "bad"


def test_a_response_that_just_stops_is_no_answer() -> None:
    assert streamed({"type": "response.output_text.delta", "delta": "a"}).problem == "the stream ended without [DONE]"


@pytest.mark.parametrize("count", [True, -1, 2**31, 2**63, 2**64 - 1, 1e300, "7", None])
def test_a_count_that_no_reply_has_is_none(count: Any) -> None:
    assert streamed(text("a", "stop") | {"usage": {"completion_tokens": count}}).completion_tokens is None
    answer = {"type": "response.completed", "response": {"status": "completed", "usage": {"output_tokens": count}}}
    assert streamed(answer).completion_tokens is None


@pytest.mark.parametrize(
    "answer",
    [
        {"status": ["completed"]},
        {"status": {}, "output": 7},
        {"status": None, "output": [{"type": "message", "content": 7}, 8]},
        {"status": "incomplete", "output": True, "incomplete_details": []},
    ],
)
def test_a_response_of_another_shape_gives_no_tokens_and_breaks_nothing(answer: dict[str, Any]) -> None:
    assert streamed({"type": "response.completed", "response": answer}).content == ""
    body = json.dumps({"object": "response", **answer}).encode()
    whole = Reply(streaming=False)
    assert whole.feed(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%s" % (len(body), body), 1)
    assert whole.content == ""
