"""Constraints as vLLM's outlines backend checks them: schemas become regular expressions, which it checks alone."""

import json
import re
from collections.abc import Iterator
from re import _constants, _parser  # type: ignore[attr-defined]
from typing import Any

from mockserve.content.constraints.demand import Demand
from mockserve.protocol.errors import ApiError

_CONSUMERS = (_parser.LITERAL, _parser.IN, _parser.ANY)
_ASSERTIONS = (_constants.ASSERT, _constants.ASSERT_NOT)
_GROUP_REFERENCES = (_parser.GROUPREF, _parser.GROUPREF_EXISTS)


def check_outlines(demand: Demand) -> None:
    """Raise ApiError, in vLLM's words, for what the outlines backend does not take."""
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
    """What the automaton of outlines lacks, in the order of the pattern."""
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
    """Whether a match takes at least one character."""
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
    """Whether an anchor or a look-around stands before everything that takes a character."""
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
    """What a group, a repetition or an alternation is made of."""
    if kind is _parser.BRANCH:
        return list(value[1])
    return [value[3]] if kind is _parser.SUBPATTERN else [value[2]] if kind is _parser.MAX_REPEAT else []
