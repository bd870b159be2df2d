"""POST /v1/embeddings, /pooling and /classify."""

from typing import Any, cast

from aiohttp import web

from mockserve.answering.prefilling import prefill
from mockserve.connections.stamped import arrived_at
from mockserve.content.pooler import Pooler
from mockserve.planning.prompt_fitting import fitted, padded
from mockserve.protocol.completions.messages import media_of
from mockserve.protocol.errors import ApiError
from mockserve.protocol.json_text import reply_json
from mockserve.protocol.pooling.bodies import PoolingHead, class_items, embedding_items, pooling_items
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
from mockserve.protocol.pooling.vectors import Encoding, Vector, bytes_metadata
from mockserve.replies.identity import unix_time
from mockserve.routes.shared import json_reply, read_body, reply_id
from mockserve.serving.adapters import Adapter
from mockserve.serving.planner import Terms
from mockserve.serving.service import SERVICE, Service


async def create_embedding(request: web.Request) -> web.StreamResponse:
    """Vectors of texts, token ids or conversations."""
    service, pooler = pooling_service(request)
    body = await read_body(request, NUM_EMBEDDING_KINDS)
    asked = parse_embeddings(body)
    head, prompts = await _pooled(request, service, asked, body, "embd")
    vectors = [pooler.embedding(prompt, asked.dimensions) for prompt in prompts]
    if asked.encoding.is_binary:
        return await _bytes_reply(request, asked.encoding, vectors, head, _total(prompts))
    items = embedding_items(vectors, asked.encoding)
    return web.Response(body=reply_json(head.listing(items, _total(prompts))), content_type="application/json")


async def create_token_embedding(request: web.Request) -> web.StreamResponse:
    """Return a vector for each token of texts or of token ids."""
    service, pooler = pooling_service(request)
    body = await read_body(request)
    asked = parse_token_embeddings(body)
    head, prompts = await _pooled(request, service, asked, body, "embd")
    items = embedding_items([pooler.pooled(prompt, asked.use_activation) for prompt in prompts], asked.encoding)
    return json_reply(head.listing(items, _total(prompts)))


async def pooling(request: web.Request) -> web.StreamResponse:
    """What the model's own task makes of prompts: vectors, probabilities, or either for each token."""
    service, pooler = pooling_service(request)
    body = await read_body(request, NUM_POOLING_KINDS)
    asked = parse_pooling(body)
    pooler.check_task(asked.task)
    head, prompts = await _pooled(request, service, asked, body, "pooling")
    vectors = [pooler.pooled(prompt, asked.use_activation) for prompt in prompts]
    if asked.encoding.is_binary:
        return await _bytes_reply(request, asked.encoding, vectors, head, _total(prompts))
    return json_reply(head.listing(pooling_items(vectors, asked.encoding), _total(prompts)))


async def classify(request: web.Request) -> web.StreamResponse:
    """Probabilities of the model's classes."""
    service, pooler = pooling_service(request)
    body = await read_body(request, NUM_CLASSIFY_KINDS)
    asked = parse_classify(body)
    head, prompts = await _pooled(request, service, asked, body, "classify")
    classes = [pooler.classes(prompt, asked.use_activation) for prompt in prompts]
    return json_reply(head.listing(class_items(classes, pooler.labels), _total(prompts)))


def pooling_service(request: web.Request) -> tuple[Service, Pooler]:
    """The service of a route that only a pooling model has."""
    service = request.app[SERVICE]
    pooler = service.pooler
    assert pooler is not None
    return service, pooler


def known_adapter(service: Service, model: str) -> Adapter | None:
    """The adapter asked for, if it is one. Raises ApiError for an unknown model, in these routes' own words."""
    if model and model not in service.model_names and model not in service.adapters:
        raise ApiError(f"The model `{model}` does not exist.", status=404, kind="NotFoundError")
    return service.check_model(model)


async def _pooled(
    request: web.Request, service: Service, asked: PoolingRequest, body: dict[str, Any], prefix: str
) -> tuple[PoolingHead, list[list[int]]]:
    """The prompts as token ids, once the engine has read them, and what the reply begins with."""
    arrived = arrived_at(request, service.driver)
    adapter = known_adapter(service, asked.model)
    if not asked.prompts:
        raise ApiError("You must pass at least one prompt")
    prompts = [_token_ids(service, prompt, asked, body) for prompt in asked.prompts]
    assert service.pooler is not None
    service.pooler.check_dimensions(asked.dimensions, service.model_names[0])
    head = PoolingHead(reply_id(request, prefix, asked.request_id), unix_time(), service.reply_name(adapter))
    terms = Terms(head.id, asked.cache_salt, adapter, asked.priority)
    await prefill(service, [service.planner.prompt_only(each, terms) for each in prompts], arrived)
    return head, prompts


def _token_ids(service: Service, prompt: Prompt, asked: PoolingRequest, body: dict[str, Any]) -> list[int]:
    if asked.is_chat:
        if media_of(cast(list[Any], prompt)) and not service.options.tokens_per_medium:
            raise ApiError(f"{service.model_names[0]} is not a multimodal model")
        told = {"add_generation_prompt": False, **body, "messages": prompt}
        prompt = service.planner.conversations.prompt(told)
    ids = fitted(service.planner, prompt, asked.truncate_to, asked.truncates_left, asked.add_special_tokens)
    return padded(service.planner, ids, asked.pads)


async def _bytes_reply(
    request: web.Request, encoding: Encoding, vectors: list[Vector], head: PoolingHead, prompt_tokens: int
) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Type": "application/octet-stream"})
    if encoding.form == "bytes":
        known = {"id": head.id, "created": head.created, "model": head.model}
        response.headers["metadata"] = bytes_metadata(encoding, vectors, known, prompt_tokens)
    await response.prepare(request)
    for vector in vectors:
        await response.write(encoding.packed(vector))
    await response.write_eof()
    return response


def _total(prompts: list[list[int]]) -> int:
    return sum(map(len, prompts))
