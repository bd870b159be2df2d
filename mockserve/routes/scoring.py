"""POST /score, /rerank and their versioned names."""

from collections.abc import Sequence

from aiohttp import web

from mockserve.answering.prefilling import prefill
from mockserve.connections.stamped import arrived_at
from mockserve.content.pooler import Pooler
from mockserve.content.vectors import best_match_sum, relevance, similarity
from mockserve.planning.prompt_fitting import cut_text, fitted, padded
from mockserve.protocol.pooling.bodies import PoolingHead, reranked, score_items
from mockserve.protocol.pooling.scoring import NUM_SCORE_KINDS, ScoringRequest, check_scoring, parse_rerank, parse_score
from mockserve.replies.identity import unix_time
from mockserve.routes.pooling import known_adapter, pooling_service
from mockserve.routes.shared import json_reply, read_body, reply_id
from mockserve.serving.planner import Terms
from mockserve.serving.service import Service


async def score(request: web.Request) -> web.StreamResponse:
    """How well texts go together, pair by pair."""
    asked = parse_score(await read_body(request, NUM_SCORE_KINDS))
    head, scores, prompt_tokens = await _scored(request, asked)
    return json_reply(head.listing(score_items(scores), prompt_tokens))


async def rerank(request: web.Request) -> web.StreamResponse:
    """Documents by how well they go with a query, the best first."""
    asked = parse_rerank(await read_body(request))
    head, scores, prompt_tokens = await _scored(request, asked)
    return json_reply(reranked(head, asked.documents, scores, asked.top_n, prompt_tokens))


async def _scored(request: web.Request, asked: ScoringRequest) -> tuple[PoolingHead, list[float], int]:
    """What the reply begins with, the score of each pair, and how many tokens were read."""
    service, pooler = pooling_service(request)
    arrived = arrived_at(request, service.driver)
    adapter = known_adapter(service, asked.model)
    check_scoring(asked, service.planner.max_model_len, pooler.architecture)
    queries = [_token_ids(service, each, asked.max_query_tokens, asked) for each in asked.queries]
    documents = [_token_ids(service, each, asked.max_document_tokens, asked) for each in asked.documents]
    head = PoolingHead(reply_id(request, "score", asked.request_id), unix_time(), service.reply_name(adapter))
    prompts = [padded(service.planner, each, asked.pads) for each in _prompts(pooler, queries, documents, asked)]
    terms = Terms(head.id, asked.cache_salt, adapter)
    requests = [service.planner.prompt_only(each, terms) for each in prompts]
    await prefill(service, requests, arrived)
    scores = [_score(pooler, queries[query], documents[document]) for query, document in asked.pairs]
    return head, scores, sum(map(len, prompts))


def _token_ids(service: Service, text: str, most_tokens: int, asked: ScoringRequest) -> list[int]:
    if most_tokens:
        tokenizer = service.planner.tokenizer
        text = tokenizer.decode(cut_text(tokenizer, text, most_tokens, keeps_end=False, add_special_tokens=False))
    return fitted(service.planner, text, asked.truncate_to, asked.truncates_left, add_special_tokens=True)


def _prompts(
    pooler: Pooler, queries: Sequence[list[int]], documents: Sequence[list[int]], asked: ScoringRequest
) -> list[list[int]]:
    """A cross-encoder reads pairs, others read each text once."""
    if pooler.task == "classify":
        return [[*queries[query], *documents[document]] for query, document in asked.pairs]
    return [*queries, *documents]


def _score(pooler: Pooler, query: list[int], document: list[int]) -> float:
    source = pooler.source
    if pooler.task == "token_embed":
        return best_match_sum(source.of_tokens(query), source.of_tokens(document))
    first, second = source.of_text(query), source.of_text(document)
    return relevance(first, second) if pooler.task == "classify" else similarity(first, second)
