"""Schemas that prompts describe for answers in JSON, as the prompts of clients put them."""

import json
from random import Random
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from mockserve.generation.structured_outputs.demand import MAX_CHARS, schema_in_messages
from mockserve.generation.structured_outputs.kinds import constrained_text, requested_constraint

PERSON = {
    "$defs": {"Pet": {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}},
    "properties": {"age": {"type": "integer"}, "pets": {"type": "array", "items": {"$ref": "#/$defs/Pet"}}},
    "required": ["age", "pets"],
    "title": "Person",
    "type": "object",
}
SHOWN = json.dumps(PERSON, indent=2)
INSTRUCTOR = (
    "As a genius expert, your task is to understand the content and provide the parsed objects in json that match the "
    f"following json_schema:\n\n{SHOWN}\n\nMake sure to return an instance of the JSON, not the schema itself"
)
PYDANTIC_AI = (
    "Always respond with a JSON object that's compatible with this schema:\n\n"
    f"{json.dumps(PERSON)}\n\nDon't include any text or Markdown fencing before or after."
)
LANGCHAIN = (
    "The output should be formatted as a JSON instance that conforms to the JSON schema below.\n\nAs an example, for "
    'the schema {"properties": {"foo": {"type": "array", "items": {"type": "string"}}}, "required": ["foo"]} the '
    f'object {{"foo": ["bar", "baz"]}} is a well-formatted instance.\n\nHere is the output '
    f"schema:\n```\n{json.dumps(PERSON)}\n```"
)
DSPY = """Inputs will have the following structure:

[[ ## question ## ]]
{question}

Outputs will be a JSON object with the following fields.

{
  "reasoning": "{reasoning}",
  "answer": "{answer}        # note: the value you produce must be a single float value",
  "sure": "{sure}        # note: the value you produce must be True or False",
  "kind": "{kind}        # note: the value you produce must exactly match (no extra characters) one of: easy; hard"
}
"""


@pytest.mark.parametrize("prompt", [INSTRUCTOR, PYDANTIC_AI, LANGCHAIN])
def test_finds_the_schema_that_a_prompt_writes_out(prompt: str) -> None:
    assert schema_in_messages(["You are helpful.", prompt, "Who is 3?"]) == PERSON


def test_reads_types_from_the_notes_of_an_example() -> None:
    found = schema_in_messages([DSPY, "[[ ## question ## ]]\nIs it so?"])
    assert found is not None
    assert found["required"] == ["reasoning", "answer", "sure", "kind"]
    assert list(found["properties"].values()) == [
        {"type": "string"},
        {"type": "number"},
        {"type": "boolean"},
        {"enum": ["easy", "hard"]},
    ]


@pytest.mark.parametrize(
    ("example", "value"),
    [
        ('{"name": "string", "age": "integer"}', {"name": "Ann", "age": 3}),
        ('{"items": [{"id": 1, "ok": true}], "total": 2.5}', {"items": [{"id": 7, "ok": False}], "total": 1.0}),
    ],
)
def test_makes_a_schema_that_an_example_and_its_like_satisfy(example: str, value: Any) -> None:
    found = schema_in_messages([f"Answer in JSON. Example:\n{example}"])
    assert found is not None
    Draft202012Validator(found).validate(value)


@pytest.mark.parametrize(
    "text", ["", "Say {this} in JSON", "Compute f({1, 2})", '{"a": 1} comes before any cue', "{" * 9_000]
)
def test_finds_nothing_where_a_prompt_describes_no_object(text: str) -> None:
    assert schema_in_messages([text]) is None


def test_looks_at_both_ends_of_a_long_message() -> None:
    assert schema_in_messages(["x " * MAX_CHARS + INSTRUCTOR]) == PERSON
    assert schema_in_messages([INSTRUCTOR + "x " * MAX_CHARS]) == PERSON


@pytest.mark.parametrize("verbosity", [0, 1, 2])
def test_an_object_of_any_form_follows_the_prompt(verbosity: int) -> None:
    body = {"response_format": {"type": "json_object"}}
    for seed in range(20):
        form = requested_constraint(body, texts=lambda: [INSTRUCTOR])
        assert form is not None
        value = json.loads(constrained_text(form, Random(seed), verbosity))
        Draft202012Validator(PERSON).validate(value)
        assert 0 <= value["age"] <= 100


def test_a_schema_in_the_prompt_that_nothing_satisfies_is_passed_over() -> None:
    prompt = (
        'Answer in JSON of this schema: {"type": "object", "properties": {"a": {"type": "nope"}}, "required": ["a"]}'
    )
    form = requested_constraint({"response_format": {"type": "json_object"}}, texts=lambda: [prompt])
    assert form is not None
    assert isinstance(json.loads(constrained_text(form, Random(1), 1)), dict)


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "integer"},
        {"type": "integer", "minimum": 0},
        {"type": "integer", "exclusiveMinimum": 0},
        {"type": "integer", "minimum": -(2**31), "maximum": 2**31 - 1},
        {"type": "integer", "minimum": 0, "maximum": 2**63 - 1},
        {"type": ["integer", "null"]},
        {"anyOf": [{"type": "integer"}, {"type": "null"}]},
    ],
)
def test_makes_small_integers_where_no_bound_asks_for_others(schema: Any) -> None:
    form = requested_constraint({"structured_outputs": {"json": schema}})
    assert form is not None
    for seed in range(50):
        value = json.loads(constrained_text(form, Random(seed), 2))
        assert value is None or 0 <= value <= 101
