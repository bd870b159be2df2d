"""The bodies of POST /generative_scoring: how likely some tokens are to come after each of several prompts."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from mockserve.protocol.bodies import Usage
from mockserve.protocol.errors import ApiError, bad_value
from mockserve.protocol.reading.body import check_record
from mockserve.protocol.reading.containers import AnyOf, ListOf, Nullable, Record
from mockserve.protocol.reading.types import (
    LARGEST_INT64,
    SMALLEST_INT64,
    Flag,
    Integer,
    Text,
    as_flag,
    as_integer,
)
from mockserve.protocol.refusals import refuse_bad_salt

_IDS = ListOf(Integer())
_FIELDS = Record(
    {
        "model": Nullable(Text()),
        "query": AnyOf((Text(), _IDS)),
        "items": AnyOf((ListOf(Text()), ListOf(_IDS))),
        "label_token_ids": _IDS,
        "apply_softmax": Flag(),
        "item_first": Flag(),
        "add_special_tokens": Flag(),
        "cache_salt": Nullable(Text()),
        "priority": Integer(at_least=SMALLEST_INT64, at_most=LARGEST_INT64),
        "request_id": Text(),
    },
    required=("query", "items", "label_token_ids"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerativeScoringRequest:
    """What to score. An empty `model` means the first served name."""

    model: str
    query: str | list[int]
    items: list[str] | list[list[int]]
    label_token_ids: list[int]
    apply_softmax: bool
    item_first: bool
    add_special_tokens: bool
    cache_salt: str | None
    priority: int
    request_id: str | None


def parse_scoring(body: dict[str, Any]) -> GenerativeScoringRequest:
    """Raises ApiError for a body that is none."""
    refuse_bad_salt(body.get("cache_salt"))
    check_record(body, _FIELDS)
    return GenerativeScoringRequest(
        model=body.get("model") or "",
        query=_text_or_ids(body["query"]),
        items=[_text_or_ids(each) for each in body["items"]],
        label_token_ids=[as_integer(each) for each in body["label_token_ids"]],
        apply_softmax=as_flag(body.get("apply_softmax", True)),
        item_first=as_flag(body.get("item_first", False)),
        add_special_tokens=as_flag(body.get("add_special_tokens", True)),
        cache_salt=body.get("cache_salt"),
        priority=as_integer(body.get("priority", 0)),
        request_id=body.get("request_id"),
    )


def check_labels(request: GenerativeScoringRequest, vocabulary_size: int) -> None:
    """Raise ApiError for labels that the model does not have, or for nothing to score."""
    for token in request.label_token_ids:
        if not 0 <= token < vocabulary_size:
            raise ApiError(
                f"label_token_id {token} is out of vocabulary range [0, {vocabulary_size}). "
                "Please provide valid token IDs."
            )
    if not request.label_token_ids:
        raise ApiError("label_token_ids must contain at least one token ID.")
    if not request.items:
        raise ApiError("items must contain at least one item.")


def check_number_of_labels(number: int, max_logprobs: int) -> None:
    """Raise ApiError for more labels than the server gives log-probabilities of; -1 bounds nothing."""
    if 0 <= max_logprobs < number:
        message = f"Requested sample logprobs of {number}, which is greater than max allowed: {max_logprobs}"
        raise bad_value(message, "logprobs", number)


def scoring_reply(
    reply_id: str, created: int, model: str, scores: Sequence[float], prompt_tokens: int
) -> dict[str, Any]:
    """The reply: the probability of the first label after each prompt. One token is generated for each."""
    return {
        "id": reply_id,
        "object": "list",
        "created": created,
        "model": model,
        "data": [{"index": index, "object": "score", "score": score} for index, score in enumerate(scores)],
        "usage": Usage(prompt_tokens, len(scores)).full(),
    }


def _text_or_ids(given: Any) -> Any:
    return given if isinstance(given, str) else [as_integer(each) for each in given]
