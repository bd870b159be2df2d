"""Tools of a response and the choice between them: every form that they may have, with all its fields in order."""

from collections.abc import Mapping
from typing import Any

from mockserve.protocol.reading.containers import AnyOf, ListOf, MapOf, Named, Nullable, Record
from mockserve.protocol.reading.types import Anything, FieldType, Flag, Integer, OneOf, Text

_TEXT, _FLAG, _NUMBER = Nullable(Text()), Nullable(Flag()), Nullable(Integer())
_OBJECT = MapOf(Anything())
_FREE: FieldType = Nullable(AnyOf((_OBJECT, Text(), ListOf(Anything()))))
"""An object with fields of its own, which only the server's own tools would read."""
_SIZES = ("low", "medium", "high")
_CALLERS = {"allowed_callers": Nullable(ListOf(OneOf(("direct", "programmatic"))))}
_CALLABLE = {**_CALLERS, "async": _FLAG, "defer_loading": _FLAG, "description": _TEXT}
_SEARCH = {"search_context_size": Nullable(OneOf(_SIZES)), "user_location": _FREE}


def _type(*names: str) -> dict[str, FieldType]:
    return {"type": OneOf(names)}


def _form(fields: Mapping[str, FieldType], *required: str) -> Record:
    """One form of a tool, which always has a type."""
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
    """A checked tool with all fields of its form, as a response repeats it."""
    shown = _shown(tool, TOOLS)
    if tool["type"] == "namespace":
        shown["tools"] = [_shown(each, _INNER_TOOLS) for each in tool["tools"]]
    return shown


def shown_choice(choice: Any) -> Any:
    """The same for the choice between them."""
    return _shown(choice, _CHOICES) if isinstance(choice, Mapping) else choice


def _shown(given: Mapping[str, Any], forms: Mapping[str, Record]) -> dict[str, Any]:
    form = next(each for each in forms.values() if not each.problems(given, ""))
    return {name: given.get(name) for name in form.fields} | dict(given)
