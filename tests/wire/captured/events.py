"""Server-sent events as a comparison sees them: how many tokens an event carries is the machine's business."""

import json
from typing import Any

from tests.wire.captured.normal import normal

LAST_CHOICE = 1_000_000


def events_of(text: str, is_cut: bool) -> list[Any]:
    """The normal form of each event, in order within each choice. The broken end of a cut text is left out."""
    blocks = text.strip("\n").split("\n\n")
    if is_cut:
        blocks = blocks[:-1]
    events = [_event(block) for block in blocks]
    events.sort(key=_choice_of)
    return _merged(events)


def _event(block: str) -> dict[str, Any]:
    """Name and data of one event; data that is no JSON stays text."""
    event: dict[str, Any] = {}
    for line in block.split("\n"):
        field, _, value = line.partition(": ")
        if field == "data" and value.startswith("{"):
            event[field] = _without_counts(normal(json.loads(value)))
            if "error" in event[field]:
                event["has spaces"] = value.startswith('{"error": ')
        else:
            event[field] = value
    return event


def _without_counts(data: dict[str, Any]) -> dict[str, Any]:
    """Numbers that grow from event to event show how far the stream is; those of the last chunk are compared."""
    if "sequence_number" in data:
        data["sequence_number"] = "<number>"
    if data.get("choices") and data.get("usage"):
        data["usage"] = {name: "<count>" if value is not None else None for name, value in data["usage"].items()}
    return data


def _choice_of(event: dict[str, Any]) -> int:
    """Choices interleave as the machine has it; the usage of all of them and the end mark come last."""
    data = event.get("data")
    if data == "[DONE]":
        return LAST_CHOICE + 2
    choices = data.get("choices") if isinstance(data, dict) else None
    if choices is None:
        return 0
    return int(choices[0]["index"]) if choices else LAST_CHOICE + 1


def _merged(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Equal events in a row as one, once what tokens bring is of one length."""
    shortened = [_shortened(event) for event in events]
    return [event for number, event in enumerate(shortened) if number == 0 or event != shortened[number - 1]]


def _shortened(value: Any, key: str = "") -> Any:
    """One token's worth: lists with an item for each token have one."""
    if isinstance(value, dict):
        return {name: _shortened(inner, name) for name, inner in value.items()}
    if isinstance(value, list):
        inner = [_shortened(each) for each in value]
        is_per_token = key in ("token_ids", "text_offset", "tokens", "token_logprobs", "top_logprobs", "content")
        return inner[:1] if is_per_token else inner
    return value
