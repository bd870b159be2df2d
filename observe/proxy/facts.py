"""Facts that the body of a request shows: model, size of the prompt, its shared start, turns of a conversation."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from observe.proxy.sessions import Turns, digest

GENERATING = ("/chat/completions", "/completions", "/responses", "/messages")
"""Ends of the paths at which tokens are generated."""

_INSTRUCTING = frozenset({"system", "developer"})


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestFacts:
    """Record of a request for tokens besides its times. Sizes are bytes of text."""

    model: str = ""
    is_streaming: bool = False
    priority: int | None = None
    num_prompt_bytes: int = 0
    num_shared_bytes: int = 0
    """Bytes of instructions and tools at its start, which other requests may share."""
    shared_start: bytes = b""
    """Digest of that start; empty without one."""
    turns: Turns | None = None


def is_generating(method: str, target: str) -> bool:
    """Whether a request to this target asks for tokens."""
    return method == "POST" and target.partition("?")[0].rstrip("/").endswith(GENERATING)


def facts_of(body: bytes, client: bytes) -> RequestFacts:
    """The facts of a body, as far as it is JSON; `client` keeps conversations of different clients apart."""
    try:
        members = orjson.loads(body)
    except orjson.JSONDecodeError:
        return RequestFacts(num_prompt_bytes=len(body))
    if not isinstance(members, dict):
        return RequestFacts(num_prompt_bytes=len(body))
    model = members.get("model")
    priority = members.get("priority")
    name = model if isinstance(model, str) else ""
    common: dict[str, Any] = {
        "model": name,
        "is_streaming": members.get("stream") is True,
        "priority": priority if type(priority) is int and 0 <= priority < 2**31 else None,
    }
    if "prompt" in members and "messages" not in members:
        return _of_prompt(members["prompt"], digest(client, name.encode()), common)
    items = _items(members)
    start = [members[key] for key in ("system", "instructions", "tools") if members.get(key)]
    num_leading = next((at for at, each in enumerate(items) if each.get("role") not in _INSTRUCTING), len(items))
    shared = [*start, *items[:num_leading]]
    key = _dump(shared)
    turns = items[num_leading:]
    # Tools come into the prompt as JSON, names of members included.
    tools = members.get("tools")
    num_shared_bytes = _num_bytes([each for each in shared if each is not tools]) + (len(_dump(tools)) if tools else 0)
    bare = not members.get("previous_response_id")
    return RequestFacts(
        **common,
        num_prompt_bytes=num_shared_bytes + _num_bytes(turns),
        num_shared_bytes=num_shared_bytes,
        shared_start=digest(name.encode(), key) if shared else b"",
        turns=_turns(digest(client, name.encode(), key), turns) if turns and bare else None,
    )


def _of_prompt(prompt: Any, start: bytes, common: Mapping[str, Any]) -> RequestFacts:
    prompts = prompt if isinstance(prompt, list) and prompt and not isinstance(prompt[0], int) else [prompt]
    if len(prompts) == 1 and isinstance(prompts[0], str):
        text = prompts[0].encode("utf-8", "replace")
        return RequestFacts(**common, num_prompt_bytes=len(text), turns=Turns(start, text=text) if text else None)
    num_ids = sum(len(each) for each in prompts if isinstance(each, list))
    return RequestFacts(**common, num_prompt_bytes=_num_bytes(prompts) + num_ids * BYTES_PER_TOKEN)


BYTES_PER_TOKEN = 4
"""Bytes of text that stand for a token where no reply has shown how many there are."""


def _items(members: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The messages of a conversation in any of the interfaces."""
    found = members.get("messages", members.get("input"))
    if isinstance(found, str):
        return [{"role": "user", "content": found}]
    return [each for each in found if isinstance(each, dict)] if isinstance(found, list) else []


def _turns(start: bytes, items: Sequence[dict[str, Any]]) -> Turns:
    replies = [digest(_text(each).strip()) if each.get("role") == "assistant" else b"" for each in items]
    return Turns(start, [digest(_dump(each)) for each in items], replies)


def _text(message: Mapping[str, Any]) -> bytes:
    content = message.get("content")
    if isinstance(content, str):
        return content.encode("utf-8", "replace")
    parts = content if isinstance(content, list) else []
    texts = [each.get("text") for each in parts if isinstance(each, dict)]
    return "".join(each for each in texts if isinstance(each, str)).encode("utf-8", "replace")


def _dump(value: Any) -> bytes:
    return orjson.dumps(value, option=orjson.OPT_SORT_KEYS)


def _num_bytes(value: Any) -> int:
    """Bytes of all texts inside a value."""
    total = 0
    left = [value]
    while left:
        each = left.pop()
        if isinstance(each, str):
            total += len(each.encode("utf-8", "replace"))
        elif isinstance(each, dict):
            left += each.values()
        elif isinstance(each, list):
            left += each
    return total
