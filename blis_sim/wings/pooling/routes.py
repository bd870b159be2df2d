"""Embeddings, classes and other poolings of prompts."""

import base64
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, NamedTuple, cast

import numpy as np
from aiohttp import web

from blis_sim.engine.request import Request
from blis_sim.engine.units import Micros
from blis_sim.wings.pooling.bodies import CohereEmbedInput, CohereEmbedRequest
from blis_sim.wings.pooling.pooler import Pooler
from blis_sim.wings.pooling.replies import (
    Encoding,
    PoolingHead,
    Vector,
    bytes_metadata,
    class_items,
    embedding_items,
    pooling_items,
)
from blis_sim.wings.pooling.requests import (
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
from mockserve.generation.chat_turns import free
from mockserve.http.connection import arrived_at
from mockserve.http.headers import caller_of
from mockserve.kv_events.naming import Scope
from mockserve.protocol.bodies import read_as
from mockserve.protocol.errors import ApiError
from mockserve.protocol.json_text import json_array
from mockserve.realtime.driver import unix_time
from mockserve.reply.stream import json_body
from mockserve.routes.scoring import is_large
from mockserve.routes.shared import offload, read_body, reply_id
from mockserve.serving.chat import media_in
from mockserve.serving.model import Adapter, ServedModel
from mockserve.serving.planner import check_truncation, draft_request, scope_of
from mockserve.serving.prefill import prefill
from mockserve.serving.prompts import pad_prompt, truncate_prompt
from mockserve.serving.service import SERVICE, Service

IMAGE_SCHEMES = ("http:", "https:", "data:", "file:")


def parse_cohere_embed(body: dict[str, Any]) -> tuple[CohereEmbedRequest, list[str]]:
    """Return the body and its texts. Raises ApiError for an invalid body, and for images."""
    request = read_as(CohereEmbedRequest, body)
    if request.input_type is not None:
        raise ApiError(
            f"Unsupported input_type {request.input_type!r}. "
            "This model does not define any input_type task instructions."
        )
    for image in request.images or ():
        raise _refused_image(image)
    return request, request.texts or [_input_text(each) for each in request.inputs or ()]


def check_lengths(request: CohereEmbedRequest, lengths: Sequence[int]) -> None:
    """Raise ApiError for a text longer than `max_tokens` when truncation is off."""
    if request.truncate != "NONE" or request.max_tokens is None:
        return
    for length in lengths:
        if length > request.max_tokens:
            raise ApiError(
                f"Input of {length} tokens exceeds max_tokens={request.max_tokens} with truncate=NONE. "
                "Set truncate to END or START to allow truncation."
            )


def cohere_embeddings(
    reply_id: str, request: CohereEmbedRequest, vectors: Sequence[Vector], prompt_tokens: int
) -> dict[str, Any]:
    """Return the reply. Raises ApiError for binary vectors whose size is not a multiple of 8."""
    order = ("float", "binary", "ubinary", "base64")
    embeddings = {kind: _as(kind, vectors) for kind in order if kind in (request.embedding_types or ["float"])}
    body: dict[str, Any] = {"id": reply_id, "embeddings": embeddings}
    if request.texts is not None:
        body["texts"] = request.texts
    units = {"input_tokens": prompt_tokens, "image_tokens": 0}
    body["meta"] = {"api_version": {"version": "2"}, "billed_units": units}
    return {**body, "response_type": "embeddings_by_type"}


def _as(kind: str, vectors: Sequence[Vector]) -> list[Any]:
    if kind == "float":
        return [each.tolist() for each in vectors]
    if kind == "base64":
        return [base64.b64encode(each.astype("<f4").tobytes()).decode() for each in vectors]
    size = len(vectors[0])
    if size % 8:
        raise ApiError(f"Embedding dimension must be a multiple of 8 for binary embedding types, but got {size}.")
    bits = np.packbits(np.stack(vectors) >= 0, axis=-1).astype(np.int16)
    rows: list[Any] = (bits - 128 if kind == "binary" else bits).tolist()
    return rows


def _input_text(given: CohereEmbedInput) -> str:
    for each in given.content:
        if each.type != "text":
            raise _refused_image((each.image_url or {}).get("url", ""))
    return "\n".join(each.text or "" for each in given.content)


def _refused_image(url: str) -> ApiError:
    if not url.startswith(IMAGE_SCHEMES):
        return ApiError("The URL must be either a HTTP, data or file URL.")
    return ApiError("images are not supported by a text model")


ITEMS_PER_BLOCK = 8


async def create_embedding(request: web.Request) -> web.StreamResponse:
    """Vectors of texts, token ids or conversations."""
    service, pooler = pooling_service(request)
    body = await read_body(request, NUM_EMBEDDING_KINDS)
    api_request = await offload(request, parse_embeddings, body)
    prefilled = await _prefill(request, service, api_request, body, "embd")

    def vectors() -> Iterator[Vector]:
        return (pooler.embedding(prompt, api_request.dimensions) for prompt in prefilled.prompts)

    if api_request.encoding.is_binary:
        return await _bytes_reply(request, api_request.encoding, vectors, prefilled)
    return await _listed(request, lambda: embedding_items(vectors(), api_request.encoding), prefilled)


async def create_token_embedding(request: web.Request) -> web.StreamResponse:
    """Return a vector for each token of texts or of token ids."""
    service, pooler = pooling_service(request)
    body = await read_body(request)
    api_request = await offload(request, parse_token_embeddings, body)
    prefilled = await _prefill(request, service, api_request, body, "embd")

    def items() -> Iterator[dict[str, Any]]:
        return embedding_items(
            (pooler.pooled(each, api_request.use_activation) for each in prefilled.prompts), api_request.encoding
        )

    return await _listed(request, items, prefilled)


async def pooling(request: web.Request) -> web.StreamResponse:
    """Results of the model's pooling task: vectors or probabilities, per prompt or per token."""
    service, pooler = pooling_service(request)
    body = await read_body(request, NUM_POOLING_KINDS)
    api_request = await offload(request, parse_pooling, body)
    pooler.check_task(api_request.task)
    prefilled = await _prefill(request, service, api_request, body, "pooling")

    def vectors() -> Iterator[Vector]:
        return (pooler.pooled(prompt, api_request.use_activation) for prompt in prefilled.prompts)

    if api_request.encoding.is_binary:
        return await _bytes_reply(request, api_request.encoding, vectors, prefilled)
    return await _listed(request, lambda: pooling_items(vectors(), api_request.encoding), prefilled)


async def classify(request: web.Request) -> web.StreamResponse:
    """Probabilities of the model's classes."""
    service, pooler = pooling_service(request)
    body = await read_body(request, NUM_CLASSIFY_KINDS)
    api_request = await offload(request, parse_classify, body)
    prefilled = await _prefill(request, service, api_request, body, "classify")

    def items() -> Iterator[dict[str, Any]]:
        classes = (pooler.classes(prompt, api_request.use_activation) for prompt in prefilled.prompts)
        return class_items(classes, pooler.labels)

    return await _listed(request, items, prefilled)


def pooling_service(request: web.Request) -> tuple[Service, Pooler]:
    """Return the service and pooler for a route that requires a pooling model."""
    service = request.app[SERVICE]
    pooler = service.model.pooler
    assert isinstance(pooler, Pooler)  # a condition of these routes
    return service, pooler


def find_adapter(served: ServedModel, name: str) -> Adapter | None:
    """Return the requested adapter or None. Raises ApiError for an unknown model, with pooling routes' message."""
    if name and name not in served.names and name not in served.adapters:
        raise ApiError(f"The model `{name}` does not exist.", status=404, kind="NotFoundError")
    return served.check_model(name)


async def prefill_prompts(
    request: web.Request,
    service: Service,
    prompts: Sequence[list[int]],
    num_tokens: int,
    draft: Request,
    scope: Scope,
    arrived: Micros,
    lengths: Iterable[int] | None = None,
) -> None:
    """Compute the prompts in the engine. Raises ApiError for a full queue, or if the engine refuses one."""
    service.model.queue.check_each(map(len, prompts) if lengths is None else lengths)
    planner, caller = service.model.planner, caller_of(request)
    await prefill(service.delivery, planner, prompts, num_tokens, draft, scope, arrived, caller=caller)


class _Prefilled(NamedTuple):
    """The head of a reply and its prompts, as token ids, which the engine has computed."""

    head: PoolingHead
    prompts: list[list[int]]
    num_tokens: int


async def _prefill(
    request: web.Request, service: Service, api_request: PoolingRequest, body: dict[str, Any], prefix: str
) -> _Prefilled:
    """Return the head of the reply and the prompts, after their prefill in the engine."""
    arrived = arrived_at(request, service.delivery.driver)
    adapter = find_adapter(service.model, api_request.model)
    if not api_request.prompts:
        raise ApiError("You must pass at least one prompt")
    prompts, num_tokens = await offload(request, _all_token_ids, service.model, api_request, body)
    _, pooler = pooling_service(request)
    pooler.check_dimensions(api_request.dimensions, service.model.names[0])
    head = PoolingHead(
        reply_id(request, prefix, api_request.request_id), unix_time(), service.model.reply_name(adapter)
    )
    draft, scope = draft_request(head.id, adapter, api_request.priority), scope_of(api_request.cache_salt, adapter)
    await prefill_prompts(request, service, prompts, num_tokens, draft, scope, arrived)
    return _Prefilled(head, prompts, num_tokens)


async def _listed(
    request: web.Request, items: Callable[[], Iterator[dict[str, Any]]], prefilled: _Prefilled
) -> web.StreamResponse:
    """Return a reply that lists `items`; a long list is generated while it is sent."""
    head, prompts, num_tokens = prefilled
    is_long = is_large(len(prompts), num_tokens)
    response = await json_body(request, lambda: head.listing(json_array(items, ITEMS_PER_BLOCK), num_tokens), is_long)
    await offload(request, free, prompts)
    return response


def _all_token_ids(
    model: ServedModel, api_request: PoolingRequest, body: dict[str, Any]
) -> tuple[list[list[int]], int]:
    """Return the prompts as token ids, and their length together."""
    prompts = [_token_ids(model, prompt, api_request, body) for prompt in api_request.prompts]
    return prompts, sum(map(len, prompts))


def _token_ids(model: ServedModel, prompt: Prompt, api_request: PoolingRequest, body: dict[str, Any]) -> list[int]:
    if api_request.is_chat:
        media_in(model, cast(list[Any], prompt))
        conversation = {"add_generation_prompt": False, **body, "messages": prompt}
        prompt = model.planner.conversations.prompt(conversation)
    ids = truncate_prompt(
        model.planner, prompt, api_request.truncate_to, api_request.truncates_left, api_request.add_special_tokens
    )
    return pad_prompt(model.planner, ids, api_request.pads)


async def _bytes_reply(
    request: web.Request,
    encoding: Encoding,
    vectors: Callable[[], Iterator[Vector]],
    prefilled: _Prefilled,
) -> web.StreamResponse:
    head, _, prompt_tokens = prefilled
    executor = request.app[SERVICE].delivery.executor
    response = web.StreamResponse(headers={"Content-Type": "application/octet-stream"})
    if encoding.form == "bytes":
        known = {"id": head.id, "created": head.created, "model": head.model}
        response.headers["metadata"] = await executor.run(
            True, lambda: bytes_metadata(encoding, vectors(), known, prompt_tokens)
        )
    await response.prepare(request)
    packed = map(encoding.packed, vectors())
    while part := await executor.run(True, lambda: b"".join(islice(packed, ITEMS_PER_BLOCK))):
        await response.write(part)
    await response.write_eof()
    return response


async def cohere_embed(request: web.Request) -> web.StreamResponse:
    """Vectors of texts, in Cohere's form."""
    service, pooler = pooling_service(request)
    body = await read_body(request)
    arrived = arrived_at(request, service.delivery.driver)
    api_request, texts = await offload(request, parse_cohere_embed, body)
    adapter = find_adapter(service.model, api_request.model or "")
    check_truncation(api_request.truncate_to, service.model.planner.max_model_len)
    keeps_end = api_request.truncate == "START"

    def token_ids() -> list[list[int]]:
        return [
            truncate_prompt(service.model.planner, each, api_request.truncate_to, keeps_end, True) for each in texts
        ]

    prompts = await offload(request, token_ids)
    pooler.check_dimensions(api_request.output_dimension, service.model.names[0])
    check_lengths(api_request, [len(each) for each in prompts])
    id = reply_id(request, "embd", None)
    num_tokens = sum(map(len, prompts))
    draft, scope = draft_request(id, adapter), scope_of(None, adapter)
    await prefill_prompts(request, service, prompts, num_tokens, draft, scope, arrived)

    def reply() -> dict[str, Any]:
        vectors = [pooler.embedding(each, api_request.output_dimension) for each in prompts]
        return cohere_embeddings(id, api_request, vectors, num_tokens)

    return await json_body(request, reply, is_large(len(prompts), num_tokens))
