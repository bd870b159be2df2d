"""The engine's request for a recorded reply: the prompt as the server puts it together, and the reply's text."""

from collections.abc import Mapping
from typing import Any

from blis_sim.engine.request import Request
from mockserve.in_flight_request import new_id
from mockserve.playback.conversation import Conversation, conversation_of
from mockserve.playback.reply import PlayedReply
from mockserve.protocol.errors import ApiError
from mockserve.serving.planner import Planner, RequestContext


def played_request(planner: Planner, body: Any, conversation: Conversation, raw: bytes, reply: PlayedReply) -> Request:
    """The request whose reply is `reply`: a prompt as long as the recorded one was counted.

    Blocks of prompt and reply are named by their tokens, so that a next round finds both in the prefix cache. Raises
    ApiError for what is longer than a context.
    """
    ids = _prompt_ids(planner, body, conversation) or planner.encode(raw.decode("utf-8", "replace")) or [0]
    requested = reply.num_prompt_tokens or len(ids)
    ids = ids[:requested] if len(ids) >= requested else [*ids, *[ids[-1]] * (requested - len(ids))]
    planner.check_length(len(ids) + reply.num_output_tokens)
    return planner.played(
        ids, RequestContext(f"playback-{new_id()}"), reply.num_output_tokens, _reply_ids(planner, reply)
    )


def _prompt_ids(planner: Planner, body: Any, conversation: Conversation) -> list[int]:
    if isinstance(body, Mapping) and isinstance(body.get("prompt"), str) and "messages" not in body:
        return planner.encode(body["prompt"], add_special_tokens=True)
    if not conversation.turns:
        return []
    spaced = conversation_of(body, keeps_spaces=True)
    messages = [{"role": role, "content": words} for role, words in spaced.turns]
    try:
        text = planner.conversations.prompt({"messages": messages, "tools": _tools(body) or None})
    except (ApiError, RecursionError):  # a template need not take the roles of another server, nor any depth
        text = conversation.text
    return planner.encode(text)


def _tools(body: Any) -> list[dict[str, Any]]:
    """The functions of a body of any interface, as chat completions have them."""
    found = body.get("tools") if isinstance(body, Mapping) else None
    tools = []
    for each in found if isinstance(found, list) else ():
        function = each.get("function", each) if isinstance(each, Mapping) else None
        if isinstance(function, Mapping) and isinstance(function.get("name"), str):
            shown = {
                "name": function["name"],
                "description": function.get("description"),
                "parameters": function.get("parameters", function.get("input_schema")),
            }
            given = {name: value for name, value in shown.items() if value is not None}
            tools.append({"type": "function", "function": given})
    return tools


def _reply_ids(planner: Planner, reply: PlayedReply) -> list[int]:
    """The tokens of a reply that is text; none for others, whose tokens the recording does not show."""
    if reply.text is None:
        return []
    try:
        return planner.encode(reply.text)[: reply.num_output_tokens]
    except ApiError:
        return []
