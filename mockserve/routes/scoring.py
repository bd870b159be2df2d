"""Generative scores, and decision routes that the served models do not support."""

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any

from aiohttp import web

from mockserve.generation.answer import label_score
from mockserve.http.connection import arrived_at
from mockserve.http.headers import caller_of
from mockserve.kv_events.naming import token_digest
from mockserve.protocol.errors import ApiError
from mockserve.protocol.scoring import (
    GenerativeScoringRequest,
    check_decision,
    check_labels,
    check_number_of_labels,
    check_structured_decision,
    parse_scoring,
    scoring_reply,
    unsupported,
)
from mockserve.realtime.driver import unix_time
from mockserve.reply.stream import json_body
from mockserve.routes.shared import offload, read_body, reply_id
from mockserve.serving.planner import Planner, draft_request, scope_of
from mockserve.serving.prefill import prefill
from mockserve.serving.prompts import LazyPrompts
from mockserve.serving.service import SERVICE

FEW_PROMPTS = 16
FEW_TOKENS = 2000
"""Scores and vectors for so few tokens take a few milliseconds."""


def is_large(num_prompts: int, num_tokens: int) -> bool:
    """Whether computing all scores or vectors would block the event loop for too long."""
    return num_prompts > FEW_PROMPTS or num_tokens > FEW_TOKENS


async def generative_scoring(request: web.Request) -> web.StreamResponse:
    """Return how likely the first label is to be the next token after the query with each item."""
    service = request.app[SERVICE]
    body = await read_body(request)
    arrived = arrived_at(request, service.delivery.driver)
    api_request = await offload(request, parse_scoring, body)
    adapter = service.model.check_model(api_request.model or "")
    service.model.queue.check(len(api_request.items))
    check_labels(api_request, service.model.deployment.model.vocab_size)
    has_id = "request_id" in api_request.model_fields_set
    id = reply_id(request, "generative-scoring", api_request.request_id if has_id else None)
    prompts = await offload(request, _scored_prompts, service.model.planner, api_request)
    check_number_of_labels(len(api_request.label_token_ids), service.options.replies.max_logprobs)
    await offload(request, prompts.check_ids, service.model.deployment.model.vocab_size)
    draft, scope = draft_request(id, adapter, api_request.priority), scope_of(api_request.cache_salt, adapter)
    prompt_tokens = await offload(request, prompts.num_tokens)
    caller = caller_of(request)
    await prefill(
        service.delivery, service.model.planner, prompts, prompt_tokens, draft, scope, arrived, "length", caller
    )

    def reply() -> dict[str, Any]:
        seed = service.options.content.seed
        scores = [
            label_score(token_digest(each), api_request.label_token_ids, seed, api_request.apply_softmax)
            for each in prompts
        ]
        return scoring_reply(id, unix_time(), service.model.reply_name(adapter), scores, prompt_tokens)

    return await json_body(request, reply, is_large(len(prompts), prompt_tokens))


class _ItemPrompts(LazyPrompts):
    """The query joined lazily with each item, truncated to leave one token of the context."""

    def __init__(self, query: list[int], items: Sequence[list[int]], item_first: bool, most_tokens: int) -> None:
        self._query = query
        self._items = items
        self._item_first = item_first
        self._most_tokens = most_tokens

    def __len__(self) -> int:
        return len(self._items)

    def joined(self, index: int) -> list[int]:
        item = self._items[index]
        joined = [*item, *self._query] if self._item_first else [*self._query, *item]
        return joined[: self._most_tokens]

    def lengths(self) -> Iterator[int]:
        return (min(self._most_tokens, len(self._query) + len(item)) for item in self._items)

    def check_ids(self, vocabulary_size: int) -> None:
        """Raise ApiError for the first prompt that is empty or has a token id outside of the vocabulary."""
        parts = (self._query, *self._items)
        if all(each for each in self._items) and all(0 <= each < vocabulary_size for each in chain(*parts)):
            return
        for each in self:
            if not each:
                raise ApiError("The decoder prompt cannot be empty")
            for token_id in (max(each), min(each)):
                if not 0 <= token_id < vocabulary_size:
                    raise ApiError(f"Token id {token_id} is out of vocabulary")


def _scored_prompts(planner: Planner, api_request: GenerativeScoringRequest) -> _ItemPrompts:
    query = _item_token_ids(planner, api_request.query, api_request.add_special_tokens)
    items = [_item_token_ids(planner, each, add_special_tokens=False) for each in api_request.items]
    return _ItemPrompts(query, items, api_request.item_first, planner.max_model_len - 1)


def _item_token_ids(planner: Planner, given: str | list[int], add_special_tokens: bool) -> list[int]:
    return planner.tokenizer.encode(given, add_special_tokens) if isinstance(given, str) else given


async def decide(request: web.Request) -> web.StreamResponse:
    """Refuse a well-formed body with status 501."""
    check_decision(await read_body(request))
    raise unsupported("Decisions")


async def decide_structured(request: web.Request) -> web.StreamResponse:
    """Refuse a well-formed body with status 501."""
    check_structured_decision(await read_body(request))
    raise unsupported("structured decision")
