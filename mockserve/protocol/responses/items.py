"""Output items of a response: messages, reasoning and calls, in vLLM's order of keys."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from mockserve.protocol.json_text import JsonArray, JsonBlocks, json_array
from mockserve.protocol.responses.tools import ToolNames, custom_input

Item = dict[str, Any]
NewId = Callable[[], str]

COMPLETED, INCOMPLETE, IN_PROGRESS = "completed", "incomplete", "in_progress"


def text_part(text: str, logprobs: Sequence[Mapping[str, Any]] | JsonBlocks | None) -> dict[str, Any]:
    """Return the text part of a message."""
    return {"annotations": [], "text": text, "type": "output_text", "logprobs": logprobs}


def reasoning_part(text: str) -> dict[str, Any]:
    """Return the text part of reasoning."""
    return {"text": text, "type": "reasoning_text"}


def message_item(item_id: str, parts: Sequence[Mapping[str, Any]], status: str) -> Item:
    return {
        "id": item_id,
        "content": list(parts),
        "role": "assistant",
        "status": status,
        "type": "message",
        "phase": None,
    }


def reasoning_item(item_id: str, parts: Sequence[Mapping[str, Any]] | None, status: str | None) -> Item:
    return {
        "id": item_id,
        "summary": [],
        "type": "reasoning",
        "content": parts,
        "encrypted_content": None,
        "status": status,
    }


def call_item(item_id: str, call_id: str, name: str, arguments: str, status: str, namespace: str | None = None) -> Item:
    return {
        "arguments": arguments,
        "call_id": call_id,
        "name": name,
        "type": "function_call",
        "id": item_id,
        "async": None,
        "caller": None,
        "namespace": namespace,
        "status": status,
    }


def custom_call_item(item_id: str, call_id: str, name: str, text: str) -> Item:
    return {
        "call_id": call_id,
        "input": text,
        "name": name,
        "type": "custom_tool_call",
        "id": item_id,
        "async": None,
        "caller": None,
        "namespace": None,
    }


def output_items(
    message: Mapping[str, Any],
    logprobs: Mapping[str, Any] | None,
    is_cut: bool,
    has_parser: bool,
    new_id: NewId,
    names: ToolNames,
) -> list[Item]:
    """Return the items of a whole response from the equivalent chat message. Only the last item can be incomplete.

    Without a parser there is a message item even if it is empty.
    """
    items: list[Item] = []
    last_status = INCOMPLETE if is_cut else COMPLETED
    calls, content = message.get("tool_calls", ()), message["content"]
    if message["reasoning"]:
        items.append(reasoning_item(f"rs_{new_id()}", [reasoning_part(message["reasoning"])], None))
    if content or not has_parser:
        parts = [text_part(content, None if logprobs is None else full_logprobs(logprobs))] if content else []
        items.append(message_item(f"msg_{new_id()}", parts, COMPLETED if calls else last_status))
    for number, call in enumerate(calls):
        status = last_status if number == len(calls) - 1 else COMPLETED
        items.append(_called(call, status, new_id, names))
    return items


def _called(call: Mapping[str, Any], status: str, new_id: NewId, names: ToolNames) -> Item:
    name, arguments = call["function"]["name"], call["function"]["arguments"]
    if name in names.custom:
        return custom_call_item(f"ctc_{new_id()}", call["id"], name, custom_input(arguments))
    namespace, local_name = names.of_call(name)
    return call_item(f"fc_{new_id()}", call["id"], local_name, arguments, status, namespace)


def full_logprobs(logprobs: Mapping[str, Any]) -> list[dict[str, Any]] | JsonArray:
    """Return log-probabilities of a chat choice in the format of finished items."""
    content = logprobs["content"]
    if isinstance(content, JsonArray):
        return json_array(lambda: map(_full, content.items()))
    return [_full(each) for each in content]


def delta_logprobs(logprobs: Mapping[str, Any] | None) -> list[dict[str, Any]]:
    """Return log-probabilities in the format of events, without bytes."""
    return [
        {**_scored(each, False), "top_logprobs": [_scored(top, False) for top in each["top_logprobs"]]}
        for each in _of(logprobs)
    ]


def _of(logprobs: Mapping[str, Any] | None) -> Iterable[Mapping[str, Any]]:
    content = () if logprobs is None else logprobs["content"]
    return content.items() if isinstance(content, JsonArray) else content


def _full(token: Mapping[str, Any]) -> dict[str, Any]:
    return {**_scored(token), "top_logprobs": [_scored(top) for top in token["top_logprobs"]]}


def _scored(token: Mapping[str, Any], has_bytes: bool = True) -> dict[str, Any]:
    name, logprob = token["token"], token["logprob"]
    # The bytes are those of the name, also of a token that is named by its id.
    shown = {"bytes": list(name.encode("utf-8", "replace"))} if has_bytes else {}
    return {"token": name, **shown, "logprob": logprob}
