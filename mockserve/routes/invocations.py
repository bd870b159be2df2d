"""POST /invocations, which answers as another route."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from aiohttp import web
from multidict import istr

from mockserve.protocol.completions import parse_chat, parse_completion
from mockserve.protocol.errors import ApiError, BadFieldsError, wrong_media_type
from mockserve.protocol.pooling.requests import parse_classify, parse_embeddings, parse_pooling
from mockserve.protocol.pooling.scoring import parse_rerank, parse_score
from mockserve.routes.completions import chat_completions, completions
from mockserve.routes.pooling import classify, create_embedding, pooling
from mockserve.routes.scoring import rerank, score
from mockserve.routes.shared import (
    PARSED_BODY,
    Handler,
    aside,
    read_json,
)
from mockserve.serving.model import RouteCondition
from mockserve.serving.service import SERVICE

ADAPTER_HEADER = istr("X-Amzn-SageMaker-Adapter-Identifier")
_FOLDER = "vllm.entrypoints.pooling"
_CHECKED = (
    "BeforeValidator(func=<function reject_removed_pooling_parameters>, json_schema_input_type=PydanticUndefined)"
)


def _union(module: str, *names: str, is_checked: bool = True) -> str:
    """Return the text of a union of request types in Python's spelling."""
    joined = " | ".join(f"{_FOLDER}.{module}.protocol.{name}" for name in names)
    return f"typing.Annotated[{joined}, {_CHECKED}]" if is_checked else joined


@dataclass(frozen=True, slots=True)
class _Use:
    """One request type of POST /invocations, with the parser that recognises its bodies."""

    condition: RouteCondition
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
    _Use(RouteCondition.GENERATION, parse_chat, chat_completions, "ChatCompletionRequest"),
    _Use(RouteCondition.GENERATION, parse_completion, completions, "CompletionRequest"),
    _Use(RouteCondition.EMBED, parse_embeddings, create_embedding, _EMBEDDING),
    _Use(
        RouteCondition.CLASSIFY,
        parse_classify,
        classify,
        _union("classify", "ClassificationCompletionRequest", "ClassificationChatRequest"),
    ),
    _Use(RouteCondition.SCORE, parse_rerank, rerank, "RerankRequest"),
    _Use(RouteCondition.SCORE, parse_score, score, _SCORE),
    _Use(
        RouteCondition.POOLING,
        parse_pooling,
        pooling,
        _union("pooling", "PoolingCompletionRequest", "PoolingChatRequest", "IOProcessorRequest"),
    ),
)


async def invocations(request: web.Request) -> web.StreamResponse:
    """Answer with the handler of the first request type that the body is valid for."""
    if request.content_type != "application/json":
        raise wrong_media_type()
    body = _for_adapter(await read_json(request), request.headers.get(ADAPTER_HEADER, ""))
    open_uses = [each for each in _USES if each.condition in request.app[SERVICE].conditions]
    for use in open_uses:
        try:
            await aside(request, use.parse, dict(body))
        except BadFieldsError:
            continue
        request[PARSED_BODY] = body
        return await use.handler(request)
    names = [each.name for each in open_uses]
    raise ApiError(f"Cannot find suitable handler for request. Expected one of: {names}")


def _for_adapter(body: Any, adapter: str) -> dict[str, Any]:
    """Set the body's model to the adapter in a header or else the served model. Raises ApiError for a non-object."""
    if isinstance(body, dict):
        return {**body, "model": adapter}
    if isinstance(body, list):
        raise ApiError("list indices must be integers or slices, not str")
    if isinstance(body, str):
        raise ApiError("'str' object does not support item assignment")
    raise ApiError(f"argument of type {type(body).__name__!r} is not iterable")
