"""The body of POST /v1/chat/completions."""

from dataclasses import dataclass
from typing import Any

from mockserve.protocol.errors import ApiError, Problem, bad_value
from mockserve.protocol.fields import Fields, list_problem
from mockserve.protocol.sampling import Sampling, read_sampling
from mockserve.protocol.stream_options import Delivery, read_delivery


@dataclass(frozen=True, slots=True)
class Message:
    """One turn of a conversation, its content flattened to text."""

    role: str
    content: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatRequest:
    """A parsed chat request. An empty `model` means the first served name."""

    model: str
    messages: tuple[Message, ...]
    sampling: Sampling
    delivery: Delivery
    request_id: str | None = None


def parse_chat(body: dict[str, Any], model_name: str) -> ChatRequest:
    """Raises ApiError for whatever vLLM refuses before it looks at the model. `model_name` is for its messages."""
    fields = Fields(body)
    delivery = read_delivery(fields)
    _refuse_contradictions(body, delivery)
    messages = fields.require("messages")
    not_a_list = None if messages is None else list_problem(messages, "body.messages")
    if not_a_list is not None:
        fields.problems.append(not_a_list)
    model = fields.text("model") or ""
    sampling = _read_chat_sampling(fields)
    request_id = fields.text("request_id")
    fields.check()
    _refuse_unavailable(body)
    return ChatRequest(
        model=model,
        messages=_read_messages(messages, model_name),
        sampling=sampling,
        delivery=delivery,
        request_id=request_id,
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


def _refuse_contradictions(body: dict[str, Any], delivery: Delivery) -> None:
    """Fields that exclude or need each other: vLLM looks at these before it looks at types."""
    if body.get("top_logprobs") and not body.get("logprobs"):
        raise bad_value("when using `top_logprobs`, `logprobs` must be set to true.", "top_logprobs")
    if body.get("prompt_logprobs") is not None and delivery.stream:
        raise bad_value("`prompt_logprobs` are not available when `stream=True`.", "prompt_logprobs")
    if body.get("tools") == []:
        message = (
            "`tools` must not be an empty array. Either provide at least one tool or omit the field entirely."
        )
        raise bad_value(message, "tools")
    if body.get("tool_choice") not in (None, "none") and not body.get("tools"):
        raise bad_value("When using `tool_choice`, `tools` must be set.", "tool_choice")
    if body.get("add_generation_prompt", True) and body.get("continue_final_message"):
        raise ApiError("Cannot set both `continue_final_message` and `add_generation_prompt` to True.")


def _refuse_unavailable(body: dict[str, Any]) -> None:
    """What a vLLM server without the matching flags answers."""
    if body.get("tools"):
        choice = body.get("tool_choice") or "auto"
        if choice == "auto":
            raise ApiError('"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set')
        if choice != "none":
            raise ApiError('tool_choice="required" requires --tool-call-parser to be set')
    if body.get("chat_template") is not None:
        raise ApiError(
            "Chat template is passed with request, but --trust-request-chat-template is not set. "
            "Refused request with untrusted chat template."
        )


def _read_messages(messages: list[Any], model_name: str) -> tuple[Message, ...]:
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
