"""The content of answers."""

import json
import re
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from tests.wire.plain_http import call
from tests.wire.serving import TestServer, running_server


def chat(server: TestServer, text: str, **fields: Any) -> dict[str, Any]:
    body = {"messages": [{"role": "system", "content": "x"}, {"role": "user", "content": text}], **fields}
    reply = call(server, "POST", "/v1/chat/completions", body)
    assert reply.status == 200, reply.body
    choice: dict[str, Any] = reply.json["choices"][0]
    return {**choice, "num_tokens": reply.json["usage"]["completion_tokens"]}


def complete(server: TestServer, prompt: Any, **fields: Any) -> dict[str, Any]:
    reply = call(server, "POST", "/v1/completions", {"prompt": prompt, **fields})
    assert reply.status == 200, reply.body
    choice: dict[str, Any] = reply.json["choices"][0]
    return {**choice, "num_tokens": reply.json["usage"]["completion_tokens"]}


def test_echo_mode_repeats_the_user_message() -> None:
    with running_server(mode="echo") as server:
        reply = chat(server, "one two three")
        assert (reply["message"]["content"], reply["finish_reason"], reply["num_tokens"]) == (
            "one two three",
            "stop",
            4,
        )
        reply = complete(server, "one two three", max_tokens=2)
        assert (reply["text"], reply["finish_reason"], reply["num_tokens"]) == ("one two", "length", 2)
        reply = complete(server, "one two", max_tokens=5, ignore_eos=True)
        assert (reply["text"], reply["finish_reason"]) == ("one two one two one", "length")
        ids = server.service.model.planner.tokenizer.encode("by ids")
        assert complete(server, ids)["text"] == "by ids"


def test_known_prompts_get_their_answers_and_others_prose(tmp_path: Path) -> None:
    file = tmp_path / "answers.jsonl"
    file.write_text(json.dumps({"prompt": "why", "answer": "because of that"}))
    with running_server(dataset_path=str(file)) as server:
        assert chat(server, "why")["message"]["content"] == "because of that"
        assert complete(server, "why", stop="of")["text"] == "because "
        assert len(complete(server, "who", max_tokens=20, ignore_eos=True)["text"]) > 30


def test_a_stop_token_ends_an_answer(server: TestServer) -> None:
    fields: dict[str, Any] = {"seed": 3, "max_tokens": 40, "ignore_eos": True}
    text = complete(server, "hello", **fields)["text"]
    ids = server.service.model.planner.tokenizer.encode(text)
    reply = complete(server, "hello", **fields, stop_token_ids=[ids[7]])
    first = ids.index(ids[7])
    assert (reply["finish_reason"], reply["stop_reason"], reply["num_tokens"]) == ("stop", ids[7], first + 1)
    assert text.startswith(reply["text"])
    assert server.service.model.planner.tokenizer.count(reply["text"]) == first


def test_half_of_a_surrogate_pair_is_echoed_as_a_replacement_character(server: TestServer) -> None:
    assert complete(server, "x", structured_outputs={"choice": ["a\udfff"]})["text"] == "a\ufffd"


SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "people": {"type": "integer", "minimum": 1}},
    "required": ["city", "people"],
    "additionalProperties": False,
}


def test_json_is_written_on_request(server: TestServer) -> None:
    described = {"name": "place", "schema": SCHEMA, "strict": True}
    for seed in range(10):
        reply = chat(server, "x", response_format={"type": "json_schema", "json_schema": described}, seed=seed)
        jsonschema.validate(json.loads(reply["message"]["content"]), SCHEMA)
        assert reply["finish_reason"] == "stop"
        reply = chat(server, "x", response_format={"type": "json_object"}, seed=seed)
        assert isinstance(json.loads(reply["message"]["content"]), dict)
        reply = complete(server, "x", structured_outputs={"json": SCHEMA}, max_tokens=60, seed=seed)
        jsonschema.validate(json.loads(reply["text"]), SCHEMA)


def test_structured_output_is_valid_within_a_small_budget(server: TestServer) -> None:
    described = {"name": "place", "schema": SCHEMA}
    for seed in range(10):
        fields = {"response_format": {"type": "json_schema", "json_schema": described}, "seed": seed}
        reply = chat(server, "x", **fields, max_tokens=20)
        jsonschema.validate(json.loads(reply["message"]["content"]), SCHEMA)
        reply = chat(server, "x", **fields, max_tokens=3)
        assert (reply["finish_reason"], reply["num_tokens"]) == ("length", 3)


def test_choices_patterns_grammars_and_tags_constrain_answers(server: TestServer) -> None:
    grammar = 'root ::= "SELECT " ("a" | "b") " FROM " [c-e]+'
    tag = {
        "type": "structural_tag",
        "structures": [{"begin": "<f>", "schema": SCHEMA, "end": "</f>"}],
        "triggers": ["<f"],
    }
    for seed in range(10):
        for wanted, pattern in (
            ({"choice": ["yes", "no"]}, "yes|no"),
            ({"regex": r"\d{3}-[a-f]+"}, r"\d{3}-[a-f]+"),
            ({"grammar": grammar}, "SELECT [ab] FROM [cde]+"),
            ({"structural_tag": json.dumps(tag)}, r"[^<]*<f>\{.*\}</f>.*"),
        ):
            reply = complete(server, "x", structured_outputs=wanted, max_tokens=200, seed=seed)
            assert re.fullmatch(pattern, reply["text"]), reply["text"]
            assert reply["finish_reason"] == "stop"


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        # The messages are those of captured replies.
        (
            {"regex": "(("},
            'Grammar error: at 1(8): invalid regex "((" (in regex): regex parse error:\n    ((\n     ^\n',
        ),
        ({"regex": "\0"}, "structured_outputs.regex must not contain a NUL character ('\\x00')"),
        ({"choice": []}, "Choice '[]' cannot be an empty list"),
        ({"grammar": " "}, "structured_outputs.grammar cannot be an empty string"),
        ({"grammar": "start: x"}, 'Grammar error: at 1(8): unknown name: "x"'),
        ({"json": "{"}, "Invalid JSON grammar specification."),
        ({"json": ""}, "structured_outputs.json cannot be an empty string"),
        ({"json": {"type": "array", "uniqueItems": True}}, 'Grammar error: Unimplemented keys: ["uniqueItems"]'),
        ({"json": {"items": {"type": "array", "contains": {}}}}, 'Grammar error: Unimplemented keys: ["contains"]'),
        ({"json": {"type": "foo"}}, "Grammar error: Invalid type: foo"),
        (
            {"json": {"type": "string", "pattern": "(("}},
            "Grammar error: regex parse error:\n    ((\n     ^\nerror: unclosed group",
        ),
        ({"json_object": False}, "structured_outputs.json_object must be True if set; omit structured_outputs to"),
        ({}, "You must use one kind of structured outputs constraint but none are specified: {'json': None, 'reg"),
        ({"structural_tag": "{}"}, "Invalid structured_outputs structural_tag specification. (parameter=structured"),
    ],
)
def test_invalid_structured_outputs_are_refused_in_vllms_words(server: TestServer, wanted: Any, message: str) -> None:
    reply = call(server, "POST", "/v1/completions", {"prompt": "x", "structured_outputs": wanted})
    assert reply.status == 400
    assert reply.json["error"]["message"].startswith(message)
    assert reply.json["error"]["type"] == "BadRequestError"
