"""What a chat template is given beside messages: its arguments, and tools in vLLM's order of fields."""

from collections.abc import Mapping, Sequence
from typing import Any

from mockserve.protocol.reading.types import as_flag

NO_EFFORT = "none"


def effort_arguments(effort: Any, given: Mapping[str, Any]) -> dict[str, Any]:
    """How much to think, for templates that know efforts, and whether at all, for those that only know that.

    `given` are the template's variables in the request, which come before what follows from the effort.
    """
    if effort is None:
        return {}
    thinks = {} if "enable_thinking" in given else {"enable_thinking": effort != NO_EFFORT}
    return {"reasoning_effort": effort, **thinks}


def template_arguments(body: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    """All of it, as vLLM lists it for the server that will read the answer."""
    adds, documents = body.get("add_generation_prompt"), body.get("documents")
    given = body.get("chat_template_kwargs") or {}
    return {
        "cohere_format": "cmd4",
        **defaults,
        **given,
        "add_generation_prompt": True if adds is None else adds,
        "continue_final_message": bool(body.get("continue_final_message")),
        **({} if documents is None else {"documents": documents}),
        **effort_arguments(body.get("reasoning_effort"), given),
    }


OPTIONAL_FLAGS = ("strict", "defer_loading")
"""Fields of a function that are left out when they are null; the others are null themselves then."""


def tool_definitions(tools: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Every tool of a checked request. A template writes them into the prompt, whose tokens depend on each field."""
    return [_tool(each) for each in tools]


def _tool(tool: Mapping[str, Any]) -> dict[str, Any]:
    given = tool["function"]
    function = {name: given.get(name) for name in ("name", "description", "parameters")}
    is_deferred = _flag(tool, "defer_loading")
    for name in OPTIONAL_FLAGS:
        flag = _flag(given, name)
        if flag is None and name == "defer_loading":
            flag = is_deferred
        if flag is not None:
            function[name] = flag
    shown = {"type": "function", "function": function}
    return shown if is_deferred is None else {**shown, "defer_loading": is_deferred}


def _flag(given: Mapping[str, Any], name: str) -> bool | None:
    value = given.get(name)
    return None if value is None else as_flag(value)
