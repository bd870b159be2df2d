"""Backends of structured outputs: vLLM's choice of one for a constraint, and constraints that backends refuse."""

import json
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import Any

from mockserve.generation.structured_outputs.checks import is_small_schema
from mockserve.generation.structured_outputs.demand import Demand, check_demand
from mockserve.generation.structured_outputs.guided import GrammarError, grammar_of_xgrammar
from mockserve.generation.structured_outputs.json_schema import SchemaError, find_referenced
from mockserve.generation.structured_outputs.patterns import read_pattern, regex_grammar, tokens_of
from mockserve.generation.structured_outputs.structural_tags import check_tag
from mockserve.protocol.errors import ApiError, sanitized

SUPPORTED_FORMATS = frozenset(
    {"email", "date", "time", "date-time", "duration", "ipv4", "ipv6", "hostname", "uuid", "uri", "uri-reference"}
    | {"uri-template", "json-pointer", "relative-json-pointer"}
)
_MAPS = ("properties", "patternProperties", "$defs", "definitions")
_MOST_ITEMS = 1000
"""Bound of the items of an array in a check: the library allocates memory for each."""

_ARRAY_KEYWORDS = ("uniqueItems", "contains", "minContains", "maxContains")


def has_unsupported_features(schema: Any) -> bool:
    """Whether any object within `schema` has a combination of keywords that xgrammar cannot enforce."""
    pending = [schema] if isinstance(schema, Mapping) else []
    while pending:
        found = pending.pop()
        if _is_unsupported(found):
            return True
        pending.extend(_objects_in(found))
    return False


def _objects_in(schema: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    for value in schema.values():
        for each in value if isinstance(value, list) else [value]:
            if isinstance(each, Mapping):
                yield each


_HIDE_LENGTHS = {"enum", "const", "pattern", "format"}
_MAPS_OF_VALUES = ("properties", "patternProperties")
_PARTS = ("propertyNames", "items", "additionalProperties", "prefixItems", "anyOf", "oneOf", "allOf", *_MAPS_OF_VALUES)


def negative_lengths(root: Any) -> tuple[int, int] | None:
    """Return the first lengths of a text whose least one is below zero, with -1 for no limit; None without any.

    Only schemas that a value can reach count. Enumerations, constants, patterns and formats hide lengths.
    """
    pending, seen = [(root, False)], set[int]()
    while pending:
        schema, is_name = pending.pop()
        if not isinstance(schema, Mapping) or id(schema) in seen:
            continue
        seen.add(id(schema))
        if "$ref" in schema:
            with suppress(SchemaError):  # xgrammar takes such a reference for any value
                pending.append((find_referenced(schema["$ref"], root), is_name))
            continue
        given, least = schema.get("type"), schema.get("minLength", 0)
        is_text = "string" in (given if isinstance(given, list) else [given]) and not _HIDE_LENGTHS & schema.keys()
        if (is_name or is_text) and isinstance(least, int) and least < 0:
            return least, schema.get("maxLength", -1)
        for name in _PARTS:
            part = schema.get(name)
            values = [*part.values()] if name in _MAPS_OF_VALUES and isinstance(part, Mapping) else part
            pending += [(each, name == "propertyNames") for each in (values if isinstance(values, list) else [values])]
    return None


def _is_unsupported(schema: Mapping[str, Any]) -> bool:
    given = schema.get("type")
    types = {each for each in (given if isinstance(given, list) else [given]) if isinstance(each, str)}
    if types & {"integer", "number"} and "multipleOf" in schema:
        return True
    if "array" in types and any(name in schema for name in _ARRAY_KEYWORDS):
        return True
    if "string" in types and _is_unsupported_string(schema):
        return True
    if "object" in types and (_has_unsupported_names(schema) or _has_unsupported_patterns(schema)):
        return True
    parts = schema.get("allOf")
    return isinstance(parts, list) and len(parts) >= 2


def _is_unsupported_string(schema: Mapping[str, Any]) -> bool:
    name = schema.get("format")
    # vLLM fails on an unhashable format; here an unhashable format is handled as an unknown one.
    if "format" in schema and not (isinstance(name, str) and name in SUPPORTED_FORMATS):
        return True
    return _has_pattern_and_length(schema)


def _has_pattern_and_length(schema: Mapping[str, Any]) -> bool:
    return ("pattern" in schema or "format" in schema) and ("minLength" in schema or "maxLength" in schema)


def _has_unsupported_names(schema: Mapping[str, Any]) -> bool:
    if "propertyNames" not in schema:
        return False
    names = schema["propertyNames"]
    if isinstance(names, Mapping) and _has_pattern_and_length(names):
        return True
    return (
        "patternProperties" in schema or "properties" in schema or schema.get("unevaluatedProperties", True) is not True
    )


def _has_unsupported_patterns(schema: Mapping[str, Any]) -> bool:
    patterns = schema.get("patternProperties")
    return isinstance(patterns, Mapping) and ("properties" in schema or len(patterns) > 1)


NO_TEXT_OR_MODEL = "The schema should be a string or a Pydantic model."
UNSUPPORTED_FEATURES = "The provided JSON schema contains features not supported by xgrammar."


def refusal_of_xgrammar(kind: str, value: Any) -> str | None:
    """Return why vLLM's check of the xgrammar backend refuses a constraint, in our words; None where it accepts it.

    `value` is the value of a field of `structured_outputs`, with JSON already read.
    """
    try:
        _CHECKS.get(kind, lambda _: None)(value)
    except RecursionError:
        return "it is nested too deeply"
    except ValueError as error:
        return str(error)
    return None


def message_of_xgrammar(kind: str, value: Any, reason: str) -> str:
    """Return the message of vLLM's check for a refusal, with the words of xgrammar where it is installed."""
    if kind == "grammar":
        return "Invalid grammar specification."
    if kind == "structural_tag":
        return "Invalid structural tag specification."
    if reason == UNSUPPORTED_FEATURES:
        return reason
    called = "regex" if kind == "regex" else "json schema"
    return f"Failed to transform {called} into a grammar: {_words_of_library(kind, value) or reason}"


def _check_schema(schema: Any) -> None:
    """Raise GrammarError for a schema that vLLM does not give to xgrammar, or that xgrammar cannot convert."""
    if has_unsupported_features(schema):
        raise GrammarError(UNSUPPORTED_FEATURES)
    if not isinstance(schema, Mapping):
        raise GrammarError(NO_TEXT_OR_MODEL)
    _check_conversion(schema)


def _check_conversion(schema: Any) -> None:
    if schema is True or is_small_schema(schema):
        return
    from llguidance import LLMatcher

    read = json.dumps(_as_read(schema))
    grammar = LLMatcher.grammar_from_json_schema(read, defaults={"lenient": True, "coerce_one_of": True})
    problem = LLMatcher.validate_grammar(grammar)
    if problem and not problem.endswith("level exceeded"):  # by a reference to itself, which xgrammar takes
        raise GrammarError(problem)


def _as_read(schema: Any) -> Any:
    """Return a schema without what xgrammar ignores and llguidance refuses even with its lenient option."""
    if isinstance(schema, list):
        return [_as_read(each) for each in schema]
    if not isinstance(schema, Mapping):
        return schema
    found: dict[str, Any] = {}
    for name, value in schema.items():
        if name in _MAPS and isinstance(value, Mapping):
            found[name] = {key: _as_read(each) for key, each in value.items()}
        elif not _is_ignored(name, value):
            found[name] = _as_read(value)
    return _with_limits(found)


def _with_limits(found: dict[str, Any]) -> dict[str, Any]:
    """Return a schema with what llguidance takes of its members, patterns and lengths."""
    for name in ("properties", "patternProperties"):
        if isinstance(found.get(name), Mapping) and False in found[name].values():
            raise GrammarError("Schema 'false' cannot accept any value")
    if isinstance(found.get("pattern"), str):
        _check_tokens(found["pattern"].removeprefix("(?i)"), takes_lookahead=True)
        found["pattern"] = read_pattern(found["pattern"]).text
    for name in ("minItems", "maxItems"):
        if isinstance(found.get(name), int):
            found[name] = min(found[name], _MOST_ITEMS)
    for name in ("minLength", "maxLength"):
        if isinstance(found.get(name), int):
            found[name] = max(found[name], 0)
    if isinstance(found.get("required"), list) and isinstance(found.get("properties"), Mapping):
        found["required"] = [name for name in found["required"] if name in found["properties"]]
    return found


def _is_ignored(name: str, value: Any) -> bool:
    if name == "$ref":
        return isinstance(value, str) and value != "#" and not value.startswith("#/")
    return name in ("anyOf", "oneOf") and value == []


def _check_regex(pattern: str) -> None:
    _check_tokens(pattern, takes_lookahead=False)
    _check_grammar(regex_grammar(pattern))


def _check_tokens(pattern: str, takes_lookahead: bool) -> None:
    """Raise GrammarError for constructs that llguidance, or the dialect given to it, has and xgrammar has not."""
    for token in tokens_of(pattern):
        kind, text = token.lastgroup, token.group()
        is_ahead = text in ("(?=", "(?!")
        if kind in ("flags", "brace") or (kind == "look" and not (is_ahead and takes_lookahead)):
            raise GrammarError(f"{text} at position {token.start() + 1} is not supported")
        if kind == "escape" and text[1] in "bBpPkK123456789":
            raise GrammarError(f"{text} at position {token.start() + 1} is not supported")


def _check_grammar(grammar: str) -> None:
    """Raise GrammarError, in the words of llguidance, for a grammar in its notation that it refuses."""
    from llguidance import LLMatcher

    problem = LLMatcher.validate_grammar(grammar)
    if problem:
        raise GrammarError(problem)


def _words_of_library(kind: str, value: Any) -> str | None:
    """Return the message of xgrammar itself; None without the library, and where it accepts the constraint."""
    library = _grammar_class()
    if library is None or (kind == "json" and not isinstance(value, Mapping)):
        return None
    try:
        library.from_regex(value) if kind == "regex" else library.from_json_schema(json.dumps(value))
    except Exception as error:  # noqa: BLE001  (it raises errors of C++ as several types)
        return str(error)
    return None


@cache
def _grammar_class() -> Any:
    """Return xgrammar's class of grammars, None if it is not installed.

    Its package is entered without its first module, which imports torch.
    """
    spec = find_spec("xgrammar")
    if spec is None or "xgrammar" in sys.modules:
        return None
    package = ModuleType("xgrammar")
    package.__path__ = list(spec.submodule_search_locations or ())
    package.__spec__ = spec
    sys.modules["xgrammar"] = package
    try:
        import_module("xgrammar.load_binding")
        return import_module("xgrammar.grammar").Grammar
    except Exception:  # noqa: BLE001  (libraries of C++ fail to load in several ways)
        return None


_CHECKS: Mapping[str, Callable[[Any], None]] = {
    "regex": _check_regex,
    "json": _check_schema,
    "grammar": lambda value: _check_grammar(grammar_of_xgrammar(value)),
    "structural_tag": lambda value: check_tag(value, {**_CHECKS, "json": _check_conversion}),
}


_constants, _parser = import_module("re._constants"), import_module("re._parser")
"""The parser of regular expressions, for which there are no types."""

_CONSUMERS = (_parser.LITERAL, _parser.IN, _parser.ANY)
_ASSERTIONS = (_constants.ASSERT, _constants.ASSERT_NOT)
_GROUP_REFERENCES = (_parser.GROUPREF, _parser.GROUPREF_EXISTS)


def check_outlines(demand: Demand) -> None:
    """Raise ApiError, with vLLM's message, for a constraint that the outlines backend does not support."""
    kind, value = demand.kind, demand.value
    if kind == "regex":
        _check_pattern(value)
    elif kind == "json":
        _check_pattern(_schema_pattern(value))
    elif kind == "choice":
        _check_pattern("(" + "|".join(re.escape(str(choice)) for choice in value) + ")")
    else:
        raise ApiError(f"Outlines structured outputs backend does not support {kind} specifications")


def _schema_pattern(schema: Any) -> str:
    from outlines_core.json_schema import build_regex_from_schema

    if isinstance(schema, str):
        try:
            json.loads(schema)
        except ValueError:
            raise ApiError("Invalid JSON grammar specification.") from None
    try:
        return str(build_regex_from_schema(schema if isinstance(schema, str) else json.dumps(schema)))
    except Exception as error:  # noqa: BLE001  (the library raises several types, all of which refuse the schema)
        raise ApiError(f"Failed to transform json schema into a regex: {error}") from None


def _check_pattern(pattern: str) -> None:
    try:
        parsed = _parser.parse(pattern)
    except re.error as error:
        raise ApiError(f"Error parsing regex: {error}") from None
    unsupported = next(_unsupported(parsed), None)
    if unsupported is not None:
        raise ApiError(
            f"Regex uses unsupported feature for structured outputs: {unsupported}. "
            "Only basic matching constructs are supported—lookarounds, "
            "backreferences, and unicode boundaries are not."
        )
    if _needs_context(parsed):
        raise ApiError(
            "Regex does not have a anchored universal start state"
            "This means that the Regex uses anchors (^) or look-arounds "
            "in a way which requires context before any token is matched."
            "structured outputs needs regexes that can match without needing "
            "that context. Try rewriting the pattern without using these "
            f"constructs. Pattern:\n{pattern}"
        )


def _unsupported(parsed: Any) -> Iterator[str]:
    """Yield the constructs of the pattern that the automaton of outlines lacks, in order."""
    for kind, value in parsed:
        if kind in _GROUP_REFERENCES:
            yield "Backreferences are unsupported."
        elif kind in _ASSERTIONS:
            yield "Look-Around assertion are unsupported."
        elif kind is _parser.AT and value in (_parser.AT_BOUNDARY, _parser.AT_NON_BOUNDARY):
            yield "Unicode word boundaries are unsupported."
        elif kind is _parser.BRANCH:
            for branch in value[1]:
                yield from _unsupported(branch)
        else:
            for part in value if isinstance(value, tuple) else (value,):
                if isinstance(part, _parser.SubPattern):
                    yield from _unsupported(part)


def _consumes(parsed: Any) -> bool:
    """Whether every match has at least one character."""
    return any(_item_consumes(kind, value) for kind, value in parsed)


def _item_consumes(kind: Any, value: Any) -> bool:
    if kind in _CONSUMERS:
        return True
    if kind is _parser.MAX_REPEAT:
        return value[1] != 0 and _consumes(value[2])
    if kind is _parser.BRANCH:
        return any(map(_consumes, value[1]))
    return kind is _parser.SUBPATTERN and _consumes(value[3])


def _needs_context(parsed: Any) -> bool:
    """Whether an anchor or a look-around precedes all parts that match characters."""
    for kind, value in parsed:
        if kind is _parser.AT or kind in _ASSERTIONS:
            return True
        if kind in _CONSUMERS:
            return False
        parts = _parts(kind, value)
        for part in parts:
            if _needs_context(part):
                return True
        if any(map(_consumes, parts)):
            return False
    return False


def _parts(kind: Any, value: Any) -> list[Any]:
    """Return the parts of a group, a repetition or an alternation."""
    if kind is _parser.BRANCH:
        return list(value[1])
    return [value[3]] if kind is _parser.SUBPATTERN else [value[2]] if kind is _parser.MAX_REPEAT else []


MAX_ITEMS = 1_000_000
"""The library allocates memory for every item of a bound: 4 GB are not enough for one of 10^9."""


def check_guidance(demand: Demand) -> None:
    """Raise ApiError, with vLLM's message, for a constraint that the guidance backend does not support."""
    try:
        grammar = guidance_grammar(demand)
    except ApiError:
        raise
    except RecursionError:
        raise ApiError("Invalid grammar specification: recursion limit exceeded") from None
    except (ValueError, KeyError, TypeError) as error:
        raise ApiError(f"Invalid grammar specification: {error}") from None
    from llguidance import LLMatcher

    problem = LLMatcher.validate_grammar(grammar)
    if problem:
        raise ApiError(f"Grammar error: {problem}")


def guidance_grammar(demand: Demand) -> str:
    """Return the constraint in llguidance's notation. Exceptions of llguidance and of the JSON parser propagate."""
    kind, value = demand.kind, demand.value
    if kind == "json":
        return _schema_grammar(value if isinstance(value, str) else json.dumps(value))
    if kind == "json_object":
        return _schema_grammar('{"type": "object"}')
    if kind == "structural_tag":
        return _tag_grammar(json.loads(value) if isinstance(value, str) else value)
    from llguidance import grammar_from

    if kind == "regex":
        return str(grammar_from("regex", value))
    return str(grammar_from("choice", json.dumps(value)) if kind == "choice" else grammar_from("grammar", value))


def _schema_grammar(schema: Any) -> str:
    from llguidance import LLMatcher

    with suppress(ValueError):  # which llguidance words in its own way
        pending = [json.loads(schema) if isinstance(schema, str) else schema]
        while pending:
            found = pending.pop()
            if isinstance(found, list):
                pending.extend(found)
            elif isinstance(found, dict):
                pending.extend(found.values())
                for name in ("minItems", "maxItems"):
                    if isinstance(found.get(name), int) and found[name] > MAX_ITEMS:
                        raise ApiError(f"Grammar error: {name} ({found[name]}) is greater than {MAX_ITEMS}")
    return str(LLMatcher.grammar_from_json_schema(schema, defaults={"whitespace_flexible": True}))


def _tag_grammar(tag: Any) -> str:
    triggers, structures = tag["triggers"], tag["structures"]
    from llguidance import StructTag

    tags: list[Any] = []
    for structure in structures:
        begin = structure["begin"]
        trigger = next((each for each in triggers if begin.startswith(each)), None)
        if trigger is None:
            raise ApiError(f"Trigger {begin} not found in triggers {triggers}")
        grammar = _schema_grammar(structure["schema"])
        tags.append(StructTag(trigger=trigger, begin=begin, grammar=grammar, end=structure["end"]))
    if not tags:
        raise ApiError("No structural tags found in the grammar spec.")
    return str(StructTag.to_grammar(tags))


def resolve_backend(demand: Demand) -> str:
    """Return the backend for the constraint. Raises ApiError, with vLLM's message, when there is none."""
    try:
        return _resolved(demand)
    except ApiError as error:
        raise ApiError(sanitized(error.message)) from None


def _resolved(demand: Demand) -> str:
    check_demand(demand)
    backend = demand.config.backend
    checks = {
        "xgrammar": check_xgrammar,
        "guidance": check_guidance,
        "outlines": check_outlines,
        "lm-format-enforcer": check_format_enforcer,
    }
    if backend in checks:
        checks[backend](demand)
        if backend == "xgrammar":
            _check_lengths(demand)
        return backend
    if is_of_xgrammar(demand):
        _check_lengths(demand)
        return "xgrammar"
    if demand.kind == "json" and has_patterns(_schema_of(demand.value)):
        check_outlines(demand)
        return "outlines"
    check_guidance(demand)
    return "guidance"


def is_of_xgrammar(demand: Demand) -> bool:
    """Whether the xgrammar backend supports a constraint."""
    try:
        return refusal_of_xgrammar(demand.kind, _value_for_xgrammar(demand)) is None
    except ApiError:
        return False


def _check_lengths(demand: Demand) -> None:
    """Raise ApiError for a length below zero, at which xgrammar fails while it compiles what it has accepted."""
    if demand.kind == "json" and (lengths := negative_lengths(_schema_of(demand.value))) is not None:
        raise ApiError(f"Invalid structured outputs: Invalid repetition range {{{lengths[0]}, {lengths[1]}}}")


def check_xgrammar(demand: Demand) -> None:
    """Raise ApiError, with vLLM's message, for a constraint that the xgrammar backend does not support."""
    value = _value_for_xgrammar(demand)
    reason = refusal_of_xgrammar(demand.kind, value)
    if reason is not None:
        raise ApiError(message_of_xgrammar(demand.kind, value, reason))


def _value_for_xgrammar(demand: Demand) -> Any:
    if demand.kind == "json":
        return _schema_of(demand.value)
    if demand.kind != "structural_tag" or not isinstance(demand.value, str):
        return demand.value
    try:
        return json.loads(demand.value)
    except (ValueError, RecursionError):
        raise ApiError("Invalid structural tag specification.") from None


def check_format_enforcer(demand: Demand) -> None:
    """Raise ApiError, with vLLM's message, for a constraint that the lm-format-enforcer backend does not support."""
    if demand.kind == "json":
        _schema_of(demand.value)
    elif demand.kind in ("grammar", "structural_tag"):
        raise ApiError(f"LM Format Enforcer structured outputs backend does not support {demand.kind} specifications")


def has_patterns(schema: Any) -> bool:
    """Whether `patternProperties` occurs in any object within `schema`; vLLM does not pass such schemas to guidance."""
    pending = [schema]
    while pending:
        found = pending.pop()
        if isinstance(found, Mapping):
            if "patternProperties" in found:
                return True
            for value in found.values():
                pending.extend(value if isinstance(value, list) else [value])
    return False


def _schema_of(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except ValueError:
        raise ApiError("Invalid JSON grammar specification.") from None
