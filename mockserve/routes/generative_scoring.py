"""POST /generative_scoring."""

from collections.abc import Sequence

from aiohttp import web

from mockserve.answering.prefilling import prefill
from mockserve.connections.stamped import arrived_at
from mockserve.content.label_scores import label_score
from mockserve.content.tokens.aside import encode_aside
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
from mockserve.routes.shared import json_reply, read_body, reply_id
from mockserve.serving.planner import Planner, Terms
from mockserve.serving.service import SERVICE


async def generative_scoring(request: web.Request) -> web.StreamResponse:
    """Return how likely the first label is to be the next token after the query with each item."""
    service = request.app[SERVICE]
    body = await read_body(request)
    arrived = arrived_at(request, service.driver)
    asked = parse_scoring(body)
    adapter = service.check_model(asked.model)
    service.check_queue(len(asked.items))
    check_labels(asked, service.deployment.model.vocab_size)
    id = reply_id(request, "generative-scoring", asked.request_id)
    prompts = await _prompts(service.planner, asked)
    check_number_of_labels(len(asked.label_token_ids), service.options.max_logprobs)
    for each in prompts:
        _check_ids(each, service.deployment.model.vocab_size)
    terms = Terms(id, asked.cache_salt, adapter, asked.priority)
    requests = [service.planner.prompt_only(each, terms) for each in prompts]
    await prefill(service, requests, arrived, "length")
    seed = service.options.seed
    scores = [label_score(token_digest(each), asked.label_token_ids, seed, asked.apply_softmax) for each in prompts]
    prompt_tokens = sum(map(len, prompts))
    return json_reply(scoring_reply(id, unix_time(), service.reply_name(adapter), scores, prompt_tokens))


async def _prompts(planner: Planner, asked: ScoringRequest) -> list[list[int]]:
    """Return the query with each item, cut to leave room for one token in the context."""
    query = await _token_ids(planner, asked.query, asked.add_special_tokens)
    prompts = []
    for item in asked.items:
        ids = await _token_ids(planner, item, add_special_tokens=False)
        joined = [*ids, *query] if asked.item_first else [*query, *ids]
        prompts.append(joined[: planner.max_model_len - 1])
    return prompts


async def _token_ids(planner: Planner, given: str | list[int], add_special_tokens: bool) -> list[int]:
    return await encode_aside(planner.tokenizer, given, add_special_tokens) if isinstance(given, str) else given


def _check_ids(prompt: Sequence[int], vocabulary_size: int) -> None:
    if not prompt:
        raise ApiError("The decoder prompt cannot be empty")
    for each in (max(prompt), min(prompt)):
        if not 0 <= each < vocabulary_size:
            raise ApiError(f"Token id {each} is out of vocabulary")
