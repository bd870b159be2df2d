"""What a request asks of the generation, and vLLM's bounds on it."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from operator import attrgetter

from mockserve.protocol.errors import ApiError, bad_value

MAX_CHOICES = 16384


@dataclass(frozen=True, slots=True, kw_only=True)
class Repetition:
    """When a text that repeats itself is stopped: a pattern of so many tokens, so many times in a row."""

    max_pattern_size: int = 0
    min_pattern_size: int = 0
    min_count: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """What a request asks of the generation. Fields that are only range-checked change nothing here.

    `max_tokens` is None when the client set no limit; `max_tokens_param` is the field it came from. `num_logprobs` and
    `num_prompt_logprobs` are None when the client wants none; 0 means those of the tokens themselves.
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
    """Where a prompt that is too long is cut, `left` or `right`; None cuts the left and keeps the marks around it."""
    repetition: Repetition | None = None

    @property
    def is_greedy(self) -> bool:
        """Whether the same prompt always gives the same text."""
        return self.temperature < 1e-5


_bounded = attrgetter(
    "n", "presence_penalty", "frequency_penalty", "repetition_penalty", "top_p", "top_k", "min_p", "stop", "bad_words"
)
_WITHIN_BOUNDS = _bounded(Sampling())
"""What most requests say, so that nothing of it has to be looked at."""


def output_budget(sampling: Sampling, prompt_tokens: int, max_model_len: int) -> int:
    """How many tokens the request may produce: what it asks for, clamped to what the context leaves.

    Raises ApiError when it asks for more than a whole context.
    """
    left = max_model_len - prompt_tokens
    if sampling.max_tokens is None:
        return left
    if sampling.max_tokens > max_model_len:
        param = sampling.max_tokens_param
        message = (
            f"{param}={sampling.max_tokens} cannot be greater than max_model_len={max_model_len}. "
            "Please request fewer output tokens."
        )
        raise bad_value(message, param, sampling.max_tokens)
    return min(sampling.max_tokens, left)


def check_sampling(sampling: Sampling, budget: int) -> None:
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


def _check_choices(sampling: Sampling) -> None:
    if sampling.n < 1:
        raise ApiError(f"n must be at least 1, got {sampling.n}.")
    if sampling.n > MAX_CHOICES:
        raise ApiError(
            f"n must be at most {MAX_CHOICES}, got {sampling.n}. "
            "To increase this limit, set the VLLM_MAX_N_SEQUENCES environment variable."
        )


def _check_penalties(sampling: Sampling) -> None:
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


def _check_lengths(sampling: Sampling, budget: int) -> None:
    if budget < 1:
        raise bad_value(f"max_tokens must be at least 1, got {budget}.", "max_tokens", budget)
    if sampling.min_tokens < 0:
        raise ApiError(f"min_tokens must be greater than or equal to 0, got {sampling.min_tokens}.")
    if sampling.min_tokens > budget:
        raise ApiError(f"min_tokens must be less than or equal to max_tokens={budget}, got {sampling.min_tokens}.")


def unknown_ids(token_ids: Sequence[int], vocabulary_size: int) -> list[int]:
    """Those of `token_ids` that no token has."""
    return [each for each in token_ids if not 0 <= each < vocabulary_size]
