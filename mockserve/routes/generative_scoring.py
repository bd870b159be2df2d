"""POST /generative_scoring."""

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any, overload

from aiohttp import web

from mockserve.answering.json_reply import json_body
from mockserve.answering.prefilling import prefill
from mockserve.connections.stamped import arrived_at
from mockserve.content.label_scores import label_score
from mockserve.kv_blocks.fast_hashes import token_digest
from mockserve.protocol.errors import ApiError
from mockserve.protocol.server.generative_scoring import (
    ScoringRequest,
    check_labels,
    check_number_of_labels,
    parse_scoring,
    scoring_reply,
)
from mockserve.replies.identity import unix_time
from mockserve.routes.pooling import has_many
from mockserve.routes.shared import aside, read_body, reply_id
from mockserve.serving.planner import Planner, Terms
from mockserve.serving.service import SERVICE


async def generative_scoring(request: web.Request) -> web.StreamResponse:
    """Return how likely the first label is to be the next token after the query with each item."""
    service = request.app[SERVICE]
    body = await read_body(request)
    arrived = arrived_at(request, service.driver)
    asked = await aside(request, parse_scoring, body)
    adapter = service.check_model(asked.model)
    service.check_queue(len(asked.items))
    check_labels(asked, service.deployment.model.vocab_size)
    id = reply_id(request, "generative-scoring", asked.request_id)
    prompts = await aside(request, _prompts, service.planner, asked)
    check_number_of_labels(len(asked.label_token_ids), service.options.max_logprobs)
    await aside(request, prompts.check_ids, service.deployment.model.vocab_size)
    terms = Terms(id, asked.cache_salt, adapter, asked.priority)
    prompt_tokens = sum(prompts.lengths())
    await prefill(service, prompts, prompt_tokens, terms, arrived, "length")

    def reply() -> dict[str, Any]:
        seed = service.options.seed
        scores = [label_score(token_digest(each), asked.label_token_ids, seed, asked.apply_softmax) for each in prompts]
        return scoring_reply(id, unix_time(), service.reply_name(adapter), scores, prompt_tokens)

    return await json_body(request, reply, has_many(len(prompts), prompt_tokens))


class _Prompts(Sequence[list[int]]):
    """The query with each item, cut to leave room for one token in the context; put together when it is asked for."""

    def __init__(self, query: list[int], items: Sequence[list[int]], item_first: bool, most_tokens: int) -> None:
        self._query = query
        self._items = items
        self._item_first = item_first
        self._most_tokens = most_tokens

    def __len__(self) -> int:
        return len(self._items)

    @overload
    def __getitem__(self, index: int) -> list[int]: ...

    @overload
    def __getitem__(self, index: slice) -> list[list[int]]: ...

    def __getitem__(self, index: int | slice) -> list[int] | list[list[int]]:
        if isinstance(index, slice):
            return [self[each] for each in range(*index.indices(len(self)))]
        item = self._items[index]
        joined = [*item, *self._query] if self._item_first else [*self._query, *item]
        return joined[: self._most_tokens]

    def lengths(self) -> Iterator[int]:
        """The length of each."""
        return (min(self._most_tokens, len(self._query) + len(item)) for item in self._items)

    def check_ids(self, vocabulary_size: int) -> None:
        """Raise ApiError for the first prompt that is empty or has an id that no token has."""
        parts = (self._query, *self._items)
        if all(each for each in self._items) and all(0 <= each < vocabulary_size for each in chain(*parts)):
            return
        for each in self:
            if not each:
                raise ApiError("The decoder prompt cannot be empty")
            for token_id in (max(each), min(each)):
                if not 0 <= token_id < vocabulary_size:
                    raise ApiError(f"Token id {token_id} is out of vocabulary")


def _prompts(planner: Planner, asked: ScoringRequest) -> _Prompts:
    query = _token_ids(planner, asked.query, asked.add_special_tokens)
    items = [_token_ids(planner, each, add_special_tokens=False) for each in asked.items]
    return _Prompts(query, items, asked.item_first, planner.max_model_len - 1)


def _token_ids(planner: Planner, given: str | list[int], add_special_tokens: bool) -> list[int]:
    return planner.tokenizer.encode(given, add_special_tokens) if isinstance(given, str) else given
