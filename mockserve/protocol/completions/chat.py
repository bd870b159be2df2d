"""The body of POST /v1/chat/completions."""

from typing import Any, NamedTuple

from mockserve.protocol.asked.read_sampling import read_sampling
from mockserve.protocol.asked.sampling import Sampling
from mockserve.protocol.asked.stream_options import Delivery, read_delivery
from mockserve.protocol.asked.vocabulary_checks import check_logit_bias_keys
from mockserve.protocol.asked.wanted import Common, Wanted, read_common, read_wanted
from mockserve.protocol.completions.fields import CHAT_FIELDS, CHAT_REQUIRED
from mockserve.protocol.completions.messages import check_iterable_calls, check_parts, last_content
from mockserve.protocol.errors import ApiError
from mockserve.protocol.reading.body import Fields, check_types
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
