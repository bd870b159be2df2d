"""Embeddings, classes and other poolings of prompts."""

from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Any, cast

from aiohttp import web

from mockserve.generation.pooler import Pooler
from mockserve.in_flight_request import unix_time
from mockserve.planning.prompts import fitted, padded
from mockserve.protocol.completions.messages import media_of
from mockserve.protocol.errors import ApiError
from mockserve.protocol.json_text import json_array
from mockserve.protocol.pooling.bodies import (
    Encoding,
    PoolingHead,
    Vector,
    bytes_metadata,
    class_items,
    embedding_items,
    pooling_items,
)
from mockserve.protocol.pooling.cohere import check_lengths, check_max_tokens, cohere_embeddings, parse_cohere_embed
from mockserve.protocol.pooling.requests import (
    NUM_CLASSIFY_KINDS,
    NUM_EMBEDDING_KINDS,
    NUM_POOLING_KINDS,
    PoolingRequest,
    Prompt,
    parse_classify,
    parse_embeddings,
    parse_pooling,
    parse_token_embeddings,
)
from mockserve.responding.answer import json_body
from mockserve.responding.submission import prefill
from mockserve.routes.shared import aside, read_body, reply_id
from mockserve.serving.model import Adapter, ServedModel
from mockserve.serving.planner import RequestContext
from mockserve.serving.service import SERVICE, Service
from mockserve.transport.clients import arrived_at, caller_of

FEW_PROMPTS = 16
FEW_TOKENS = 2000
"""Vectors for so few tokens take a few milliseconds."""

ITEMS_PER_BLOCK = 8


async def create_embedding(request: web.Request) -> web.StreamResponse:
    """Vectors of texts, token ids or conversations."""
    service, pooler = pooling_service(request)
    body = await read_body(request, NUM_EMBEDDING_KINDS)
    asked = await aside(request, parse_embeddings, body)
    head, prompts = await _pooled(request, service, asked, body, "embd")

    def vectors() -> Iterator[Vector]:
        return (pooler.embedding(prompt, asked.dimensions) for prompt in prompts)

    if asked.encoding.is_binary:
        return await _bytes_reply(request, asked.encoding, vectors, head, _total(prompts))
    return await _listed(request, head, lambda: embedding_items(vectors(), asked.encoding), prompts)


async def create_token_embedding(request: web.Request) -> web.StreamResponse:
    """Return a vector for each token of texts or of token ids."""
    service, pooler = pooling_service(request)
    body = await read_body(request)
    asked = await aside(request, parse_token_embeddings, body)
    head, prompts = await _pooled(request, service, asked, body, "embd")

    def items() -> Iterator[dict[str, Any]]:
        return embedding_items((pooler.pooled(each, asked.use_activation) for each in prompts), asked.encoding)

    return await _listed(request, head, items, prompts)


async def pooling(request: web.Request) -> web.StreamResponse:
    """Results of the model's pooling task: vectors or probabilities, per prompt or per token."""
    service, pooler = pooling_service(request)
    body = await read_body(request, NUM_POOLING_KINDS)
    asked = await aside(request, parse_pooling, body)
    pooler.check_task(asked.task)
    head, prompts = await _pooled(request, service, asked, body, "pooling")

    def vectors() -> Iterator[Vector]:
        return (pooler.pooled(prompt, asked.use_activation) for prompt in prompts)

    if asked.encoding.is_binary:
        return await _bytes_reply(request, asked.encoding, vectors, head, _total(prompts))
    return await _listed(request, head, lambda: pooling_items(vectors(), asked.encoding), prompts)


async def classify(request: web.Request) -> web.StreamResponse:
    """Probabilities of the model's classes."""
    service, pooler = pooling_service(request)
    body = await read_body(request, NUM_CLASSIFY_KINDS)
    asked = await aside(request, parse_classify, body)
    head, prompts = await _pooled(request, service, asked, body, "classify")

    def items() -> Iterator[dict[str, Any]]:
        classes = (pooler.classes(prompt, asked.use_activation) for prompt in prompts)
        return class_items(classes, pooler.labels)

    return await _listed(request, head, items, prompts)


def pooling_service(request: web.Request) -> tuple[Service, Pooler]:
    """Return the service and pooler for a route that requires a pooling model."""
    service = request.app[SERVICE]
    pooler = service.model.pooler
    assert pooler is not None
    return service, pooler


def known_adapter(served: ServedModel, name: str) -> Adapter | None:
    """Return the requested adapter or None. Raises ApiError for an unknown model, with pooling routes' message."""
    if name and name not in served.names and name not in served.adapters:
        raise ApiError(f"The model `{name}` does not exist.", status=404, kind="NotFoundError")
    return served.check_model(name)


async def _pooled(
    request: web.Request, service: Service, asked: PoolingRequest, body: dict[str, Any], prefix: str
) -> tuple[PoolingHead, list[list[int]]]:
    """Return the head of the reply and the prompts as token ids, after their prefill in the engine."""
    arrived = arrived_at(request, service.delivery.driver)
    adapter = known_adapter(service.model, asked.model)
    if not asked.prompts:
        raise ApiError("You must pass at least one prompt")
    prompts = await aside(request, _all_token_ids, service.model, asked, body)
    assert service.model.pooler is not None
    service.model.pooler.check_dimensions(asked.dimensions, service.model.names[0])
    head = PoolingHead(reply_id(request, prefix, asked.request_id), unix_time(), service.model.reply_name(adapter))
    terms = RequestContext(head.id, asked.cache_salt, adapter, asked.priority)
    await prefill(
        service.delivery, service.model.planner, prompts, _total(prompts), terms, arrived, caller=caller_of(request)
    )
    return head, prompts


def has_many(num_prompts: int, num_tokens: int) -> bool:
    """Whether computing all vectors would block the event loop for too long."""
    return num_prompts > FEW_PROMPTS or num_tokens > FEW_TOKENS


async def _listed(
    request: web.Request, head: PoolingHead, items: Callable[[], Iterator[dict[str, Any]]], prompts: list[list[int]]
) -> web.StreamResponse:
    """Return a reply that lists `items`; a long list is generated while it is sent."""
    total = _total(prompts)
    is_long = has_many(len(prompts), total)
    return await json_body(request, lambda: head.listing(json_array(items, ITEMS_PER_BLOCK), total), is_long)


def _all_token_ids(model: ServedModel, asked: PoolingRequest, body: dict[str, Any]) -> list[list[int]]:
    return [_token_ids(model, prompt, asked, body) for prompt in asked.prompts]


def _token_ids(model: ServedModel, prompt: Prompt, asked: PoolingRequest, body: dict[str, Any]) -> list[int]:
    if asked.is_chat:
        if media_of(cast(list[Any], prompt)) and not model.options.replies.tokens_per_medium:
            raise ApiError(f"{model.names[0]} is not a multimodal model")
        conversation = {"add_generation_prompt": False, **body, "messages": prompt}
        prompt = model.planner.conversations.prompt(conversation)
    ids = fitted(model.planner, prompt, asked.truncate_to, asked.truncates_left, asked.add_special_tokens)
    return padded(model.planner, ids, asked.pads)


async def _bytes_reply(
    request: web.Request,
    encoding: Encoding,
    vectors: Callable[[], Iterator[Vector]],
    head: PoolingHead,
    prompt_tokens: int,
) -> web.StreamResponse:
    aside = request.app[SERVICE].delivery.aside
    response = web.StreamResponse(headers={"Content-Type": "application/octet-stream"})
    if encoding.form == "bytes":
        known = {"id": head.id, "created": head.created, "model": head.model}
        response.headers["metadata"] = await aside.run(
            True, lambda: bytes_metadata(encoding, vectors(), known, prompt_tokens)
        )
    await response.prepare(request)
    packed = map(encoding.packed, vectors())
    while part := await aside.run(True, lambda: b"".join(islice(packed, ITEMS_PER_BLOCK))):
        await response.write(part)
    await response.write_eof()
    return response


def _total(prompts: Sequence[Sequence[int]]) -> int:
    return sum(map(len, prompts))


async def cohere_embed(request: web.Request) -> web.StreamResponse:
    """Vectors of texts, in Cohere's form."""
    service, pooler = pooling_service(request)
    body = await read_body(request)
    arrived = arrived_at(request, service.delivery.driver)
    asked = await aside(request, parse_cohere_embed, body)
    adapter = known_adapter(service.model, asked.model)
    check_max_tokens(asked, service.model.planner.max_model_len)
    keeps_end = asked.truncate == "START"

    def token_ids() -> list[list[int]]:
        return [fitted(service.model.planner, each, asked.truncate_to, keeps_end, True) for each in asked.texts]

    prompts = await aside(request, token_ids)
    pooler.check_dimensions(asked.dimensions, service.model.names[0])
    check_lengths(asked, [len(each) for each in prompts])
    id = reply_id(request, "embd", None)
    num_tokens = sum(map(len, prompts))
    terms = RequestContext(id, lora=adapter)
    await prefill(
        service.delivery, service.model.planner, prompts, num_tokens, terms, arrived, caller=caller_of(request)
    )

    def reply() -> dict[str, Any]:
        vectors = [pooler.embedding(each, asked.dimensions) for each in prompts]
        return cohere_embeddings(id, asked, vectors, num_tokens)

    return await json_body(request, reply, has_many(len(prompts), num_tokens))
