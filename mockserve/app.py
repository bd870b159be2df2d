"""The HTTP application: which routes there are, who may use them, and how every error becomes a reply."""

import logging
import secrets
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeAlias

from aiohttp import web
from multidict import CIMultiDict

from mockserve.protocol.errors import ApiError, internal_error
from mockserve.protocol.json_text import compact_json
from mockserve.routes.chat import chat_completions
from mockserve.routes.completions import completions
from mockserve.routes.metrics import metrics
from mockserve.routes.models import models
from mockserve.routes.server_state import health, load, version
from mockserve.routes.shared import SERVICE
from mockserve.service import Service

Handler: TypeAlias = Callable[[web.Request], Awaitable[web.StreamResponse]]

ROUTES: tuple[tuple[str, str, Handler], ...] = (
    ("POST", "/v1/chat/completions", chat_completions),
    ("POST", "/v1/completions", completions),
    ("GET", "/v1/models", models),
    ("GET", "/health", health),
    ("GET", "/ping", health),
    ("POST", "/ping", health),
    ("GET", "/version", version),
    ("GET", "/load", load),
    ("GET", "/metrics", metrics),
    ("GET", "/metrics/", metrics),
)
"""Every route. `web.Request` is all a handler gets; what it shares with others is in `SERVICE`."""

GUARDED_PREFIXES = ("/v1", "/v2", "/inference", "/cohere")
"""Where an API key is demanded; everything else is open, as in vLLM."""

MAX_BODY_BYTES = 256 * 2**20

_logger = logging.getLogger(__name__)


def build_app(service: Service) -> web.Application:
    """The application that serves `service`."""
    app = web.Application(middlewares=[_errors, _authorization], client_max_size=MAX_BODY_BYTES)
    app[SERVICE] = service
    for method, path, handler in ROUTES:
        app.router.add_route(method, path, handler)
    app.on_response_prepare.append(_sign)
    return app


@web.middleware
async def _errors(request: web.Request, handler: Handler) -> web.StreamResponse:
    """The one place where an exception becomes a reply."""
    try:
        return await handler(request)
    except ApiError as error:
        return _json(error.status, error.body())
    except web.HTTPNotFound:
        return _json(404, {"detail": "Not Found"})
    except web.HTTPMethodNotAllowed as error:
        allowed = ", ".join(sorted(error.allowed_methods))
        return _json(405, {"detail": "Method Not Allowed"}, {"Allow": allowed})
    except web.HTTPException as error:
        refused = ApiError(error.reason, status=error.status, kind=error.reason)
        return _json(error.status, refused.body())
    except ConnectionResetError:
        raise
    except Exception as error:
        _logger.exception("%s %s failed", request.method, request.path)
        return _json(500, internal_error(str(error)).body())


@web.middleware
async def _authorization(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Refuse a guarded path without one of the keys, before anything else is looked at."""
    keys = request.app[SERVICE].api_keys
    if keys and request.path.startswith(GUARDED_PREFIXES) and request.method != "OPTIONS":
        scheme, _, given = request.headers.get("Authorization", "").partition(" ")
        # Compare with every key, in constant time: how long it takes says nothing about them.
        matches = [secrets.compare_digest(given.strip().encode(), key.encode()) for key in keys]
        if scheme.lower() != "bearer" or not any(matches):
            return _json(401, {"error": "Unauthorized"})
    return await handler(request)


async def _sign(_request: web.BaseRequest, response: web.StreamResponse) -> None:
    """Headers that every reply of vLLM has; only the refused key lacks `vary`."""
    headers: CIMultiDict[str] = response.headers
    headers["Server"] = "uvicorn"
    if response.status != 401:
        headers["Vary"] = "Origin"


def _json(status: int, body: Mapping[str, Any], headers: Mapping[str, str] | None = None) -> web.Response:
    return web.Response(status=status, body=compact_json(body), content_type="application/json", headers=headers)
