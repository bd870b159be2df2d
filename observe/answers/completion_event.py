"""What a decoded event or answer of the completion APIs says."""

from typing import Any

import orjson

_UNSAID = ("reasoning_content", "reasoning", "tool_calls")
_MOST_TOKENS = 2**31 - 1
"""No reply is longer; what claims to be would not fit into the columns of a recording."""


def first_choice(event: dict[str, Any]) -> dict[str, Any] | None:
    """The first choice, None if there is none."""
    choices = event.get("choices")
    return choices[0] if isinstance(choices, list) and choices and isinstance(choices[0], dict) else None


def text_of(choice: dict[str, Any]) -> str:
    """The words that a choice brings."""
    message = choice.get("delta") or choice.get("message")
    text = message.get("content") if isinstance(message, dict) else choice.get("text")
    return text if isinstance(text, str) else ""


def has_unsaid(choice: dict[str, Any]) -> bool:
    """Whether it brings tokens that are no words for the user: thoughts, or calls of tools."""
    message = choice.get("delta") or choice.get("message")
    return isinstance(message, dict) and any(map(message.get, _UNSAID))


def carries_tokens(choice: dict[str, Any]) -> bool:
    """An event with text has tokens; one without too, unless it only announces the role or the end.

    A token that ends inside a UTF-8 character gives no text until the next one.
    """
    delta = choice.get("delta")
    if isinstance(delta, dict):
        if any(delta.get(name) for name in ("content", *_UNSAID)):
            return True
        return "role" not in delta and not choice.get("finish_reason")
    return bool(choice.get("text")) or not choice.get("finish_reason")


def count_of(usage: dict[str, Any], name: str, otherwise: int | None = None) -> int | None:
    """A count of tokens; `otherwise` for what can be none."""
    value = usage.get(name)
    return value if type(value) is int and 0 <= value <= _MOST_TOKENS else otherwise


def error_text(error: Any) -> str:
    """What an error inside of an answer says."""
    message = error.get("message") if isinstance(error, dict) else error
    return message if isinstance(message, str) and message else orjson.dumps(error).decode()
