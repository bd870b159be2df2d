"""Which functions are called, how often, and with which arguments."""

import json
from dataclasses import replace
from random import Random
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from mockserve.generation.answer import Kind, RenderOptions, Segment, render_tokens
from mockserve.generation.tokenizer import BuiltinTokenizer
from mockserve.generation.tool_calls import (
    MOST_CALLS,
    ToolConstraint,
    ToolUse,
    call_script,
    read_tool_use,
    tool_constraint_of,
)
from mockserve.generation.writing import OutputSpec, answer_settings, chat_output_spec, constraint_check_jobs
from mockserve.options.content import ContentOptions, ToolOptions
from mockserve.protocol.bodies import Ending
from mockserve.protocol.errors import ApiError
from mockserve.protocol.sampling import SamplingParams

CITY = {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}, "required": ["city"]}
TOOLS = [
    {"type": "function", "function": {"name": "get_weather", "parameters": CITY}},
    {"type": "function", "function": {"name": "now"}},
]


def use(extra_probability: float = 0.0, probability: float = 1.0, **body: Any) -> ToolUse | None:
    return read_tool_use({"tools": TOOLS, **body}, probability, extra_probability)


def required(**body: Any) -> ToolUse:
    found = use(**body)
    assert found is not None
    return found


def counts(found: ToolUse) -> set[int]:
    return {found.num_calls(Random(seed)) for seed in range(300)}


def test_no_call_without_tools_or_with_tool_choice_none() -> None:
    assert read_tool_use({}, 1, 0) is None
    assert use(tool_choice="none") is None
    assert use(tool_choice=None) is None


def test_the_model_chooses_calls_with_the_given_probability() -> None:
    assert counts(required()) == {1}
    assert counts(required(probability=0.5)) == {0, 1}
    assert counts(required(probability=0.0)) == {0}
    assert counts(required(probability=0.0, tool_choice="required")) == {1}


def test_calls_follow_each_other_where_they_may_be_parallel() -> None:
    assert counts(required(extra_probability=0.5)) >= {1, 2, 3}
    assert counts(required(extra_probability=1.0)) == {MOST_CALLS}
    assert counts(required(extra_probability=1.0, parallel_tool_calls=False)) == {1}


@pytest.mark.parametrize("parser", ["gigachat3", "internlm"])
def test_parser_that_reads_one_call_gets_one(parser: str) -> None:
    tools = ToolOptions(enable_auto_tool_choice=True, tool_call_parser=parser, tool_call_extra_probability=1.0)
    options = ContentOptions(tools=tools)
    asked = {"messages": [{"role": "user", "content": "hi"}], "tools": TOOLS}
    found = [
        chat_output_spec({**asked, **more}, "hi", answer_settings(options), uses_prompt_text=False).tools
        for more in ({}, {"tool_choice": "required"})
    ]
    assert [counts(each) for each in found if each is not None] == [{1}, {MOST_CALLS}]


def test_a_named_function_is_called_once() -> None:
    named = required(tool_choice={"type": "function", "function": {"name": "now"}}, extra_probability=1.0)
    assert (counts(named), [each.name for each in named.functions], named.is_named) == ({1}, ["now"], True)


def test_flags_of_tools_may_be_text() -> None:
    assert counts(required(parallel_tool_calls="false", extra_probability=1.0)) == {1}
    assert counts(required(parallel_tool_calls="yes", extra_probability=1.0)) == {MOST_CALLS}
    found = read_tool_use({"tools": offered(CITY, strict="true")}, 1, 0)
    assert found is not None
    assert found.functions[0].is_strict
    assert tool_constraint_of("hermes", {"tools": offered(CITY, strict="on")}) is ToolConstraint.TAG
    assert tool_constraint_of("hermes", {"tools": offered(CITY), "parallel_tool_calls": 0}) is ToolConstraint.TAG


def test_a_tool_result_is_answered_with_text() -> None:
    messages = [{"role": "user", "content": "x"}, {"role": "tool", "content": "sunny", "tool_call_id": "1"}]
    assert counts(required(messages=messages)) == {0}
    assert counts(required(messages=messages, tool_choice="required")) == {1}
    assert counts(required(messages=[*messages, {"role": "user", "content": "and now?"}])) == {1}


@pytest.mark.parametrize("verbosity", [0, 1, 2])
def test_arguments_are_valid_under_their_schema(verbosity: int) -> None:
    found = required()
    for seed in range(40):
        script = call_script(found, found.functions, Random(seed), verbosity)
        arguments = [json.loads(each.text) for each in script if each.kind is Kind.TOOL_ARGUMENTS]
        Draft202012Validator(CITY).validate(arguments[0])
        assert arguments[1] == {}
        assert [each.shown for each in script if each.kind is Kind.TOOL_NAME] == ["get_weather", "now"]


def offered(schema: Any, **fields: Any) -> list[Any]:
    return [{"type": "function", "function": {"name": "f", "parameters": schema, **fields}}]


def use_of(schema: Any, choice: str, strict: bool) -> ToolUse:
    body = {"tools": offered(schema, strict=strict), "tool_choice": choice}
    found = read_tool_use(body, 1, 0)
    assert found is not None
    return replace(found, tool_constraint=tool_constraint_of("hermes", body))


@pytest.mark.parametrize("choice", ["auto", "required"])
@pytest.mark.parametrize("schema", [{"type": "nope"}, {"$ref": "#/$defs/nope"}, {"properties": {"a": False}}])
def test_refuses_a_bad_schema_of_a_strict_function_only(schema: Any, choice: str) -> None:
    loose = use_of(schema, choice, strict=False)
    assert json.loads(call_script(loose, loose.functions, Random(1), 1)[3].text) == {}
    assert [check.done() for check in constraint_check_jobs(OutputSpec(tools=loose))] == ["xgrammar"] * (
        choice == "required"
    )
    (check,) = constraint_check_jobs(OutputSpec(tools=use_of(schema, choice, strict=True)))
    with pytest.raises(ApiError, match=r"^Invalid grammar specification: 'triggers'$"):
        check.done()


def test_fails_inside_on_a_reference_loop_of_a_strict_function() -> None:
    found = use_of({"$ref": "#"}, "required", strict=True)
    with pytest.raises(ApiError, match="Internal server error"):
        call_script(found, found.functions, Random(1), 1)


def test_forced_calls_as_json_are_a_list_or_bare_arguments() -> None:
    tools = ToolOptions(enable_auto_tool_choice=True, tool_call_parser="pythonic")
    settings = answer_settings(ContentOptions(tools=tools))
    asked = {"messages": [{"role": "user", "content": "hi"}], "tools": TOOLS}
    required_use = chat_output_spec({**asked, "tool_choice": "required"}, "hi", settings, uses_prompt_text=False).tools
    assert required_use is not None
    script = call_script(required_use, required_use.functions, Random(1), 0)
    listed = json.loads("".join(each.text for each in script))
    assert [(each["name"], sorted(each)) for each in listed] == [
        ("get_weather", ["name", "parameters"]),
        ("now", ["name", "parameters"]),
    ]
    named = {"type": "function", "function": {"name": "get_weather"}}
    named_use = chat_output_spec({**asked, "tool_choice": named}, "hi", settings, uses_prompt_text=False).tools
    assert named_use is not None
    script = call_script(named_use, named_use.functions, Random(1), 0)
    Draft202012Validator(CITY).validate(json.loads("".join(each.text for each in script)))
    answer = render_tokens(script, RenderOptions(BuiltinTokenizer(), SamplingParams(), 100, names_function=True))
    assert answer.deltas is not None
    assert [each.kind for each in answer.deltas[0]] == [Kind.TOOL_NAME, Kind.TOOL_ARGUMENTS]
    thought = [Segment(Kind.MARKUP, "<think>"), Segment(Kind.REASONING, "hm"), Segment(Kind.MARKUP, "</think>")]
    answer = render_tokens(
        [*thought, *script], RenderOptions(BuiltinTokenizer(), SamplingParams(), 100, names_function=True)
    )
    names = [place for place, found in enumerate(answer.deltas or ()) for each in found if each.kind is Kind.TOOL_NAME]
    assert answer.token_texts[names[0]].endswith(">")


def test_refuses_a_named_function_that_is_offered_twice() -> None:
    body = {"tools": offered({}) * 2, "tool_choice": {"type": "function", "function": {"name": "f"}}}
    with pytest.raises(ApiError, match=r"^Forced tool choice must resolve to exactly one tool\.$"):
        read_tool_use(body, 1, 0)


def calls(budget: int = 100, names_function: bool = False) -> Any:
    found = required(tool_choice="required")
    script: list[Segment] = call_script(found, found.functions[:1], Random(1), 0)
    how = RenderOptions(BuiltinTokenizer(), SamplingParams(), budget, names_function=names_function)
    return render_tokens(
        [Segment(Kind.MARKUP, "<think>"), Segment(Kind.REASONING, "hm"), Segment(Kind.MARKUP, "</think>"), *script], how
    )


def test_an_answer_of_calls_has_their_finish_reason() -> None:
    assert calls().ending == Ending("tool_calls")
    assert calls(names_function=True).ending == Ending("stop")


def test_calls_that_were_cut_short_are_plain_text_of_a_whole_message() -> None:
    answer = calls(budget=14)
    assert answer.ending == Ending("length")
    assert answer.cut.text.startswith('<tool_call>\n{"name": "get_weather"')
    assert calls().cut is None
