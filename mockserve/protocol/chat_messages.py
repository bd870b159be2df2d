"""The forms of chat messages and of their content parts in vLLM, and its checks beside these forms."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any, Literal, NamedTuple, NotRequired, TypeAlias, get_args

from pydantic import AfterValidator, Field, ValidatorFunctionWrapHandler, WrapValidator
from pydantic_core import PydanticKnownError
from typing_extensions import TypedDict

from mockserve.protocol.bodies import Items, RequestObject, described_as_any_of, errors_of, refusal, unreadable_as
from mockserve.protocol.errors import ApiError, bad_value, unhandled_error
from mockserve.protocol.forms import as_flag

# The forms of chat messages, of their content parts and of their tool calls, by their names and order in vLLM.


def _iterable(value: Any) -> Any:
    if not isinstance(value, list | dict | str):
        raise PydanticKnownError("iterable_type")
    return value


_Unread = Annotated[Any, AfterValidator(_iterable)]
"""Items that are read when the prompt is made."""


class FunctionCall(TypedDict):
    """A function and its arguments."""

    arguments: str
    name: str


class CustomCall(TypedDict):
    """A tool without a schema, and its input."""

    input: str
    name: str


class ChatCompletionMessageFunctionToolCallParam(TypedDict):
    """A call of a function."""

    id: str
    function: FunctionCall
    type: Literal["function"]


class ChatCompletionMessageCustomToolCallParam(TypedDict):
    """A call of a tool without a schema."""

    id: str
    custom: CustomCall
    type: Literal["custom"]


ToolCallForm: TypeAlias = Annotated[
    ChatCompletionMessageFunctionToolCallParam | ChatCompletionMessageCustomToolCallParam,
    Field(union_mode="left_to_right"),
]
"""One call of an assistant message."""


class ChatCompletionDeveloperMessageParam(TypedDict):
    """Instructions."""

    content: str | _Unread
    role: Literal["developer"]
    name: NotRequired[str]


class ChatCompletionSystemMessageParam(TypedDict):
    """Instructions for models without the role `developer`."""

    content: str | _Unread
    role: Literal["system"]
    name: NotRequired[str]


class ChatCompletionUserMessageParam(TypedDict):
    """A message of the user."""

    content: str | _Unread
    role: Literal["user"]
    name: NotRequired[str]


class Audio(TypedDict):
    """An earlier answer as a recording."""

    id: str


class ChatCompletionAssistantMessageParam(TypedDict):
    """An earlier answer of the model."""

    role: Literal["assistant"]
    audio: NotRequired[Audio | None]
    content: NotRequired[str | _Unread | None]
    function_call: NotRequired[FunctionCall | None]
    name: NotRequired[str]
    refusal: NotRequired[str | None]
    tool_calls: NotRequired[_Unread]


class ChatCompletionToolMessageParam(TypedDict):
    """The result of a call."""

    content: str | _Unread
    role: Literal["tool"]
    tool_call_id: str


class ChatCompletionFunctionMessageParam(TypedDict):
    """The result of a function, in the older form."""

    content: str | None
    name: str
    role: Literal["function"]


class CustomChatCompletionMessageParam(TypedDict):
    """A message with any role."""

    role: str
    content: NotRequired[str | list[Any]]
    name: NotRequired[str]
    tool_call_id: NotRequired[str | None]
    tool_calls: NotRequired[Items[ChatCompletionMessageFunctionToolCallParam] | None]


class Content(RequestObject):
    """A part of a message in the form of gpt-oss."""


class Role(StrEnum):
    """The role of an author in the form of gpt-oss."""

    USER = "user"
    ASSISTANT = "assistant"
    SYSTEM = "system"
    DEVELOPER = "developer"
    TOOL = "tool"


class Author(RequestObject):
    """The author of a message in the form of gpt-oss."""

    role: Role
    name: str | None = None


class Message(RequestObject):
    """A message in the form of gpt-oss."""

    author: Author
    content: list[Content] = Field(default_factory=list)
    channel: str | None = None
    recipient: str | None = None
    content_type: str | None = None


_PLAIN_ROLES = frozenset({"system", "user", "assistant"})
_FORMS_BY_ROLE: Mapping[str, Any] = {
    "developer": ChatCompletionDeveloperMessageParam,
    "system": ChatCompletionSystemMessageParam,
    "user": ChatCompletionUserMessageParam,
    "assistant": ChatCompletionAssistantMessageParam,
    "tool": ChatCompletionToolMessageParam,
    "function": ChatCompletionFunctionMessageParam,
}
AnyMessage = (
    ChatCompletionDeveloperMessageParam
    | ChatCompletionSystemMessageParam
    | ChatCompletionUserMessageParam
    | ChatCompletionAssistantMessageParam
    | ChatCompletionToolMessageParam
    | ChatCompletionFunctionMessageParam
    | CustomChatCompletionMessageParam
    | Message
)


def _unchanged(value: Any, validate: ValidatorFunctionWrapHandler) -> Any:
    """Return a valid message with all its fields. The form of its role is tried before all forms in order."""
    role = value.get("role") if type(value) is dict else None
    if type(role) is str and role in _FORMS_BY_ROLE:
        is_plain = len(value) == 2 and type(value.get("content")) is str and role in _PLAIN_ROLES
        if is_plain or errors_of(_FORMS_BY_ROLE[role], value) is None:
            return value
    validate(value)
    return value


ChatMessage: TypeAlias = Annotated[
    AnyMessage,
    Field(union_mode="left_to_right"),
    WrapValidator(_unchanged),
    described_as_any_of(*(each.__name__ for each in get_args(AnyMessage)[:-1]), "openai_harmony__Message"),
]
"""A message of any form."""


class ChatCompletionContentPartTextParam(TypedDict):
    """A text."""

    text: str
    type: Literal["text"]


class ImageURL(TypedDict):
    """Where a picture is."""

    url: str
    detail: NotRequired[Literal["auto", "low", "high"]]


class ChatCompletionContentPartImageParam(TypedDict):
    """A picture."""

    image_url: ImageURL
    type: Literal["image_url"]


class MediumURL(TypedDict):
    """Where a recording is."""

    url: str


class ChatCompletionContentPartAudioParam(TypedDict):
    """A recording."""

    audio_url: MediumURL
    type: Literal["audio_url"]


class ChatCompletionContentPartVideoParam(TypedDict):
    """A video."""

    video_url: MediumURL
    type: Literal["video_url"]


class InputAudio(TypedDict):
    """The bytes of a recording, in Base64."""

    data: str
    format: Literal["wav", "mp3"]


class ChatCompletionContentPartInputAudioParam(TypedDict):
    """A recording within the body."""

    input_audio: InputAudio
    type: Literal["input_audio"]


class FileFile(TypedDict, total=False):
    """A file, or its name."""

    file_data: str
    file_id: str
    filename: str


class File(TypedDict):
    """A file."""

    file: FileFile
    type: Literal["file"]


class ChatCompletionContentPartRefusalParam(TypedDict):
    """Why the model refused to answer."""

    refusal: str
    type: Literal["refusal"]


class ChatCompletionContentPartPromptEmbedsParam(TypedDict):
    """A text as an encoder has made it."""

    data: str
    type: Literal["prompt_embeds"]


class CustomThinkCompletionContentParam(TypedDict):
    """A thought."""

    thinking: str
    type: Literal["thinking"]


class PromptCacheBreakpoint(TypedDict):
    """How long a prompt is to be kept."""

    mode: Literal["explicit"]
    ttl: NotRequired[Literal["30m", "12h"]]


class ResponseInputImageParam(TypedDict):
    """A picture in the form of the Responses API."""

    detail: Literal["low", "high", "auto", "original"]
    type: Literal["input_image"]
    file_id: NotRequired[str | None]
    image_url: NotRequired[str | None]
    prompt_cache_breakpoint: NotRequired[PromptCacheBreakpoint]


PARTS_BY_ROLE: Mapping[str, Any] = {
    **dict.fromkeys(("developer", "system", "tool"), ChatCompletionContentPartTextParam),
    "user": Annotated[
        ChatCompletionContentPartTextParam
        | ChatCompletionContentPartImageParam
        | ChatCompletionContentPartInputAudioParam
        | File,
        Field(union_mode="left_to_right"),
    ],
    "assistant": ChatCompletionContentPartTextParam | ChatCompletionContentPartRefusalParam,
}
"""Forms of a part by the role of its message."""

KNOWN_PARTS: TypeAlias = Annotated[
    ChatCompletionContentPartTextParam
    | ChatCompletionContentPartInputAudioParam
    | File
    | ChatCompletionContentPartRefusalParam
    | ChatCompletionContentPartPromptEmbedsParam
    | CustomThinkCompletionContentParam
    | ChatCompletionContentPartImageParam
    | ChatCompletionContentPartAudioParam
    | ChatCompletionContentPartVideoParam,
    Field(union_mode="left_to_right"),
]

LATE_PARTS: Mapping[str, Any] = {
    "image_url": ChatCompletionContentPartImageParam,
    "audio_url": ChatCompletionContentPartAudioParam,
    "video_url": ChatCompletionContentPartVideoParam,
    "input_image": ResponseInputImageParam,
}
"""Forms of parts, by type, that are read only when the prompt is made."""

# Content parts of chat messages: the schemas that vLLM selects by the message's form, and its errors.

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
        form = PARTS_BY_ROLE[message["role"]]
        for index, part in enumerate(content):
            if errors := errors_of(form, part, index):
                raise unreadable_as("ValidatorIterator", errors)
        return
    num_texts = 0
    for part in content:
        num_texts += _check_part(part, num_texts)


def _is_read_by_role(message: Mapping[str, Any], content: Any) -> bool:
    role = message["role"]
    if role not in PARTS_BY_ROLE or (role == "tool" and not isinstance(message.get("tool_call_id"), str)):
        return False
    if role == "assistant" and message.get("tool_calls", ()) is None:
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
    return (isinstance(kind, str) and kind in _LOOSE_TYPES) or not errors_of(KNOWN_PARTS, part)


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
    if kind in LATE_PARTS and part.get("type") == kind and part.get("uuid") is None:
        form = LATE_PARTS[kind]
        # vLLM's own form of such a part has the address as its only field, which errors show first.
        shown = {"image_url": part["image_url"], **part} if kind == "input_image" and "image_url" in part else part
        if errors := errors_of(form, shown):
            raise unreadable_as(form.__name__, errors)
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
    """Return the type of a part, or of its medium if it has no type or has an id of its own. None if unknown."""
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


# Checks of chat messages that vLLM makes beside their forms, their text, and further arguments of chat templates.

FEWEST_UNREADABLE_CHARS = 500
"""Minimum length of arguments that may be unparsable because of thousands of digits or deep nesting."""


class Turn(NamedTuple):
    """One turn of a conversation, its content flattened to text, with a `MEDIA_MARK` for each image or recording."""

    role: str
    content: str


@dataclass(frozen=True, slots=True)
class Medium:
    """An image or a recording: its modality and its identity."""

    modality: str
    source: str


def read_messages(messages: list[Any]) -> tuple[Turn, ...]:
    """Return the conversation as text. Raises ApiError when it is empty."""
    if not messages:
        raise ApiError("Cannot apply chat template to an empty conversation. Provide at least one message.")
    return tuple(Turn(str(each["role"]), flatten_text(each.get("content"))) for each in messages)


def check_text_only(messages: list[Any], model: str) -> None:
    """Raise ApiError for the first image or recording, which a model that takes text only refuses."""
    for message in messages:
        for part in parts_of(message):
            kind = part_type(part)
            if kind in EMBEDS_PARTS:
                raise ApiError("The model is not multimodal.")
            if kind in MEDIA_PARTS:
                raise ApiError(f"{model} is not a multimodal model")


def media_of(messages: list[Any]) -> list[Medium]:
    """Return all images and recordings, in order."""
    return [
        Medium(MEDIA_PARTS[kind], str(part.get("image_url" if kind == "input_image" else kind)))
        for message in messages
        for part in parts_of(message)
        if (kind := part_type(part)) in MEDIA_PARTS
    ]


def list_calls(messages: Any) -> None:
    """Make lists of tool calls that are other iterables, as vLLM does before it looks at messages. Raises ApiError for
    what cannot be iterated."""
    for message in messages if isinstance(messages, list) else ():
        calls = message.get("tool_calls") if isinstance(message, dict) else None
        if isinstance(calls, str | dict):
            message["tool_calls"] = list(calls)
        elif calls is not None and not isinstance(calls, list):
            raise ApiError(f"{type(calls).__name__!r} object is not iterable")


def check_calls(messages: list[Any], pydantic_class: str | None = None) -> None:
    """Raise ApiError for tool calls of no form. `pydantic_class` refuses them where vLLM returns pydantic's message."""
    for message in messages:
        for index, call in enumerate(_calls_of(message)):
            if errors := errors_of(ToolCallForm, call, index):
                raise refusal(errors) if pydantic_class is None else unreadable_as(pydantic_class, errors)


def check_parts(messages: list[Any], is_typed: bool = True) -> None:
    """Raise ApiError for what vLLM finds while it makes a prompt: in content parts, and in calls that have a form."""
    for message in messages:
        if "role" not in message:  # messages in the form of gpt-oss have an author instead
            raise ApiError("'Message' object is not subscriptable")
        check_content(message, is_typed)
        calls = _calls_of(message)
        if any("function" not in call for call in calls):
            raise bad_value("chat completions only support assistant tool_calls of type 'function'.", "tool_calls")
        for call in calls:
            _check_arguments(call["function"]["arguments"])


def _calls_of(message: Mapping[str, Any]) -> Sequence[Any]:
    """Return the tool calls of an answer; vLLM ignores those of other messages."""
    return (message.get("tool_calls") or ()) if message.get("role") == "assistant" else ()


def _check_arguments(arguments: str) -> None:
    """Raise ApiError for arguments that vLLM cannot parse for the chat template. Invalid JSON remains text."""
    if len(arguments) < FEWEST_UNREADABLE_CHARS:
        return
    try:
        json.loads(arguments)
    except json.JSONDecodeError:
        return
    except ValueError as error:
        raise ApiError(str(error)) from None
    except RecursionError as error:
        raise unhandled_error(str(error)) from None


def last_content(messages: list[Any], role: str) -> str:
    """Return the text of the last message, if its role is `role`, for `echo` to repeat."""
    last = messages[-1]
    return flatten_text(last.get("content")) if last["role"] == role else ""


NO_EFFORT = "none"


def effort_arguments(effort: Any, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the template variables for a reasoning effort: the effort, and a switch for templates without efforts.

    `given` are the template's variables in the request, which override the variables derived from the effort.
    """
    if effort is None:
        return {}
    thinks = {} if "enable_thinking" in given else {"enable_thinking": effort != NO_EFFORT}
    return {"reasoning_effort": effort, **thinks}


def template_arguments(body: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    """Return all arguments of the template, as vLLM lists them for the server that will parse the answer."""
    adds, documents = body.get("add_generation_prompt"), body.get("documents")
    given = body.get("chat_template_kwargs") or {}
    return {
        "cohere_format": "cmd4",
        **defaults,
        **given,
        "add_generation_prompt": True if adds is None else adds,
        "continue_final_message": bool(body.get("continue_final_message")),
        **({} if documents is None else {"documents": documents}),
        **effort_arguments(body.get("reasoning_effort"), given),
    }


OPTIONAL_FLAGS = ("strict", "defer_loading")
"""Fields of a function that are omitted when they are null; other null fields are included."""


def tool_definitions(tools: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the tools of a checked request. A template writes them into the prompt, so each field affects the
    tokens."""
    return [_tool(each) for each in tools]


def _tool(tool: Mapping[str, Any]) -> dict[str, Any]:
    given = tool["function"]
    function = {name: given.get(name) for name in ("name", "description", "parameters")}
    is_deferred = _flag(tool, "defer_loading")
    for name in OPTIONAL_FLAGS:
        flag = _flag(given, name)
        if flag is None and name == "defer_loading":
            flag = is_deferred
        if flag is not None:
            function[name] = flag
    shown = {"type": "function", "function": function}
    return shown if is_deferred is None else {**shown, "defer_loading": is_deferred}


def _flag(given: Mapping[str, Any], name: str) -> bool | None:
    value = given.get(name)
    return None if value is None else as_flag(value)
