"""What a chat template is given beside messages and tools."""

from collections.abc import Mapping
from typing import Any

NO_EFFORT = "none"


def effort_arguments(effort: Any) -> dict[str, Any]:
    """How much to think, for templates that know efforts, and whether at all, for those that only know that."""
    return {} if effort is None else {"reasoning_effort": effort, "enable_thinking": effort != NO_EFFORT}


def template_arguments(body: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    """All of it, as vLLM lists it for the server that will read the answer."""
    adds, documents = body.get("add_generation_prompt"), body.get("documents")
    given = body.get("chat_template_kwargs") or {}
    efforts = effort_arguments(body.get("reasoning_effort"))
    if "enable_thinking" in given:
        efforts.pop("enable_thinking", None)
    return {
        "cohere_format": "cmd4",
        **defaults,
        **given,
        "add_generation_prompt": True if adds is None else adds,
        "continue_final_message": bool(body.get("continue_final_message")),
        **({} if documents is None else {"documents": documents}),
        **efforts,
    }
