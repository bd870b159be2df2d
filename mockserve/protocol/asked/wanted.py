"""What a request asks for besides the text: usage, streaming, log-probabilities, priority and names."""

from collections.abc import Mapping
from dataclasses import dataclass
from dataclasses import fields as dataclass_fields
from typing import Any

from mockserve.protocol.asked.sampling import Sampling
from mockserve.protocol.errors import bad_value
from mockserve.protocol.reading.body import Fields


@dataclass(frozen=True, slots=True)
class Delivery:
    """`continuous_usage` puts a running count into every chunk; it needs `include_usage`, which adds a last chunk."""

    stream: bool = False
    include_usage: bool = False
    continuous_usage: bool = False


def read_delivery(fields: Fields) -> Delivery:
    """The fields `stream` and `stream_options` of a body whose types have been checked."""
    stream = fields.flag("stream")
    options = Fields(fields.body.get("stream_options") or {})
    include_usage = options.flag("include_usage")
    return Delivery(stream, include_usage, include_usage and options.flag("continuous_usage_stats"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """Details that a reply leaves out unless they are asked for.

    `num_logprobs` is None when none are wanted; `tokens_as_ids` is None when the server decides.
    """

    token_ids: bool = False
    prompt_text: bool = False
    weight_versions: bool = False
    num_logprobs: int | None = None
    logprob_token_ids: tuple[int, ...] = ()
    tokens_as_ids: bool | None = None
    stream_interval: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Common:
    """What a request says about itself, whatever it asks for. A smaller `priority` is more urgent."""

    request_id: str | None = None
    cache_salt: str | None = None
    priority: int = 0
    kv_transfer_params: Mapping[str, Any] | None = None
    routed_experts_prompt_start: int = 0


_NOTHING_SAID = Common()
_COMMON_NAMES = frozenset(each.name for each in dataclass_fields(Common))


def check_prompt_start(common: Common, prompt_tokens: int) -> None:
    """Raise ApiError when routing is wanted from beyond the end of the prompt."""
    start = common.routed_experts_prompt_start
    if start > prompt_tokens:
        name = "routed_experts_prompt_start"
        raise bad_value(f"{name} must be between 0 and the prompt length ({prompt_tokens}), inclusive.", name, start)


def read_wanted(fields: Fields, sampling: Sampling) -> Wanted:
    """The details that a body asks for."""
    as_ids = fields.body.get("return_tokens_as_token_ids")
    return Wanted(
        token_ids=fields.flag("return_token_ids"),
        prompt_text=fields.flag("return_prompt_text"),
        weight_versions=fields.flag("return_weight_versions"),
        num_logprobs=sampling.num_logprobs,
        logprob_token_ids=sampling.logprob_token_ids,
        tokens_as_ids=None if as_ids is None else fields.flag("return_tokens_as_token_ids"),
        stream_interval=fields.integer("stream_interval", 1) or 1,
    )


def read_common(fields: Fields) -> Common:
    """What a body says about itself."""
    if _COMMON_NAMES.isdisjoint(fields.body):
        return _NOTHING_SAID
    return Common(
        request_id=fields.text("request_id"),
        cache_salt=fields.text("cache_salt"),
        priority=fields.integer("priority", 0) or 0,
        kv_transfer_params=fields.body.get("kv_transfer_params"),
        routed_experts_prompt_start=fields.integer("routed_experts_prompt_start", 0) or 0,
    )
