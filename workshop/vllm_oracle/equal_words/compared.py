"""Replies of two servers that say the same: what differs in them apart from ids, times and log-probabilities."""

import json
import re
from collections.abc import Iterator
from typing import Any

from workshop.vllm_oracle.replies import HttpReply

MOST_SHOWN_CHARS = 200
_IDS = re.compile(
    r"\b(chatcmpl-tool-|chatcmpl-|cmpl-|resp_|msg_|rs_|fc_|call_|toolu_)[0-9a-zA-Z]{8,40}\b|\b[0-9a-f]{32}\b"
)
_FINGERPRINT = re.compile(r"vllm-0\.33\.0-[0-9a-f]{8}")
_TIMES = frozenset({"created", "created_at", "completed_at", "rank"})
_CANDIDATES = frozenset({"top_logprobs", "prompt_logprobs"})
_UNCOMPARED_HEADERS = frozenset({"date", "content-length", "connection", "keep-alive", "transfer-encoding"})
_ABSENT = object()
Normal = Any


def found_differences(theirs: HttpReply, ours: HttpReply) -> list[str]:
    """Return every place at which the replies differ; where the status does, that alone."""
    if theirs.status != ours.status:
        return [f"status: vLLM {theirs.status} {theirs.body[:160]!r}, ours {ours.status} {ours.body[:160]!r}"]
    return [*_headers(theirs, ours), *_walk("", _normal_body(theirs.body), _normal_body(ours.body))]


def _headers(theirs: HttpReply, ours: HttpReply) -> Iterator[str]:
    for name in sorted((theirs.headers.keys() | ours.headers.keys()) - _UNCOMPARED_HEADERS):
        first, second = theirs.headers.get(name), ours.headers.get(name)
        if (first is None) != (second is None) or _text(first or "") != _text(second or ""):
            yield f"header {name}: vLLM {first}, ours {second}"


def _normal_body(text: str) -> Normal:
    if text.startswith(("data:", "event:")):
        return _joined([_event(block) for block in text.split("\n\n") if block.strip()])
    try:
        return _normal(json.loads(text))
    except ValueError:
        return _text(text)


def _event(block: str) -> dict[str, Normal]:
    event: dict[str, Normal] = {}
    for line in block.split("\n"):
        field, _, value = line.partition(": ")
        event[field] = _normal(json.loads(value)) if field == "data" and value.startswith("{") else _text(value)
    if isinstance(event.get("data"), dict):
        event["data"].pop("sequence_number", None)
    return event


def _joined(events: list[dict[str, Normal]]) -> list[Normal]:
    """Join the texts of neighbouring events of one kind: a busy machine puts tokens of two steps into one event."""
    found: list[Normal] = []
    for event in events:
        data = event.get("data")
        place = _place_of_text(data) if isinstance(data, dict) else None
        if place is None or not isinstance(data, dict):
            _move_text_of_last(data, found)
            found.append(event)
            continue
        kind, holder, key = place
        text, about = holder[key] or "", _about_tokens(data)
        if found and isinstance(found[-1], list) and found[-1][0] == [kind, sorted(about)]:
            found[-1][1] += text
            for name, values in about.items():
                found[-1][2][name] += values
        else:
            found.append([[kind, sorted(about)], text, about])
    return found


def _move_text_of_last(data: Normal, found: list[Normal]) -> None:
    """Move what the last event of a choice says to the text before it: it may bring the tokens of several steps."""
    choices = data.get("choices") if isinstance(data, dict) else None
    if not choices or not choices[0].get("finish_reason") or not (found and isinstance(found[-1], list)):
        return
    choice, (_, _, about) = choices[0], found[-1]
    for name, values in _about_tokens(data).items():
        if name in about and name != "usage":
            about[name] += values
            choice[name] = "<moved>"
    holder, key = (choice, "text") if "text" in choice else (choice.get("delta") or {}, "content")
    if holder.get(key):
        found[-1][1] += holder[key]
        if key == "text":
            choice["text"] = ""
        else:
            del holder["content"]


def _about_tokens(data: dict[str, Any]) -> dict[str, list[Any]]:
    """Return what an event has for each of its tokens; counts so far are in the last event, too."""
    choice = data["choices"][0] if data.get("choices") else data
    about: dict[str, list[Any]] = {}
    if choice.get("token_ids") is not None:
        about["token_ids"] = choice["token_ids"]
    logprobs = choice.get("logprobs")
    if logprobs is not None:
        about["logprobs"] = logprobs if isinstance(logprobs, list) else logprobs.get("content") or logprobs["tokens"]
    if data.get("usage") is not None:
        about["usage"] = []
    return about


def _place_of_text(data: dict[str, Any]) -> tuple[str, dict[str, Any], str] | None:
    """Return the kind of an event that only adds text, with the object and the key of the text; None for others."""
    if isinstance(data.get("delta"), str):
        return f"{data['type']} {data.get('output_index')}", data, "delta"
    if data.get("type") == "content_block_delta":
        delta = data["delta"]
        key = next((each for each in ("text", "partial_json", "thinking") if each in delta), None)
        return None if key is None else (f"{key} of block {data['index']}", delta, key)
    choices = data.get("choices")
    if not choices or len(choices) != 1 or choices[0].get("finish_reason"):
        return None
    choice = choices[0]
    if "text" in choice:
        return f"text {choice['index']}", choice, "text"
    return _place_in_delta(choice.get("delta") or {}, choice["index"])


def _place_in_delta(delta: dict[str, Any], index: int) -> tuple[str, dict[str, Any], str] | None:
    if "role" in delta:
        return None
    calls = delta.get("tool_calls")
    if calls:
        is_later = len(calls) == 1 and "id" not in calls[0]
        return (f"call {calls[0]['index']} of {index}", calls[0]["function"], "arguments") if is_later else None
    key = next((each for each in ("content", "reasoning") if isinstance(delta.get(each), str)), None)
    return None if key is None else (f"{key} {index}", delta, key)


def _normal(value: Any, key: str = "") -> Normal:
    if isinstance(value, dict) and key in _CANDIDATES:  # by token; the one that came is the first
        return list(value)[:1]
    if isinstance(value, dict):
        return {name: _normal(inner, name) for name, inner in value.items()}
    if isinstance(value, list) and key in _CANDIDATES and value and isinstance(value[0], dict) and "token" in value[0]:
        return [_normal(value[0])]
    if isinstance(value, list):
        return [_normal(each, key) for each in value]
    if isinstance(value, float):
        return "<number>"
    if isinstance(value, int) and not isinstance(value, bool) and key in _TIMES:
        return 0
    return _text(value) if isinstance(value, str) else value


def _text(text: str) -> str:
    return _FINGERPRINT.sub("<fingerprint>", _IDS.sub(lambda found: f"{found[1] or ''}<id>", text))


def _walk(place: str, theirs: Normal, ours: Normal) -> Iterator[str]:
    if isinstance(theirs, dict) and isinstance(ours, dict):
        for name in [*theirs, *(each for each in ours if each not in theirs)]:
            yield from _walk(f"{place}.{name}", theirs.get(name, _ABSENT), ours.get(name, _ABSENT))
        if theirs.keys() == ours.keys() and list(theirs) != list(ours):
            yield f"{place} order: vLLM {list(theirs)}, ours {list(ours)}"
    elif isinstance(theirs, list) and isinstance(ours, list) and len(theirs) == len(ours):
        for index, (their, our) in enumerate(zip(theirs, ours, strict=True)):
            yield from _walk(f"{place}[{index}]", their, our)
    elif isinstance(theirs, list) and isinstance(ours, list):
        pairs = zip(theirs, ours, strict=False)
        first = next((index for index, (their, our) in enumerate(pairs) if their != our), min(len(theirs), len(ours)))
        lengths = f"length {len(theirs)}, ours {len(ours)}; from [{first}] on"
        yield f"{place} length: {lengths} vLLM {_shown(theirs[first:])}, ours {_shown(ours[first:])}"
    elif theirs != ours or type(theirs) is not type(ours):
        yield f"{place}: vLLM {_shown(theirs)}, ours {_shown(ours)}"


def _shown(value: Any) -> str:
    text = "nothing" if value is _ABSENT else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= MOST_SHOWN_CHARS else text[:MOST_SHOWN_CHARS] + "..."
