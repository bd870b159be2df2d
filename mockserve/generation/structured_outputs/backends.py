"""Backends of structured outputs: vLLM's choice of one for a constraint, and constraints that backends refuse."""

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from importlib import import_module
from typing import Any

from mockserve.generation.structured_outputs.demand import Demand, check_demand
from mockserve.generation.structured_outputs.xgrammar import message_of_xgrammar, negative_lengths, refusal_of_xgrammar
from mockserve.protocol.errors import ApiError, sanitized

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
