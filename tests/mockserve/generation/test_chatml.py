"""Conversations become prompts by the model's own template, or by ChatML."""

import json
from pathlib import Path
from typing import Any

import pytest

from blis_sim.options import OptionError, options_from
from mockserve.generation.chat_templates import ChatRenderer, load_chat_renderer
from mockserve.generation.chat_turns import Turns
from mockserve.generation.tokenizer import BuiltinTokenizer
from mockserve.options.serve import ServeOptions
from mockserve.protocol.errors import ApiError

HELLO = [{"role": "user", "content": "hello there"}]
TOOLS = [{"type": "function", "function": {"name": "get_weather", "parameters": {"type": "object"}}}]
CALL = {"id": "1", "type": "function", "function": {"name": "get_weather", "arguments": '{"city": "Paris"}'}}


def prompt(conversations: ChatRenderer, messages: list[Any], **fields: Any) -> str:
    return conversations.prompt({"messages": messages, **fields})


def opened(template: str | None = None, folder: Path | None = None, **settings: Any) -> ChatRenderer:
    options = options_from(ServeOptions, model="qwen/qwen3-14b", chat_template=template, **settings)
    return load_chat_renderer(options.content, folder)


def test_without_a_template_prompts_are_chatml() -> None:
    assert prompt(ChatRenderer(), HELLO) == "<|im_start|>user\nhello there<|im_end|>\n<|im_start|>assistant\n"


def test_the_built_in_tokenizer_counts_five_tokens_for_each_turn_and_four_for_the_answer() -> None:
    assert BuiltinTokenizer().count(prompt(ChatRenderer(), HELLO * 3)) == 3 * (5 + 2) + 4


def test_an_answer_may_go_on_from_the_last_message() -> None:
    messages = [*HELLO, {"role": "assistant", "content": "Once upon"}]
    text = prompt(ChatRenderer(), messages, continue_final_message=True, add_generation_prompt=False)
    assert text.endswith("<|im_start|>assistant\nOnce upon")


def test_the_prompt_for_the_answer_can_be_left_out() -> None:
    assert prompt(ChatRenderer(), HELLO, add_generation_prompt=False).endswith("hello there<|im_end|>\n")


def test_tools_and_earlier_calls_are_part_of_a_chatml_prompt() -> None:
    messages = [*HELLO, {"role": "assistant", "content": None, "tool_calls": [CALL]}]
    text = prompt(ChatRenderer(), messages, tools=TOOLS)
    function = {"name": "get_weather", "description": None, "parameters": {"type": "object"}}
    assert json.dumps({"type": "function", "function": function}) in text
    assert '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n</tool_call><|im_end|>' in text


@pytest.mark.parametrize("arguments", ["{", "[]", "42", 5, None])
def test_arguments_of_earlier_calls_that_are_no_object_count_as_none(arguments: Any) -> None:
    call = {"function": {"name": "f", "arguments": arguments}}
    (turn,) = Turns([{"role": "assistant", "tool_calls": [call]}])
    assert turn["tool_calls"][0]["function"]["arguments"] == {}


def test_a_template_sees_tools_variables_and_special_tokens(tmp_path: Path) -> None:
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"bos_token": {"content": "<s>"}}))
    (tmp_path / "chat_template.jinja").write_text(
        "{{ bos_token }}{{ tools | length }}{{ enable_thinking }}{{ reasoning_effort }}{{ messages[0].content }}"
    )
    conversations = opened(folder=tmp_path, default_chat_template_kwargs='{"enable_thinking": true}')
    given: dict[str, Any] = {"tools": TOOLS, "reasoning_effort": "low"}
    assert prompt(conversations, HELLO, **given) == "<s>1Truelowhello there"
    given["chat_template_kwargs"] = {"enable_thinking": False}
    assert prompt(conversations, HELLO, **given) == "<s>1Falselowhello there"


def test_a_template_of_its_own_file_comes_before_the_configured_one(tmp_path: Path) -> None:
    (tmp_path / "tokenizer_config.json").write_text('{"chat_template": "configured"}')
    assert prompt(opened(folder=tmp_path), HELLO) == "configured"
    (tmp_path / "chat_template.jinja").write_text("filed")
    assert prompt(opened(folder=tmp_path), HELLO) == "filed"
    assert prompt(opened("{{ 'given' }}", tmp_path), HELLO) == "given"


def test_named_templates_have_a_default(tmp_path: Path) -> None:
    named = [{"name": "rag", "template": "no"}, {"name": "default", "template": "yes"}]
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": named}))
    assert prompt(opened(folder=tmp_path), HELLO) == "yes"


def test_parts_are_joined_for_a_template_that_takes_text() -> None:
    parts = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
    assert prompt(opened("{{ messages[0].content }}"), [{"role": "user", "content": parts}]) == "one\ntwo"


def test_a_template_that_iterates_over_parts_gets_parts() -> None:
    template = "{% for m in messages %}{% for part in m['content'] %}<{{ part.text }}>{% endfor %}{% endfor %}"
    parts = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
    assert prompt(opened(template), [{"role": "user", "content": parts}]) == "<one><two>"
    assert prompt(opened(template), HELLO) == "<hello there>"


def test_a_template_that_ends_messages_can_be_continued() -> None:
    template = "{% for m in messages %}[{{ m.content }}]{% endfor %}"
    messages = [*HELLO, {"role": "assistant", "content": "Once upon "}]
    text = prompt(opened(template), messages, continue_final_message=True, add_generation_prompt=False)
    assert text == "[hello there][Once upon "


def test_arguments_of_earlier_calls_are_objects_to_a_template() -> None:
    template = "{{ messages[0].tool_calls[0].function.arguments.city }}"
    assert prompt(opened(template), [{"role": "assistant", "tool_calls": [CALL]}]) == "Paris"


def test_a_template_may_refuse_a_conversation() -> None:
    with pytest.raises(ApiError, match=r"^no such role$"):
        prompt(opened("{{ raise_exception('no such role') }}"), HELLO)


def test_a_template_cannot_reach_out_of_its_sandbox() -> None:
    with pytest.raises(ApiError):
        prompt(opened("{{ messages.__class__.__mro__[1].__subclasses__() }}"), HELLO)


def test_json_in_a_template_is_not_escaped_for_html() -> None:
    assert prompt(opened("{{ messages[0] | tojson }}"), [{"role": "user", "content": "<é>"}]).count("<é>") == 1


def test_a_requests_own_template_needs_trust() -> None:
    with pytest.raises(ApiError, match="--trust-request-chat-template is not set"):
        prompt(opened(), HELLO, chat_template="mine")
    assert prompt(opened(trust_request_chat_template=True), HELLO, chat_template="mine") == "mine"
    with pytest.raises(ApiError, match="Expected an expression"):
        prompt(opened(trust_request_chat_template=True), HELLO, chat_template="{% if %}")


def test_unusable_tools_can_be_kept_out_of_the_prompt() -> None:
    template = "{{ (tools or []) | length }}"
    assert prompt(opened(template), HELLO, tools=TOOLS, tool_choice="none") == "1"
    assert (
        prompt(opened(template, exclude_tools_when_tool_choice_none=True), HELLO, tools=TOOLS, tool_choice="none")
        == "0"
    )


def test_an_invalid_template_is_refused_at_start(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=r"must be a readable file or a template, got 'missing\.jinja'"):
        opened("missing.jinja")
    with pytest.raises(OptionError, match="--chat-template: not a Jinja template"):
        opened("{% for %}")
    with pytest.raises(OptionError, match="--default-chat-template-kwargs must be a JSON object"):
        opened(default_chat_template_kwargs="[1]")


@pytest.mark.parametrize(
    ("asked", "shown"),
    [
        ({}, "- -"),
        ({"reasoning_effort": "low"}, "True low"),
        ({"reasoning_effort": "none"}, "False none"),
        ({"reasoning_effort": "none", "chat_template_kwargs": {"enable_thinking": True}}, "True none"),
    ],
)
def test_templates_without_efforts_get_a_thinking_switch(asked: dict[str, Any], shown: str) -> None:
    template = "{{ enable_thinking | default('-') }} {{ reasoning_effort | default('-') }}"
    assert prompt(opened(template), HELLO, **asked) == shown
