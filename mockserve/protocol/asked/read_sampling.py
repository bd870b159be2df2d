"""The sampling fields that chat and text completions share, read from a body whose types have been checked."""

from collections.abc import Callable, Mapping
from typing import Any

from mockserve.protocol.asked.sampling import Repetition, Sampling
from mockserve.protocol.errors import ApiError
from mockserve.protocol.reading.body import Fields
from mockserve.protocol.reading.types import as_integer

LOWEST_TEMPERATURE = 0.01
"""Lower ones are raised to this, except 0."""

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
) -> Sampling:
    """The sampling fields of a body. `num_echoed_logprobs` is wanted of the prompt if the body does not say."""
    seed = fields.integer("seed")
    return Sampling(
        max_tokens=max_tokens,
        max_tokens_param=max_tokens_param,
        stop=_strings(fields.body.get("stop")),
        stop_token_ids=_integers(fields.body.get("stop_token_ids")) or (),
        seed=None if seed == -1 else seed,
        temperature=raised_temperature(fields.number("temperature")),
        num_logprobs=num_logprobs,
        num_prompt_logprobs=fields.integer("prompt_logprobs", num_echoed_logprobs),
        logprob_token_ids=_integers(fields.body.get("logprob_token_ids")) or (),
        allowed_token_ids=_integers(fields.body.get("allowed_token_ids")),
        bad_words=_strings(fields.body.get("bad_words")),
        skip_special_tokens=fields.flag("skip_special_tokens", True),
        repetition=_read_repetition(fields.body.get("repetition_detection")),
        **_as_they_are(fields),
    )


def _as_they_are(fields: Fields) -> dict[str, Any]:
    """Those that are taken as they come. Most requests have few, so the request is gone through and not the list."""
    found = {name: _READERS[name](fields, name) for name in fields.body if name in _READERS}
    return {name: value for name, value in found.items() if value is not None}


def raised_temperature(wanted: float | None) -> float:
    """The temperature in force: nothing is almost greedy."""
    if wanted is None:
        return 1.0
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


def _integers(value: Any) -> tuple[int, ...] | None:
    return None if value is None else tuple(as_integer(each) for each in value)


def _strings(value: Any) -> tuple[str, ...]:
    if value is None:
        return ()
    return (value,) if isinstance(value, str) else tuple({each: None for each in value})  # noqa: C420  (in slices, unlike dict.fromkeys)
