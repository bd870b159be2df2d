"""Parts of a chat message: alone, together, and as a whole."""

from mockserve.protocol.completions import (
    ToolCall,
    content_delta,
    merge_deltas,
    reasoning_delta,
    tool_arguments_delta,
    tool_name_delta,
    whole_message,
)


def test_parts_that_go_out_together_are_joined_in_the_order_of_vllm() -> None:
    delta = merge_deltas([reasoning_delta("a"), reasoning_delta("b"), content_delta("c")])
    assert delta == {"content": "c", "reasoning": "ab"}
    assert list(delta) == ["content", "reasoning"]


def test_a_call_and_its_first_arguments_become_one() -> None:
    delta = merge_deltas([tool_name_delta(0, "id1", "f"), tool_arguments_delta(0, "{"), tool_arguments_delta(0, "}")])
    assert delta == {
        "tool_calls": [{"id": "id1", "type": "function", "index": 0, "function": {"name": "f", "arguments": "{}"}}],
    }


def test_text_before_a_call_stays_beside_it() -> None:
    assert merge_deltas([content_delta("Sure."), tool_name_delta(0, "i", "f")])["content"] == "Sure."


def test_two_calls_stay_two() -> None:
    calls = merge_deltas([tool_arguments_delta(0, "}"), tool_name_delta(1, "i", "g")])["tool_calls"]
    assert [each["index"] for each in calls] == [0, 1]


def test_a_message_names_its_calls_only_if_there_are_any() -> None:
    assert "tool_calls" not in whole_message("assistant", "hi", None, ())
    keys = list(whole_message("assistant", None, "hm", [ToolCall("i", "f", "{}")]))
    assert keys[-2:] == ["tool_calls", "reasoning"]
