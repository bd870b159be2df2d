"""The sampling parameters of a request with limits and defaults, checks of token fields, and refused combinations of
fields.
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from dataclasses import fields as dataclass_fields
from operator import attrgetter
from typing import Any

from pydantic import ConfigDict

from mockserve.protocol.bodies import Items, OpenObject
from mockserve.protocol.errors import ApiError, bad_value, internal_error, mark_late, not_an_object, unhandled_error
from mockserve.protocol.forms import SMALLEST_INT64, is_text

# The sampling parameters of a request with limits and defaults, and its options beside the text.

MAX_CHOICES = 16384


@dataclass(frozen=True, slots=True)
class RepetitionDetectionParams:
    """Limits of repetition that stop a text: the size of a pattern in tokens, and its number of repetitions."""

    __pydantic_config__ = ConfigDict(extra="ignore")

    max_pattern_size: int = 0
    min_pattern_size: int = 0
    min_count: int = 0

    def __post_init__(self) -> None:
        """Raise ApiError, which is no ValueError: as in vLLM it comes before all that pydantic has found."""
        if not 0 <= self.min_pattern_size <= self.max_pattern_size:
            raise ApiError(
                "max_pattern_size, min_pattern_size must be >=0, with min_pattern_size <= max_pattern_size. "
                "Set both to 0 to disable repetitive pattern detection."
            )
        if self.max_pattern_size > 0 and self.min_count < 2:
            raise ApiError(
                "min_count must be >= 2 to detect repetitive patterns in engine output. "
                "If you do not wish to detect repetitive patterns, set max_pattern_size to 0."
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """Sampling parameters of a request. Fields that are only range-checked have no effect here.

    `max_tokens` is None without a limit in the request; `max_tokens_param` is the field of the limit. `num_logprobs`
    and `num_prompt_logprobs` are None without log-probabilities; 0 requests the tokens' own.
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
    repetition: RepetitionDetectionParams | None = None

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
    if sampling.n < 1:
        raise ApiError(f"n must be at least 1, got {sampling.n}.")
    if sampling.n > MAX_CHOICES:
        raise ApiError(
            f"n must be at most {MAX_CHOICES}, got {sampling.n}. "
            "To increase this limit, set the VLLM_MAX_N_SEQUENCES environment variable."
        )
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


@dataclass(slots=True)
class StructuredOutputsParams:
    """A constraint on the answer."""

    __pydantic_config__ = ConfigDict(extra="ignore")

    json: str | dict[str, Any] | None = None
    regex: str | None = None
    choice: Items[str] | None = None
    grammar: str | None = None
    json_object: bool | None = None
    disable_any_whitespace: bool = False
    disable_additional_properties: bool = False
    whitespace_pattern: str | None = None
    structural_tag: str | None = None
    _backend: str | None = field(default=None, init=False)
    _backend_was_auto: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        """Raise ApiError unless there is exactly one constraint."""
        if sum(getattr(self, each) is not None for each in ALL_CONSTRAINTS) != 1:
            check_one_constraint(self.given())

    def given(self) -> dict[str, Any]:
        """Return the fields that are not null."""
        found = {each.name: getattr(self, each.name) for each in dataclass_fields(self) if each.init}
        return {name: value for name, value in found.items() if value is not None}


class StreamOptions(OpenObject):
    """Which usage a stream reports."""

    include_usage: bool | None = False
    continuous_usage_stats: bool | None = False


LOWEST_TEMPERATURE = 0.01
"""Minimum temperature; lower ones except 0 are raised to it."""

_COPIED = frozenset(
    {
        *("n", "min_tokens", "ignore_eos", "include_stop_str_in_output", "top_p", "top_k", "min_p", "presence_penalty"),
        *("frequency_penalty", "repetition_penalty", "use_beam_search", "truncate_prompt_tokens", "truncation_side"),
    }
)
"""Fields that are sampling parameters as they are."""


def read_sampling(
    given: Mapping[str, Any],
    max_tokens: int | None,
    max_tokens_param: str,
    num_logprobs: int | None,
    num_echoed_logprobs: int | None = None,
) -> SamplingParams:
    """Return the sampling parameters among the fields of a body, whose values have been checked.

    `num_echoed_logprobs` is the default of the prompt's log-probabilities.
    """
    seed, allowed, num_of_prompt = (given.get(each) for each in ("seed", "allowed_token_ids", "prompt_logprobs"))
    repetition = given.get("repetition_detection")
    return SamplingParams(
        max_tokens=max_tokens,
        max_tokens_param=max_tokens_param,
        stop=_strings(given.get("stop")),
        stop_token_ids=tuple(given.get("stop_token_ids") or ()),
        seed=None if seed == -1 else seed,
        temperature=clamp_temperature(given.get("temperature")),
        num_logprobs=num_logprobs,
        num_prompt_logprobs=num_echoed_logprobs if num_of_prompt is None else num_of_prompt,
        logprob_token_ids=tuple(given.get("logprob_token_ids") or ()),
        allowed_token_ids=None if allowed is None else tuple(allowed),
        bad_words=_strings(given.get("bad_words")),
        skip_special_tokens=given.get("skip_special_tokens") is not False,
        repetition=repetition if repetition is not None and repetition.max_pattern_size > 0 else None,
        **{name: value for name, value in given.items() if name in _COPIED and value is not None},
    )


def clamp_temperature(requested: float | None) -> float:
    """Return the effective temperature: at least `LOWEST_TEMPERATURE`, or 0."""
    if requested is None:
        return 1.0
    return LOWEST_TEMPERATURE if 0 < requested < LOWEST_TEMPERATURE else requested


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


def delivery_of(stream: bool | None, options: StreamOptions | None) -> Delivery:
    """Return how a body asks to be answered."""
    if options is None or not options.include_usage:
        return Delivery(bool(stream))
    return Delivery(bool(stream), True, bool(options.continuous_usage_stats))


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


def read_response_options(given: Mapping[str, Any], sampling: SamplingParams) -> ResponseOptions:
    """Return the optional details that a checked body requests."""
    return ResponseOptions(
        token_ids=bool(given.get("return_token_ids")),
        prompt_text=bool(given.get("return_prompt_text")),
        weight_versions=bool(given.get("return_weight_versions")),
        num_logprobs=sampling.num_logprobs,
        logprob_token_ids=sampling.logprob_token_ids,
        tokens_as_ids=given.get("return_tokens_as_token_ids"),
        stream_interval=given.get("stream_interval") or 1,
    )


def read_request_metadata(given: Mapping[str, Any]) -> RequestMetadata:
    """Return the metadata among the fields of a checked body."""
    if _COMMON_NAMES.isdisjoint(given):
        return _NO_METADATA
    return RequestMetadata(**{name: given[name] for name in _COMMON_NAMES if name in given})


# Checks of token fields: the parameters of repetition detection, and ids against the model's vocabulary.

MAX_LOGPROB_TOKEN_IDS = 128

_of_tokens = attrgetter(
    "num_logprobs", "num_prompt_logprobs", "logprob_token_ids", "bad_words", "stop_token_ids", "allowed_token_ids"
)
_NO_TOKENS = _of_tokens(SamplingParams())
"""The token fields of a request without any, as in most requests."""


def check_logit_bias_keys(bias: Any) -> None:
    """Raise ApiError for keys of `logit_bias` that are not token ids."""
    wrong = [key for key in bias or {} if not _is_integer(key)]
    if wrong:
        message = f"logit_bias contains key(s) that cannot be converted to integer token IDs: {wrong}"
        raise bad_value(message, "logit_bias", wrong)


def _is_integer(text: str) -> bool:
    try:
        int(text)
    except ValueError:
        return False
    return True


def check_vocabulary(sampling: SamplingParams, logit_bias: Any, vocabulary_size: int, max_logprobs: int) -> None:
    """Raise ApiError for token ids outside the vocabulary, and for more log-probabilities than the server allows.

    `max_logprobs` of -1 allows log-probabilities of the whole vocabulary.
    """
    if not logit_bias and _of_tokens(sampling) == _NO_TOKENS:
        return
    try:
        most = vocabulary_size if max_logprobs == -1 else max_logprobs
        chosen = sampling.logprob_token_ids
        _check_number("logprobs", "sample logprobs", None if chosen else sampling.num_logprobs, vocabulary_size, most)
        if len(chosen) > MAX_LOGPROB_TOKEN_IDS:
            message = (
                f"Requested logprob_token_ids of length {len(chosen)}, "
                f"which is greater than max allowed: {MAX_LOGPROB_TOKEN_IDS}"
            )
            raise bad_value(message, "logprob_token_ids", len(chosen))
        foreign = unknown_ids(chosen, vocabulary_size)
        if foreign:
            _refuse_ids("logprob_token_ids", foreign, vocabulary_size)
        _check_number("prompt_logprobs", "prompt logprobs", sampling.num_prompt_logprobs, vocabulary_size, most)
        _check_ids(sampling, logit_bias, vocabulary_size)
    except ApiError as error:
        raise mark_late(error) from None


def _check_ids(sampling: SamplingParams, logit_bias: Any, vocabulary_size: int) -> None:
    biased = unknown_ids([int(key) for key in logit_bias or {}], vocabulary_size)
    if biased:
        _refuse_ids("logit_bias", biased, vocabulary_size)
    stops = unknown_ids(sampling.stop_token_ids, vocabulary_size)
    if stops:
        _refuse_ids("stop_token_ids", stops, vocabulary_size)
    allowed = sampling.allowed_token_ids
    if allowed is not None:
        if not allowed:
            raise bad_value("allowed_token_ids is not None and empty!", "allowed_token_ids", [])
        foreign = unknown_ids(allowed, vocabulary_size)
        if foreign:
            raise bad_value("allowed_token_ids contains out-of-vocab token id!", "allowed_token_ids", foreign)
    if any(each and not each.strip() for each in sampling.bad_words):
        message = "bad_words entries must tokenize to at least one token."
        raise bad_value(message, "bad_words", list(sampling.bad_words))


def _check_number(param: str, name: str, requested: int | None, vocabulary_size: int, most: int) -> None:
    number = vocabulary_size if requested == -1 else requested or 0
    if number > most:
        raise bad_value(f"Requested {name} of {number}, which is greater than max allowed: {most}", param, number)


def _refuse_ids(param: str, token_ids: list[int], vocabulary_size: int) -> None:
    message = f"token_id(s) {token_ids} in {param} contain out-of-vocab token ids. Vocabulary size: {vocabulary_size}"
    raise bad_value(message, param, token_ids)


LARGEST_UINT64 = 2**64 - 1


def check_engine_message(request_id: str, priority: int, sampling: SamplingParams | None = None) -> None:
    """Raise ApiError for a request that vLLM cannot send to its engine: text that is not UTF-8, integers over 64
    bits."""
    texts = [request_id] if sampling is None else [request_id, *sampling.stop, *sampling.bad_words]
    top_k = 0 if sampling is None else sampling.top_k
    if not SMALLEST_INT64 <= priority <= LARGEST_UINT64 or top_k > LARGEST_UINT64:
        raise _unsendable()
    try:
        "".join(texts).encode()
    except UnicodeEncodeError:
        raise _unsendable() from None


def check_extra_arguments(*arguments: Mapping[str, Any] | None) -> None:
    """Raise ApiError for extra arguments of a request that vLLM cannot send to its engine."""
    for each in arguments:
        if each and not is_text(json.dumps(each, ensure_ascii=False)):
            raise _unsendable()


def _unsendable() -> ApiError:
    return mark_late(internal_error(""))


# Refusals independent of the types of fields: fields that exclude or require each other.

CONSTRAINTS = ("json", "regex", "choice")
ALL_CONSTRAINTS = (*CONSTRAINTS, "grammar", "json_object", "structural_tag")
MAX_CACHE_SALT_CHARS = 128
MAX_PROMPTS = 1024


def refuse_chat_contradictions(body: dict[str, Any]) -> None:
    """Check a chat body in vLLM's order. Raises ApiError."""
    if body.get("continue_final_message") and body.get("add_generation_prompt"):
        raise ApiError("Cannot set both `continue_final_message` and `add_generation_prompt` to True.")
    _refuse_tool_contradictions(body)
    _refuse_several_constraints(body, excludes_tools=True)
    _refuse_chosen_logprobs(
        body, requests_logprobs=bool(body.get("logprobs")), otherwise="`logprobs` must be set to true"
    )
    _refuse_bad_logprobs(body, "top_logprobs")
    top = body.get("top_logprobs")
    if top and (top > 0 or top == -1) and not body.get("logprobs"):
        raise bad_value("when using `top_logprobs`, `logprobs` must be set to true.", "top_logprobs")
    refuse_stream_options(body)
    _refuse_bad_format(body)
    refuse_bad_salt(body.get("cache_salt"))
    refuse_bad_thinking_budget(body.get("thinking_token_budget"))


def refuse_completion_contradictions(body: dict[str, Any]) -> None:
    """Check the body of a text completion in vLLM's order. Raises ApiError."""
    _refuse_bad_prompt(body)
    refuse_stream_options(body)
    if body.get("use_beam_search") and body.get("echo") and body.get("logprobs") is not None:
        message = (
            "`echo` with `logprobs` is not supported with beam search "
            "because beam search does not compute prompt logprobs."
        )
        raise bad_value(message, "echo")
    requests_logprobs = body.get("logprobs") is not None
    _refuse_chosen_logprobs(body, requests_logprobs, otherwise="`logprobs` must be set")
    _refuse_bad_logprobs(body, "logprobs")
    _refuse_several_constraints(body, excludes_tools=False)
    _refuse_bad_format(body)
    refuse_bad_salt(body.get("cache_salt"))
    refuse_bad_thinking_budget(body.get("thinking_token_budget"))


def refuse_stream_options(body: dict[str, Any]) -> None:
    """Raise ApiError for stream options without `stream`."""
    if body.get("stream_options") and not body.get("stream"):
        raise bad_value("Stream options can only be defined when `stream=True`.", "stream_options")


def _refuse_bad_prompt(body: dict[str, Any]) -> None:
    prompt = body.get("prompt")
    if isinstance(prompt, list) and len(prompt) > MAX_PROMPTS and not isinstance(prompt[0], int):
        message = (
            f"prompt list length {len(prompt)} exceeds the maximum allowed count of {MAX_PROMPTS}. "
            "To increase this limit, set the VLLM_MAX_COMPLETION_PROMPTS environment variable."
        )
        raise bad_value(message, "prompt")
    if prompt in (None, "") and body.get("prompt_embeds") in (None, []):
        raise bad_value("Either prompt or prompt_embeds must be provided and non-empty.", "prompt")


def _refuse_chosen_logprobs(body: dict[str, Any], requests_logprobs: bool, otherwise: str) -> None:
    if not body.get("logprob_token_ids"):
        return
    if body.get("use_beam_search"):
        raise bad_value("`logprob_token_ids` is not supported with beam search.", "logprob_token_ids")
    if body.get("echo") and body.get("max_tokens") == 0:
        message = (
            "`logprob_token_ids` is not supported when `echo=True` and `max_tokens=0` "
            "because no output tokens are generated."
        )
        raise bad_value(message, "logprob_token_ids")
    if not requests_logprobs:
        raise bad_value(f"when using `logprob_token_ids`, {otherwise}.", "logprob_token_ids")


def _refuse_bad_logprobs(body: dict[str, Any], name: str) -> None:
    for each in ("prompt_logprobs", name):
        value = body.get(each)
        if value is not None and not isinstance(value, int | float):
            raise bad_value(f"`{each}` must be an integer.", each, value)
    requested = body.get("prompt_logprobs")
    if requested is not None and body.get("stream") and (requested > 0 or requested == -1):
        raise bad_value("`prompt_logprobs` are not available when `stream=True`.", "prompt_logprobs")
    for each in ("prompt_logprobs", name):
        value = body.get(each)
        if value is not None and value < 0 and value != -1:
            raise bad_value(f"`{each}` must be a positive value or -1.", each, value)


def _refuse_several_constraints(body: dict[str, Any], excludes_tools: bool) -> None:
    constraints = body.get("structured_outputs")
    if constraints is None:
        return
    if not isinstance(constraints, dict):
        raise not_an_object(constraints)
    count = sum(constraints.get(each) is not None for each in CONSTRAINTS)
    if count > 1:
        message = "You can only use one kind of constraints for structured outputs ('json', 'regex' or 'choice')."
        raise ApiError(message) if excludes_tools else bad_value(message, "structured_outputs")
    if excludes_tools and count and body.get("tool_choice", "none") not in ("none", "auto", "required"):
        raise ApiError("You can only either use constraints for structured outputs or tools, not both.")


def check_one_constraint(constraints: dict[str, Any]) -> None:
    """Raise ApiError unless `structured_outputs` has exactly one constraint."""
    count = sum(constraints.get(each) is not None for each in ALL_CONSTRAINTS)
    if count != 1:
        use, found = ("can only", "but multiple") if count else ("must", "but none")
        message = f"You {use} use one kind of structured outputs constraint {found} are specified: "
        raise ApiError(f"{message}{all_constraints(constraints)}")


def all_constraints(constraints: dict[str, Any]) -> dict[str, Any]:
    """Return the given constraints among all that exist, as vLLM shows them."""
    given: dict[str, Any] = dict.fromkeys((*CONSTRAINTS, "grammar", "json_object"))
    given |= {"disable_any_whitespace": False, "disable_additional_properties": False}
    given |= {"whitespace_pattern": None, "structural_tag": None, "_backend": None, "_backend_was_auto": False}
    return given | {name: value for name, value in constraints.items() if name in given}


def _refuse_bad_format(body: dict[str, Any]) -> None:
    requested = body.get("response_format")
    if not isinstance(requested, dict):
        return
    if requested.get("type") == "json_schema" and requested.get("json_schema") is None:
        message = "When response_format type is 'json_schema', the 'json_schema' field must be provided."
        raise bad_value(message, "response_format")
    refuse_bad_tag(body)


def refuse_bad_tag(body: dict[str, Any]) -> None:
    """Raise ApiError for a `response_format` that is a structural tag without its fields."""
    requested = body.get("response_format")
    if not isinstance(requested, dict) or requested.get("type") != "structural_tag":
        return
    if not ("format" in requested or "structures" in requested):
        raise bad_value("Invalid response_format structural_tag specification.", "response_format")


def refuse_bad_salt(salt: Any) -> None:
    """Raise ApiError for a `cache_salt` that vLLM refuses."""
    if salt is None:
        return
    if not isinstance(salt, str) or not salt:
        raise bad_value("Parameter 'cache_salt' must be a non-empty string if provided.", "cache_salt")
    if len(salt) > MAX_CACHE_SALT_CHARS or any(each in salt for each in "@/\\\0"):
        message = (
            f"Parameter 'cache_salt' must be at most {MAX_CACHE_SALT_CHARS} characters "
            "and must not contain '@', '/', '\\\\', or NUL."
        )
        raise bad_value(message, "cache_salt")


def refuse_bad_thinking_budget(budget: Any) -> None:
    """Raise ApiError for a budget that is neither a number of tokens nor -1."""
    if budget is not None and (type(budget) is not int or budget < -1):
        message = "`thinking_token_budget` must be a non-negative integer or -1 for unlimited."
        raise bad_value(message, "thinking_token_budget", budget)


def _refuse_tool_contradictions(body: dict[str, Any]) -> None:
    tools, choice = body.get("tools"), body.get("tool_choice")
    if tools == []:
        message = "`tools` must not be an empty array. Either provide at least one tool or omit the field entirely."
        raise bad_value(message, "tools")
    if choice is None or choice == "none":
        return
    if tools is None:
        raise bad_value("When using `tool_choice`, `tools` must be set.", "tool_choice")
    if not isinstance(choice, dict) and choice not in ("auto", "required"):
        message = (
            f'Invalid value for `tool_choice`: {choice}! Only named tools, "none", "auto" or "required" are supported.'
        )
        raise bad_value(message, "tool_choice")
    if isinstance(choice, dict):
        _refuse_unknown_tool(choice, tools)


def _refuse_unknown_tool(choice: dict[str, Any], tools: Any) -> None:
    usage = 'Correct usage: `{"type": "function", "function": {"name": "my_function"}}`'
    function = choice.get("function")
    if not isinstance(function, dict):
        message = f"Invalid value for `function`: `{function}` in `tool_choice`! {usage}"
        raise bad_value(message, "tool_choice.function")
    if "name" not in function:
        message = f"Expected field `name` in `function` in `tool_choice`! {usage}"
        raise bad_value(message, "tool_choice.function.name")
    if not isinstance(tools, list | str | dict):
        raise ApiError(f"{type(tools).__name__!r} object is not iterable")
    name = function["name"]
    if not isinstance(name, str) or not name:
        message = f"Invalid `name` in `function`: `{name}` in `tool_choice`! {usage}"
        raise bad_value(message, "tool_choice.function.name")
    if not _offers(tools, name):
        message = "The tool specified in `tool_choice` does not match any of the specified `tools`"
        raise bad_value(message, "tool_choice")


def _offers(tools: Any, name: str) -> bool:
    """Whether a function has the name `name`. Raises ApiError, as vLLM does, if an earlier tool has no name."""
    try:
        return any(tool["function"]["name"] == name for tool in tools)
    except KeyError as error:
        raise unhandled_error(str(error)) from None
    except TypeError as error:
        raise ApiError(str(error)) from None


def _function_name(tool: Any) -> Any:
    function = tool.get("function") if isinstance(tool, dict) else None
    return function.get("name") if isinstance(function, dict) else None


def refuse_unavailable(body: dict[str, Any], calls_tools: bool) -> None:
    """Raise ApiError for a request that requires a flag which the server was started without."""
    refuse_unavailable_tools(body, calls_tools)
    refuse_media_arguments(body)


def refuse_unavailable_tools(body: dict[str, Any], calls_tools: bool) -> None:
    """Raise ApiError for a choice of tools that requires a parser of calls, on a server without one."""
    choice = "none" if calls_tools else body.get("tool_choice", "auto")
    if body.get("tools") and choice == "auto":
        raise ApiError('"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set')
    if body.get("tools") and choice not in (None, "none"):
        named = f'function "{_function_name(choice)}"' if isinstance(choice, dict) else f'"{choice}"'
        raise ApiError(f"tool_choice={named} requires --tool-call-parser to be set")


def refuse_media_arguments(body: dict[str, Any]) -> None:
    """Raise ApiError for arguments of media loading and processing, which servers do not allow by default."""
    for name, effect in (
        ("mm_processor_kwargs", "multimodal preprocessing resource usage"),
        ("media_io_kwargs", "multimodal media loading resource usage"),
    ):
        if body.get(name):
            message = (
                f"Per-request {name} are disabled by default because they can change {effect}. "
                "Start the server with --trust-request-mm-kwargs only when clients are trusted."
            )
            raise bad_value(message, name)


def refuse_thinking_budget(budget: Any, reasons: bool) -> None:
    """Raise ApiError for a reasoning budget on a server without a reasoning parser."""
    if not reasons and budget not in (None, -1):
        message = (
            "thinking_token_budget is set but reasoning_config is not configured. "
            "Please set --reasoning-parser and/or --reasoning-config to use thinking_token_budget."
        )
        raise mark_late(ApiError(message))
