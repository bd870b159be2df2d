"""The middleware that lets requests go wrong."""

import asyncio
from contextlib import suppress

from aiohttp import web

from blis_sim.options import OptionError
from mockserve.connections.aiohttp_internals import writing_through
from mockserve.connections.network import Network
from mockserve.faults.shaping import ShapedTransport
from mockserve.options.faults import ERRORS, FaultSettings
from mockserve.protocol.errors import ApiError
from mockserve.routes.shared import Handler, json_response
from mockserve.serving.service import SERVICE

MODEL_PREFIXES = ("/v1/", "/v2/", "/inference/")
MODEL_PATHS = frozenset({"/invocations", "/pooling", "/classify", "/score", "/rerank"})


@web.middleware
async def inject_faults(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Answer with the fault that the request has drawn, if any. Only requests to a model draw by chance."""
    service = request.app[SERVICE]
    try:
        by_chance = bool(service.faults.settings.rates) and _is_for_model(request, service.network)
        drawn = service.faults.draw(request.headers, by_chance)
    except OptionError as error:
        return json_response(400, ApiError(str(error)).body())
    if drawn is None:
        return await handler(request)
    kind, settings = drawn
    if kind in ERRORS:
        return _error(kind, settings)
    return await _shaped(request, handler, kind, settings)


def _is_for_model(request: web.Request, network: Network) -> bool:
    path = network.route_path(request.path)
    return request.method == "POST" and (path.startswith(MODEL_PREFIXES) or path in MODEL_PATHS)


def _error(kind: str, settings: FaultSettings) -> web.Response:
    fault = ERRORS[kind]
    headers = {"Retry-After": str(settings.retry_after_s)} if fault.asks_to_retry else None
    return json_response(fault.status, fault.error().body(), headers)


async def _shaped(request: web.Request, handler: Handler, kind: str, settings: FaultSettings) -> web.StreamResponse:
    if request.transport is None:
        raise ConnectionResetError("the client left before its request was read")
    shaped = ShapedTransport(request.transport, kind, settings)
    with writing_through(request, shaped):
        try:
            response = await handler(request)
            with suppress(ConnectionResetError):
                await response.prepare(request)
                await response.write_eof()
            await shaped.drained()
        except asyncio.CancelledError:
            shaped.stop()
            raise
    return response
