"""Requests of the pooling routes: fields with their types, and refusals of vLLM."""

from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeAlias

from pydantic import BaseModel, RootModel

from blis_sim.wings.pooling.bodies import (
    Basic,
    ClassificationBody,
    ClassificationChatRequest,
    EmbeddingBatchChatInputRequest,
    EmbeddingBatchChatRequest,
    EmbeddingBody,
    EmbeddingChatInputRequest,
    EmbeddingChatRequest,
    Encoded,
    IOProcessorRequest,
    PoolingBody,
    PoolingChatRequest,
    TokenEmbeddingRequest,
)
from blis_sim.wings.pooling.replies import Encoding
from mockserve.protocol.bodies import read_as
from mockserve.protocol.chat_messages import check_calls, check_parts
from mockserve.protocol.errors import ApiError, bad_value
from mockserve.protocol.sampling import refuse_bad_salt, refuse_media_arguments

REMOVED_TASKS = {
    "score": "`score` task was removed; use `classify` instead.",
    "encode": "`encode` task was removed; use `token_embed` or `token_classify` instead.",
}


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

NUM_EMBEDDING_KINDS, NUM_POOLING_KINDS, NUM_CLASSIFY_KINDS = 5, 3, 2
"""Numbers of types of a body. A body that is no object is refused once for each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BasicRequest:
    """The fields of every parsed request. An empty `model` means the first served name."""

    model: str
    truncate_to: int | None
    """Maximum number of tokens kept of a prompt, -1 for the whole context; None refuses longer prompts."""
    truncates_left: bool
    pads: bool
    """Whether a prompt is padded to the whole context."""
    request_id: str | None
    cache_salt: str | None


def basic_fields(body: Basic) -> dict[str, Any]:
    """Return the values of the fields of `BasicRequest`."""
    return {
        "model": body.model or "",
        "truncate_to": body.truncate_prompt_tokens,
        "truncates_left": body.truncation_side != "right",
        "pads": body.padding == "max_length",
        "request_id": body.request_id if "request_id" in body.model_fields_set else None,
        "cache_salt": body.cache_salt,
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolingRequest(BasicRequest):
    """A parsed pooling request: the inputs and the encoding of the result."""

    prompts: tuple[Prompt, ...]
    is_chat: bool
    encoding: Encoding
    dimensions: int | None
    task: str | None
    add_special_tokens: bool
    use_activation: bool
    priority: int


def parse_embeddings(body: dict[str, Any]) -> PoolingRequest:
    """Parse the body. Raises ApiError for a request that vLLM refuses before it looks up the model."""
    refuse_removed_fields(body)
    given = dict(body)
    if "messages" not in given and _is_conversation(given.get("input")):
        given["messages"] = given.pop("input")
    kinds = (EmbeddingChatRequest, EmbeddingBatchChatRequest, EmbeddingChatInputRequest, EmbeddingBatchChatInputRequest)
    return _read(given, EmbeddingBody, kinds)


def parse_token_embeddings(body: dict[str, Any]) -> PoolingRequest:
    """Parse the body. Raises ApiError for late chunking, and for a request that vLLM refuses before it looks up the
    model."""
    refuse_removed_fields(body)
    request = _read(body, TokenEmbeddingRequest)
    if body.get("late_chunking_params") is not None:
        raise ApiError("Late chunking requires a fast tokenizer with offsets aligned to all input tokens")
    return request


def parse_pooling(body: dict[str, Any]) -> PoolingRequest:
    """Parse the body. Raises ApiError for a request that vLLM refuses before it looks up the model."""
    refuse_removed_fields(body)
    request = _read(body, PoolingBody, (PoolingChatRequest,))
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
    return _read(body, ClassificationBody, (ClassificationChatRequest,))


def _read(body: dict[str, Any], kind: type[BaseModel], of_chats: tuple[type[BaseModel], ...] = ()) -> PoolingRequest:
    """Read a body as `kind`, or as one of the types with messages if these are among its fields."""
    refuse_pooling_contradictions(body)
    found = read_as(kind, body)
    given: Any = found.root if isinstance(found, RootModel) else found
    for each in of_chats if body.get("messages") and not isinstance(given, of_chats) else ():
        with suppress(ApiError):
            given = read_as(each, body)
            break
    refuse_media_arguments(body)
    is_chat = bool(of_chats) and isinstance(given, of_chats)
    is_raw = isinstance(given, IOProcessorRequest)
    prompts = _conversations(body["messages"]) if is_chat else () if is_raw else _prompts(given.input)
    return PoolingRequest(
        **basic_fields(given),
        prompts=prompts,
        is_chat=is_chat,
        encoding=Encoding(given.encoding_format, given.embed_dtype, given.endianness)
        if isinstance(given, Encoded)
        else Encoding(),
        dimensions=getattr(given, "dimensions", None),
        task=getattr(given, "task", None),
        add_special_tokens=getattr(given, "add_special_tokens", True),
        use_activation=getattr(given, "use_activation", None) is not False,
        priority=given.priority,
    )


def _prompts(given: Any) -> tuple[Prompt, ...]:
    """Convert a string, token ids, or a list of either to a sequence of prompts."""
    if isinstance(given, list) and given and isinstance(given[0], str | list):
        return tuple(given)
    return (given,) if given or isinstance(given, str) else ()


def _conversations(messages: list[Any]) -> tuple[Prompt, ...]:
    conversations = tuple(messages) if messages and isinstance(messages[0], list) else (messages,)
    for each in conversations:
        check_calls(each)
        check_parts(each)
    return conversations


def _is_conversation(value: Any) -> bool:
    """Whether a value is a conversation, or a list of conversations."""
    if not isinstance(value, list) or not value:
        return False
    turns = [turn for each in value for turn in (each or [None] if isinstance(each, list) else [each])]
    return all(isinstance(turn, dict) and isinstance(turn.get("role"), str) for turn in turns)
