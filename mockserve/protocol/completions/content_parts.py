"""Content parts of chat messages: the schemas that vLLM selects by the message's form, and its errors."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from mockserve.protocol.errors import ApiError, bad_value, unreadable
from mockserve.protocol.reading.containers import AnyOf, Named, Nullable, Record
from mockserve.protocol.reading.types import FieldType, OneOf, Text

TEXT_PARTS = ("text", "input_text", "output_text", "refusal", "thinking")
MEDIA_PARTS = {
    "image_url": "image",
    "input_image": "image",
    "image_pil": "image",
    "image_embeds": "image",
    "audio_url": "audio",
    "input_audio": "audio",
    "audio_embeds": "audio",
    "video_url": "video",
    "video_embeds": "video",
}
"""Modality by type of content part."""
EMBEDS_PARTS = frozenset({"image_embeds", "audio_embeds", "video_embeds"})
"""Parts with what an encoder has made of an image or a recording."""

TOOL_REFERENCE = "tool_reference"
PROMPT_EMBEDS = "prompt_embeds"
OTHER_PARTS = (PROMPT_EMBEDS, TOOL_REFERENCE)
NO_PROMPT_EMBEDS = "You must set `--enable-prompt-embeds` to input `prompt_embeds`"
MEDIA_MARK = "\ue000"
"""Placeholder of an image or a recording in a prompt's text; no model has a token for it."""

_TEXT_KEYS = {"refusal": "refusal", "thinking": "thinking", TOOL_REFERENCE: "name"}
"""Keys of the text in parts that do not call it `text`."""
_UNTYPED_MEDIA = (
    *("image_url", "image_pil", "image_embeds", "audio_embeds", "video_embeds", PROMPT_EMBEDS, "audio_url"),
    *("input_audio", "video_url"),
)
"""Keys that identify a part without a type, or with an id of its own, in vLLM's order."""


def _part(kind: str, inner: FieldType, key: str = "") -> Record:
    name = key or kind
    return Record({name: inner, "type": OneOf((kind,))}, (name, "type"), kind="dict_type")


def _nested(**fields: FieldType) -> Record:
    return Record(fields, tuple(each for each in fields if each != "detail"), kind="dict_type")


_TEXT_PART = _part("text", Text())
_URLS: Mapping[str, tuple[str, Record]] = {
    "image_url": (
        "ChatCompletionContentPartImageParam",
        _part("image_url", _nested(url=Text(), detail=OneOf(("auto", "low", "high")))),
    ),
    "audio_url": ("ChatCompletionContentPartAudioParam", _part("audio_url", _nested(url=Text()))),
    "video_url": ("ChatCompletionContentPartVideoParam", _part("video_url", _nested(url=Text()))),
}
_RESPONSE_IMAGE = "input_image"
_URLS_AND_IMAGES: Mapping[str, tuple[str, Record]] = {
    **_URLS,
    _RESPONSE_IMAGE: (
        "ResponseInputImageParam",
        Record(
            {
                "detail": OneOf(("low", "high", "auto", "original")),
                "type": OneOf((_RESPONSE_IMAGE,)),
                "file_id": Nullable(Text()),
                "image_url": Nullable(Text()),
                "prompt_cache_breakpoint": Record(
                    {"mode": OneOf(("explicit",)), "ttl": OneOf(("30m", "12h"))}, ("mode",), kind="dict_type"
                ),
            },
            ("detail", "type"),
            kind="dict_type",
        ),
    ),
}
"""Parts that vLLM validates when it makes the prompt: the name of the class in errors, and the form."""
_AUDIO_PART = _part("input_audio", _nested(data=Text(), format=OneOf(("wav", "mp3"))))
_FILE = Record({name: Text() for name in ("file_data", "file_id", "filename")}, kind="dict_type")
_FILE_PART = _part("file", _FILE)
_REFUSAL_PART = _part("refusal", Text())
_EMBEDS_PART = _part(PROMPT_EMBEDS, Text(), "data")
_THOUGHT_PART = _part("thinking", Text())

_NAMED_TEXT = Named("ChatCompletionContentPartTextParam", _TEXT_PART)
_FORMS: Mapping[str, FieldType] = {
    **dict.fromkeys(("developer", "system", "tool"), _TEXT_PART),
    "user": AnyOf(
        (
            _NAMED_TEXT,
            Named(*_URLS["image_url"]),
            Named("ChatCompletionContentPartInputAudioParam", _AUDIO_PART),
            Named("File", _FILE_PART),
        )
    ),
    "assistant": AnyOf((_NAMED_TEXT, Named("ChatCompletionContentPartRefusalParam", _REFUSAL_PART))),
}
"""Forms of a part by the role of its message."""
_KNOWN_PARTS: tuple[Record, ...] = (
    *(_TEXT_PART, _AUDIO_PART, _FILE_PART, _REFUSAL_PART, _EMBEDS_PART, _THOUGHT_PART),
    *(form for _, form in _URLS.values()),
)
_LOOSE_TYPES = EMBEDS_PARTS | {TOOL_REFERENCE}
_LOOSE_KEYS = ("image_url", "audio_url", "video_url", "image_pil", "uuid", "name")
"""Keys of a part without a type, as text or null."""
_OTHER_FIELDS = ("reasoning", "tools", "task")
"""Fields that only messages of vLLM's own form have."""


def parts_of(message: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """The content parts of a message that are objects."""
    content = message.get("content")
    return (part for part in content if isinstance(part, dict)) if isinstance(content, list) else iter(())


def check_content(message: Mapping[str, Any], is_typed: bool = True) -> None:
    """Raise ApiError for content parts that vLLM refuses.

    vLLM parses known forms of messages part by part while it makes the prompt. vLLM's own form takes any role, has
    looser parts, and is chosen if it has more fields of the message.
    """
    content = message.get("content")
    if not isinstance(content, list | dict):
        return
    if is_typed and _is_read_by_role(message, content):
        form = _FORMS[message["role"]]
        for index, part in enumerate(content):
            if problems := form.problems(part, str(index)):
                raise unreadable("ValidatorIterator", problems)
        return
    num_texts = 0
    for part in content:
        num_texts += _check_part(part, num_texts)


def _is_read_by_role(message: Mapping[str, Any], content: Any) -> bool:
    role = message["role"]
    if role not in _FORMS or (role == "tool" and not isinstance(message.get("tool_call_id"), str)):
        return False
    if not isinstance(content, list) or not all(isinstance(part, dict | str) for part in content):
        return True
    if any(name in message for name in _OTHER_FIELDS) or message.get("tool_calls"):
        return False
    return not any(_is_known(part) for part in content)


def _is_known(part: Any) -> bool:
    """Whether vLLM's own form of a message has a field of the part."""
    if not isinstance(part, dict):
        return False
    if any(isinstance(part.get(key, 0), str | None) for key in _LOOSE_KEYS):
        return True
    kind = part.get("type")
    return (isinstance(kind, str) and kind in _LOOSE_TYPES) or any(not form.problems(part, "") for form in _KNOWN_PARTS)


def _check_part(part: Any, place: int) -> bool:
    """Whether a part has text for the prompt; `place` is its index among the texts. Raises ApiError for an unsupported
    part."""
    if isinstance(part, str):
        return bool(part)
    if not isinstance(part, dict):
        raise ApiError(f"a content part must be an object, got {type(part).__name__}")
    kind = part_type(part)
    if kind is None:
        word = "Missing" if part.get("type") is None or part.get("uuid") is not None else "Invalid"
        raise bad_value(f"{word} 'type' field in multimodal part.", "type")
    if kind in _URLS_AND_IMAGES and part.get("type") == kind and part.get("uuid") is None:
        title, form = _URLS_AND_IMAGES[kind]
        # vLLM's own form of such a part has the address as its only field, which errors show first.
        shown = {"image_url": part["image_url"], **part} if kind == _RESPONSE_IMAGE and "image_url" in part else part
        if problems := form.problems(shown, title):
            inside = f"{title}."
            raise unreadable(title, [replace(each, location=each.location.removeprefix(inside)) for each in problems])
    if kind in TEXT_PARTS or kind == TOOL_REFERENCE:
        text = part.get(_TEXT_KEYS.get(kind, "text"))
        if text and not isinstance(text, str):
            raise ApiError(f"sequence item {place}: expected str instance, {type(text).__name__} found")
        return bool(text)
    if kind in MEDIA_PARTS:
        return False
    if kind == PROMPT_EMBEDS:
        missing = "prompt_embeds content part requires a non-empty `data` field with base64-encoded tensor bytes."
        raise bad_value(NO_PROMPT_EMBEDS if part.get("data") else missing, PROMPT_EMBEDS)
    supported = ", ".join(sorted([*TEXT_PARTS, *MEDIA_PARTS, *OTHER_PARTS]))
    message = f"Unsupported chat content part type: {kind!r}. Supported types: {supported}."
    raise bad_value(message, "type", kind)


def part_type(part: Mapping[str, Any]) -> str | None:
    """Return the type of a part; the type of its medium if it has no type or has an id of its own; None if unknown."""
    kind = part.get("type")
    has_id = part.get("uuid") is not None
    if isinstance(kind, str) and not (has_id and (kind in TEXT_PARTS or kind in MEDIA_PARTS or kind in OTHER_PARTS)):
        return kind
    if kind is None or has_id:
        return next((key for key in (*_UNTYPED_MEDIA, TOOL_REFERENCE) if key in part), None)
    return None


def flatten_text(content: Any) -> str:
    """Return a content string unchanged, the text parts of a list joined by newlines, and an empty text for null."""
    if content is None:
        return ""
    return content if isinstance(content, str) else "\n".join(filter(None, map(part_text, content)))


def part_text(part: Any) -> str:
    """Return the text of a content part, or a `MEDIA_MARK` for an image or a recording."""
    if not isinstance(part, dict):
        return part if isinstance(part, str) else ""
    kind = part_type(part)
    if kind in MEDIA_PARTS:
        return MEDIA_MARK
    text = part.get(_TEXT_KEYS.get(kind or "", "text"))
    return text if isinstance(text, str) else ""


def has_text(part: Any) -> bool:
    """Whether a part adds to the prompt: vLLM skips texts that are null."""
    if not isinstance(part, dict) or (kind := part_type(part)) not in TEXT_PARTS:
        return True
    return part.get(_TEXT_KEYS.get(kind or "", "text")) is not None
