"""POST /invocations: whatever the model can do, told apart by which type of request the body is."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

from aiohttp import web

from mockserve.protocol.completions.chat import parse_chat
from mockserve.protocol.completions.text import parse_completion
from mockserve.protocol.errors import INVALID_BODY, ApiError, bad_request, wrong_media_type
from mockserve.protocol.pooling.requests import parse_classify, parse_embeddings, parse_pooling
from mockserve.protocol.pooling.scoring import parse_rerank, parse_score
from mockserve.routes.chat import chat_completions
from mockserve.routes.completions import completions
from mockserve.routes.handlers import Handler
from mockserve.routes.pooling import classify, create_embedding, pooling
from mockserve.routes.scoring import rerank, score
from mockserve.serving.gates import Gate
from mockserve.serving.service import SERVICE

_FOLDER = "vllm.entrypoints.pooling"
_CHECKED = (
    "BeforeValidator(func=<function reject_removed_pooling_parameters>, json_schema_input_type=PydanticUndefined)"
)
_NOT_ITERABLE: Mapping[type, str] = {type(None): "NoneType", int: "int", float: "float", bool: "bool"}


def _union(module: str, *names: str, is_checked: bool = True) -> str:
    """Return how a union of types of requests shows itself."""
    joined = " | ".join(f"{_FOLDER}.{module}.protocol.{name}" for name in names)
    return f"typing.Annotated[{joined}, {_CHECKED}]" if is_checked else joined


@dataclass(frozen=True, slots=True)
class _Use:
    """One use of a model: a body asks for it when `parse` finds it to be of the use's type."""

    gate: Gate
    parse: Callable[[dict[str, Any]], object]
    handler: Handler
    name: str


_EMBEDDING = _union(
    "embed",
    "EmbeddingCompletionRequest",
    "EmbeddingChatRequest",
    "EmbeddingBatchChatRequest",
    "EmbeddingChatInputRequest",
    "EmbeddingBatchChatInputRequest",
)
_SCORE = _union(
    "scoring",
    "ScoreQueriesDocumentsRequest",
    "ScoreQueriesItemsRequest",
    "ScoreDataRequest",
    "ScoreTextRequest",
    is_checked=False,
)
_USES = (
    _Use(Gate.GENERATION, parse_chat, chat_completions, "ChatCompletionRequest"),
    _Use(Gate.GENERATION, parse_completion, completions, "CompletionRequest"),
    _Use(Gate.EMBED, parse_embeddings, create_embedding, _EMBEDDING),
    _Use(
        Gate.CLASSIFY,
        parse_classify,
        classify,
        _union("classify", "ClassificationCompletionRequest", "ClassificationChatRequest"),
    ),
    _Use(Gate.SCORE, parse_rerank, rerank, "RerankRequest"),
    _Use(Gate.SCORE, parse_score, score, _SCORE),
    _Use(
        Gate.POOLING,
        parse_pooling,
        pooling,
        _union("pooling", "PoolingCompletionRequest", "PoolingChatRequest", "IOProcessorRequest"),
    ),
)


async def invocations(request: web.Request) -> web.StreamResponse:
    """Do what the body asks for."""
    if request.content_type != "application/json":
        raise wrong_media_type()
    body = _read(await request.read())
    open_uses = [each for each in _USES if each.gate in request.app[SERVICE].gates]
    for use in open_uses:
        if _is_of(use, body):
            return await use.handler(request)
    names = [each.name for each in open_uses]
    raise ApiError(f"Cannot find suitable handler for request. Expected one of: {names}")


def _read(raw: bytes) -> dict[str, Any]:
    """Return the object in `raw`. Raises ApiError for other JSON with what Python says of looking a name up in it."""
    try:
        body: Any = json.loads(raw)
    except RecursionError as error:
        raise ApiError(str(error), status=HTTPStatus.INTERNAL_SERVER_ERROR, kind="InternalServerError") from None
    except UnicodeDecodeError as error:
        raise ApiError(str(error)) from None
    except ValueError as error:
        raise bad_request(f"JSON decode error: {error}") from None
    if isinstance(body, dict):
        return body
    if isinstance(body, list):
        raise ApiError("list indices must be integers or slices, not str")
    if isinstance(body, str):
        raise ApiError("'str' object does not support item assignment")
    raise ApiError(f"argument of type '{_NOT_ITERABLE[type(body)]}' is not iterable")


def _is_of(use: _Use, body: dict[str, Any]) -> bool:
    """Whether the body has the fields of this type of request. Raises ApiError for what its own checks refuse."""
    try:
        use.parse(body)
    except ApiError as error:
        if error.kind == INVALID_BODY:
            return False
        raise
    return True
