"""Answers with tools are refused as by a genuine vLLM 0.33, for each parser and both backends.

`genuine_holds.csv` has one letter of `OUTCOMES` for each of `CASES`, in their order.
"""

import csv
from collections.abc import Iterator, Mapping
from itertools import product
from pathlib import Path
from random import Random
from typing import Any

import pytest

from mockserve.generation.answer import Prose
from mockserve.generation.composer import Composer
from mockserve.generation.tokenizer import BuiltinTokenizer
from mockserve.generation.tool_calls import ToolConstraint, listed_schema, tool_constraint_of
from mockserve.generation.writing import OutputSpec, answer_settings, chat_output_spec, constraint_check_jobs
from mockserve.options.content import (
    ContentOptions,
    StructuredOutputsOptions,
    ToolOptions,
)
from mockserve.options.parsers import TOOL_CALL_PARSERS
from mockserve.protocol.completions import parse_chat
from mockserve.protocol.errors import ApiError
from mockserve.protocol.sampling import SamplingParams

TABLE = Path(__file__).with_name("genuine_holds.csv")
OUTCOMES = {
    ".": "",
    "t": "Invalid grammar specification: 'triggers'",
    "f": 'Grammar error: Unimplemented keys: ["contains"]',
    "b": "You can only either use constraints for structured outputs or tools, not both.",
}
"""The message of the refusal, by its letter."""
NAMED = {"type": "function", "function": {"name": "look"}}
PATTERNS = {"type": "object", "patternProperties": {"^a": {"type": "string"}}}
FORMS: tuple[Mapping[str, Any], ...] = (
    {},
    {"structured_outputs": {"json": {"type": "object"}}},
    {"response_format": {"type": "json_object"}},
    {"structured_outputs": {"json": PATTERNS}},
    {"structured_outputs": {"json": {"type": "array", "contains": {"type": "integer"}}}},
)
CASES = tuple(product(("auto", "required", NAMED), (None, False), (False, True), FORMS))
WITH_LIBRARIES = {"beam", "cohere_command3", "cohere_command4", "hf", "openai"}
"""Parsers that the genuine server could not have with its tokenizer and libraries."""


def rows() -> list[dict[str, str]]:
    with TABLE.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def bodies() -> Iterator[dict[str, Any]]:
    parameters = {"type": "object", "properties": {"at": {"type": "string"}}, "required": ["at"]}
    for choice, parallel, strict, form in CASES:
        function = {"name": "look", "parameters": parameters, **({"strict": True} if strict else {})}
        tools = [{"type": "function", "function": function}]
        body = {"messages": [{"role": "user", "content": "hi"}], "tools": tools, "tool_choice": choice, **form}
        yield body if parallel is None else {**body, "parallel_tool_calls": parallel}


def form_of(body: Mapping[str, Any], parser: str, backend: str) -> OutputSpec:
    tools = ToolOptions(enable_auto_tool_choice=True, tool_call_parser=parser)
    outputs = StructuredOutputsOptions(structured_outputs_config=f'{{"backend": "{backend}"}}')
    return chat_output_spec(
        body, "hi", answer_settings(ContentOptions(tools=tools, structured_outputs=outputs)), uses_prompt_text=False
    )


def refusal(body: Mapping[str, Any], parser: str, backend: str) -> str:
    try:
        parse_chat(dict(body))
        for check in constraint_check_jobs(form_of(body, parser, backend)):
            check.done()
    except ApiError as error:
        return error.message
    return ""


@pytest.mark.parametrize("backend", ["auto", "guidance"])
@pytest.mark.parametrize("row", rows(), ids=[row["parser"] for row in rows()])
def test_refuses_what_vllm_refuses(row: dict[str, str], backend: str) -> None:
    letters = row["xgrammar" if backend == "auto" else "guidance"]
    differing = [
        (case, OUTCOMES[letter], found)
        for case, body, letter in zip(CASES, bodies(), letters, strict=True)
        if (found := refusal(body, row["parser"], backend)) != OUTCOMES[letter]
    ]
    assert differing == []


def test_table_has_every_parser() -> None:
    assert {row["parser"] for row in rows()} == set(TOOL_CALL_PARSERS) - WITH_LIBRARIES


def required(**fields: Any) -> dict[str, Any]:
    tools = [{"type": "function", "function": {"name": "look", "parameters": {"type": "object", "$defs": {}}}}]
    return {"messages": [{"role": "user", "content": "hi"}], "tools": tools, "tool_choice": "required", **fields}


def text_of(body: Mapping[str, Any], parser: str) -> str:
    tokenizer = BuiltinTokenizer()
    composer = Composer(tokenizer=tokenizer, prose=Prose(tokenizer))
    return "".join(composer.compose(Random(1), SamplingParams(), 100, form_of(body, parser, "auto")).texts)


@pytest.mark.parametrize(("parser", "calls"), [("hermes", True), ("xlam", True), ("mistral", False), ("dots", False)])
def test_constrained_forced_calls_replace_the_response_format(parser: str, calls: bool) -> None:
    body = required(structured_outputs={"choice": ["yes", "no"]})
    found = text_of(body, parser)
    assert ("look" in found) == calls
    assert (found in ("yes", "no")) != calls
    assert "look" in text_of(required(), parser)


def test_list_of_mistral_has_the_schemas_of_the_functions_that_may_be_called() -> None:
    assert tool_constraint_of("mistral", required()) is ToolConstraint.LIST
    assert tool_constraint_of("mistral", required(response_format={"type": "json_object"})) is ToolConstraint.LIST
    tag = {"type": "structural_tag", "format": {"type": "any_text"}}
    assert tool_constraint_of("mistral", required(response_format=tag)) is ToolConstraint.NOTHING
    found = listed_schema(required())
    assert found["items"]["anyOf"][0]["properties"]["arguments"] == {"type": "object", "$defs": {}}
    named = listed_schema({"tools": [{"function": {"name": "a"}}, {"function": {"name": "b"}}], "tool_choice": NAMED})
    assert (named["maxItems"], named["items"]["anyOf"]) == (1, [])
