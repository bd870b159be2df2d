"""Bodies that differ from an earlier one in their prompt only, as those of a load test do, are not read anew.

What is made of a body without its prompt is the same whenever that is the same, type by type, and is not changed
afterwards. A body that is refused is never known.
"""

import marshal
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from blis_sim.options.memo import Memo
from mockserve.protocol.completions.chat import ChatRequest, parse_chat
from mockserve.protocol.completions.text import CompletionRequest, parse_completion

T = TypeVar("T")

MOST_KNOWN = 256
MOST_BYTES = 16_384
"""Of a body, beside its prompt."""
_FORMAT = 2
"""Of the marshal module: one in which equal values have equal bytes."""
_PLAIN_ROLES = frozenset({"system", "user", "assistant"})
_ABOUT_MESSAGES = frozenset({"echo", "add_generation_prompt", "continue_final_message"})
"""With these in it, what a body says depends on its messages."""


class KnownBodies(Generic[T]):
    """Reads bodies, and remembers what was made of the latest that differ in more than their `varying` field."""

    def __init__(
        self,
        parse: Callable[[dict[str, Any]], T],
        varying: str,
        is_plain: Callable[[dict[str, Any]], bool],
        with_varying: Callable[[T, Any], T],
    ) -> None:
        """`is_plain` says whether `varying` is of a form that has no bearing on anything else."""
        self._parse = parse
        self._varying = varying
        self._is_plain = is_plain
        self._with_varying = with_varying
        self._known = Memo[bytes, T](MOST_KNOWN)

    def parse(self, body: dict[str, Any]) -> T:
        """What the body asks for. Raises ApiError."""
        key = self._key(body) if self._is_plain(body) else None
        if key is None:
            return self._parse(body)
        found = self._known.get(key)
        if found is not None:
            return self._with_varying(found, body[self._varying])
        return self._known.keep(key, self._parse(body))

    def parse_long(self, body: dict[str, Any]) -> T:
        """What a long body asks for, which is not remembered. Raises ApiError."""
        return self._parse(body)

    def _key(self, body: dict[str, Any]) -> bytes | None:
        rest = body.copy()
        del rest[self._varying]
        try:
            key = marshal.dumps(rest, _FORMAT)
        except ValueError:  # lists within lists without end
            return None
        return key if len(key) <= MOST_BYTES else None


def known_completions() -> KnownBodies[CompletionRequest]:
    """For the bodies of text completions."""
    return KnownBodies(parse_completion, "prompt", _has_plain_prompt, _with_prompt)


def known_chats() -> KnownBodies[ChatRequest]:
    """For the bodies of chat completions."""
    return KnownBodies(parse_chat, "messages", _has_plain_messages, _with_messages)


def _has_plain_prompt(body: dict[str, Any]) -> bool:
    prompt = body.get("prompt")
    return type(prompt) is str and prompt != ""


def _with_prompt(asked: CompletionRequest, prompt: str) -> CompletionRequest:
    return asked._replace(prompts=(prompt,))


def _has_plain_messages(body: dict[str, Any]) -> bool:
    messages = body.get("messages")
    if type(messages) is not list or not messages or not _ABOUT_MESSAGES.isdisjoint(body):
        return False
    for each in messages:
        if type(each) is not dict or len(each) != 2 or type(each.get("content")) is not str:
            return False
        role = each.get("role")
        if type(role) is not str or role not in _PLAIN_ROLES:
            return False
    return True


def _with_messages(asked: ChatRequest, messages: list[Any]) -> ChatRequest:
    return asked._replace(messages=messages)
