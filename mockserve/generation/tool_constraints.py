"""How vLLM holds a model to function calls: with a structural tag, with a JSON schema, or not at all."""

from collections.abc import Mapping
from enum import Enum, auto
from typing import Any

from mockserve.options.content import FORCED_AS_JSON
from mockserve.protocol.forced_calls import NO_PARAMETERS

UNHELD = frozenset(
    {
        *("dots", "gemma4", "inkling", "k2_horizon", "minimax_m3", "muse", "muse_glimmer", "musespark1x"),
        "poolside_v1",
    }
)
"""Parsers of models whose calls vLLM has no grammar for: a forced call is up to the model."""
ALWAYS_TAGGED = frozenset({"glm45", "glm47"})
"""Parsers whose default `--tool-strict-level` is `function`: every request with tools has a structural tag."""
TAGGED_IF_FORCED = frozenset({"hy_v4"})
"""Parsers without a structural tag for calls that are up to the model."""
WITHOUT_LIMIT = frozenset({"beam", "cohere_command3", "cohere_command4", "hf"})
"""Parsers with rules of their own, which one call at a time does not change."""
LISTED = "mistral"


class ToolConstraint(Enum):
    """The grammar of an answer with tools."""

    NOTHING = auto()
    TAG = auto()
    """Calls in the markup of the parser, or calls and text where a call is up to the model."""
    SCHEMA = auto()
    """The JSON schema of `forced_schema`, which vLLM reads without the parser."""
    LIST = auto()
    """The JSON schema of `listed_schema`, which the parser reads."""


def tool_constraint_of(parser: str | None, body: Mapping[str, Any]) -> ToolConstraint:
    """Return what the answer to a chat is held to by its tools."""
    choice = body.get("tool_choice", "auto")
    if not body.get("tools") or choice in (None, "none") or parser in UNHELD:
        return ToolConstraint.NOTHING
    is_forced = choice != "auto"
    if parser in FORCED_AS_JSON:
        return ToolConstraint.SCHEMA if is_forced else ToolConstraint.NOTHING
    if parser == LISTED:
        return ToolConstraint.LIST if is_forced and not _keeps_form(body) else ToolConstraint.NOTHING
    return ToolConstraint.TAG if is_forced or _is_tagged(parser, body) else ToolConstraint.NOTHING


def has_form(body: Mapping[str, Any]) -> bool:
    """Whether a body demands a form of the answer."""
    return body.get("structured_outputs") is not None or _format_type(body) not in (None, "text")


def listed_schema(body: Mapping[str, Any]) -> dict[str, Any]:
    """Return the schema of the list that a Mistral model writes where a call is forced."""
    choice = body.get("tool_choice")
    name = (choice.get("function") or {}).get("name") if isinstance(choice, Mapping) else None
    functions = [each["function"] for each in body["tools"]]
    calls = [_listed_call(each) for each in functions if name is None or each.get("name") == name]
    most = {} if name is None else {"maxItems": 1}
    return {"type": "array", "minItems": 1, **most, "items": {"type": "object", "anyOf": calls}}


def _listed_call(function: Mapping[str, Any]) -> dict[str, Any]:
    arguments = function.get("parameters") or {"type": NO_PARAMETERS["type"]}
    return {
        "type": "object",
        "properties": {"name": {"type": "string", "enum": [function["name"]]}, "arguments": arguments},
        "required": ["name", "arguments"],
    }


def _is_tagged(parser: str | None, body: Mapping[str, Any]) -> bool:
    """Whether calls that are up to the model have a structural tag: for a strict function, or to end after one call."""
    is_strict = any(_function(each).get("strict") is True for each in body["tools"])
    if parser in TAGGED_IF_FORCED:
        return is_strict and has_form(body)
    if is_strict or parser in ALWAYS_TAGGED:
        return True
    return body.get("parallel_tool_calls") is False and not has_form(body) and parser not in WITHOUT_LIMIT


def _keeps_form(body: Mapping[str, Any]) -> bool:
    """Whether the form that a body demands stays in force beside the forced call of a Mistral model."""
    return body.get("structured_outputs") is not None or _format_type(body) == "structural_tag"


def _format_type(body: Mapping[str, Any]) -> Any:
    requested = body.get("response_format")
    return requested.get("type") if isinstance(requested, Mapping) else None


def _function(tool: Any) -> Mapping[str, Any]:
    found = tool.get("function") if isinstance(tool, Mapping) else None
    return found if isinstance(found, Mapping) else {}
