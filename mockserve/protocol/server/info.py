"""Information about the server: the model list, GET /server_info, and the tokenizer's routes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mockserve.protocol.completions.fields import MEDIA_ARGUMENTS, TOOLS
from mockserve.protocol.completions.messages import MESSAGE, check_parts
from mockserve.protocol.errors import ApiError, Problem, bad_fields
from mockserve.protocol.reading.body import Fields, integer_problem, list_problem
from mockserve.protocol.reading.containers import ListOf, MapOf, Nullable, Record, key_problems
from mockserve.protocol.reading.types import Anything, Flag, Text
from mockserve.protocol.refusals import refuse_media_arguments


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


MAX_TOKEN_ID = 2**63 - 1
LARGEST_DECODED_ID = 2**32 - 1

_TEXT = Record(
    {
        "model": Nullable(Text()),
        "prompt": Text(),
        "add_special_tokens": Flag(),
        "return_token_strs": Nullable(Flag()),
    },
    ("prompt",),
)
_CONVERSATION = Record(
    {
        "model": Nullable(Text()),
        "messages": ListOf(MESSAGE),
        "add_generation_prompt": Flag(),
        "return_token_strs": Nullable(Flag()),
        "continue_final_message": Flag(),
        "add_special_tokens": Flag(),
        "chat_template": Nullable(Text()),
        "chat_template_kwargs": Nullable(MapOf(Anything())),
        **MEDIA_ARGUMENTS,
        "tools": TOOLS,
    },
    ("messages",),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenizeRequest:
    """A text to tokenize, or a conversation. An empty `model` means the first served name."""

    model: str
    prompt: str | None
    messages: list[Any] | None
    add_special_tokens: bool
    add_generation_prompt: bool
    continue_final_message: bool
    returns_strings: bool


def parse_tokenize(body: dict[str, Any]) -> TokenizeRequest:
    """Parse a text, or a conversation if the body has messages. Raises ApiError for any other body."""
    _refuse_contradiction(body)
    in_text, in_conversation = _TEXT.problems(body, "body"), _CONVERSATION.problems(body, "body")
    if in_text and in_conversation:
        raise bad_fields(in_text + in_conversation)
    refuse_media_arguments(body)
    is_text = not in_text and (bool(in_conversation) or not _matches_conversation_better(body))
    if not is_text:
        check_parts(body["messages"], pydantic_class="ValidatorIterator")
    fields = Fields(body)
    return TokenizeRequest(
        model=fields.text("model") or "",
        prompt=body["prompt"] if is_text else None,
        messages=None if is_text else body["messages"],
        add_special_tokens=fields.flag("add_special_tokens", is_text),
        add_generation_prompt=fields.flag("add_generation_prompt", True),
        continue_final_message=fields.flag("continue_final_message"),
        returns_strings=fields.flag("return_token_strs"),
    )


def _matches_conversation_better(body: dict[str, Any]) -> bool:
    """Whether a body that matches both schemas has more fields of a conversation, including fields of its messages.

    Pydantic chooses between two matching types by this number.
    """
    in_messages = sum(len(each) for each in body["messages"] if isinstance(each, dict))
    return len(body.keys() & _CONVERSATION.fields.keys()) + in_messages > len(body.keys() & _TEXT.fields.keys())


def conversation_fields(body: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of a conversation that POST /tokenize reads: fewer than those of a chat, without
    `reasoning_content`."""
    found = {name: body[name] for name in _CONVERSATION.fields if name in body}
    older = "reasoning_content"
    found["messages"] = [{key: each[key] for key in each if key != older} for each in body["messages"]]
    return found


def parse_detokenize(body: dict[str, Any]) -> tuple[str, list[int]]:
    """Return the requested model and the token ids. Raises ApiError for an invalid body."""
    fields = Fields(body)
    model = fields.text("model") or ""
    tokens = read_token_ids(fields, "tokens")
    fields.problems += key_problems(body, "body")
    fields.check()
    return model, tokens


def check_decodable(tokens: list[int]) -> None:
    """Raise ApiError for an id over 32 bits, the maximum of the tokenizers library."""
    if any(each > LARGEST_DECODED_ID for each in tokens):
        raise ApiError("number too large to fit in target type")


def read_token_ids(fields: Fields, name: str) -> list[int]:
    """Read a required list of token ids; problems are added to `fields`."""
    given = fields.require(name)
    if name not in fields.body:
        return []
    not_a_list = list_problem(given, f"body.{name}")
    problems = [not_a_list] if not_a_list else [_id_problem(each, f"body.{name}.{i}") for i, each in enumerate(given)]
    found = [problem for problem in problems if problem is not None]
    fields.problems += found
    return [] if found else [int(each) for each in given]


def _id_problem(value: Any, location: str) -> Problem | None:
    problem = integer_problem(value, location)
    if problem is not None:
        return problem
    if int(value) < 0:
        message = "Input should be greater than or equal to 0"
        return Problem("greater_than_equal", location, message, value, {"ge": 0})
    if int(value) > MAX_TOKEN_ID:
        message = f"Input should be less than or equal to {MAX_TOKEN_ID}"
        return Problem("less_than_equal", location, message, value, {"le": MAX_TOKEN_ID})
    return None


def _refuse_contradiction(body: dict[str, Any]) -> None:
    if body.get("continue_final_message") and body.get("add_generation_prompt"):
        raise ApiError("Cannot set both `continue_final_message` and `add_generation_prompt` to True.")


FILES = ("vocab_file", "merges_file", "tokenizer_file")


def tokenizer_info(
    settings: Mapping[str, Any], class_name: str, path: str | None, max_model_len: int
) -> dict[str, Any]:
    """Return the tokenizer's settings. `settings` are those of the configuration files; token objects become their
    text."""
    shown = {name: _plain(value) for name, value in settings.items() if name not in FILES}
    return {
        "tokenizer_class": shown.pop("tokenizer_class", class_name),
        **shown,
        "name_or_path": path,
        "model_max_length": shown.get("model_max_length", max_model_len),
        "backend": "tokenizers" if path is not None else "builtin",
    }


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return value["content"] if "content" in value else {key: _plain(each) for key, each in value.items()}
    return [_plain(each) for each in value] if isinstance(value, list) else value
