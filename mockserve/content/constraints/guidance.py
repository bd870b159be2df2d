"""Constraints as vLLM's guidance backend checks them: with the llguidance library itself."""

import json
from contextlib import suppress
from typing import Any

from mockserve.content.constraints.demand import Demand
from mockserve.protocol.errors import ApiError

MAX_ITEMS = 1_000_000
"""The library allocates memory for every item of a bound: 4 GB are not enough for one of 10^9."""


def check_guidance(demand: Demand) -> None:
    """Raise ApiError, in vLLM's words, for what the guidance backend does not take."""
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
    """The demand in llguidance's own notation. Raises whatever llguidance and the JSON parser raise."""
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
        _check_item_bounds(json.loads(schema) if isinstance(schema, str) else schema)
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


def _check_item_bounds(schema: Any) -> None:
    pending = [schema]
    while pending:
        found = pending.pop()
        if isinstance(found, list):
            pending.extend(found)
        elif isinstance(found, dict):
            pending.extend(found.values())
            for name in ("minItems", "maxItems"):
                if isinstance(found.get(name), int) and found[name] > MAX_ITEMS:
                    raise ApiError(f"Grammar error: {name} ({found[name]}) is greater than {MAX_ITEMS}")
