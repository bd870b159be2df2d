"""The bodies of POST /v1/chat/completions and /v1/chat/completions/batch."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from mockserve.protocol.asked.sampling import Sampling, read_sampling
from mockserve.protocol.asked.vocabulary_checks import check_logit_bias_keys
from mockserve.protocol.asked.wanted import Common, Delivery, Wanted, read_common, read_delivery, read_wanted
from mockserve.protocol.completions.fields import CHAT_FIELDS, CHAT_REQUIRED
from mockserve.protocol.completions.messages import MESSAGE, check_iterable_calls, check_parts, last_content
from mockserve.protocol.errors import ApiError, bad_value
from mockserve.protocol.reading.body import Fields, check_types
from mockserve.protocol.reading.containers import ListOf, Nullable
from mockserve.protocol.reading.types import FieldType, Flag, Integer, Text
from mockserve.protocol.refusals import refuse_chat_contradictions

ASSISTANT = "assistant"


class ChatRequest(NamedTuple):
    """A parsed chat request. An empty `model` means the first served name; `messages` are as they came.

    `role` is that of the answer. `echoed` is the text of the message that the answer continues, if that is wanted.
    """

    model: str
    messages: list[Any]
    sampling: Sampling
    delivery: Delivery
    common: Common = Common()
    wanted: Wanted = Wanted()
    role: str = ASSISTANT
    echoed: str = ""
    add_special_tokens: bool = False
    includes_reasoning: bool = True


def parse_chat(body: dict[str, Any], read_as: str | None = None) -> ChatRequest:
    """Raises ApiError for whatever vLLM refuses before it looks at the model.

    `read_as` names the class of pydantic that finds wrong tool calls, where vLLM shows what pydantic says.
    """
    messages = body.get("messages")
    if "messages" in body and not isinstance(messages, list | str | dict):
        raise ApiError(f"{type(messages).__name__!r} object is not iterable")
    check_iterable_calls(messages)
    refuse_chat_contradictions(body)
    check_types(body, CHAT_FIELDS, CHAT_REQUIRED)
    assert isinstance(messages, list)
    check_parts(messages, read_as)
    fields = Fields(body)
    sampling = _read_chat_sampling(fields)
    check_logit_bias_keys(body.get("logit_bias"))
    if fields.flag("continue_final_message") and fields.flag("add_generation_prompt", True):
        raise ApiError(
            "continue_final_message and add_generation_prompt are not compatible. Use continue_final_message when you "
            "want the model to continue the final message, and add_generation_prompt when you want to add a header "
            "that will prompt it to start a new assistant message instead."
        )
    role = ASSISTANT if fields.flag("add_generation_prompt", True) or not messages else str(messages[-1]["role"])
    return ChatRequest(
        model=fields.text("model") or "",
        messages=messages,
        sampling=sampling,
        delivery=read_delivery(fields),
        common=read_common(fields),
        wanted=read_wanted(fields, sampling),
        role=role,
        echoed=last_content(messages, role) if fields.flag("echo") and messages else "",
        add_special_tokens=fields.flag("add_special_tokens"),
        includes_reasoning=fields.flag("include_reasoning", True),
    )


def _read_chat_sampling(fields: Fields) -> Sampling:
    newer = fields.integer("max_completion_tokens")
    top_logprobs = fields.integer("top_logprobs", 0) or 0
    return read_sampling(
        fields,
        max_tokens=fields.integer("max_tokens") if newer is None else newer,
        max_tokens_param="max_tokens" if newer is None else "max_completion_tokens",
        num_logprobs=top_logprobs if fields.flag("logprobs") else None,
        num_echoed_logprobs=top_logprobs if fields.flag("echo") else None,
    )


_CONVERSATIONS: FieldType = ListOf(ListOf(MESSAGE, at_least=1), at_least=1)
_BEFORE = (
    *("model", "frequency_penalty", "logit_bias", "logprobs", "top_logprobs", "logprob_token_ids", "max_tokens"),
    *("max_completion_tokens", "n", "presence_penalty", "response_format", "seed", "stop", "temperature", "top_p"),
    *("user", "tool_choice", "include_reasoning"),
)
_BETWEEN = ("use_beam_search", "top_k", "min_p", "repetition_penalty", "watermarking", "length_penalty")
_AFTER = (
    *("structured_outputs", "request_id", "add_generation_prompt", "continue_final_message", "chat_template"),
    *("chat_template_kwargs", "media_io_kwargs", "mm_processor_kwargs", "priority", "cache_salt"),
    "include_stop_str_in_output",
)
_LAST = ("echo", "return_tokens_as_token_ids", "return_token_ids")


def _of_chat(names: tuple[str, ...]) -> dict[str, FieldType]:
    return {name: CHAT_FIELDS[name] for name in names}


BATCH_FIELDS: Mapping[str, FieldType] = {
    "messages": _CONVERSATIONS,
    **_of_chat(_BEFORE),
    "best_of": Nullable(Integer()),
    **_of_chat(_BETWEEN),
    "early_stopping": Flag(),
    **_of_chat(_AFTER),
    "request_id": Nullable(Text()),
    "guided_decoding_backend": Nullable(Text()),
    **_of_chat(_LAST),
}


def chats_of(body: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the body of a chat for each conversation, without what a batch does not have. Raises ApiError."""
    _refuse_several_answers(body)
    refuse_chat_contradictions(body)
    check_types(body, BATCH_FIELDS, ("messages",))
    shared = {name: value for name, value in body.items() if name in CHAT_FIELDS and name in BATCH_FIELDS}
    return [{**shared, "messages": each} for each in body["messages"]]


def _refuse_several_answers(body: dict[str, Any]) -> None:
    if body.get("use_beam_search"):
        message = "Batch chat completions do not support beam search. Please set `use_beam_search` to False."
        raise bad_value(message, "use_beam_search")
    if body.get("n", 1) not in (None, 1):
        raise bad_value("Batch chat completions do not support `n > 1`. Please set `n` to 1.", "n", body["n"])
