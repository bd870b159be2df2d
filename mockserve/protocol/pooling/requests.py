"""Requests of the pooling routes: fields with their types, and refusals of vLLM."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from mockserve.protocol.completions.fields import MEDIA_ARGUMENTS
from mockserve.protocol.completions.messages import MESSAGE, check_parts
from mockserve.protocol.errors import ApiError, bad_fields, bad_value
from mockserve.protocol.pooling.bodies import Encoding
from mockserve.protocol.reading.containers import AnyOf, ListOf, MapOf, Nullable, Record
from mockserve.protocol.reading.types import (
    Anything,
    FieldType,
    Flag,
    Integer,
    Null,
    OneOf,
    Text,
    as_flag,
    as_integer,
    flag_or,
)
from mockserve.protocol.refusals import refuse_bad_salt, refuse_media_arguments

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
    """Return the type of a request whose `input` is text or token ids, with its own fields `last`."""
    return Record({**table, **PROMPTS, **BASIC, **(last or {})}, required=("input",))


def chat_record(table: Mapping[str, FieldType], last: Mapping[str, FieldType] | None = None) -> Record:
    """Return the type of a request with one conversation as `messages`, with its own fields `last`.

    The own fields are required if the request has input.
    """
    own = last or {}
    required = ("messages", *(("input",) if "input" in own else ()))
    return Record({**table, **TEMPLATE, **MESSAGES, **BASIC, **own}, required=required)


def batch_record(table: Mapping[str, FieldType], last: Mapping[str, FieldType] | None = None) -> Record:
    """Return the type of a request with several conversations as `messages`, or as `input` beside them."""
    own = last or {}
    required = ("messages", *(("input",) if "input" in own else ()))
    return Record({**table, **TEMPLATE, **BASIC, **CONVERSATIONS, **own}, required=required)


def check_body(body: dict[str, Any], records: tuple[Record, ...]) -> list[Record]:
    """Return the `records` that the body matches. Raises ApiError if it matches none, with the problems for each of
    them."""
    problems = [record.problems(body, "body") for record in records]
    fitting = [record for record, wrong in zip(records, problems, strict=True) if not wrong]
    if not fitting:
        raise bad_fields([each for wrong in problems for each in wrong])
    return fitting


def refuse_removed_fields(body: dict[str, Any]) -> None:
    """Raise ApiError for fields of earlier vLLM releases."""
    if "normalize" in body:
        raise bad_value("Parameter `normalize` was removed; use `use_activation` instead.", "normalize")
    task = body.get("task")
    if isinstance(task, str) and task in REMOVED_TASKS:
        raise bad_value(REMOVED_TASKS[task], "task")


def refuse_pooling_contradictions(body: dict[str, Any]) -> None:
    """Raise ApiError for contradictions that vLLM refuses before it checks types."""
    refuse_bad_salt(body.get("cache_salt"))
    if body.get("continue_final_message") and body.get("add_generation_prompt"):
        raise ApiError("Cannot set both `continue_final_message` and `add_generation_prompt` to True.")


Prompt: TypeAlias = str | list[int] | list[Any]
"""A text, token ids, or the messages of a conversation."""

POOLING_TASK: dict[str, FieldType] = {
    "task": Nullable(OneOf(("embed", "classify", "token_embed", "token_classify", "plugin", "embed&token_classify")))
}
_EMBEDDINGS = (
    prompt_record(EMBED),
    chat_record(EMBED),
    batch_record(EMBED),
    chat_record(EMBED, {"input": MESSAGES["messages"]}),
    batch_record(EMBED, {"input": CONVERSATIONS["messages"]}),
)
_POOLING = (
    prompt_record(POOL, POOLING_TASK),
    chat_record(POOL, POOLING_TASK),
    Record({**ENCODING, **BASIC, "data": Anything(), **POOLING_TASK}, required=("data",)),
)
_LATE_CHUNKING = Record(
    {"chunk_size": Integer(at_least=1, at_most=MAX_INT64)}, required=("chunk_size",), forbids_others=True
)
_TOKEN_EMBEDDINGS = (
    prompt_record(
        {**TOKEN_EMBED, "encoding_format": OneOf(("float",)), "dimensions": Null()},
        {"late_chunking_params": Nullable(_LATE_CHUNKING)},
    ),
)
_CLASSIFY = (prompt_record(CLASSIFY), chat_record(CLASSIFY))
NUM_EMBEDDING_KINDS, NUM_POOLING_KINDS, NUM_CLASSIFY_KINDS = map(len, (_EMBEDDINGS, _POOLING, _CLASSIFY))


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolingRequest:
    """A parsed pooling request: the inputs and the encoding of the result. An empty `model` means the first served
    name."""

    model: str
    prompts: tuple[Prompt, ...]
    is_chat: bool
    encoding: Encoding
    dimensions: int | None
    task: str | None
    add_special_tokens: bool
    truncate_to: int | None
    """Maximum number of tokens kept of a prompt, -1 for the whole context; None refuses longer prompts."""
    truncates_left: bool
    pads: bool
    """Whether a prompt is padded to the whole context."""
    use_activation: bool
    request_id: str | None
    priority: int
    cache_salt: str | None


def parse_embeddings(body: dict[str, Any]) -> PoolingRequest:
    """Parse the body. Raises ApiError for a request that vLLM refuses before it looks up the model."""
    refuse_removed_fields(body)
    given = dict(body)
    if "messages" not in given and _is_conversation(given.get("input")):
        given["messages"] = given.pop("input")
    return _read(given, _EMBEDDINGS)


def parse_token_embeddings(body: dict[str, Any]) -> PoolingRequest:
    """Parse the body. Raises ApiError for late chunking, and for a request that vLLM refuses before it looks up the
    model."""
    refuse_removed_fields(body)
    request = _read(body, _TOKEN_EMBEDDINGS)
    if body.get("late_chunking_params") is not None:
        raise ApiError("Late chunking requires a fast tokenizer with offsets aligned to all input tokens")
    return request


def parse_pooling(body: dict[str, Any]) -> PoolingRequest:
    """Parse the body. Raises ApiError for a request that vLLM refuses before it looks up the model."""
    refuse_removed_fields(body)
    request = _read(body, _POOLING)
    if request.dimensions is not None:
        raise bad_value("dimensions is currently not supported", "dimensions")
    if request.task == "plugin" or ("data" in body and "input" not in body and "messages" not in body):
        raise bad_value(
            "No IOProcessor plugin installed. Please refer to the documentation and to the "
            "'prithvi_geospatial_mae_io_processor' offline inference example for more details.",
            "task",
        )
    return request


def parse_classify(body: dict[str, Any]) -> PoolingRequest:
    """Parse the body. Raises ApiError for a request that vLLM refuses before it looks up the model."""
    refuse_removed_fields(body)
    return _read(body, _CLASSIFY)


def _read(body: dict[str, Any], records: tuple[Record, ...]) -> PoolingRequest:
    refuse_pooling_contradictions(body)
    fitting = check_body(body, records)
    refuse_media_arguments(body)
    is_chat = any("messages" in record.required for record in (fitting if body.get("messages") else fitting[:1]))
    prompts = _conversations(body["messages"]) if is_chat else _prompts(body.get("input"))
    dimensions, truncate_to = body.get("dimensions"), body.get("truncate_prompt_tokens")
    return PoolingRequest(
        model=body.get("model") or "",
        prompts=prompts,
        is_chat=is_chat,
        encoding=Encoding(
            body.get("encoding_format", "float"), body.get("embed_dtype", "float32"), body.get("endianness", "native")
        ),
        dimensions=None if dimensions is None else as_integer(dimensions),
        task=body.get("task"),
        add_special_tokens=as_flag(body.get("add_special_tokens", not is_chat)),
        truncate_to=None if truncate_to is None else as_integer(truncate_to),
        truncates_left=body.get("truncation_side") != "right",
        pads=body.get("padding") == "max_length",
        use_activation=flag_or(body.get("use_activation"), True),
        request_id=body.get("request_id"),
        priority=as_integer(body.get("priority", 0)),
        cache_salt=body.get("cache_salt"),
    )


def _prompts(given: Any) -> tuple[Prompt, ...]:
    """Convert a string, token ids, or a list of either to a sequence of prompts."""
    if isinstance(given, list) and given and all(isinstance(each, str | list) for each in given):
        return tuple(each if isinstance(each, str) else _ids(each) for each in given)
    if isinstance(given, list):
        return (_ids(given),) if given else ()
    return (given,) if isinstance(given, str) else ()


def _ids(given: list[Any]) -> list[int]:
    return [as_integer(each) for each in given]


def _conversations(messages: list[Any]) -> tuple[Prompt, ...]:
    conversations = tuple(messages) if messages and isinstance(messages[0], list) else (messages,)
    for each in conversations:
        check_parts(each)
    return conversations


def _is_conversation(value: Any) -> bool:
    """Whether a value is a conversation, or a list of conversations."""
    if not isinstance(value, list) or not value:
        return False
    turns = [turn for each in value for turn in (each or [None] if isinstance(each, list) else [each])]
    return all(isinstance(turn, dict) and isinstance(turn.get("role"), str) for turn in turns)
