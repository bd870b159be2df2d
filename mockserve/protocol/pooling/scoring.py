"""The bodies of POST /score and /rerank."""

from dataclasses import dataclass, replace
from typing import Any

from mockserve.protocol.errors import ApiError
from mockserve.protocol.pooling.requests import BASIC, check_body
from mockserve.protocol.reading.containers import AnyOf, ListOf, MapOf, Named, Nullable, Record
from mockserve.protocol.reading.types import Anything, FieldType, Flag, Integer, OneOf, Text, as_integer
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
    """Texts to compare: each query with each document, or pair by pair. An empty `model` means the first name."""

    model: str
    queries: tuple[str, ...]
    documents: tuple[str, ...]
    has_media: bool
    """Whether an input is not a text; such inputs are empty here."""
    top_n: int = 0
    """How many results are wanted; 0 for all."""
    max_query_tokens: int
    """What is beyond is cut off; 0 cuts nothing, as for documents."""
    max_document_tokens: int
    truncate_to: int | None
    truncates_left: bool
    pads: bool
    """Whether a prompt is filled up to the whole context."""
    request_id: str | None
    cache_salt: str | None

    @property
    def pairs(self) -> list[tuple[int, int]]:
        """Which query meets which document, by their numbers."""
        return [(0 if len(self.queries) == 1 else index, index) for index in range(len(self.documents))]


def parse_score(body: dict[str, Any]) -> ScoringRequest:
    """Raises ApiError for whatever vLLM refuses before it looks at the model."""
    refuse_bad_salt(body.get("cache_salt"))
    check_body(body, _SCORE)
    refuse_media_arguments(body)
    pair = next(each for each, record in zip(_PAIRS, _SCORE, strict=True) if not record.problems(body, "body"))
    return _read(body, body[pair[0]], body[pair[1]])


def parse_rerank(body: dict[str, Any]) -> ScoringRequest:
    """Raises ApiError for whatever vLLM refuses before it looks at the model."""
    refuse_bad_salt(body.get("cache_salt"))
    check_body(body, _RERANK)
    refuse_media_arguments(body)
    return replace(_read(body, body["query"], body["documents"]), top_n=as_integer(body.get("top_n", 0)))


def check_scoring(request: ScoringRequest, max_model_len: int, architecture: str) -> None:
    """What vLLM refuses once the model is known. Raises ApiError."""
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
