"""The sampling parameters of a request with limits and defaults, and its options beside the text."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from dataclasses import fields as dataclass_fields
from operator import attrgetter
from typing import Any

from mockserve.protocol.errors import ApiError, bad_value, mark_late
from mockserve.protocol.reading.body import Fields
from mockserve.protocol.reading.containers import AnyOf, ListOf, MapOf, Nullable, Record
from mockserve.protocol.reading.types import Anything, FieldType, Flag, Text, as_integer

MAX_CHOICES = 16384


@dataclass(frozen=True, slots=True, kw_only=True)
class Repetition:
    """Limits of repetition that stop a text: the size of a pattern in tokens, and its number of repetitions."""

    max_pattern_size: int = 0
    min_pattern_size: int = 0
    min_count: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """Sampling parameters of a request. Fields that are only range-checked have no effect here.

    `max_tokens` is None without a limit in the request; `max_tokens_param` is the field of the limit. `num_logprobs`
    and `num_prompt_logprobs` are None without log-probabilities; 0 requests those of the tokens themselves.
    """

    n: int = 1
    max_tokens: int | None = None
    max_tokens_param: str = "max_tokens"
    min_tokens: int = 0
    ignore_eos: bool = False
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    include_stop_str_in_output: bool = False
    seed: int | None = None
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    num_logprobs: int | None = None
    num_prompt_logprobs: int | None = None
    logprob_token_ids: tuple[int, ...] = ()
    allowed_token_ids: tuple[int, ...] | None = None
    bad_words: tuple[str, ...] = ()
    use_beam_search: bool = False
    skip_special_tokens: bool = True
    truncate_prompt_tokens: int | None = None
    truncation_side: str | None = None
    """Side at which a long prompt is cut, `left` or `right`; None cuts the left and keeps its special tokens."""
    repetition: Repetition | None = None

    @property
    def is_greedy(self) -> bool:
        """Whether equal prompts always give equal texts."""
        return self.temperature < 1e-5


_bounded = attrgetter(
    "n", "presence_penalty", "frequency_penalty", "repetition_penalty", "top_p", "top_k", "min_p", "stop", "bad_words"
)
_WITHIN_BOUNDS = _bounded(SamplingParams())
"""The checked fields of a request with default parameters. Most requests equal them, which skips the checks."""


def output_budget(sampling: SamplingParams, prompt_tokens: int, max_model_len: int) -> int:
    """Return the maximum number of output tokens: the request's limit, clamped to the rest of the context.

    Raises ApiError for a limit above the whole context.
    """
    left = max_model_len - prompt_tokens
    if sampling.max_tokens is None:
        return left
    check_max_tokens(sampling, max_model_len)
    return min(sampling.max_tokens, left)


def check_max_tokens(sampling: SamplingParams, max_model_len: int) -> None:
    """Raise ApiError for a request of more tokens than a whole context; vLLM checks it before it makes a prompt."""
    if sampling.max_tokens is not None and sampling.max_tokens > max_model_len:
        param = sampling.max_tokens_param
        message = (
            f"{param}={sampling.max_tokens} cannot be greater than max_model_len={max_model_len}. "
            "Please request fewer output tokens."
        )
        raise bad_value(message, param, sampling.max_tokens)


def check_sampling(sampling: SamplingParams, budget: int) -> None:
    """Raise ApiError for the first value outside vLLM's bounds; `budget` is the output limit in force."""
    if _bounded(sampling) == _WITHIN_BOUNDS and 0 <= sampling.temperature <= 2:
        _check_lengths(sampling, budget)
        return
    _check_choices(sampling)
    _check_penalties(sampling)
    _check_temperature(sampling.temperature)
    if not 0 < sampling.top_p <= 1:
        raise bad_value(f"top_p must be in (0, 1], got {sampling.top_p}.", "top_p", sampling.top_p)
    if sampling.top_k < -1:
        raise ApiError(f"top_k must be 0 (disable), or at least 1, got {sampling.top_k}.")
    if not 0 <= sampling.min_p <= 1:
        raise ApiError(f"min_p must be in [0, 1], got {sampling.min_p}.")
    _check_lengths(sampling, budget)
    if "" in sampling.stop:
        raise ApiError("stop cannot contain an empty string.")
    if "" in sampling.bad_words:
        raise ApiError(f"bad_words cannot contain an empty string. Got bad_words={list(sampling.bad_words)}")
    if sampling.is_greedy and sampling.n > 1 and not sampling.use_beam_search:
        raise ApiError(f"n must be 1 when using greedy sampling, got {sampling.n}.")


def _check_choices(sampling: SamplingParams) -> None:
    if sampling.n < 1:
        raise ApiError(f"n must be at least 1, got {sampling.n}.")
    if sampling.n > MAX_CHOICES:
        raise ApiError(
            f"n must be at most {MAX_CHOICES}, got {sampling.n}. "
            "To increase this limit, set the VLLM_MAX_N_SEQUENCES environment variable."
        )


def _check_penalties(sampling: SamplingParams) -> None:
    for name in ("presence_penalty", "frequency_penalty"):
        value = getattr(sampling, name)
        if not -2 <= value <= 2:
            raise ApiError(f"{name} must be in [-2, 2], got {value}.")
    penalty = sampling.repetition_penalty
    if not math.isfinite(penalty):
        raise ApiError(f"repetition_penalty must be a finite number, got {penalty}.")
    if penalty <= 0:
        raise ApiError(f"repetition_penalty must be greater than zero, got {penalty}.")


def _check_temperature(temperature: float) -> None:
    if not math.isfinite(temperature):
        raise bad_value(f"temperature must be a finite number, got {temperature}.", "temperature", temperature)
    if temperature < 0:
        raise bad_value(f"temperature must be non-negative, got {temperature}.", "temperature", temperature)
    if temperature > 2:
        raise bad_value(f"temperature must be in [0, 2], got {temperature}.", "temperature", temperature)


def _check_lengths(sampling: SamplingParams, budget: int) -> None:
    if budget < 1:
        raise bad_value(f"max_tokens must be at least 1, got {budget}.", "max_tokens", budget)
    if sampling.min_tokens < 0:
        raise ApiError(f"min_tokens must be greater than or equal to 0, got {sampling.min_tokens}.")
    if sampling.min_tokens > budget:
        raise ApiError(f"min_tokens must be less than or equal to max_tokens={budget}, got {sampling.min_tokens}.")


def unknown_ids(token_ids: Sequence[int], vocabulary_size: int) -> list[int]:
    """Return the members of `token_ids` that are not in the vocabulary."""
    return [each for each in token_ids if not 0 <= each < vocabulary_size]


STRUCTURED_OUTPUTS: FieldType = Nullable(
    Record(
        {
            "json": Nullable(AnyOf((Text(), MapOf(Anything())))),
            "regex": Nullable(Text()),
            "choice": Nullable(ListOf(Text())),
            "grammar": Nullable(Text()),
            "json_object": Nullable(Flag()),
            "disable_any_whitespace": Flag(),
            "disable_additional_properties": Flag(),
            "whitespace_pattern": Nullable(Text()),
            "structural_tag": Nullable(Text()),
        },
        kind="dataclass_type",
        name="StructuredOutputsParams",
    )
)


LOWEST_TEMPERATURE = 0.01
"""Minimum temperature; lower ones except 0 are raised to it."""

_READERS: Mapping[str, Callable[[Fields, str], Any]] = {
    "n": Fields.integer,
    "min_tokens": Fields.integer,
    "ignore_eos": Fields.flag,
    "include_stop_str_in_output": Fields.flag,
    "top_p": Fields.number,
    "top_k": Fields.integer,
    "min_p": Fields.number,
    "presence_penalty": Fields.number,
    "frequency_penalty": Fields.number,
    "repetition_penalty": Fields.number,
    "use_beam_search": Fields.flag,
    "truncate_prompt_tokens": Fields.integer,
    "truncation_side": Fields.text,
}


def read_sampling(
    fields: Fields,
    max_tokens: int | None,
    max_tokens_param: str,
    num_logprobs: int | None,
    num_echoed_logprobs: int | None = None,
) -> SamplingParams:
    """Read the sampling fields of a body. `num_echoed_logprobs` is the default of the prompt's log-probabilities."""
    seed = fields.integer("seed")
    return SamplingParams(
        max_tokens=max_tokens,
        max_tokens_param=max_tokens_param,
        stop=_strings(fields.body.get("stop")),
        stop_token_ids=_integers(fields.body.get("stop_token_ids")) or (),
        seed=None if seed == -1 else seed,
        temperature=clamp_temperature(fields.number("temperature")),
        num_logprobs=num_logprobs,
        num_prompt_logprobs=fields.integer("prompt_logprobs", num_echoed_logprobs),
        logprob_token_ids=_integers(fields.body.get("logprob_token_ids")) or (),
        allowed_token_ids=_integers(fields.body.get("allowed_token_ids")),
        bad_words=_strings(fields.body.get("bad_words")),
        skip_special_tokens=fields.flag("skip_special_tokens", True),
        repetition=_read_repetition(fields.body.get("repetition_detection")),
        **_plain_fields(fields),
    )


def _plain_fields(fields: Fields) -> dict[str, Any]:
    """Return the fields that are copied unchanged. The loop is over the request's fields, since most requests have
    few."""
    found = {name: _READERS[name](fields, name) for name in fields.body if name in _READERS}
    return {name: value for name, value in found.items() if value is not None}


def clamp_temperature(requested: float | None) -> float:
    """Return the effective temperature: at least `LOWEST_TEMPERATURE`, or 0."""
    if requested is None:
        return 1.0
    return LOWEST_TEMPERATURE if 0 < requested < LOWEST_TEMPERATURE else requested


def _read_repetition(value: dict[str, Any] | None) -> Repetition | None:
    if value is None:
        return None
    names = ("max_pattern_size", "min_pattern_size", "min_count")
    repetition = Repetition(**{name: as_integer(value[name]) for name in names if name in value})
    if min(repetition.max_pattern_size, repetition.min_pattern_size) < 0 or (
        repetition.min_pattern_size > repetition.max_pattern_size
    ):
        raise ApiError(
            "max_pattern_size, min_pattern_size must be >=0, with min_pattern_size <= max_pattern_size. "
            "Set both to 0 to disable repetitive pattern detection."
        )
    if repetition.max_pattern_size > 0 and repetition.min_count < 2:
        raise ApiError(
            "min_count must be >= 2 to detect repetitive patterns in engine output. "
            "If you do not wish to detect repetitive patterns, set max_pattern_size to 0."
        )
    return repetition if repetition.max_pattern_size > 0 else None


def _integers(value: Any) -> tuple[int, ...] | None:
    return None if value is None else tuple(as_integer(each) for each in value)


def _strings(value: Any) -> tuple[str, ...]:
    if value is None:
        return ()
    return (value,) if isinstance(value, str) else tuple({each: None for each in value})  # noqa: C420  (in slices, unlike dict.fromkeys)


SAMPLING_NAMES = (
    *("repetition_penalty", "presence_penalty", "frequency_penalty", "temperature"),
    *("top_k", "top_p", "min_p", "skip_special_tokens"),
)
"""Fields of `SamplingParams` that a generation configuration may set."""


@dataclass(frozen=True, slots=True)
class GenerationDefaults:
    """Defaults of a model's generation configuration.

    `max_tokens` applies to requests without a limit, `ceiling_tokens` to all requests.
    """

    sampling: Mapping[str, Any] = field(default_factory=dict)
    max_tokens: int | None = None
    ceiling_tokens: int | None = None

    def applied(self, sampling: SamplingParams, body: Mapping[str, Any]) -> SamplingParams:
        """Return `sampling` with the server's value for every field that is absent from `body`."""
        if not self.sampling:
            return sampling
        found = {name: value for name, value in self.sampling.items() if body.get(name) is None}
        return replace(sampling, **found) if found else sampling

    def output_budget(
        self, sampling: SamplingParams, prompt_tokens: int, max_model_len: int, has_ceiling: bool = True
    ) -> int:
        """Return the maximum number of output tokens. Raises ApiError for a limit above the whole context."""
        budget = output_budget(sampling, prompt_tokens, max_model_len)
        if sampling.max_tokens is None and self.max_tokens is not None:
            budget = min(budget, self.max_tokens)
        if has_ceiling and self.ceiling_tokens is not None:
            budget = min(budget, self.ceiling_tokens)
        return budget


NO_DEFAULTS = GenerationDefaults()


@dataclass(frozen=True, slots=True)
class Delivery:
    """Stream options. `include_usage` adds a last chunk with usage, `continuous_usage` usage in every chunk."""

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
class ResponseOptions:
    """Optional details of a reply.

    `num_logprobs` is None without log-probabilities; `tokens_as_ids` is None when the server's flag decides.
    """

    token_ids: bool = False
    prompt_text: bool = False
    weight_versions: bool = False
    num_logprobs: int | None = None
    logprob_token_ids: tuple[int, ...] = ()
    tokens_as_ids: bool | None = None
    stream_interval: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestMetadata:
    """Metadata of a request of any kind. A smaller `priority` is more urgent."""

    request_id: str | None = None
    cache_salt: str | None = None
    priority: int = 0
    kv_transfer_params: Mapping[str, Any] | None = None
    routed_experts_prompt_start: int = 0
    cache_hit_threshold: object = None
    """llm-d's field, as it was sent: a server with such thresholds checks it, and vLLM ignores it."""


_NO_METADATA = RequestMetadata()
_COMMON_NAMES = frozenset(each.name for each in dataclass_fields(RequestMetadata))


def check_prompt_start(common: RequestMetadata, prompt_tokens: int) -> None:
    """Raise ApiError for routed experts that are requested from beyond the end of the prompt."""
    start = common.routed_experts_prompt_start
    if start > prompt_tokens:
        name = "routed_experts_prompt_start"
        message = f"{name} must be between 0 and the prompt length ({prompt_tokens}), inclusive."
        raise mark_late(bad_value(message, name, start))


def read_response_options(fields: Fields, sampling: SamplingParams) -> ResponseOptions:
    """Read the optional details that a body requests."""
    as_ids = fields.body.get("return_tokens_as_token_ids")
    return ResponseOptions(
        token_ids=fields.flag("return_token_ids"),
        prompt_text=fields.flag("return_prompt_text"),
        weight_versions=fields.flag("return_weight_versions"),
        num_logprobs=sampling.num_logprobs,
        logprob_token_ids=sampling.logprob_token_ids,
        tokens_as_ids=None if as_ids is None else fields.flag("return_tokens_as_token_ids"),
        stream_interval=fields.integer("stream_interval", 1) or 1,
    )


def read_request_metadata(fields: Fields) -> RequestMetadata:
    """Return the metadata of a body."""
    if _COMMON_NAMES.isdisjoint(fields.body):
        return _NO_METADATA
    return RequestMetadata(
        request_id=fields.text("request_id"),
        cache_salt=fields.text("cache_salt"),
        priority=fields.integer("priority", 0) or 0,
        kv_transfer_params=fields.body.get("kv_transfer_params"),
        routed_experts_prompt_start=fields.integer("routed_experts_prompt_start", 0) or 0,
        cache_hit_threshold=fields.body.get("cache_hit_threshold"),
    )
