"""The body of POST /v1/chat/completions/batch: of a chat's fields it has some, in an order of its own."""

from collections.abc import Mapping
from typing import Any

from mockserve.protocol.completions.fields import CHAT_FIELDS
from mockserve.protocol.completions.message_fields import MESSAGE
from mockserve.protocol.errors import bad_value
from mockserve.protocol.reading.body import check_types
from mockserve.protocol.reading.containers import ListOf, Nullable
from mockserve.protocol.reading.types import FieldType, Flag, Integer, Text
from mockserve.protocol.refusals import refuse_chat_contradictions

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
