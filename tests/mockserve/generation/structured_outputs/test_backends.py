"""Which backend takes a constraint, and what is said of one that none takes, as captured from vLLM 0.33.

`captured_backends.jsonl` has a demand a line. `auto` and `outlines` are the backend that vLLM's own check resolves to,
or its words; `guidance` and `xgrammar` are status and words of a server with that backend. xgrammar's own words are
compared where that library is installed.
"""

import json
import re
from importlib.util import find_spec
from pathlib import Path
from random import Random
from typing import Any

import pytest

from mockserve.generation.structured_outputs.backends import negative_lengths, resolve_backend
from mockserve.generation.structured_outputs.demand import Demand
from mockserve.generation.structured_outputs.kinds import build_constraint, constrained_text
from mockserve.options.content import StructuredOutputsConfig
from mockserve.protocol.errors import ApiError

CAPTURED = [
    json.loads(line) for line in (Path(__file__).parent / "captured_backends.jsonl").read_text("utf-8").splitlines()
]
OF_XGRAMMAR = re.compile(r"Failed to transform (?:regex|json schema) into a grammar: ")
CLOCK = re.compile(r"\[\d\d:\d\d:\d\d\]")
MEANT = {
    # llguidance gives up on the mask of a real tokenizer's vocabulary, which is not computed here.
    ("guidance", '{"regex": "a{1000000}"}'),
}


def demanded(row: dict[str, Any], backend: str) -> Demand:
    ((kind, value),) = row["demand"].items()
    return Demand(kind, value, StructuredOutputsConfig(backend=backend))


def title(row: dict[str, Any]) -> str:
    return json.dumps(row["demand"])[:60]


@pytest.mark.parametrize("backend", ["auto", "outlines"])
@pytest.mark.parametrize("row", CAPTURED, ids=title)
def test_resolves_to_the_backend_of_vllm(row: dict[str, Any], backend: str) -> None:
    try:
        found = resolve_backend(demanded(row, backend))
    except ApiError as error:
        found = CLOCK.sub("[time]", error.message)
    assert found == row[backend]


@pytest.mark.parametrize("backend", ["guidance", "xgrammar"])
@pytest.mark.parametrize("row", CAPTURED, ids=title)
def test_matches_vllm_with_one_backend(row: dict[str, Any], backend: str) -> None:
    status, message = 200, None
    try:
        form = build_constraint(demanded(row, backend))
        assert form.backend == backend
        for verbosity in (0, 1, 2):
            constrained_text(form, Random(1), verbosity)
    except ApiError as error:
        status, message = error.status, CLOCK.sub("[time]", error.message)
    is_meant_to_differ = (backend, json.dumps(row["demand"])) in MEANT
    assert ([status, words(message)] == [row[backend][0], words(row[backend][1])]) is not is_meant_to_differ


def words(message: str | None) -> str | None:
    """The message, without xgrammar's own part of it if that library is not installed."""
    found = None if message is None or find_spec("xgrammar") else OF_XGRAMMAR.match(message)
    return message if found is None else found[0]


@pytest.mark.parametrize("kind", ["grammar", "structural_tag"])
def test_the_format_enforcer_takes_neither_grammars_nor_tags(kind: str) -> None:
    config = StructuredOutputsConfig(backend="lm-format-enforcer")
    with pytest.raises(ApiError, match=f"LM Format Enforcer structured outputs backend does not support {kind}"):
        resolve_backend(Demand(kind, "start: x", config))
    assert resolve_backend(Demand("json", {"type": "integer"}, config)) == "lm-format-enforcer"


@pytest.mark.parametrize(
    ("backend", "pattern", "text"),
    [
        ("guidance", {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}, '{"a":'),
        ("xgrammar", {"type": "array", "items": {"type": "integer"}, "minItems": 2, "maxItems": 2}, "["),
    ],
)
def test_disabled_whitespace_leaves_no_spaces(backend: str, pattern: Any, text: str) -> None:
    config = StructuredOutputsConfig(backend=backend, disable_any_whitespace=True)
    written = constrained_text(build_constraint(Demand("json", pattern, config)), Random(1), 2)
    assert written.startswith(text)
    assert " " not in written


def test_disabled_additional_properties_closes_objects_that_name_members() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    config = StructuredOutputsConfig(backend="guidance", disable_additional_properties=True)
    for seed in range(20):
        text = constrained_text(build_constraint(Demand("json", schema, config)), Random(seed), 2)
        assert set(json.loads(text)) <= {"a"}


def test_a_member_that_needs_itself_is_written_without_end() -> None:
    schema = {"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]}
    text = constrained_text(build_constraint(Demand("json", schema)), Random(1), 0)
    assert text.startswith('{"a": {"a": {"a": ')
    assert "}" not in text


@pytest.mark.parametrize(
    ("form", "text"),
    [
        ({"value": "x"}, "x"),
        ({"begin": "<a>", "content": {"elements": [{"value": "1"}, {"value": "2"}]}, "end": "</a>"}, "<a>12</a>"),
        ({"min": 2, "max": 2, "content": {"value": "y"}}, "yy"),
        ({"type": "json_schema", "json_schema": {"const": 3}}, "3"),
    ],
)
def test_a_format_without_a_type_is_recognized_by_its_fields(form: Any, text: str) -> None:
    tag = json.dumps({"type": "structural_tag", "format": form})
    assert constrained_text(build_constraint(Demand("structural_tag", tag)), Random(1), 0) == text


NEGATIVE: dict[str, Any] = {"type": "string", "minLength": -1}


@pytest.mark.parametrize(
    "schema",
    [
        NEGATIVE,
        {"type": ["string", "null"], "minLength": -1},
        {"type": "string", "minLength": -1, "maxLength": 4},
        {"type": "object", "properties": {"a": NEGATIVE}},
        {"type": "object", "$defs": {"x": NEGATIVE}, "properties": {"a": {"$ref": "#/$defs/x"}}},
        {"type": "object", "additionalProperties": NEGATIVE},
        {"type": "object", "patternProperties": {"a": NEGATIVE}},
        {"type": "object", "propertyNames": {"minLength": -1}},
        {"anyOf": [NEGATIVE, {"type": "null"}]},
        {"allOf": [NEGATIVE]},
        {"oneOf": [NEGATIVE]},
        {"type": "array", "items": NEGATIVE},
        {"type": "array", "prefixItems": [NEGATIVE]},
    ],
)
def test_a_length_below_zero_fails_where_xgrammar_compiles_it(schema: Any) -> None:
    """Each schema failed in a genuine vLLM 0.33."""
    assert negative_lengths(schema) in ((-1, -1), (-1, 4))


@pytest.mark.parametrize(
    "schema",
    [
        {"minLength": -1},
        {"type": "string", "maxLength": -1},
        {"type": "integer", "minLength": -1},
        {"type": "string", "enum": ["a"], "minLength": -1},
        {"type": "string", "const": "a", "minLength": -1},
        {"type": "string", "pattern": "a*", "minLength": -1},
        {"type": "string", "format": "date", "minLength": -1},
        {"type": "object", "$defs": {"x": NEGATIVE}},
        {"type": "object", "properties": {"a": {"enum": [NEGATIVE]}}},
        {"type": "array", "minItems": -1},
        {"$ref": "#"},
    ],
)
def test_a_length_below_zero_that_xgrammar_passes_over_is_no_error(schema: Any) -> None:
    assert negative_lengths(schema) is None
