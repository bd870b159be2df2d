"""Fields of the bodies of chat and text completions, in the order of vLLM's errors.

Unlisted fields are accepted and have no effect.
"""

from collections.abc import Mapping

from mockserve.protocol.completions.messages import MESSAGE
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
from mockserve.protocol.sampling import STRUCTURED_OUTPUTS
from mockserve.protocol.token_checks import REPETITION_DETECTION

MAX_STOP_STRINGS = 4
REASONING_EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")

_INT64: FieldType = Integer(SMALLEST_INT64, LARGEST_INT64)
_INTEGERS: FieldType = Nullable(ListOf(Integer()))
_FREE_OBJECT: FieldType = Nullable(MapOf(Anything()))

_STOP: FieldType = Nullable(AnyOf((Text(), ListOf(Text(), MAX_STOP_STRINGS))))
_STREAM_OPTIONS: FieldType = Nullable(
    Record({"include_usage": Nullable(Flag()), "continuous_usage_stats": Nullable(Flag())})
)
_JSON_SCHEMA: FieldType = Record(
    {
        "name": Text(),
        "description": Nullable(Text()),
        "schema": _FREE_OBJECT,
        "strict": Nullable(Flag()),
    },
    ("name",),
)
_STRUCTURAL_TAG: dict[str, FieldType] = {"type": OneOf(("structural_tag",))}
_LEGACY_TAG: FieldType = Record({"begin": Text(), "schema": _FREE_OBJECT, "end": Text()}, ("begin", "end"))
_RESPONSE_FORMAT: FieldType = Nullable(
    AnyOf(
        (
            Record(
                {"type": OneOf(("text", "json_object", "json_schema")), "json_schema": Nullable(_JSON_SCHEMA)},
                ("type",),
            ),
            Record({**_STRUCTURAL_TAG, "format": Anything()}, ("type", "format")),
            Record(
                {**_STRUCTURAL_TAG, "structures": ListOf(_LEGACY_TAG), "triggers": ListOf(Text())},
                ("type", "structures", "triggers"),
            ),
        )
    )
)
TOOLS: FieldType = Nullable(
    ListOf(
        Record(
            {
                "type": OneOf(("function",)),
                "function": Record(
                    {
                        "name": Text(),
                        "description": Nullable(Text()),
                        "parameters": _FREE_OBJECT,
                        "strict": Nullable(Flag()),
                        "defer_loading": Nullable(Flag()),
                    },
                    ("name",),
                ),
                "defer_loading": Nullable(Flag()),
            },
            ("function",),
        )
    )
)
_NAMED_TOOL: FieldType = Record(
    {"function": Record({"name": Text()}, ("name",)), "type": OneOf(("function",))}, ("function",)
)
_TOOL_CHOICE: FieldType = Nullable(
    AnyOf((OneOf(("none",)), OneOf(("auto",)), OneOf(("required",)), _NAMED_TOOL)),
)
MEDIA_ARGUMENTS: Mapping[str, FieldType] = {
    "media_io_kwargs": Nullable(MapOf(MapOf(Anything()))),
    "mm_processor_kwargs": _FREE_OBJECT,
}
EXTRA_ARGUMENT: FieldType = AnyOf((Text(), Integer(), Number(), ListOf(AnyOf((Text(), Integer(), Number())))))

_EXTRA_SAMPLING: Mapping[str, FieldType] = {
    "use_beam_search": Flag(),
    "top_k": Nullable(Integer()),
    "min_p": Nullable(Number()),
    "repetition_penalty": Nullable(Number()),
    "watermarking": Nullable(Flag()),
    "length_penalty": Number(),
    "stop_token_ids": _INTEGERS,
    "include_stop_str_in_output": Flag(),
    "ignore_eos": Flag(),
    "min_tokens": Integer(),
    "skip_special_tokens": Nullable(Flag()),
    "spaces_between_special_tokens": Flag(),
    "truncate_prompt_tokens": Nullable(Integer(-1, LARGEST_INT64)),
    "truncation_side": Nullable(OneOf(("left", "right"))),
}

_RETURNED: Mapping[str, FieldType] = {
    "priority": _INT64,
    "request_id": Text(),
    "session_id": Nullable(Text()),
    "return_tokens_as_token_ids": Nullable(Flag()),
    "return_token_ids": Nullable(Flag()),
    "return_weight_versions": Flag(),
    "routed_experts_prompt_start": Integer(0),
    "return_token_offsets": Nullable(Flag()),
}

_TAIL: Mapping[str, FieldType] = {
    "mm_payload": OneOf(("tensors", "none")),
    "return_mm_kwargs": Nullable(Flag()),
    "cache_salt": Nullable(Text(is_bounded=True)),
    "kv_transfer_params": _FREE_OBJECT,
    "ec_transfer_params": _FREE_OBJECT,
    "vllm_xargs": Nullable(MapOf(EXTRA_ARGUMENT)),
    "repetition_detection": REPETITION_DETECTION,
}

CHAT_FIELDS: Mapping[str, FieldType] = {
    "messages": ListOf(MESSAGE),
    "model": Nullable(Text()),
    "frequency_penalty": Nullable(Number()),
    "logit_bias": Nullable(MapOf(Number())),
    "logprobs": Nullable(Flag()),
    "top_logprobs": Nullable(Integer()),
    "max_tokens": Nullable(Integer()),
    "max_completion_tokens": Nullable(Integer()),
    "n": Nullable(Integer()),
    "presence_penalty": Nullable(Number()),
    "response_format": _RESPONSE_FORMAT,
    "seed": Nullable(_INT64),
    "stop": _STOP,
    "stream": Nullable(Flag()),
    "stream_options": _STREAM_OPTIONS,
    "temperature": Nullable(Number()),
    "top_p": Nullable(Number()),
    "tools": TOOLS,
    "tool_choice": _TOOL_CHOICE,
    "reasoning_effort": Nullable(OneOf(REASONING_EFFORTS)),
    "thinking_token_budget": Nullable(Integer()),
    "include_reasoning": Flag(),
    "parallel_tool_calls": Nullable(Flag()),
    "user": Nullable(Text()),
    **_EXTRA_SAMPLING,
    "prompt_logprobs": Nullable(Integer()),
    "logprob_token_ids": _INTEGERS,
    "allowed_token_ids": _INTEGERS,
    "bad_words": ListOf(Text()),
    "echo": Flag(),
    "add_generation_prompt": Flag(),
    "continue_final_message": Flag(),
    "add_special_tokens": Flag(),
    "documents": Nullable(ListOf(MapOf(Text()))),
    "chat_template": Nullable(Text()),
    "chat_template_kwargs": _FREE_OBJECT,
    **MEDIA_ARGUMENTS,
    "structured_outputs": STRUCTURED_OUTPUTS,
    **_RETURNED,
    "return_prompt_text": Nullable(Flag()),
    **_TAIL,
    "stream_interval": Nullable(Integer(1)),
}
CHAT_REQUIRED = ("messages",)

COMPLETION_FIELDS: Mapping[str, FieldType] = {
    "model": Nullable(Text()),
    "prompt": Nullable(AnyOf((ListOf(Integer(0)), ListOf(ListOf(Integer(0))), Text(), ListOf(Text())))),
    "echo": Nullable(Flag()),
    "frequency_penalty": Nullable(Number()),
    "logit_bias": Nullable(MapOf(Number())),
    "logprobs": Nullable(Integer()),
    "max_tokens": Nullable(Integer()),
    "n": Integer(),
    "presence_penalty": Nullable(Number()),
    "seed": Nullable(_INT64),
    "stop": _STOP,
    "stream": Nullable(Flag()),
    "stream_options": _STREAM_OPTIONS,
    "suffix": Nullable(Text()),
    "temperature": Nullable(Number()),
    "top_p": Nullable(Number()),
    "user": Nullable(Text()),
    **_EXTRA_SAMPLING,
    "allowed_token_ids": _INTEGERS,
    "prompt_logprobs": Nullable(Integer()),
    "logprob_token_ids": _INTEGERS,
    "bad_words": ListOf(Text()),
    "prompt_embeds": Nullable(AnyOf((Text("bytes"), ListOf(Text("bytes"))))),
    "add_special_tokens": Flag(),
    "response_format": _RESPONSE_FORMAT,
    "structured_outputs": STRUCTURED_OUTPUTS,
    **_RETURNED,
    **_TAIL,
    "thinking_token_budget": Nullable(Integer()),
    "stream_interval": Nullable(Integer(1)),
}
