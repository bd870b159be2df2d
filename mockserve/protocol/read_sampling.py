"""The sampling fields that chat and text completions share, read from a body whose types have been checked."""

from typing import Any

from mockserve.protocol.errors import ApiError
from mockserve.protocol.field_types import as_integer
from mockserve.protocol.fields import Fields
from mockserve.protocol.sampling import Repetition, Sampling

LOWEST_TEMPERATURE = 0.01
"""Lower ones are raised to this, except 0."""


def read_sampling(
    fields: Fields,
    max_tokens: int | None,
    max_tokens_param: str,
    num_logprobs: int | None,
    num_echoed_logprobs: int | None = None,
) -> Sampling:
    """The sampling fields of a body. `num_echoed_logprobs` is wanted of the prompt if the body does not say."""
    num_prompt_logprobs = fields.integer("prompt_logprobs", num_echoed_logprobs)
    seed = fields.integer("seed")
    return Sampling(
        n=_integer(fields, "n", 1),
        max_tokens=max_tokens,
        max_tokens_param=max_tokens_param,
        min_tokens=_integer(fields, "min_tokens", 0),
        ignore_eos=fields.flag("ignore_eos"),
        stop=_strings(fields.body.get("stop")),
        stop_token_ids=_integers(fields.body.get("stop_token_ids")) or (),
        include_stop_str_in_output=fields.flag("include_stop_str_in_output"),
        seed=None if seed == -1 else seed,
        temperature=_temperature(_number(fields, "temperature", 1.0)),
        top_p=_number(fields, "top_p", 1.0),
        top_k=_integer(fields, "top_k", 0),
        min_p=_number(fields, "min_p", 0.0),
        presence_penalty=_number(fields, "presence_penalty", 0.0),
        frequency_penalty=_number(fields, "frequency_penalty", 0.0),
        repetition_penalty=_number(fields, "repetition_penalty", 1.0),
        num_logprobs=num_logprobs,
        num_prompt_logprobs=num_prompt_logprobs,
        logprob_token_ids=_integers(fields.body.get("logprob_token_ids")) or (),
        allowed_token_ids=_integers(fields.body.get("allowed_token_ids")),
        bad_words=_strings(fields.body.get("bad_words")),
        use_beam_search=fields.flag("use_beam_search"),
        skip_special_tokens=fields.flag("skip_special_tokens", True),
        truncate_prompt_tokens=fields.integer("truncate_prompt_tokens"),
        truncation_side=fields.text("truncation_side"),
        repetition=_read_repetition(fields.body.get("repetition_detection")),
    )


def _temperature(wanted: float) -> float:
    """The temperature in force: nothing is almost greedy."""
    return LOWEST_TEMPERATURE if 0 < wanted < LOWEST_TEMPERATURE else wanted


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


def _integer(fields: Fields, name: str, default: int) -> int:
    value = fields.integer(name, default)
    assert value is not None
    return value


def _number(fields: Fields, name: str, default: float) -> float:
    value = fields.number(name, default)
    assert value is not None
    return value


def _integers(value: Any) -> tuple[int, ...] | None:
    return None if value is None else tuple(as_integer(each) for each in value)


def _strings(value: Any) -> tuple[str, ...]:
    if value is None:
        return ()
    return (value,) if isinstance(value, str) else tuple(dict.fromkeys(value))
