"""The JSON schema that vLLM holds forced calls to where their parser does not read them: a list, or the arguments."""

from collections.abc import Mapping, Sequence
from typing import Any

from mockserve.protocol.errors import bad_value

DEFINITIONS = "$defs"
NO_PARAMETERS: Mapping[str, Any] = {"type": "object", "properties": {}}


def forced_schema(tools: Sequence[Any], choice: Any, parallel: bool | None) -> dict[str, Any] | None:
    """Return the schema of the calls that a chat's choice of tools forces; None where no call is forced.

    Raises ApiError for definitions of the same name that differ between the tools.
    """
    functions = [each["function"] for each in tools]
    if isinstance(choice, Mapping):
        name = (choice.get("function") or {}).get("name")
        named = [each for each in functions if each.get("name") == name]
        return dict(named[-1].get("parameters") or NO_PARAMETERS) if named else None
    if choice != "required":
        return None
    schema: dict[str, Any] = {
        "type": "array",
        "minItems": 1,
        "items": {"type": "object", "anyOf": [_call(each) for each in functions]},
    }
    if parallel is False:
        schema["maxItems"] = 1
    definitions = _definitions(functions)
    return {**schema, DEFINITIONS: definitions} if definitions else schema


def shown_tools(tools: Sequence[Any], schema: Mapping[str, Any]) -> list[Any]:
    """Return tools as a reply repeats them whose calls are held to `schema`.

    A list of calls takes the definitions of all functions: vLLM repeats the parameters without them.
    """
    return [_without_definitions(each) for each in tools] if schema.get("type") == "array" else list(tools)


def _without_definitions(tool: Mapping[str, Any]) -> dict[str, Any]:
    if isinstance(tool.get("function"), Mapping):
        return {**tool, "function": _without_definitions(tool["function"])}
    parameters = tool.get("parameters")
    if not isinstance(parameters, Mapping):
        return dict(tool)
    return {**tool, "parameters": _bare(parameters)}


def _bare(parameters: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in parameters.items() if name != DEFINITIONS}


def _call(function: Mapping[str, Any]) -> dict[str, Any]:
    parameters = function.get("parameters") or NO_PARAMETERS
    return {
        "properties": {
            "name": {"type": "string", "enum": [function["name"]]},
            "parameters": _bare(parameters),
        },
        "required": ["name", "parameters"],
    }


def _definitions(functions: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The definitions of all functions, which stand at the top of the schema."""
    found: dict[str, Any] = {}
    for function in functions:
        own = (function.get("parameters") or {}).get(DEFINITIONS, {})
        if not isinstance(own, dict):
            message = (
                f"`$defs` in the parameters of tool '{function['name']}' must be an object, got {type(own).__name__}."
            )
            raise bad_value(message, "tools")
        for name, schema in own.items():
            if found.setdefault(name, schema) != schema:
                raise bad_value(f"Tool definition '{name}' has multiple schemas, which is not supported.", "tools")
    return found
