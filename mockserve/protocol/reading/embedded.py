"""Bodies that a route declares field by field, as FastAPI's embedded parameters are: null counts as absent.

A field of JSON that is no object is missing whether it is required or not; what is not declared as JSON is no body.
"""

from collections.abc import Mapping
from typing import Any

from mockserve.protocol.errors import Problem, bad_fields
from mockserve.protocol.reading.body import json_value
from mockserve.protocol.reading.types import FieldType


def read_embedded(
    raw: bytes, is_json: bool, types: Mapping[str, FieldType], required: tuple[str, ...] = ()
) -> dict[str, Any]:
    """Return the fields of `types` that are there. Raises ApiError naming those that are missing or wrong."""
    body = json_value(raw) if raw and is_json else None
    is_object = isinstance(body, dict)
    found: dict[str, Any] = {}
    problems: list[Problem] = []
    for name, kind in types.items():
        value = body.get(name) if isinstance(body, dict) else None
        location = f"body.{name}"
        if value is not None:
            problems += kind.problems(value, location)
            found[name] = value
        elif name in required or (body is not None and not is_object):
            problems.append(Problem("missing", location, "Field required", None))
    if problems:
        raise bad_fields(problems)
    return found
