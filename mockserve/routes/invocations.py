"""POST /invocations, which answers as another route."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from aiohttp import web
from multidict import istr

from mockserve.options.server import POOLING_FAMILY, ROUTE_FAMILIES
from mockserve.protocol.completions import parse_chat, parse_completion
from mockserve.protocol.errors import ApiError, BadFieldsError, wrong_media_type
from mockserve.routes.completions import chat_completions, completions
from mockserve.routes.shared import (
    PARSED_BODY,
    Handler,
    offload,
    read_json,
)
from mockserve.serving.model import RouteCondition
from mockserve.serving.service import SERVICE

ADAPTER_HEADER = istr("X-Amzn-SageMaker-Adapter-Identifier")


@dataclass(frozen=True, slots=True)
class InvocationUse:
    """One request type of POST /invocations, with the parser that recognises its bodies."""

    condition: RouteCondition
    parse: Callable[[dict[str, Any]], object]
    handler: Handler
    name: str


_USES = (
    InvocationUse(RouteCondition.GENERATION, parse_chat, chat_completions, "ChatCompletionRequest"),
    InvocationUse(RouteCondition.GENERATION, parse_completion, completions, "CompletionRequest"),
)


async def invocations(request: web.Request) -> web.StreamResponse:
    """Answer with the handler of the first request type that the body is valid for."""
    if request.content_type != "application/json":
        raise wrong_media_type()
    body = _for_adapter(await read_json(request), request.headers.get(ADAPTER_HEADER, ""))
    conditions = request.app[SERVICE].conditions
    of_pooling: Sequence[InvocationUse] = (
        ROUTE_FAMILIES[POOLING_FAMILY].invocation_uses() if RouteCondition.POOLING in conditions else ()
    )
    open_uses = [each for each in (*_USES, *of_pooling) if each.condition in conditions]
    for use in open_uses:
        try:
            await offload(request, use.parse, dict(body))
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
