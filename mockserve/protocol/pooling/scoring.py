"""The bodies of scoring routes: POST /score, /rerank, /generative_scoring, /v1/decisions and /v1/systemone."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from mockserve.protocol.bodies import Usage
from mockserve.protocol.errors import ApiError, bad_value
from mockserve.protocol.pooling.requests import BASIC, check_body
from mockserve.protocol.reading.body import check_record
from mockserve.protocol.reading.containers import AnyOf, ListOf, MapOf, Named, Nullable, Record, Tagged, ValidatedType
from mockserve.protocol.reading.types import (
    LARGEST_INT64,
    SMALLEST_INT64,
    Anything,
    FieldType,
    Flag,
    Integer,
    OneOf,
    StrictFlag,
    Text,
    as_flag,
    as_integer,
)
from mockserve.protocol.refusals import refuse_bad_salt, refuse_media_arguments


def _part(name: str, kind: str, fields: dict[str, FieldType], required: tuple[str, ...]) -> FieldType:
    return Named(name, Record({**fields, "type": OneOf((kind,))}, (*required, "type"), kind="dict_type"))


def _link(field: str) -> dict[str, FieldType]:
    return {field: Record({"url": Text()}, ("url",), kind="dict_type")}


_PART = AnyOf(
    (
        _part("ChatCompletionContentPartImageParam", "image_url", _link("image_url"), ("image_url",)),
        _part("ChatCompletionContentPartImageEmbedsParam", "image_embeds", {}, ()),
        _part("ChatCompletionContentPartTextParam", "text", {"text": Text()}, ("text",)),
        _part("ChatCompletionContentPartVideoParam", "video_url", _link("video_url"), ("video_url",)),
    )
)
_MEDIA = Named("ScoreMultiModalParam", Record({"content": ListOf(_PART)}, ("content",), kind="dict_type"))
_INPUT: FieldType = AnyOf((Text(), _MEDIA))
_INPUTS: FieldType = AnyOf((Text(), _MEDIA, ListOf(_INPUT)))
_COMMON: dict[str, FieldType] = {
    "use_activation": Nullable(Flag()),
    **BASIC,
    "max_tokens_per_query": Integer(),
    "max_tokens_per_doc": Integer(),
    "instruction": Nullable(Text()),
    "chat_template_kwargs": Nullable(MapOf(Anything())),
}
_PAIRS = (("queries", "documents"), ("queries", "items"), ("data_1", "data_2"), ("text_1", "text_2"))
_SCORE = tuple(Record({**_COMMON, **dict.fromkeys(pair, _INPUTS)}, required=pair) for pair in _PAIRS)
NUM_SCORE_KINDS = len(_SCORE)
_RERANK = (
    Record(
        {**_COMMON, "query": _INPUT, "documents": _INPUTS, "top_n": Integer(at_least=0)},
        required=("query", "documents"),
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoringRequest:
    """Texts to compare: one query with each document, or pair by pair. An empty `model` means the first served name."""

    model: str
    queries: tuple[str, ...]
    documents: tuple[str, ...]
    has_media: bool
    """Whether an input is not a text; such an input is an empty text here."""
    top_n: int = 0
    """Number of results to return; 0 for all."""
    max_query_tokens: int
    """Maximum number of tokens of a query; 0 for no limit, as for documents."""
    max_document_tokens: int
    truncate_to: int | None
    truncates_left: bool
    pads: bool
    """Whether a prompt is padded to the whole context."""
    request_id: str | None
    cache_salt: str | None

    @property
    def pairs(self) -> list[tuple[int, int]]:
        """Pairs of a query and a document, by their numbers."""
        return [(0 if len(self.queries) == 1 else index, index) for index in range(len(self.documents))]


def parse_score(body: dict[str, Any]) -> ScoringRequest:
    """Parse the body. Raises ApiError for a request that vLLM refuses before it looks up the model."""
    refuse_bad_salt(body.get("cache_salt"))
    check_body(body, _SCORE)
    refuse_media_arguments(body)
    pair = next(each for each, record in zip(_PAIRS, _SCORE, strict=True) if not record.problems(body, "body"))
    return _read(body, body[pair[0]], body[pair[1]])


def parse_rerank(body: dict[str, Any]) -> ScoringRequest:
    """Parse the body. Raises ApiError for a request that vLLM refuses before it looks up the model."""
    refuse_bad_salt(body.get("cache_salt"))
    check_body(body, _RERANK)
    refuse_media_arguments(body)
    return replace(_read(body, body["query"], body["documents"]), top_n=as_integer(body.get("top_n", 0)))


def check_scoring(request: ScoringRequest, max_model_len: int, architecture: str) -> None:
    """Raise ApiError for a request that vLLM refuses once the model is known."""
    if request.has_media:
        raise ApiError(f"MultiModalParam is not supported for {architecture}")
    if len(request.queries) > 1 and len(request.queries) != len(request.documents):
        raise ApiError("Input lengths must be either 1:1, 1:N or N:N")
    if not request.queries:
        raise ApiError("At least one text element must be given")
    if not request.documents:
        raise ApiError("At least one text_pair element must be given")
    for name, value in (
        ("max_tokens_per_query", request.max_query_tokens),
        ("max_tokens_per_doc", request.max_document_tokens),
    ):
        if value < 0:
            raise ApiError(f"{name} must be a non-negative integer")
        if value >= max_model_len:
            raise ApiError(f"{name} ({value}) must be less than max_model_len ({max_model_len}).")


def _read(body: dict[str, Any], queries: Any, documents: Any) -> ScoringRequest:
    truncate_to = body.get("truncate_prompt_tokens")
    return ScoringRequest(
        model=body.get("model") or "",
        queries=_texts(queries),
        documents=_texts(documents),
        has_media=any(isinstance(each, dict) for given in (queries, documents) for each in _inputs(given)),
        max_query_tokens=as_integer(body.get("max_tokens_per_query", 0)),
        max_document_tokens=as_integer(body.get("max_tokens_per_doc", 0)),
        truncate_to=None if truncate_to is None else as_integer(truncate_to),
        truncates_left=body.get("truncation_side") != "right",
        pads=body.get("padding") == "max_length",
        request_id=body.get("request_id"),
        cache_salt=body.get("cache_salt"),
    )


def _inputs(given: Any) -> list[Any]:
    return given if isinstance(given, list) else [given]


def _texts(given: Any) -> tuple[str, ...]:
    return tuple(each if isinstance(each, str) else "" for each in _inputs(given))


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
    """A parsed generative scoring request. An empty `model` means the first served name."""

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
    """Parse the body. Raises ApiError for an invalid body."""
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
    """Raise ApiError for labels outside the vocabulary, and for a request without items."""
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
    """Raise ApiError for more labels than the server allows log-probabilities; -1 is no limit."""
    if 0 <= max_logprobs < number:
        message = f"Requested sample logprobs of {number}, which is greater than max allowed: {max_logprobs}"
        raise bad_value(message, "logprobs", number)


def scoring_reply(
    reply_id: str, created: int, model: str, scores: Sequence[float], prompt_tokens: int
) -> dict[str, Any]:
    """Return the reply: the probability of the first label after each prompt. One token is generated for each."""
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


MAX_TEXT_CHARS = 1_048_576
MAX_INPUT_CHARS = 10_485_760


def _image_error(message: Any) -> str | None:
    parts = message.get("content") if isinstance(message, dict) else None
    if isinstance(parts, list) and any(isinstance(each, dict) and each.get("type") == "input_image" for each in parts):
        return "Decisions supports text input only; images are not supported"
    return None


def _name_error(question: Any) -> str | None:
    return "name must be a string when provided" if question.get("name", "") is None else None


def _choice_error(question: Any) -> str | None:
    values = [(type(each["value"]), each["value"]) for each in question["choices"]]
    return _name_error(question) or ("choice values must be distinct" if len(set(values)) < len(values) else None)


def _closed(fields: dict[str, FieldType], required: tuple[str, ...]) -> Record:
    return Record(fields, required, forbids_others=True)


_SHORT = Text(max_chars=MAX_TEXT_CHARS)
_LONG = Named("constrained-str", Text(max_chars=MAX_INPUT_CHARS))
_INPUT_TEXT = _closed({"type": OneOf(("input_text",)), "text": Text(max_chars=MAX_INPUT_CHARS)}, ("type", "text"))
_MESSAGE = ValidatedType(
    _closed(
        {
            "role": OneOf(("user",)),
            "content": AnyOf((_LONG, ListOf(_INPUT_TEXT, at_most=16384))),
            "type": OneOf(("message",)),
        },
        ("role", "content"),
    ),
    _image_error,
    is_first=True,
)
_QUESTION: dict[str, FieldType] = {"instructions": _SHORT, "name": Nullable(_SHORT)}
_CHOICE = _closed({"value": AnyOf((Text(), StrictFlag())), "description": _SHORT}, ("value",))
_LEVEL = _closed({"label": _SHORT, "description": _SHORT}, ("label",))
_QUESTIONS = Tagged(
    "type",
    {
        "predicate": ValidatedType(
            _closed({**_QUESTION, "type": OneOf(("predicate",))}, ("instructions", "type")), _name_error
        ),
        "choice": ValidatedType(
            _closed(
                {**_QUESTION, "type": OneOf(("choice",)), "choices": ListOf(_CHOICE, at_most=255, at_least=2)},
                ("instructions", "type", "choices"),
            ),
            _choice_error,
        ),
        "score": ValidatedType(
            _closed(
                {**_QUESTION, "type": OneOf(("score",)), "levels": ListOf(_LEVEL, at_most=10, at_least=2)},
                ("instructions", "type", "levels"),
            ),
            _name_error,
        ),
    },
)
_DECISION = _closed(
    {
        "model": _SHORT,
        "input": AnyOf((_LONG, ListOf(_MESSAGE, at_most=131072))),
        "questions": ListOf(_QUESTIONS, at_most=200, at_least=1),
        "safety_identifier": Nullable(Text(max_chars=128)),
        "joint": StrictFlag(),
        "cache_salt": Nullable(Text(max_chars=1024, min_chars=1)),
    },
    ("model", "input", "questions"),
)
_LINKS = Nullable(ListOf(Text()))
_STRUCTURED_DECISION = _closed(
    {
        "model": Nullable(Text()),
        "state": Anything(),
        "questions": MapOf(Record({"type": Text(), "instructions": Anything(), "criteria": Anything()}, ("type",))),
        "instructions": Nullable(Text()),
        "images": _LINKS,
        "audio": _LINKS,
        "videos": _LINKS,
        "chat_template_kwargs": Nullable(MapOf(Anything())),
        "joint": StrictFlag(),
        "cache_salt": Nullable(Text()),
        "priority": Integer(at_least=SMALLEST_INT64, at_most=LARGEST_INT64),
        "request_id": Text(),
    },
    ("state", "questions"),
)


def check_decision(body: dict[str, Any]) -> None:
    """Raise ApiError for an invalid body of POST /v1/decisions."""
    refuse_bad_salt(body.get("cache_salt"))
    check_record(body, _DECISION)


def check_structured_decision(body: dict[str, Any]) -> None:
    """Raise ApiError for an invalid body of POST /v1/systemone."""
    refuse_bad_salt(body.get("cache_salt"))
    check_record(body, _STRUCTURED_DECISION)


def unsupported(interface: str) -> ApiError:
    """Return the error of a model that does not make decisions; few models do."""
    return ApiError(f"The model does not support the {interface} API", status=501, kind="NotImplementedError")
