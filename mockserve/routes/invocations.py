"""POST /invocations: whatever the model can do, told apart by the fields of the body."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from aiohttp import web

from mockserve.protocol.errors import ApiError, bad_request, wrong_media_type
from mockserve.routes.chat import chat_completions
from mockserve.routes.completions import completions
from mockserve.routes.handlers import Handler
from mockserve.routes.pooling import classify, create_embedding, pooling
from mockserve.routes.scoring import rerank, score
from mockserve.serving.gates import Gate
from mockserve.serving.service import SERVICE


@dataclass(frozen=True, slots=True)
class _Use:
    """One use of a model: a body that has all of `fields`, one of each group, asks for it."""

    gate: Gate
    fields: Sequence[tuple[str, ...]]
    handler: Handler
    name: str


_TEXTS = ("input", "messages")
_USES = (
    _Use(Gate.GENERATION, (("messages",),), chat_completions, "ChatCompletionRequest"),
    _Use(Gate.GENERATION, (), completions, "CompletionRequest"),
    _Use(Gate.EMBED, (_TEXTS,), create_embedding, "EmbeddingRequest"),
    _Use(Gate.CLASSIFY, (_TEXTS,), classify, "ClassificationRequest"),
    _Use(Gate.SCORE, (("query",), ("documents",)), rerank, "RerankRequest"),
    _Use(Gate.SCORE, (("text_1", "queries", "data_1"), ("text_2", "items", "documents", "data_2")), score, "Score"),
    _Use(Gate.POOLING, ((*_TEXTS, "data"),), pooling, "PoolingRequest"),
)


async def invocations(request: web.Request) -> web.StreamResponse:
    """Do what the body asks for."""
    if request.content_type != "application/json":
        raise wrong_media_type()
    try:
        body: Any = json.loads(await request.read())
    except ValueError as error:
        raise bad_request(f"JSON decode error: {error}") from None
    if isinstance(body, list):
        raise ApiError("list indices must be integers or slices, not str")
    open_uses = [each for each in _USES if each.gate in request.app[SERVICE].gates]
    for use in open_uses:
        if isinstance(body, dict) and all(any(name in body for name in group) for group in use.fields):
            return await use.handler(request)
    names = [each.name for each in open_uses]
    raise ApiError(f"Cannot find suitable handler for request. Expected one of: {names}")
