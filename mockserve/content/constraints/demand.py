"""What a request demands of the form of its answer, before anything is made of it."""

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from mockserve.options.structured_outputs import AUTO, StructuredOutputsConfig
from mockserve.protocol.errors import ApiError
from mockserve.protocol.refusals import ALL_CONSTRAINTS, check_one_constraint

MAX_NESTING = 64
TAG_WRAPPER_NESTING = 16


class Demand(NamedTuple):
    """One constraint: `kind` is its field of `structured_outputs`, `value` that field's value."""

    kind: str
    value: Any
    config: StructuredOutputsConfig = AUTO
    prompted: Any = None
    """The schema that the prompt of an answer in JSON describes, which the backends do not see."""


def demand_of(body: Mapping[str, Any], config: StructuredOutputsConfig = AUTO) -> Demand | None:
    """The demand of `response_format` and `structured_outputs`, if there is one.

    Raises ApiError for several demands or an empty one.
    """
    given = body.get("structured_outputs")
    fields = dict(given) if isinstance(given, Mapping) else None
    overrides = _overrides(body.get("response_format"))
    if overrides is not None:
        fields = {**(fields or {}), **overrides}
        shown = {"structural_tag": json.dumps(overrides["structural_tag"])} if "structural_tag" in overrides else {}
        check_one_constraint({**fields, **shown})
    kind = next((name for name in ALL_CONSTRAINTS if fields and fields.get(name) is not None), None)
    return None if kind is None or fields is None else Demand(kind, fields[kind], config)


def _overrides(response_format: Any) -> dict[str, Any] | None:
    """The fields of `structured_outputs` that a `response_format` sets."""
    wanted = response_format if isinstance(response_format, Mapping) else {}
    kind = wanted.get("type")
    if kind == "json_object":
        return {"json_object": True}
    if kind == "json_schema":
        described = wanted.get("json_schema")
        return {"json": described.get("schema") if isinstance(described, Mapping) else None}
    if kind == "structural_tag":
        return {"structural_tag": wanted}
    return None


def check_demand(demand: Demand) -> None:
    """Raise ApiError for what vLLM refuses whichever backend it uses."""
    kind, value = demand.kind, demand.value
    if kind == "choice" and value == []:
        raise ApiError("Choice '[]' cannot be an empty list")
    if kind in ("grammar", "json", "structural_tag") and isinstance(value, str) and not value.strip():
        raise ApiError(f"structured_outputs.{kind} cannot be an empty string")
    if kind == "json":
        check_nesting(value, MAX_NESTING)
    if kind == "structural_tag":
        check_nesting(value, MAX_NESTING + TAG_WRAPPER_NESTING)
    if kind == "json_object" and value is False:
        raise ApiError(
            "structured_outputs.json_object must be True if set; omit structured_outputs to disable structured outputs"
        )
    if kind == "regex" and "\0" in value:
        raise ApiError("structured_outputs.regex must not contain a NUL character ('\\x00')")


def check_nesting(value: Any, limit: int) -> None:
    """Raise ApiError for JSON whose objects and arrays are nested deeper than `limit`."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except RecursionError:
            raise _too_deep() from None
        except ValueError:
            return
    level = [value]
    for _ in range(limit):
        level = [
            child
            for node in level
            if isinstance(node, dict | list)
            for child in (node.values() if isinstance(node, dict) else node)
            if isinstance(child, dict | list)
        ]
        if not level:
            return
    raise _too_deep()


def _too_deep() -> ApiError:
    return ApiError(f"The JSON schema is nested too deeply: objects and arrays may nest at most {MAX_NESTING} levels")
