"""Every field of the body of POST /v1/responses, in the order in which vLLM reports problems."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mockserve.protocol.asked.sampling import STRUCTURED_OUTPUTS
from mockserve.protocol.completions.fields import (
    MAX_STOP_STRINGS,
    MEDIA_ARGUMENTS,
    REASONING_EFFORTS,
)
from mockserve.protocol.errors import Problem
from mockserve.protocol.reading.containers import AnyOf, ListOf, MapOf, Nullable, Record
from mockserve.protocol.reading.types import (
    LARGEST_INT64,
    SMALLEST_INT64,
    Anything,
    FieldType,
    Flag,
    Integer,
    Number,
    OneOf,
    Text,
)
from mockserve.protocol.responses.item_fields import FORM, ITEM
from mockserve.protocol.responses.tool_fields import TOOL, TOOL_CHOICE

LOGPROBS_INCLUDED = "message.output_text.logprobs"
LARGEST_PENALTY = 2

_INCLUDABLE = (
    "code_interpreter_call.outputs",
    "computer_call_output.output.image_url",
    "file_search_call.results",
    "message.input_image.image_url",
    LOGPROBS_INCLUDED,
    "reasoning.encrypted_content",
)


@dataclass(frozen=True, slots=True)
class Penalty:
    """A number between -2 and 2."""

    def problems(self, value: Any, location: str) -> list[Problem]:
        wrong = Number().problems(value, location)
        if wrong:
            return wrong
        if float(value) > LARGEST_PENALTY:
            message, context = f"Input should be less than or equal to {LARGEST_PENALTY}", {"le": 2.0}
            return [Problem("less_than_equal", location, message, value, context)]
        if float(value) < -LARGEST_PENALTY:
            message, context = f"Input should be greater than or equal to -{LARGEST_PENALTY}", {"ge": -2.0}
            return [Problem("greater_than_equal", location, message, value, context)]
        return []

    def schema(self) -> dict[str, Any]:
        return {"type": "number", "minimum": -LARGEST_PENALTY, "maximum": LARGEST_PENALTY}


_TEXT: FieldType = Nullable(Text())
_FLAG: FieldType = Nullable(Flag())
_NUMBER: FieldType = Nullable(Number())
_FREE_OBJECT: FieldType = Nullable(MapOf(Anything()))
_REASONING: FieldType = Nullable(
    Record(
        {
            "effort": Nullable(OneOf(REASONING_EFFORTS)),
            "generate_summary": Nullable(OneOf(("auto", "concise", "detailed"))),
            "summary": Nullable(OneOf(("auto", "concise", "detailed"))),
        }
    )
)
_TEXT_CONFIG: FieldType = Nullable(
    Record(
        {
            "format": Nullable(FORM),
            "verbosity": Nullable(OneOf(("low", "medium", "high"))),
        }
    )
)
_CACHE_OPTIONS: FieldType = Nullable(
    Record(
        {
            "mode": OneOf(("implicit", "explicit")),
            "ttl": OneOf(("30m",)),
            "comparison_response_id": _TEXT,
            "prewarm": _FLAG,
        }
    )
)

RESPONSE_FIELDS: Mapping[str, FieldType] = {
    "background": _FLAG,
    "include": Nullable(ListOf(OneOf(_INCLUDABLE))),
    "input": AnyOf((Text(), ListOf(ITEM))),
    "instructions": _TEXT,
    "max_output_tokens": Nullable(Integer()),
    "max_tool_calls": Nullable(Integer()),
    "metadata": Nullable(MapOf(Text())),
    "model": _TEXT,
    "logit_bias": Nullable(MapOf(Number())),
    "parallel_tool_calls": _FLAG,
    "previous_response_id": _TEXT,
    "reasoning": _REASONING,
    "include_reasoning": Flag(),
    "service_tier": OneOf(("auto", "default", "flex", "scale", "priority")),
    "store": _FLAG,
    "stream": _FLAG,
    "temperature": _NUMBER,
    "text": _TEXT_CONFIG,
    "tool_choice": TOOL_CHOICE,
    "tools": ListOf(TOOL),
    "top_logprobs": Nullable(Integer()),
    "top_p": _NUMBER,
    "top_k": Nullable(Integer()),
    "min_p": _NUMBER,
    "truncation": Nullable(OneOf(("auto", "disabled"))),
    "user": _TEXT,
    "skip_special_tokens": _FLAG,
    "spaces_between_special_tokens": Flag(),
    "include_stop_str_in_output": Flag(),
    "presence_penalty": Nullable(Penalty()),
    "frequency_penalty": Nullable(Penalty()),
    "prompt_cache_key": _TEXT,
    "prompt_cache_options": _CACHE_OPTIONS,
    "prompt_cache_retention": Nullable(OneOf(("in_memory", "24h"))),
    "safety_identifier": _TEXT,
    "watermarking": _FLAG,
    "request_id": Text(),
    "session_id": _TEXT,
    **MEDIA_ARGUMENTS,
    "priority": Integer(SMALLEST_INT64, LARGEST_INT64),
    "mm_payload": OneOf(("tensors", "none")),
    "return_mm_kwargs": _FLAG,
    "cache_salt": Nullable(Text(is_bounded=True)),
    "enable_response_messages": Flag(),
    "previous_input_messages": Nullable(ListOf(MapOf(Anything()))),
    "structured_outputs": STRUCTURED_OUTPUTS,
    "repetition_penalty": _NUMBER,
    "seed": Nullable(Integer(SMALLEST_INT64, LARGEST_INT64)),
    "stop": Nullable(AnyOf((Text(), ListOf(Text(), MAX_STOP_STRINGS)))),
    "stop_token_ids": Nullable(ListOf(Integer())),
    "ignore_eos": Flag(),
    "vllm_xargs": _FREE_OBJECT,
    "kv_transfer_params": _FREE_OBJECT,
    "ec_transfer_params": _FREE_OBJECT,
    "chat_template_kwargs": _FREE_OBJECT,
}
RESPONSE_REQUIRED = ("input",)
