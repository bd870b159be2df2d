"""The words of messages of a chat, and what they have besides: images and other parts that are no text."""

import json
from collections import Counter
from collections.abc import Mapping
from typing import Any

from traces.importers.reading import at, expect
from traces.text_file import TraceError

_INSTEAD = ("reasoning", "reasoning_content", "tool_calls", "function_call", "refusal", "audio")
"""Keys of a message that needs no content besides."""
_MOST_DEPTH = 20
_TEXTS = ("text", "thinking", "reasoning", "refusal")
_MEDIA: Mapping[str, str] = {"image": "images", "audio": "sounds", "video": "videos", "file": "files"}


def words_of(place: str, message: Any, others: Counter[str]) -> str:
    """The text of a message with its reasoning and its calls of tools. Raises TraceError.

    Parts that are no text are counted in `others` by their kind.
    """
    known = expect(place, "an object", message)
    if "content" not in known and not any(known.get(key) for key in _INSTEAD):
        at(place, known, "content", "text")
    reasoning = known.get("reasoning") or known.get("reasoning_content")
    words = [reasoning if isinstance(reasoning, str) else "", content_words(place, known.get("content"), others)]
    return "".join([*words, tool_call_words(known)])


def content_words(place: str, content: Any, others: Counter[str], depth: int = 0) -> str:
    """The text of a content: text, or a list of parts, results of tools `depth` parts deep. Raises TraceError."""
    if content is None or isinstance(content, str):
        return content or ""
    if depth > _MOST_DEPTH:
        raise TraceError(f"{place} key content: parts are within more than {_MOST_DEPTH} others")
    parts = expect(f"{place} key content", "a list", content)
    return "".join(_part_words(place, each, others, depth) for each in parts)


def _part_words(place: str, part: Any, others: Counter[str], depth: int) -> str:
    if isinstance(part, str):
        return part
    known = expect(f"{place} part", "an object", part)
    texts = [known[key] for key in _TEXTS if isinstance(known.get(key), str)]
    if texts:
        return "".join(texts)
    kind = str(known.get("type", ""))
    if kind.endswith("text"):
        at(f"{place} part", known, "text", "text")
    if kind in ("tool_use", "tool_call"):
        return f"{known.get('name', '')}{_json(known.get('input', known.get('arguments')))}"
    if kind == "tool_result":
        return content_words(place, known.get("content"), others, depth + 1)
    media = next((name for word, name in _MEDIA.items() if word in kind), "parts that are no text")
    others[f"{media} in prompts, whose tokens are not counted"] += 1
    return ""


def tool_call_words(message: Mapping[str, Any]) -> str:
    """The names and arguments of the calls of tools in a message or in a chunk of one."""
    calls = message.get("tool_calls")
    functions = [each.get("function") for each in calls if isinstance(each, dict)] if isinstance(calls, list) else []
    functions.append(message.get("function_call"))
    return "".join(
        f"{each.get('name') or ''}{_json(each.get('arguments'))}" for each in functions if isinstance(each, dict)
    )


def _json(value: Any) -> str:
    if isinstance(value, str) or value is None:
        return value or ""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
