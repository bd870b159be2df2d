"""Developers' messages for templates that know none: they become the system's, and all of those one, at the start."""

from collections.abc import Sequence
from typing import Any

from mockserve.content.chat_templates.turns import Turn

SYSTEM, DEVELOPER = "system", "developer"


def without_developers(turns: Sequence[Turn]) -> list[Turn]:
    """The turns with the developer's as the system's; those become one turn unless the first of all is the only one.

    A conversation without a developer stays as it is.
    """
    if not any(each.get("role") == DEVELOPER for each in turns):
        return list(turns)
    turns = [_as_system(each) if each.get("role") == DEVELOPER else each for each in turns]
    if not any(each.get("role") == SYSTEM for each in turns[1:]):
        return turns
    said = [_text(each.get("content")) for each in turns if each.get("role") == SYSTEM]
    others = [each for each in turns if each.get("role") != SYSTEM]
    return [{"role": SYSTEM, "content": "\n\n".join(text for text in said if text)}, *others]


def _as_system(turn: Turn) -> Turn:
    return {**{key: value for key, value in turn.items() if key != "tools"}, "role": SYSTEM}


def _text(content: Any) -> str:
    if isinstance(content, list):
        return "\n".join(str(part["text"]) for part in content if isinstance(part, dict) and "text" in part)
    return str(content or "")
