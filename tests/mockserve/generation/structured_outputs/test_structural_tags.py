"""Free text with parts in it that must have a form."""

import json
import re
from random import Random
from typing import Any

import pytest

from mockserve.generation.structured_outputs.structural_tags import TagError, tag_text

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"], "additionalProperties": False}
TAG = {"type": "tag", "begin": "<f>", "content": {"type": "json_schema", "json_schema": SCHEMA}, "end": "</f>"}
ONE = r'<f>\{"a": \d+\}</f>'


def text(value: str) -> dict[str, Any]:
    return {"type": "const_string", "value": value}


@pytest.mark.parametrize(
    ("form", "pattern"),
    [
        (text("hello"), "hello"),
        (TAG, ONE),
        ({"type": "sequence", "elements": [text("a"), TAG, text("b")]}, f"a{ONE}b"),
        ({"type": "or", "elements": [text("a"), text("b")]}, "a|b"),
        ({"type": "triggered_tags", "triggers": ["<f"], "tags": [TAG], "at_least_one": True}, f"({ONE})+"),
        ({"type": "triggered_tags", "triggers": ["<f"], "tags": [TAG]}, f"[a-z ]+|[a-z ]*({ONE})+"),
        ({"type": "tags_with_separator", "tags": [TAG], "separator": ", "}, f"({ONE}(, {ONE})*)?"),
        ({"type": "optional", "content": TAG}, f"({ONE})?"),
        ({"type": "plus", "content": text("a")}, "a+"),
        ({"type": "star", "content": text("a")}, "a*"),
        ({"type": "repeat", "min": 2, "max": 3, "content": text("a")}, "aa|aaa"),
        ({"type": "regex", "pattern": "[a-c]{2}"}, "[a-c]{2}"),
        ({"type": "grammar", "grammar": 'root ::= "x"+'}, "x+"),
        ({"type": "any_text"}, "[a-z ]+"),
        ({"type": "any_tokens"}, "[a-z ]+"),
        ({"type": "dispatch", "rules": []}, "[a-z ]+"),
    ],
)
def test_text_matches_every_structural_tag_format(form: Any, pattern: str) -> None:
    for seed in range(30):
        for verbosity in (0, 1, 2):
            written = tag_text({"type": "structural_tag", "format": form}, Random(seed), verbosity)
            assert re.fullmatch(pattern, written), written


def test_structures_follow_their_triggers() -> None:
    tag = {"structures": [{"begin": "<f>", "schema": SCHEMA, "end": "</f>"}], "triggers": ["<f"]}
    for seed in range(30):
        found = re.findall("<f>(.*?)</f>", tag_text(tag, Random(seed), 2))
        assert found
        assert all(json.loads(each)["a"] >= 0 for each in found)


@pytest.mark.parametrize(
    "tag",
    [
        {},
        [],
        {"format": {"type": "nope"}},
        {"format": {"type": "const_string"}},
        {"format": {"type": "tag", "begin": "<f>", "end": 5, "content": {"type": "any_text"}}},
        {"format": {"type": "repeat", "min": 10**9, "max": 10**9, "content": {"type": "any_text"}}},
        {"structures": [], "triggers": []},
        {"structures": [{"begin": "<a>", "schema": {}, "end": "</a>"}], "triggers": ["<b"]},
    ],
)
def test_an_invalid_structural_tag_is_refused(tag: Any) -> None:
    with pytest.raises(TagError):
        tag_text(tag, Random(0), 0)
