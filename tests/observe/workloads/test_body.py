import json
from typing import Any

from observe.body import RequestStyle


def body(**style: Any) -> dict[str, Any]:
    parsed: dict[str, Any] = json.loads(RequestStyle(model="m", **style).body("hello", 9))
    return parsed


def test_a_forced_length_has_the_same_minimum_and_maximum() -> None:
    forced = body()
    assert (forced["max_tokens"], forced["min_tokens"], forced["ignore_eos"]) == (9, 9, True)


def test_ignore_eos_can_be_left_out_for_servers_that_refuse_it() -> None:
    assert "ignore_eos" not in body(ignore_eos=False)
    assert body(ignore_eos=False)["min_tokens"] == 9


def test_an_unconstrained_output_has_no_forced_length() -> None:
    assert body(exact_output=False)["max_tokens"] == 2147483647
    assert body(exact_output=False, most_output_tokens=40960)["max_tokens"] == 40960
    assert not {"min_tokens", "ignore_eos"} & set(body(exact_output=False))
    assert not {"min_tokens", "ignore_eos", "max_tokens"} & set(body(exact_output=False, api="chat"))


def test_a_priority_is_sent_where_a_request_has_one() -> None:
    style = RequestStyle(model="m", api="chat")
    assert json.loads(style.body("hello", 9, priority=-2))["priority"] == -2
    assert "priority" not in json.loads(style.body("hello", 9))


def test_a_chat_prompt_is_one_message_of_the_user() -> None:
    assert body(api="chat")["messages"] == [{"role": "user", "content": "hello"}]
    assert "prompt" not in body(api="chat")


def test_usage_is_requested_in_streams_only() -> None:
    assert body()["stream_options"] == {"include_usage": True}
    assert "stream_options" not in body(streaming=False)


def test_the_calibration_request_generates_one_token_without_streaming() -> None:
    calibration = json.loads(RequestStyle(model="m").calibration_body("hello"))
    assert calibration == {"model": "m", "prompt": "hello", "stream": False, "max_tokens": 1}
