"""Checks of token fields: the parameters of repetition detection, and ids against the model's vocabulary."""

import json
from collections.abc import Mapping
from operator import attrgetter
from typing import Any

from mockserve.protocol.errors import ApiError, bad_value, internal_error, mark_late
from mockserve.protocol.reading.containers import Nullable, Record
from mockserve.protocol.reading.types import SMALLEST_INT64, FieldType, Integer, is_text
from mockserve.protocol.sampling import SamplingParams, unknown_ids

REPETITION_DETECTION: FieldType = Nullable(
    Record(
        {"max_pattern_size": Integer(), "min_pattern_size": Integer(), "min_count": Integer()},
        kind="dataclass_type",
        name="RepetitionDetectionParams",
    )
)


MAX_LOGPROB_TOKEN_IDS = 128

_of_tokens = attrgetter(
    "num_logprobs", "num_prompt_logprobs", "logprob_token_ids", "bad_words", "stop_token_ids", "allowed_token_ids"
)
_NO_TOKENS = _of_tokens(SamplingParams())
"""The token fields of a request without any, as in most requests."""


def check_logit_bias_keys(bias: Any) -> None:
    """Raise ApiError for keys of `logit_bias` that are not token ids."""
    wrong = [key for key in bias or {} if not key.strip().lstrip("+-").isdecimal()]
    if wrong:
        message = f"logit_bias contains key(s) that cannot be converted to integer token IDs: {wrong}"
        raise bad_value(message, "logit_bias", wrong)


def check_vocabulary(sampling: SamplingParams, logit_bias: Any, vocabulary_size: int, max_logprobs: int) -> None:
    """Raise ApiError for token ids outside the vocabulary, and for more log-probabilities than the server allows.

    `max_logprobs` of -1 allows log-probabilities of the whole vocabulary.
    """
    if not logit_bias and _of_tokens(sampling) == _NO_TOKENS:
        return
    try:
        _check_logprobs(sampling, vocabulary_size, vocabulary_size if max_logprobs == -1 else max_logprobs)
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


def _check_logprobs(sampling: SamplingParams, vocabulary_size: int, most: int) -> None:
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
