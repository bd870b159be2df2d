"""What events and answers of the Responses API say, in the words of the other two APIs."""

from dataclasses import dataclass, replace
from typing import Any

from observe.answers.completion_event import count_of

_ENDS = frozenset({"completed", "incomplete", "failed", "cancelled"})


@dataclass(frozen=True, slots=True, kw_only=True)
class ResponsesEvent:
    """One event, or a whole answer. Counts are None, and texts empty, where it does not say."""

    carries_tokens: bool = False
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    finish_reason: str = ""
    problem: str = ""
    is_last: bool = False
    text: str = ""
    has_unsaid: bool = False
    """Whether it has tokens that are no words for the user: thoughts, or calls of tools."""


def responses_event(event: dict[str, Any]) -> ResponsesEvent | None:
    """What an event says; None when it is not of this API."""
    kind = event.get("type")
    if isinstance(kind, str) and kind.startswith("response."):
        answer = event.get("response")
        if isinstance(answer, dict):
            return _of_answer(answer)
        text = event.get("delta") if kind == "response.output_text.delta" else None
        return ResponsesEvent(
            carries_tokens=kind.endswith(".delta"),
            text=text if isinstance(text, str) else "",
            has_unsaid=kind.endswith(".delta") and text is None,
        )
    if kind == "error":
        return ResponsesEvent(problem=str(event.get("message") or event.get("error") or "error"), is_last=True)
    if event.get("object") != "response":
        return None
    return replace(_of_answer(event), text=_text(event), has_unsaid=any(map(_is_unsaid, _items(event))))


def _of_answer(answer: dict[str, Any]) -> ResponsesEvent:
    status = answer.get("status")
    usage = answer.get("usage")
    counts = usage if isinstance(usage, dict) else {}
    error = answer.get("error")
    return ResponsesEvent(
        prompt_tokens=count_of(counts, "input_tokens"),
        completion_tokens=count_of(counts, "output_tokens"),
        finish_reason=_finish_reason(status, answer.get("incomplete_details")),
        problem=str(error.get("message") if isinstance(error, dict) else error) if error else "",
        is_last=isinstance(status, str) and status in _ENDS,
    )


def _text(answer: dict[str, Any]) -> str:
    """The words of a whole answer, without what the model thought."""
    parts = [part for item in _items(answer) for part in _objects(item.get("content"))]
    return "".join(str(part.get("text", "")) for part in parts if part.get("type") == "output_text")


def _items(answer: dict[str, Any]) -> list[dict[str, Any]]:
    return _objects(answer.get("output"))


def _objects(value: Any) -> list[dict[str, Any]]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def _is_unsaid(item: dict[str, Any]) -> bool:
    return item.get("type") != "message"


def _finish_reason(status: Any, details: Any) -> str:
    if status == "incomplete":
        reason = details.get("reason") if isinstance(details, dict) else None
        return "length" if reason == "max_output_tokens" else str(reason or "incomplete")
    return "stop" if status == "completed" else ""
