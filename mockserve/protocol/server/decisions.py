"""The bodies of POST /v1/decisions and /v1/systemone: only checked, as only few models take them."""

from typing import Any

from mockserve.protocol.errors import ApiError
from mockserve.protocol.reading.body import check_record
from mockserve.protocol.reading.containers import AnyOf, Checked, ListOf, MapOf, Named, Nullable, Record, Tagged
from mockserve.protocol.reading.types import (
    LARGEST_INT64,
    SMALLEST_INT64,
    Anything,
    FieldType,
    Integer,
    OneOf,
    StrictFlag,
    Text,
)
from mockserve.protocol.refusals import refuse_bad_salt

MAX_TEXT_CHARS = 1_048_576
MAX_INPUT_CHARS = 10_485_760


def _image_complaint(message: Any) -> str | None:
    parts = message.get("content") if isinstance(message, dict) else None
    if isinstance(parts, list) and any(isinstance(each, dict) and each.get("type") == "input_image" for each in parts):
        return "Decisions supports text input only; images are not supported"
    return None


def _name_complaint(question: Any) -> str | None:
    return "name must be a string when provided" if question.get("name", "") is None else None


def _choice_complaint(question: Any) -> str | None:
    values = [(type(each["value"]), each["value"]) for each in question["choices"]]
    return _name_complaint(question) or ("choice values must be distinct" if len(set(values)) < len(values) else None)


def _closed(fields: dict[str, FieldType], required: tuple[str, ...]) -> Record:
    return Record(fields, required, forbids_others=True)


_SHORT = Text(max_chars=MAX_TEXT_CHARS)
_LONG = Named("constrained-str", Text(max_chars=MAX_INPUT_CHARS))
_PART = _closed({"type": OneOf(("input_text",)), "text": Text(max_chars=MAX_INPUT_CHARS)}, ("type", "text"))
_MESSAGE = Checked(
    _closed(
        {
            "role": OneOf(("user",)),
            "content": AnyOf((_LONG, ListOf(_PART, at_most=16384))),
            "type": OneOf(("message",)),
        },
        ("role", "content"),
    ),
    _image_complaint,
    is_first=True,
)
_QUESTION: dict[str, FieldType] = {"instructions": _SHORT, "name": Nullable(_SHORT)}
_CHOICE = _closed({"value": AnyOf((Text(), StrictFlag())), "description": _SHORT}, ("value",))
_LEVEL = _closed({"label": _SHORT, "description": _SHORT}, ("label",))
_QUESTIONS = Tagged(
    "type",
    {
        "predicate": Checked(
            _closed({**_QUESTION, "type": OneOf(("predicate",))}, ("instructions", "type")), _name_complaint
        ),
        "choice": Checked(
            _closed(
                {**_QUESTION, "type": OneOf(("choice",)), "choices": ListOf(_CHOICE, at_most=255, at_least=2)},
                ("instructions", "type", "choices"),
            ),
            _choice_complaint,
        ),
        "score": Checked(
            _closed(
                {**_QUESTION, "type": OneOf(("score",)), "levels": ListOf(_LEVEL, at_most=10, at_least=2)},
                ("instructions", "type", "levels"),
            ),
            _name_complaint,
        ),
    },
)
_DECISION = _closed(
    {
        "model": _SHORT,
        "input": AnyOf((_LONG, ListOf(_MESSAGE, at_most=131072))),
        "questions": ListOf(_QUESTIONS, at_most=200, at_least=1),
        "safety_identifier": Nullable(Text(max_chars=128)),
        "joint": StrictFlag(),
        "cache_salt": Nullable(Text(max_chars=1024, min_chars=1)),
    },
    ("model", "input", "questions"),
)
_LINKS = Nullable(ListOf(Text()))
_STRUCTURED_DECISION = _closed(
    {
        "model": Nullable(Text()),
        "state": Anything(),
        "questions": MapOf(Record({"type": Text(), "instructions": Anything(), "criteria": Anything()}, ("type",))),
        "instructions": Nullable(Text()),
        "images": _LINKS,
        "audio": _LINKS,
        "videos": _LINKS,
        "chat_template_kwargs": Nullable(MapOf(Anything())),
        "joint": StrictFlag(),
        "cache_salt": Nullable(Text()),
        "priority": Integer(at_least=SMALLEST_INT64, at_most=LARGEST_INT64),
        "request_id": Text(),
    },
    ("state", "questions"),
)


def check_decision(body: dict[str, Any]) -> None:
    """Raise ApiError for a body that POST /v1/decisions does not take."""
    refuse_bad_salt(body.get("cache_salt"))
    check_record(body, _DECISION)


def check_structured_decision(body: dict[str, Any]) -> None:
    """Raise ApiError for a body that POST /v1/systemone does not take."""
    refuse_bad_salt(body.get("cache_salt"))
    check_record(body, _STRUCTURED_DECISION)


def unsupported(interface: str) -> ApiError:
    """The model does not make decisions, which only few models do."""
    return ApiError(f"The model does not support the {interface} API", status=501, kind="NotImplementedError")
