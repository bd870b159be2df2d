"""Tools and tool choice of a response: all schemas and fields, and the equivalent tools of a chat request."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from mockserve.protocol.reading.containers import AnyOf, ListOf, MapOf, Named, Nullable, Record
from mockserve.protocol.reading.types import Anything, FieldType, Flag, Integer, OneOf, Text

_TEXT, _FLAG, _NUMBER = Nullable(Text()), Nullable(Flag()), Nullable(Integer())
_OBJECT = MapOf(Anything())
_FREE: FieldType = Nullable(AnyOf((_OBJECT, Text(), ListOf(Anything()))))
"""An object with own fields, which only the server's own tools would read."""
_SIZES = ("low", "medium", "high")
_CALLERS = {"allowed_callers": Nullable(ListOf(OneOf(("direct", "programmatic"))))}
_CALLABLE = {**_CALLERS, "async": _FLAG, "defer_loading": _FLAG, "description": _TEXT}
_SEARCH = {"search_context_size": Nullable(OneOf(_SIZES)), "user_location": _FREE}


def _type(*names: str) -> dict[str, FieldType]:
    return {"type": OneOf(names)}


def _form(fields: Mapping[str, FieldType], *required: str) -> Record:
    """Return one schema of a tool, which always has a type."""
    return Record(fields, ("type", *required))


_FORMAT: FieldType = Nullable(
    AnyOf(
        (
            Named("Text", _form(_type("text"))),
            Named(
                "Grammar",
                _form(
                    {"definition": Text(), "syntax": OneOf(("lark", "regex")), **_type("grammar")},
                    "definition",
                    "syntax",
                ),
            ),
        )
    )
)
_CUSTOM_TOOL = _form({"name": Text(), **_type("custom"), **_CALLABLE, "format": _FORMAT}, "name")
_INNER_TOOLS: Mapping[str, Record] = {
    "ToolFunction": _form(
        {
            "name": Text(),
            **_type("function"),
            **_CALLABLE,
            "output_schema": Nullable(_OBJECT),
            "parameters": Anything(),
            "strict": _FLAG,
        },
        "name",
    ),
    "CustomTool": _CUSTOM_TOOL,
}
"""Tools within a namespace."""

TOOLS: Mapping[str, Record] = {
    "FunctionTool": _form(
        {
            "name": Text(),
            "parameters": Nullable(_OBJECT),
            "strict": _FLAG,
            **_type("function"),
            **_CALLABLE,
            "output_schema": Nullable(_OBJECT),
        },
        "name",
    ),
    "FileSearchTool": _form(
        {
            **_type("file_search"),
            "vector_store_ids": ListOf(Text()),
            "filters": _FREE,
            "max_num_results": _NUMBER,
            "ranking_options": _FREE,
        },
        "vector_store_ids",
    ),
    "ComputerTool": _form(_type("computer")),
    "ComputerUsePreviewTool": _form(
        {
            "display_height": Integer(),
            "display_width": Integer(),
            "environment": OneOf(("windows", "mac", "linux", "ubuntu", "browser")),
            **_type("computer_use_preview"),
        },
        *("display_height", "display_width", "environment"),
    ),
    "WebSearchTool": _form(
        {**_type("web_search", "web_search_2025_08_26"), "external_web_access": _FLAG, "filters": _FREE, **_SEARCH}
    ),
    "Mcp": _form(
        {
            "server_label": Text(),
            **_type("mcp"),
            **_CALLERS,
            "allowed_tools": _FREE,
            "authorization": _TEXT,
            "connector_id": _TEXT,
            "defer_loading": _FLAG,
            "headers": Nullable(MapOf(Text())),
            "require_approval": _FREE,
            "server_description": _TEXT,
            "server_url": _TEXT,
            "tunnel_id": _TEXT,
        },
        "server_label",
    ),
    "CodeInterpreter": _form(
        {"container": AnyOf((Text(), _OBJECT)), **_type("code_interpreter"), **_CALLERS}, "container"
    ),
    "ProgrammaticToolCalling": _form(_type("programmatic_tool_calling")),
    "ImageGeneration": _form(
        {
            **_type("image_generation"),
            "action": _TEXT,
            "background": _TEXT,
            "complexity": _TEXT,
            "frame_count": _NUMBER,
            "frame_duration_ms": _NUMBER,
            "input_fidelity": _TEXT,
            "input_image_mask": _FREE,
            "model": _TEXT,
            "moderation": _TEXT,
            "output_compression": _NUMBER,
            "output_format": _TEXT,
            "partial_images": _NUMBER,
            "quality": _TEXT,
            "size": _TEXT,
            "svg": _FREE,
        }
    ),
    "LocalShell": _form(_type("local_shell")),
    "FunctionShellTool": _form({**_type("shell"), **_CALLERS, "environment": _FREE}),
    "CustomTool": _CUSTOM_TOOL,
    "NamespaceTool": _form(
        {
            "description": Text(),
            "name": Text(),
            "tools": ListOf(AnyOf(tuple(Named(name, form) for name, form in _INNER_TOOLS.items()))),
            **_type("namespace"),
        },
        *("description", "name", "tools"),
    ),
    "ToolSearchTool": _form(
        {
            **_type("tool_search"),
            "description": _TEXT,
            "execution": Nullable(OneOf(("server", "client"))),
            "parameters": Anything(),
        }
    ),
    "WebSearchPreviewTool": _form(
        {
            **_type("web_search_preview", "web_search_preview_2025_03_11"),
            "search_content_types": Nullable(ListOf(OneOf(("text", "image")))),
            **_SEARCH,
        }
    ),
    "ApplyPatchTool": _form({**_type("apply_patch"), **_CALLERS}),
}
TOOL: FieldType = AnyOf(tuple(Named(name, form) for name, form in TOOLS.items()))

_CHOICES: Mapping[str, Record] = {
    "ToolChoiceAllowed": _form(
        {"mode": OneOf(("auto", "required")), "tools": ListOf(_OBJECT), **_type("allowed_tools")}, "mode", "tools"
    ),
    "ToolChoiceTypes": _form(
        _type(
            *("file_search", "web_search_preview", "computer", "computer_use_preview", "computer_use"),
            *("web_search_preview_2025_03_11", "image_generation", "code_interpreter"),
        )
    ),
    "ToolChoiceFunction": _form({"name": Text(), **_type("function")}, "name"),
    "ToolChoiceMcp": _form({"server_label": Text(), **_type("mcp"), "name": _TEXT}, "server_label"),
    "ToolChoiceCustom": _form({"name": Text(), **_type("custom")}, "name"),
    "ToolChoiceSpecificProgrammaticToolCallingParam": _form(_type("programmatic_tool_calling")),
    "ToolChoiceApplyPatch": _form(_type("apply_patch")),
    "ToolChoiceShell": _form(_type("shell")),
}
TOOL_CHOICE: FieldType = AnyOf(
    (OneOf(("none", "auto", "required")), *(Named(name, form) for name, form in _CHOICES.items()))
)


def shown_tool(tool: Mapping[str, Any]) -> dict[str, Any]:
    """Return a checked tool with all fields of its schema, as a response repeats it."""
    shown = _shown(tool, TOOLS)
    if tool["type"] == "namespace":
        shown["tools"] = [_shown(each, _INNER_TOOLS) for each in tool["tools"]]
    return shown


def shown_choice(choice: Any) -> Any:
    """Return the choice between tools as a reply shows it."""
    return _shown(choice, _CHOICES) if isinstance(choice, Mapping) else choice


def _shown(given: Mapping[str, Any], forms: Mapping[str, Record]) -> dict[str, Any]:
    form = next(each for each in forms.values() if not each.problems(given, ""))
    return {name: given.get(name) for name in form.fields} | dict(given)


CUSTOM_INPUT = "input"
CUSTOM_PARAMETERS: Mapping[str, Any] = {
    "type": "object",
    "properties": {CUSTOM_INPUT: {"type": "string", "description": "The freeform text payload for this tool."}},
    "required": [CUSTOM_INPUT],
    "additionalProperties": False,
}
NAMESPACE_SEPARATOR = "__"
FUNCTION_FIELDS = ("name", "description", "parameters", "strict", "defer_loading")

_PARTIAL_INPUT = re.compile(rf'\s*\{{\s*"{CUSTOM_INPUT}"\s*:\s*"((?:[^"\\]|\\(?:[^u]|u[0-9a-fA-F]{{4}}))*)')


@dataclass(frozen=True, slots=True)
class ToolNames:
    """Names of the functions of a chat that are custom tools, and of those in a namespace (with another name there)."""

    custom: frozenset[str] = frozenset()
    namespaced: Mapping[str, tuple[str, str]] = field(default_factory=dict)

    @classmethod
    def of(cls, tools: Sequence[Mapping[str, Any]]) -> "ToolNames":
        """The names of checked tools."""
        custom = frozenset(each["name"] for each in tools if each["type"] == "custom")
        namespaced = {
            flat_name(each["name"], inner["name"]): (each["name"], inner["name"])
            for each in tools
            if each["type"] == "namespace"
            for inner in each["tools"]
            if inner.get("type") == "function"
        }
        return cls(custom, namespaced)

    def of_call(self, name: str) -> tuple[str | None, str]:
        """The namespace and the name of a called function."""
        return self.namespaced.get(name, (None, name))


def flat_name(namespace: str, name: str) -> str:
    """The name by which a model calls a function of a namespace."""
    return f"{namespace}{NAMESPACE_SEPARATOR}{name}"


def function_tools(tools: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The checked tools that a model can call, as a chat request has them."""
    return [
        {"type": "function", "function": {name: each[name] for name in FUNCTION_FIELDS if each.get(name) is not None}}
        for each in _functions(tools)
    ]


def _functions(tools: Sequence[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
    for tool in tools:
        if tool["type"] == "function":
            yield tool
        elif tool["type"] == "custom":
            yield {"name": tool["name"], "description": tool.get("description"), "parameters": CUSTOM_PARAMETERS}
        elif tool["type"] == "namespace":
            for inner in tool["tools"]:
                if inner.get("type") == "function":
                    yield {**inner, "name": flat_name(tool["name"], inner["name"])}


def custom_input(arguments: str) -> str:
    """Return the input text of a custom tool; arguments of another form are the text themselves."""
    try:
        found = json.loads(arguments)
    except ValueError:
        return arguments
    text = found.get(CUSTOM_INPUT) if isinstance(found, dict) else None
    return text if isinstance(text, str) else arguments


def partial_custom_input(arguments: str) -> str:
    """Return the input of a custom tool in incomplete arguments, without an incomplete character at the end."""
    begun = _PARTIAL_INPUT.match(arguments)
    if begun is None:
        return ""
    text: str = json.loads(f'"{begun[1]}"', strict=False)
    return text[:-1] if text and "\ud800" <= text[-1] <= "\udbff" else text


def arguments_of(text: str) -> str:
    """Return the arguments for the input of a custom tool."""
    return json.dumps({CUSTOM_INPUT: text}, ensure_ascii=False)
