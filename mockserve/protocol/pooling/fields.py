"""The fields of requests to pooling models, in the order in which vLLM's models declare them."""

from collections.abc import Mapping
from typing import Any

from mockserve.protocol.completions.fields import MEDIA_ARGUMENTS
from mockserve.protocol.completions.message_fields import MESSAGE
from mockserve.protocol.errors import ApiError, bad_fields, bad_value
from mockserve.protocol.reading.containers import AnyOf, ListOf, MapOf, Nullable, Record
from mockserve.protocol.reading.types import Anything, FieldType, Flag, Integer, OneOf, Text
from mockserve.protocol.refusals import refuse_bad_salt

ENCODINGS = ("float", "base64", "bytes", "bytes_only")
DTYPES = ("float32", "float16", "bfloat16", "fp8_e4m3", "fp8_e5m2")
ENDIANNESSES = ("native", "big", "little")
MAX_INT64 = 2**63 - 1

_TEXT = Nullable(Text())
_FREE_OBJECT = Nullable(MapOf(Anything()))

BASIC: Mapping[str, FieldType] = {
    "model": _TEXT,
    "user": _TEXT,
    "truncate_prompt_tokens": Nullable(Integer(at_least=-1)),
    "padding": Nullable(OneOf(("max_length", "do_not_pad"))),
    "truncation_side": Nullable(OneOf(("left", "right"))),
    "request_id": Text(),
    "priority": Integer(at_least=-MAX_INT64 - 1, at_most=MAX_INT64),
    "mm_processor_kwargs": _FREE_OBJECT,
    "cache_salt": Nullable(Text(is_bounded=True)),
}
ENCODING: Mapping[str, FieldType] = {
    "encoding_format": OneOf(ENCODINGS),
    "embed_dtype": OneOf(DTYPES),
    "endianness": OneOf(ENDIANNESSES),
}
_SPECIAL: Mapping[str, FieldType] = {"add_special_tokens": Flag()}
_ACTIVATION: Mapping[str, FieldType] = {"use_activation": Nullable(Flag())}
_DIMENSIONS: Mapping[str, FieldType] = {"dimensions": Nullable(Integer())}
TOKEN_EMBED: Mapping[str, FieldType] = {**_SPECIAL, **ENCODING, **_DIMENSIONS, **_ACTIVATION}
EMBED: Mapping[str, FieldType] = {**_SPECIAL, "padding": BASIC["padding"], **TOKEN_EMBED}
POOL: Mapping[str, FieldType] = {**_SPECIAL, **_ACTIVATION, **ENCODING, **_DIMENSIONS}
CLASSIFY: Mapping[str, FieldType] = {**_SPECIAL, **_ACTIVATION}
PROMPTS: Mapping[str, FieldType] = {
    "input": AnyOf((ListOf(Integer()), ListOf(ListOf(Integer())), Text(), ListOf(Text()))),
}
TEMPLATE: Mapping[str, FieldType] = {
    "add_generation_prompt": Flag(),
    "continue_final_message": Flag(),
    "chat_template": _TEXT,
    "chat_template_kwargs": _FREE_OBJECT,
    "media_io_kwargs": MEDIA_ARGUMENTS["media_io_kwargs"],
}
MESSAGES: Mapping[str, FieldType] = {"messages": ListOf(MESSAGE)}
CONVERSATIONS: Mapping[str, FieldType] = {"messages": ListOf(ListOf(MESSAGE, at_least=1), at_least=1, is_sequence=True)}

REMOVED_TASKS = {
    "score": "`score` task was removed; use `classify` instead.",
    "encode": "`encode` task was removed; use `token_embed` or `token_classify` instead.",
}


def prompt_record(table: Mapping[str, FieldType], last: Mapping[str, FieldType] | None = None) -> Record:
    """A request whose `input` is text or token ids; its own fields come `last`."""
    return Record({**table, **PROMPTS, **BASIC, **(last or {})}, required=("input",))


def chat_record(table: Mapping[str, FieldType], last: Mapping[str, FieldType] | None = None) -> Record:
    """A request with one conversation as `messages`; its own fields come `last`, which are required if it has input."""
    own = last or {}
    required = ("messages", *(("input",) if "input" in own else ()))
    return Record({**table, **TEMPLATE, **MESSAGES, **BASIC, **own}, required=required)


def batch_record(table: Mapping[str, FieldType], last: Mapping[str, FieldType] | None = None) -> Record:
    """A request with several conversations as `messages`, or as `input` beside them."""
    own = last or {}
    required = ("messages", *(("input",) if "input" in own else ()))
    return Record({**table, **TEMPLATE, **BASIC, **CONVERSATIONS, **own}, required=required)


def check_body(body: dict[str, Any], records: tuple[Record, ...]) -> list[Record]:
    """Those of `records` that the body is. Raises ApiError if it is none, with the problems it has as each of them."""
    problems = [record.problems(body, "body") for record in records]
    fitting = [record for record, wrong in zip(records, problems, strict=True) if not wrong]
    if not fitting:
        raise bad_fields([each for wrong in problems for each in wrong])
    return fitting


def refuse_removed_fields(body: dict[str, Any]) -> None:
    """Fields that earlier releases had. Raises ApiError."""
    if "normalize" in body:
        raise bad_value("Parameter `normalize` was removed; use `use_activation` instead.", "normalize")
    task = body.get("task")
    if isinstance(task, str) and task in REMOVED_TASKS:
        raise bad_value(REMOVED_TASKS[task], "task")


def refuse_pooling_contradictions(body: dict[str, Any]) -> None:
    """What vLLM refuses before it looks at types. Raises ApiError."""
    refuse_bad_salt(body.get("cache_salt"))
    if body.get("continue_final_message") and body.get("add_generation_prompt"):
        raise ApiError("Cannot set both `continue_final_message` and `add_generation_prompt` to True.")
