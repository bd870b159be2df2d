"""The body of POST /v1/chat/completions."""

from dataclasses import dataclass
from typing import Any

from mockserve.protocol.errors import ApiError, Problem
from mockserve.protocol.fields import Fields, list_problem
from mockserve.protocol.refusals import refuse_bad_effort, refuse_chat_contradictions, refuse_contradictions
from mockserve.protocol.sampling import Sampling, read_sampling
from mockserve.protocol.stream_options import Delivery, read_delivery


@dataclass(frozen=True, slots=True)
class Message:
    """One turn of a conversation, its content flattened to text."""

    role: str
    content: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatRequest:
    """A parsed chat request. An empty `model` means the first served name; `messages` are as they came."""

    model: str
    messages: list[Any]
    sampling: Sampling
    delivery: Delivery
    request_id: str | None = None
    cache_salt: str | None = None


def parse_chat(body: dict[str, Any]) -> ChatRequest:
    """Raises ApiError for whatever vLLM refuses before it looks at the model."""
    fields = Fields(body)
    delivery = read_delivery(fields)
    refuse_contradictions(body, delivery.stream)
    refuse_chat_contradictions(body)
    messages = fields.require("messages")
    not_a_list = None if messages is None else list_problem(messages, "body.messages")
    if not_a_list is not None:
        fields.problems.append(not_a_list)
    model = fields.text("model") or ""
    sampling = _read_chat_sampling(fields)
    request_id = fields.text("request_id")
    cache_salt = fields.text("cache_salt")
    fields.check()
    refuse_bad_effort(body)
    return ChatRequest(
        model=model,
        messages=messages,
        sampling=sampling,
        delivery=delivery,
        request_id=request_id,
        cache_salt=cache_salt,
    )


def _read_chat_sampling(fields: Fields) -> Sampling:
    max_tokens = fields.integer("max_tokens")
    max_completion_tokens = fields.integer("max_completion_tokens")
    wants_logprobs = fields.flag("logprobs")
    top_logprobs = fields.integer("top_logprobs", 0) or 0
    newer = max_completion_tokens is not None
    return read_sampling(
        fields,
        max_tokens=max_completion_tokens if newer else max_tokens,
        max_tokens_param="max_completion_tokens" if newer else "max_tokens",
        num_logprobs=top_logprobs if wants_logprobs else 0,
    )


def read_messages(messages: list[Any], model_name: str) -> tuple[Message, ...]:
    """The conversation as text. Raises ApiError for content that is none; `model_name` is for the error."""
    if not messages:
        raise ApiError("Cannot apply chat template to an empty conversation. Provide at least one message.")
    return tuple(_read_message(each, index, model_name) for index, each in enumerate(messages))


def _read_message(message: Any, index: int, model_name: str) -> Message:
    fields = Fields({})
    if not isinstance(message, dict):
        location = f"body.messages.{index}"
        fields.problems.append(Problem("dict_type", location, "Input should be a valid dictionary", message))
        fields.check()
    role = message.get("role")
    if not isinstance(role, str):
        location = f"body.messages.{index}.role"
        found = Problem("missing", location, "Field required", message)
        wrong = Problem("string_type", location, "Input should be a valid string", role)
        fields.problems.append(found if role is None else wrong)
        fields.check()
    return Message(str(role), _flatten(message.get("content"), model_name))


def _flatten(content: Any, model_name: str) -> str:
    """A content string as it is; the text parts of a list joined by newlines; nothing for null."""
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise ApiError(f"message content must be a string or a list of parts, got {type(content).__name__}")
    return "\n".join(_part_text(part, model_name) for part in content)


def _part_text(part: Any, model_name: str) -> str:
    if isinstance(part, str):
        return part
    if not isinstance(part, dict):
        raise ApiError(f"a content part must be an object, got {type(part).__name__}")
    kind = part.get("type", "text")
    if kind in ("text", "input_text", "output_text", "refusal", "thinking"):
        text = part.get("refusal" if kind == "refusal" else "thinking" if kind == "thinking" else "text")
        return text if isinstance(text, str) else ""
    if kind in ("image_url", "input_image", "audio_url", "input_audio", "video_url", "image_pil", "image_embeds"):
        raise ApiError(f"{model_name} is not a multimodal model")
    raise ApiError(f"Unknown part type: {kind}")
