"""Scores and rankings of texts."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

from aiohttp import web

from blis_sim.wings.pooling.bodies import RerankRequest, ScoreBody, Scored, ScoreInputs
from blis_sim.wings.pooling.pooler import Pooler, best_match_sum, relevance, similarity
from blis_sim.wings.pooling.replies import PoolingHead, rerank_reply, score_items
from blis_sim.wings.pooling.requests import BasicRequest, basic_fields
from blis_sim.wings.pooling.routes import find_adapter, pooling_service, prefill_prompts
from mockserve.generation.chat_turns import free
from mockserve.http.connection import arrived_at
from mockserve.protocol.bodies import read_as
from mockserve.protocol.errors import ApiError
from mockserve.protocol.sampling import refuse_bad_salt, refuse_media_arguments
from mockserve.realtime.driver import unix_time
from mockserve.reply.stream import json_body
from mockserve.routes.scoring import is_large
from mockserve.routes.shared import is_long, offload, read_body, reply_id
from mockserve.serving.model import ServedModel
from mockserve.serving.planner import Planner, draft_request, scope_of
from mockserve.serving.prompts import LazyPrompts, cut_text, pad_prompt, truncate_prompt

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


async def score(request: web.Request) -> web.StreamResponse:
    """Scores of texts, pair by pair."""
    api_request = await offload(request, parse_score, await read_body(request, NUM_SCORE_KINDS))
    head, scores, prompt_tokens = await _scored(request, api_request)
    return await json_body(request, lambda: head.listing(score_items(scores), prompt_tokens), is_long(request))


async def rerank(request: web.Request) -> web.StreamResponse:
    """Documents ranked by their score for a query, the highest first."""
    api_request = await offload(request, parse_rerank, await read_body(request))
    head, scores, prompt_tokens = await _scored(request, api_request)

    def reply() -> dict[str, Any]:
        return rerank_reply(head, api_request.documents, scores, api_request.top_n, prompt_tokens)

    return await json_body(request, reply, is_long(request))


async def _scored(request: web.Request, api_request: ScoringRequest) -> tuple[PoolingHead, list[float], int]:
    """Return the head of the reply, the score of each pair, and the number of prompt tokens."""
    service, pooler = pooling_service(request)
    arrived = arrived_at(request, service.delivery.driver)
    adapter = find_adapter(service.model, api_request.model)
    check_scoring(api_request, service.model.planner.max_model_len, pooler.architecture)
    queries, documents, prompts = await offload(request, _all_token_ids, service.model, pooler, api_request)
    head = PoolingHead(
        reply_id(request, "score", api_request.request_id), unix_time(), service.model.reply_name(adapter)
    )
    num_tokens = await offload(request, prompts.num_tokens)
    draft, scope = draft_request(head.id, adapter), scope_of(api_request.cache_salt, adapter)
    await prefill_prompts(request, service, prompts, num_tokens, draft, scope, arrived, prompts.lengths())

    def scores() -> list[float]:
        query_of = api_request.query_of
        results = [_score(pooler, queries[query_of(index)], document) for index, document in enumerate(documents)]
        free(documents)
        return results

    found = await service.delivery.executor.run(True, scores) if is_large(len(prompts), num_tokens) else scores()
    return head, found, num_tokens


def _all_token_ids(
    model: ServedModel, pooler: Pooler, api_request: ScoringRequest
) -> tuple[list[list[int]], list[list[int]], "_Prompts"]:
    """Return the token ids of the queries, of the documents, and of the prompts for the engine."""
    queries = [_token_ids(model, each, api_request.max_query_tokens, api_request) for each in api_request.queries]
    documents = [
        _token_ids(model, each, api_request.max_document_tokens, api_request) for each in api_request.documents
    ]
    query_of = api_request.query_of if pooler.task == "classify" else None
    return queries, documents, _Prompts(model.planner, queries, documents, query_of, api_request.pads)


def _token_ids(model: ServedModel, text: str, most_tokens: int, api_request: ScoringRequest) -> list[int]:
    if most_tokens:
        tokenizer = model.planner.tokenizer
        text = tokenizer.decode(cut_text(tokenizer, text, most_tokens, keeps_end=False, add_special_tokens=False))
    return truncate_prompt(
        model.planner, text, api_request.truncate_to, api_request.truncates_left, add_special_tokens=True
    )


class _Prompts(LazyPrompts):
    """Prompts for the engine: one per pair of texts for a cross-encoder, else one per text."""

    def __init__(
        self,
        planner: Planner,
        queries: Sequence[list[int]],
        documents: Sequence[list[int]],
        query_of: Callable[[int], int] | None,
        pads: bool,
    ) -> None:
        self._planner = planner
        self._pads = pads
        self._queries = queries
        self._documents = documents
        self._query_of = query_of
        """Number of the query that goes with each document; None where texts are prompts of their own."""

    def __len__(self) -> int:
        return len(self._documents) + (len(self._queries) if self._query_of is None else 0)

    def joined(self, index: int) -> list[int]:
        return pad_prompt(self._planner, self._bare(index), self._pads)

    def _bare(self, index: int) -> list[int]:
        if self._query_of is not None:
            return [*self._queries[self._query_of(index)], *self._documents[index]]
        return self._queries[index] if index < len(self._queries) else self._documents[index - len(self._queries)]

    def lengths(self) -> Iterator[int]:
        least = self._planner.max_model_len if self._pads else 0
        return (max(least, each) for each in self._bare_lengths())

    def _bare_lengths(self) -> Iterator[int]:
        query_of = self._query_of
        if query_of is None:
            return map(len, chain(self._queries, self._documents))
        return (len(self._queries[query_of(index)]) + len(each) for index, each in enumerate(self._documents))


def _score(pooler: Pooler, query: list[int], document: list[int]) -> float:
    source = pooler.source
    if pooler.task == "token_embed":
        return best_match_sum(source.of_tokens(query), source.of_tokens(document))
    first, second = source.of_text(query), source.of_text(document)
    return relevance(first, second) if pooler.task == "classify" else similarity(first, second)
