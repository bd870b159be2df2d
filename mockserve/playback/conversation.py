"""A request as its conversation: the words that were said, whatever the interface, the spaces and the sampling."""

from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

import orjson


@dataclass(frozen=True, slots=True)
class Conversation:
    """The turns of a request, each with its role and its words, and the whole of it as text."""

    turns: tuple[tuple[str, str], ...]

    @property
    def text(self) -> str:
        """All of it as one text."""
        return "\n".join(f"{role}: {words}" for role, words in self.turns)

    @property
    def last_user(self) -> str:
        """The words of the last turn of the user; of the last turn if there is none of the user."""
        said = [words for role, words in self.turns if role == "user"]
        return said[-1] if said else self.turns[-1][1] if self.turns else ""

    @property
    def tool_result(self) -> str:
        """The words of the last turn if they are the result of a tool; empty otherwise."""
        return self.turns[-1][1] if self.turns and self.turns[-1][0] == "tool" else ""

    @property
    def key(self) -> bytes:
        """A digest of all turns."""
        return _digest(list(self.turns))

    @property
    def turn_key(self) -> bytes:
        """A digest of the number of turns and the last one."""
        return _digest([len(self.turns), self.turns[-1] if self.turns else ""])


def conversation_of(body: Any, keeps_spaces: bool = False) -> Conversation:
    """The conversation of a parsed body; one without turns where there is none.

    Spaces around words are left out unless `keeps_spaces`, as a chat template may.
    """
    if not isinstance(body, Mapping):
        return Conversation(())
    turns = [("system", _words(body[name], keeps_spaces)) for name in ("system", "instructions") if body.get(name)]
    found = body.get("messages", body.get("input"))
    if isinstance(found, list):
        for item in found:
            if isinstance(item, Mapping):
                turns += _of_message(item, keeps_spaces)
    elif isinstance(found, str):
        turns.append(("user", _words(found, keeps_spaces)))
    if "prompt" in body and found is None:
        prompt = body["prompt"]
        turns.append(("user", prompt if isinstance(prompt, str) else orjson.dumps(prompt).decode()))
    return Conversation(tuple(turns))


def exact_key(path: str, body: Any, raw: bytes) -> bytes:
    """A digest of a request's path and its body, whatever the order of members and the spaces between them."""
    try:
        content = orjson.dumps(body, option=orjson.OPT_SORT_KEYS) if body is not None else raw
    except TypeError:
        content = raw
    return blake2b(path.encode("utf-8", "replace") + b"\0" + content, digest_size=16).digest()


def _of_message(item: Mapping[str, Any], keeps_spaces: bool) -> list[tuple[str, str]]:
    if item.get("type") == "function_call_output":
        return [("tool", _words(item.get("output"), keeps_spaces))]
    role = item.get("role")
    role = role if isinstance(role, str) else "assistant"
    role = "system" if role == "developer" else role
    content = item.get("content")
    results = []
    if isinstance(content, list):
        results = [each for each in content if isinstance(each, Mapping) and each.get("type") == "tool_result"]
        content = [each for each in content if each not in results]
    turns = [("tool", _words(each.get("content"), keeps_spaces)) for each in results]
    words = _words(content, keeps_spaces)
    calls = [_call(each) for each in item.get("tool_calls") or () if isinstance(each, Mapping)]
    if item.get("type") == "function_call":
        calls.append(_call({"function": item}))
    if words or calls or not results:
        turns.append((role, " ".join(filter(None, [words, *calls]))))
    return turns


def _call(call: Mapping[str, Any]) -> str:
    function = call.get("function")
    function = function if isinstance(function, Mapping) else {}
    return f"{function.get('name', '')}({function.get('arguments', '')})"


def _words(content: Any, keeps_spaces: bool) -> str:
    if isinstance(content, str):
        return content if keeps_spaces else content.strip()
    if isinstance(content, list):
        return "\n".join(filter(None, (_words(each, keeps_spaces) for each in content)))
    if isinstance(content, Mapping):
        text = content.get("text", content.get("content"))
        if text is not None:
            return _words(text, keeps_spaces)
        return orjson.dumps(content, option=orjson.OPT_SORT_KEYS).decode()
    return ""


def _digest(value: Any) -> bytes:
    return blake2b(orjson.dumps(value), digest_size=16).digest()
