"""Developers' messages for templates that know none: they become the system's, and all of those one, at the start."""

from collections.abc import Sequence
from typing import Any

from mockserve.content.chat_templates.chatml import Turn


def without_developers(turns: Sequence[Turn]) -> list[Turn]:
    """The turns with what developers and the system say in one system turn before all others.

    A conversation without a developer stays as it is.
    """
    if not any(each.get("role") == "developer" for each in turns):
        return list(turns)
    instructing = ("system", "developer")
    said = [_text(each.get("content")) for each in turns if each.get("role") in instructing]
    others = [each for each in turns if each.get("role") not in instructing]
    return [{"role": "system", "content": "\n\n".join(text for text in said if text)}, *others]


def _text(content: Any) -> str:
    if isinstance(content, list):
        return "\n".join(str(part["text"]) for part in content if isinstance(part, dict) and "text" in part)
    return str(content or "")
