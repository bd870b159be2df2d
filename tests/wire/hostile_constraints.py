"""Demands on an answer that are small to send and costly to meet."""

import json
from collections.abc import Sequence
from typing import Any

from workshop.attack.costly import CHAT, COMPLETIONS, Costly
from workshop.attack.mutations import nested

RESPONSES, MESSAGES, INVOCATIONS = "/v1/responses", "/v1/messages", "/invocations"
USER = [{"role": "user", "content": "hi"}]


def demand(**kinds: Any) -> dict[str, Any]:
    """A completion whose text has to have a form."""
    return {"prompt": "hi", "max_tokens": 2000, "structured_outputs": kinds}


def answer_of(schema: Any) -> dict[str, Any]:
    """A chat whose answer has to be a value of a schema."""
    response_format = {"type": "json_schema", "json_schema": {"name": "s", "schema": schema}}
    return {"messages": USER, "max_tokens": 2000, "response_format": response_format}


def call_of(schema: Any, **fields: Any) -> dict[str, Any]:
    """A chat that has to call a function with such arguments."""
    function = {"name": "f", "parameters": schema, **fields}
    return {"messages": USER, "tools": [{"type": "function", "function": function}], "tool_choice": "required"}


def doubling(keyword: str, levels: int = 28) -> dict[str, Any]:
    """A schema in which each level refers to the next one twice."""
    kinds: dict[str, Any] = {f"d{each}": {keyword: [{"$ref": f"#/$defs/d{each + 1}"}] * 2} for each in range(levels)}
    return {"$defs": {**kinds, f"d{levels}": {"type": "string"}}, "$ref": "#/$defs/d0"}


def branching(levels: int = 28) -> dict[str, Any]:
    """A schema in which each object holds the next one twice."""
    kinds: dict[str, Any] = {}
    for each in range(levels):
        part = {"$ref": f"#/$defs/d{each + 1}"}
        kinds[f"d{each}"] = {"type": "object", "properties": {"a": part, "b": part}, "required": ["a", "b"]}
    return {"$defs": {**kinds, f"d{levels}": {"type": "string"}}, "$ref": "#/$defs/d0"}


def rules(count: int) -> str:
    """A grammar of so many rules, each of which goes on with the next."""
    lines = [f'r{each} ::= "a" r{each + 1} | r{each + 1} "b"' for each in range(count)]
    return "\n".join(["root ::= r0", *lines, f'r{count} ::= "c"'])


def doubled_rules(levels: int) -> str:
    """A grammar whose only sentence has a letter for each path through so many levels of two."""
    lines = [f"r{each} ::= r{each + 1} r{each + 1}" for each in range(levels)]
    return "\n".join(["root ::= r0", *lines, f'r{levels} ::= "a"'])


def unique(count: int) -> dict[str, Any]:
    """An array of different items, of which there are hardly more than it needs."""
    return {"type": "array", "minItems": count, "uniqueItems": True, "items": {"type": "integer", "maximum": count}}


def array_of(item: Any, count: int) -> dict[str, Any]:
    """An array of at least so many items."""
    return {"type": "array", "minItems": count, "items": item}


def patterned(pattern: str, name: str) -> dict[str, Any]:
    """An object that has to have one member, whose name a pattern is tried on."""
    return {"type": "object", "required": [name], "patternProperties": {pattern: {"type": "string"}}}


BACKTRACKING = "^(" + "|".join(["a+", "(a|a)*", "(a*)*"] * 12) + ")+$"
LONG_NAME = "a" * 60 + "!"
RECURSIVE = {"$ref": "#/$defs/n", "$defs": {"n": {"allOf": [{"$ref": "#/$defs/n"}, {"$ref": "#/$defs/n"}]}}}
WIDE = {"type": "object", "properties": {f"p{each}": {"type": "string"} for each in range(20_000)}}
REPEATING = {"max_pattern_size": 10**6, "min_pattern_size": 1, "min_count": 3}

HOSTILE: Sequence[Costly] = (
    Costly("backtracking pattern on an enum", CHAT, lambda: answer_of({"enum": [LONG_NAME], "pattern": BACKTRACKING})),
    Costly("backtracking name", CHAT, lambda: answer_of({"allOf": [patterned(BACKTRACKING, LONG_NAME)]})),
    Costly("backtracking unevaluated", CHAT, lambda: answer_of(
        {**patterned(BACKTRACKING, LONG_NAME), "unevaluatedProperties": False})),
    Costly("backtracking arguments", CHAT, lambda: call_of({"allOf": [patterned(BACKTRACKING, LONG_NAME)]})),
    Costly("allOf doubling", CHAT, lambda: answer_of(doubling("allOf"))),
    Costly("oneOf doubling", CHAT, lambda: answer_of(doubling("oneOf"))),
    Costly("anyOf doubling", CHAT, lambda: answer_of(doubling("anyOf"))),
    Costly("doubling objects", CHAT, lambda: answer_of(branching())),
    Costly("doubling strict arguments", CHAT, lambda: call_of(doubling("allOf"), strict=True)),
    Costly("doubling on invocations", INVOCATIONS, lambda: answer_of(doubling("allOf"))),
    Costly("doubling in a response", RESPONSES, lambda: {
        "input": "hi", "text": {"format": {"type": "json_schema", "name": "s", "schema": doubling("allOf")}}}),
    Costly("doubling in a message", MESSAGES, lambda: {
        "model": "m", "max_tokens": 100, "messages": USER, "tool_choice": {"type": "any"},
        "tools": [{"name": "f", "input_schema": doubling("allOf")}]}),
    Costly("200 alternatives", COMPLETIONS, lambda: demand(regex="|".join(["[a-z]{30000}"] * 200))),
    Costly("long repeat", COMPLETIONS, lambda: demand(regex="a{100000}")),
    Costly("nested repeats", COMPLETIONS, lambda: demand(regex="((a{300}){300}){0,300}")),
    Costly("nested stars", COMPLETIONS, lambda: demand(regex="(" * 150 + "a" + "*)*" * 150)),
    Costly("4 MB regex", COMPLETIONS, lambda: demand(regex="ab|" * 1_300_000 + "c")),
    Costly("4 MB text", COMPLETIONS, lambda: demand(regex="a" * 4_000_000)),
    Costly("grammar of 3,000 rules", COMPLETIONS, lambda: demand(grammar=rules(3000))),
    Costly("grammar that doubles", COMPLETIONS, lambda: demand(grammar=doubled_rules(16))),
    Costly("minItems x minLength", CHAT, lambda: answer_of(array_of({"type": "string", "minLength": 10_000}, 9000))),
    Costly("minItems x minItems", CHAT, lambda: answer_of(array_of(array_of({"type": "null"}, 100), 150))),
    Costly("long answer", CHAT, lambda: {**answer_of(array_of({"type": "integer"}, 9000)), "max_tokens": 30_000}),
    Costly("uniqueItems", CHAT, lambda: answer_of(unique(9000))),
    Costly("references to itself", CHAT, lambda: answer_of(RECURSIVE)),
    Costly("not itself", CHAT, lambda: answer_of({"not": {"$ref": "#"}})),
    Costly("enum of 200,000", CHAT, lambda: answer_of({"enum": [f"v{each}" for each in range(200_000)]})),
    Costly("200,000 choices", COMPLETIONS, lambda: demand(choice=[f"v{each}" for each in range(200_000)])),
    Costly("20,000 properties", CHAT, lambda: answer_of({**WIDE, "required": list(WIDE["properties"])})),
    Costly("20,000 alternatives", CHAT, lambda: answer_of({"title": "t", "anyOf": [{"type": "string"}] * 20_000})),
    Costly("2,000 strict functions", CHAT, lambda: {
        "messages": USER, "tools": call_of({"type": "object"}, strict=True)["tools"] * 2000}),
    Costly("schema as 2 MB of text", COMPLETIONS, lambda: demand(json=json.dumps({"enum": ["x" * 50] * 40_000}))),
    Costly("structural tag", COMPLETIONS, lambda: demand(structural_tag=json.dumps({
        "format": {"type": "repeat", "min": 1000, "max": 1000,
                   "content": {"type": "repeat", "min": 1000, "max": 1000,
                               "content": {"type": "const_string", "value": "a"}}}}))),
    Costly("repetition_detection", COMPLETIONS, lambda: {
        "prompt": "hi", "max_tokens": 30_000, "ignore_eos": True, "repetition_detection": REPEATING}),
    Costly("repetition of choices", COMPLETIONS, lambda: {
        **demand(choice=["".join("ab"[bin(each).count("1") % 2] + " " for each in range(30_000))]),
        "max_tokens": 30_000, "repetition_detection": REPEATING}),
    Costly("backtracking regex", COMPLETIONS, lambda: demand(regex="(a+)+" * 50 + "b")),
    Costly("nested quantifiers", COMPLETIONS, lambda: demand(regex="((((a{1,30}){1,30}){1,30}){1,30})")),
    Costly("deep groups", COMPLETIONS, lambda: demand(regex="(" * 50_000 + "a" + ")" * 50_000)),
    Costly("many classes", COMPLETIONS, lambda: demand(regex=r"[\w\d\s]*" * 2000)),
    Costly("recursive object", CHAT, lambda: answer_of(
        {"type": "object", "properties": {"a": {"$ref": "#"}, "b": {"$ref": "#"}}, "required": ["a", "b"]})),
    Costly("minLength", CHAT, lambda: answer_of({"type": "string", "minLength": 10**9})),
    Costly("minProperties", CHAT, lambda: answer_of({"type": "object", "minProperties": 10**7})),
    Costly("uniqueItems of an enum", CHAT, lambda: answer_of({"enum": [list(range(30_000))], "uniqueItems": True})),
    Costly("deep schema", CHAT, lambda: answer_of(nested(800, {"type": "integer"}, "items"))),
    Costly("const of deep lists", CHAT, lambda: answer_of({"const": nested(800)})),
    Costly("multipleOf", CHAT, lambda: answer_of({"type": "number", "multipleOf": 1e-300, "minimum": 1e300})),
    Costly("huge bounds", CHAT, lambda: answer_of({"type": "integer", "minimum": 10**4000, "maximum": 10**4000 + 1})),
    Costly("left recursion", COMPLETIONS, lambda: demand(grammar='root ::= root "a" | root root | "b"')),
    Costly("ambiguous grammar", COMPLETIONS, lambda: demand(grammar='root ::= root root root | "a" | ""')),
    Costly("nested grammar", COMPLETIONS, lambda: demand(grammar="root ::= " + "(" * 20_000 + '"a"' + ")" * 20_000)),
    Costly("repeats in a grammar", COMPLETIONS, lambda: demand(
        grammar='root ::= (("a"{1,9999}){1,9999}){1,9999}')),
    Costly("choice of 4 MB", COMPLETIONS, lambda: demand(choice=["a" * 4_000_000])),
    Costly("structures of a tag", COMPLETIONS, lambda: demand(structural_tag={
        "type": "structural_tag", "triggers": ["<a"] * 5000,
        "structures": [{"begin": f"<a{each}>", "schema": {}, "end": "</a>"} for each in range(5000)]})),
    Costly("backtracking argument", CHAT, lambda: call_of(
        {"type": "object", "properties": {"a": {"type": "string", "pattern": "(a|a)*b"}}, "required": ["a"]})),
    Costly("minLength of arguments", CHAT, lambda: call_of(
        {"type": "object", "properties": {"a": array_of({"type": "string", "minLength": 10**7}, 10**4)}})),
)  # fmt: skip
