"""About the server: the model list, GET /server_info, the tokenizer's routes, and descriptions of routes."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Annotated, Any, TypeAlias

from pydantic import Field

from mockserve.protocol.bodies import UNNAMED, BodyOfOneKind, Items, OpenObject, read_as
from mockserve.protocol.chat_messages import ChatMessage
from mockserve.protocol.completions import ChatCompletionToolsParam, FreeObject, MediaArguments
from mockserve.protocol.errors import ApiError
from mockserve.protocol.forms import LARGEST_INT64
from mockserve.protocol.sampling import refuse_media_arguments

# A route as the OpenAPI document and the page on routes describe it.


@dataclass(frozen=True, slots=True)
class Operation:
    """One route: what it does in a sentence; `path` has its parameters in braces."""

    method: str
    path: str
    summary: str
    name: str
    """The name of the handler, which decides between two descriptions of one path."""


# Information about the server: the model list, GET /server_info, and the tokenizer's routes.


@dataclass(frozen=True, slots=True)
class ModelCard:
    """One card of the list: a name of the base model, or an adapter, whose `parent` is the base model."""

    name: str
    root: str
    parent: str | None = None
    max_model_len: int | None = None


def model_list(models: Sequence[ModelCard], created: int, permission_ids: Sequence[str]) -> dict[str, Any]:
    """Return one card per model. `permission_ids` are the parts after `modelperm-`."""
    cards = [_card(model, created, permission) for model, permission in zip(models, permission_ids, strict=True)]
    return {"object": "list", "data": cards}


def _card(model: ModelCard, created: int, permission_id: str) -> dict[str, Any]:
    permission = {
        "id": f"modelperm-{permission_id}",
        "object": "model_permission",
        "created": created,
        "allow_create_engine": False,
        "allow_sampling": True,
        "allow_logprobs": True,
        "allow_search_indices": False,
        "allow_view": True,
        "allow_fine_tuning": False,
        "organization": "*",
        "group": None,
        "is_blocking": False,
    }
    return {
        "id": model.name,
        "object": "model",
        "created": created,
        "owned_by": "vllm",
        "root": model.root,
        "parent": model.parent,
        "max_model_len": model.max_model_len,
        "permission": [permission],
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigSummary:
    """A server's configuration, under vLLM's names."""

    model: str
    served_model_names: tuple[str, ...]
    tokenizer: str
    runner: str
    convert: str
    seed: int
    max_model_len: int
    block_size: int
    gpu_memory_utilization: float
    num_gpu_blocks: int
    enable_prefix_caching: bool
    tensor_parallel_size: int
    pipeline_parallel_size: int
    data_parallel_size: int
    max_num_seqs: int
    max_num_batched_tokens: int
    enable_chunked_prefill: bool
    async_scheduling: bool
    scheduler_policy: str
    device: str


def config_as_objects(config: ConfigSummary) -> dict[str, Any]:
    """The configuration as nested objects."""
    names: Any = config.served_model_names
    return {
        "model_config": {
            "model": config.model,
            "runner": config.runner,
            "convert": config.convert,
            "tokenizer": config.tokenizer,
            "seed": config.seed,
            "max_model_len": config.max_model_len,
            "served_model_name": names[0] if len(names) == 1 else list(names),
        },
        "cache_config": {
            "block_size": config.block_size,
            "gpu_memory_utilization": config.gpu_memory_utilization,
            "enable_prefix_caching": config.enable_prefix_caching,
            "num_gpu_blocks": config.num_gpu_blocks,
        },
        "parallel_config": {
            "pipeline_parallel_size": config.pipeline_parallel_size,
            "tensor_parallel_size": config.tensor_parallel_size,
            "data_parallel_size": config.data_parallel_size,
            "world_size": config.tensor_parallel_size * config.pipeline_parallel_size,
        },
        "scheduler_config": {
            "runner_type": "pooling" if config.runner == "pooling" else "generate",
            "max_num_batched_tokens": config.max_num_batched_tokens,
            "max_num_seqs": config.max_num_seqs,
            "max_model_len": config.max_model_len,
            "enable_chunked_prefill": config.enable_chunked_prefill,
            "policy": config.scheduler_policy,
            "async_scheduling": config.async_scheduling,
        },
        "device_config": {"device": config.device, "device_type": "cuda"},
    }


def config_as_text(config: ConfigSummary) -> str:
    """The configuration on one line."""
    names = config.served_model_names
    parts = (
        f"model={config.model!r}, speculative_config=None, tokenizer={config.tokenizer!r}, skip_tokenizer_init=False",
        f"max_seq_len={config.max_model_len}",
        f"tensor_parallel_size={config.tensor_parallel_size}, pipeline_parallel_size={config.pipeline_parallel_size}",
        f"data_parallel_size={config.data_parallel_size}",
        f"kv_cache_dtype=auto, device_config=cuda, seed={config.seed}",
        f"served_model_name={names[0] if len(names) == 1 else list(names)}",
        f"enable_prefix_caching={config.enable_prefix_caching}, enable_chunked_prefill={config.enable_chunked_prefill}",
    )
    return ", ".join(parts)


LARGEST_DECODED_ID = 2**32 - 1


class TokenizeCompletionRequest(OpenObject):
    """A text to tokenize. Names and order of fields are vLLM's."""

    model: str | None = None
    prompt: str
    add_special_tokens: bool = True
    return_token_strs: bool | None = False


class TokenizeChatRequest(OpenObject):
    """A conversation to tokenize. Names and order of fields are vLLM's."""

    model: str | None = None
    messages: Items[ChatMessage]
    add_generation_prompt: bool = True
    return_token_strs: bool | None = False
    continue_final_message: bool = False
    add_special_tokens: bool = False
    chat_template: str | None = None
    chat_template_kwargs: FreeObject = None
    media_io_kwargs: MediaArguments = None
    mm_processor_kwargs: FreeObject = None
    tools: Items[ChatCompletionToolsParam] | None = None


TokenizeRequest: TypeAlias = TokenizeCompletionRequest | TokenizeChatRequest


class TokenizeBody(BodyOfOneKind):
    """The body of POST /tokenize: a text, or else a conversation."""

    root: Annotated[TokenizeCompletionRequest, UNNAMED] | Annotated[TokenizeChatRequest, UNNAMED] = Field(
        union_mode="left_to_right"
    )


class DetokenizeRequest(OpenObject):
    """Token ids to convert to text."""

    model: str | None = None
    tokens: Items[Annotated[int, Field(ge=0, le=LARGEST_INT64)]]


def parse_tokenize(body: dict[str, Any]) -> TokenizeRequest:
    """Parse a text, or a conversation if the body has messages. Raises ApiError for any other body."""
    if body.get("continue_final_message") and body.get("add_generation_prompt"):
        raise ApiError("Cannot set both `continue_final_message` and `add_generation_prompt` to True.")
    found: TokenizeRequest = read_as(TokenizeBody, body).root
    if isinstance(found, TokenizeCompletionRequest) and _matches_conversation_better(body):
        with suppress(ApiError):
            found = read_as(TokenizeChatRequest, body)
    refuse_media_arguments(body)
    return found


def _matches_conversation_better(body: dict[str, Any]) -> bool:
    """Whether a body has more fields of a conversation than of a text, including fields of its messages.

    Pydantic chooses between two matching types by this number.
    """
    messages = body.get("messages")
    in_messages = sum(len(each) for each in messages if isinstance(each, dict)) if isinstance(messages, list) else 0
    of_chat, of_text = TokenizeChatRequest.model_fields.keys(), TokenizeCompletionRequest.model_fields.keys()
    return len(body.keys() & of_chat) + in_messages > len(body.keys() & of_text)


def conversation_fields(body: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of a conversation that POST /tokenize reads: fewer than a chat has, without
    `reasoning_content`."""
    found = {name: body[name] for name in TokenizeChatRequest.model_fields if name in body}
    older = "reasoning_content"
    found["messages"] = [{key: each[key] for key in each if key != older} for each in body["messages"]]
    return found


def check_decodable(tokens: list[int]) -> None:
    """Raise ApiError for an id over 32 bits, the maximum of the tokenizers library."""
    if any(each > LARGEST_DECODED_ID for each in tokens):
        raise ApiError("number too large to fit in target type")


FILES = ("vocab_file", "merges_file", "tokenizer_file")


def tokenizer_info(
    settings: Mapping[str, Any], class_name: str, path: str | None, max_model_len: int
) -> dict[str, Any]:
    """Return the tokenizer's settings, which come from the configuration files; token objects become their text."""
    shown = {name: _token_text(value) for name, value in settings.items() if name not in FILES}
    return {
        "tokenizer_class": shown.pop("tokenizer_class", class_name),
        **shown,
        "name_or_path": path,
        "model_max_length": shown.get("model_max_length", max_model_len),
        "backend": "tokenizers" if path is not None else "builtin",
    }


def _token_text(value: Any) -> Any:
    if isinstance(value, dict):
        return value["content"] if "content" in value else {key: _token_text(each) for key, each in value.items()}
    return [_token_text(each) for each in value] if isinstance(value, list) else value
