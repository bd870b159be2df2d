"""The sampling fields that chat and text completions share: reading them, and vLLM's bounds on them."""

from dataclasses import dataclass
from typing import Any

from mockserve.protocol.errors import ApiError, Problem, bad_value
from mockserve.protocol.fields import Fields, list_problem, text_problem

MAX_STOP_STRINGS = 4
MAX_CHOICES = 16384
MAX_LOGPROBS = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """What a request asks of the generation. Fields that are only range-checked change nothing here.

    `max_tokens` is None when the client set no limit; `max_tokens_param` is the field it came from.
    """

    n: int = 1
    max_tokens: int | None = None
    max_tokens_param: str = "max_tokens"
    min_tokens: int = 0
    ignore_eos: bool = False
    stop: tuple[str, ...] = ()
    include_stop_str_in_output: bool = False
    seed: int | None = None
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    num_logprobs: int = 0

    @property
    def is_greedy(self) -> bool:
        """Whether the same prompt always gives the same text."""
        return self.temperature < 1e-5


def read_sampling(fields: Fields, max_tokens: int | None, max_tokens_param: str, num_logprobs: int) -> Sampling:
    """The sampling fields of a body; problems are left in `fields`."""
    return Sampling(
        n=_integer(fields, "n", 1),
        max_tokens=max_tokens,
        max_tokens_param=max_tokens_param,
        min_tokens=_integer(fields, "min_tokens", 0),
        ignore_eos=fields.flag("ignore_eos"),
        stop=_read_stop(fields),
        include_stop_str_in_output=fields.flag("include_stop_str_in_output"),
        seed=fields.integer("seed"),
        temperature=_number(fields, "temperature", 1.0),
        top_p=_number(fields, "top_p", 1.0),
        top_k=_integer(fields, "top_k", 0),
        min_p=_number(fields, "min_p", 0.0),
        presence_penalty=_number(fields, "presence_penalty", 0.0),
        frequency_penalty=_number(fields, "frequency_penalty", 0.0),
        repetition_penalty=_number(fields, "repetition_penalty", 1.0),
        num_logprobs=num_logprobs,
    )


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
    _check_choices(sampling)
    _check_penalties(sampling)
    if sampling.temperature < 0:
        message = f"temperature must be non-negative, got {sampling.temperature}."
        raise bad_value(message, "temperature", sampling.temperature)
    if sampling.temperature > 2:
        message = f"temperature must be in [0, 2], got {sampling.temperature}."
        raise bad_value(message, "temperature", sampling.temperature)
    if not 0 < sampling.top_p <= 1:
        raise bad_value(f"top_p must be in (0, 1], got {sampling.top_p}.", "top_p", sampling.top_p)
    if sampling.top_k < -1:
        raise ApiError(f"top_k must be 0 (disable), or at least 1, got {sampling.top_k}.")
    if not 0 <= sampling.min_p <= 1:
        raise ApiError(f"min_p must be in [0, 1], got {sampling.min_p}.")
    _check_lengths(sampling, budget)
    if "" in sampling.stop:
        raise ApiError("stop cannot contain an empty string.")
    if sampling.is_greedy and sampling.n > 1:
        raise ApiError(f"n must be 1 when using greedy sampling, got {sampling.n}.")
    _check_logprobs(sampling.num_logprobs)


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
    if sampling.repetition_penalty <= 0:
        raise ApiError(f"repetition_penalty must be greater than zero, got {sampling.repetition_penalty}.")


def _check_lengths(sampling: Sampling, budget: int) -> None:
    if budget < 1:
        raise bad_value(f"max_tokens must be at least 1, got {budget}.", "max_tokens", budget)
    if sampling.min_tokens < 0:
        raise ApiError(f"min_tokens must be greater than or equal to 0, got {sampling.min_tokens}.")
    if sampling.min_tokens > budget:
        raise ApiError(f"min_tokens must be less than or equal to max_tokens={budget}, got {sampling.min_tokens}.")


def _check_logprobs(wanted: int) -> None:
    if wanted > MAX_LOGPROBS:
        message = f"Requested sample logprobs of {wanted}, which is greater than max allowed: {MAX_LOGPROBS}"
        raise bad_value(message, "logprobs", wanted)


def _integer(fields: Fields, name: str, default: int) -> int:
    value = fields.integer(name, default)
    assert value is not None
    return value


def _number(fields: Fields, name: str, default: float) -> float:
    value = fields.number(name, default)
    assert value is not None
    return value


def _read_stop(fields: Fields) -> tuple[str, ...]:
    """A string or a list of up to four; what fits neither is reported for both, as a union is."""
    value = fields.body.get("stop")
    if value is None:
        return ()
    if isinstance(value, str):
        return (value,)
    problems = _stop_list_problems(value)
    if problems:
        not_text = text_problem(value, "body.stop")
        assert not_text is not None
        fields.problems += [not_text, *problems]
        return ()
    return tuple(value)


def _stop_list_problems(value: Any) -> list[Problem]:
    not_a_list = list_problem(value, "body.stop")
    if not_a_list is not None:
        return [not_a_list]
    if len(value) > MAX_STOP_STRINGS:
        message = f"List should have at most {MAX_STOP_STRINGS} items after validation, not {len(value)}"
        context = {"field_type": "List", "max_length": MAX_STOP_STRINGS, "actual_length": len(value)}
        return [Problem("too_long", "body.stop", message, value, context)]
    found = (text_problem(each, f"body.stop.{index}") for index, each in enumerate(value))
    return [problem for problem in found if problem is not None]
