"""What SageMaker's hosting library refuses of a body of POST /adapters, as its own JSON inside the message."""

from collections.abc import Mapping
from typing import Any

from mockserve.protocol.reading.types import FieldType, Flag, Text

REQUEST_CLASS = "SageMakerRegisterLoRAAdapterRequest"
_TYPES: Mapping[str, FieldType] = {"name": Text(), "src": Text(), "preload": Flag(), "pin": Flag()}
_REQUIRED = ("name", "src")


def registration_problems(given: Any, shown: Any) -> list[dict[str, Any]]:
    """Return what is wrong with `given`, which errors about missing fields show as `shown`."""
    if not isinstance(given, dict):
        message = f"Input should be a valid dictionary or instance of {REQUEST_CLASS}"
        return [{"type": "model_type", "loc": [], "msg": message, "input": given, "ctx": {"class_name": REQUEST_CLASS}}]
    found: list[dict[str, Any]] = []
    for name, kind in _TYPES.items():
        if name not in given:
            if name in _REQUIRED:
                found.append({"type": "missing", "loc": [name], "msg": "Field required", "input": shown})
            continue
        value = given[name]
        if name in _REQUIRED and value == "":
            reason = f"The parameter {name} cannot be an empty string"
            problem = {"type": "value_error", "loc": [name], "msg": f"Value error, {reason}", "input": value}
            found.append({**problem, "ctx": {"error": reason}})
            continue
        problems = kind.problems(value, name)
        found += [{"type": each.kind, "loc": [name], "msg": each.message, "input": value} for each in problems]
    return found
