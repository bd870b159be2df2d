"""Texts to compare, as POST /score and /rerank have them."""

from dataclasses import dataclass, replace
from typing import Any

from blis_sim.wings.pooling.bodies import RerankRequest, ScoreBody, Scored, ScoreInputs
from blis_sim.wings.pooling.requests import BasicRequest, basic_fields
from mockserve.protocol.bodies import read_as
from mockserve.protocol.errors import ApiError
from mockserve.protocol.sampling import refuse_bad_salt, refuse_media_arguments

NUM_SCORE_KINDS = 4
"""Number of types of a body of POST /score. A body that is no object is refused once for each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoringRequest(BasicRequest):
    """Texts to compare: one query with each document, or pair by pair."""

    queries: tuple[str, ...]
    documents: tuple[str, ...]
    has_media: bool
    """Whether an input is not a text; such an input is an empty text here."""
    top_n: int = 0
    """Number of results to return; 0 for all."""
    max_query_tokens: int
    """Maximum number of tokens of a query; 0 for no limit, as for documents."""
    max_document_tokens: int

    def query_of(self, document: int) -> int:
        """Return the number of the query that a document is compared with."""
        return 0 if len(self.queries) == 1 else document


def parse_score(body: dict[str, Any]) -> ScoringRequest:
    """Parse the body. Raises ApiError for a request that vLLM refuses before it looks up the model."""
    refuse_bad_salt(body.get("cache_salt"))
    found: Scored = read_as(ScoreBody, body).root
    refuse_media_arguments(body)
    queries, documents = list(type(found).model_fields)[-2:]
    return _read(found, getattr(found, queries), getattr(found, documents))


def parse_rerank(body: dict[str, Any]) -> ScoringRequest:
    """Parse the body. Raises ApiError for a request that vLLM refuses before it looks up the model."""
    refuse_bad_salt(body.get("cache_salt"))
    found = read_as(RerankRequest, body)
    refuse_media_arguments(body)
    return replace(_read(found, found.query, found.documents), top_n=found.top_n)


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


def _read(body: Scored, queries: ScoreInputs, documents: ScoreInputs) -> ScoringRequest:
    return ScoringRequest(
        **basic_fields(body),
        queries=_texts(queries),
        documents=_texts(documents),
        has_media=any(isinstance(each, dict) for given in (queries, documents) for each in _inputs(given)),
        max_query_tokens=body.max_tokens_per_query,
        max_document_tokens=body.max_tokens_per_doc,
    )


def _inputs(given: Any) -> list[Any]:
    return given if isinstance(given, list) else [given]


def _texts(given: Any) -> tuple[str, ...]:
    return tuple(each if isinstance(each, str) else "" for each in _inputs(given))
