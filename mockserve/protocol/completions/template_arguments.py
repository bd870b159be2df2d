"""What a chat template is given beside messages and tools."""

from collections.abc import Mapping
from typing import Any

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
