"""The HTTP application: its routes and its middleware for errors, API keys, CORS, faults and load."""

import asyncio
import logging
import secrets
import time
import uuid
from collections.abc import Mapping
from contextlib import suppress
from email.utils import formatdate
from functools import partial
from hashlib import sha256
from http import HTTPStatus
from http.client import responses

from aiohttp import HttpVersion11, web
from yarl import URL

from blis_sim.options import OptionError
from mockserve.faults import HEADER as FAULT_HEADER
from mockserve.faults import STATUS_HEADER, ShapedTransport
from mockserve.http.aiohttp_internals import (
    AiohttpConnection,
    BufferedRequest,
    UnreadableBodyError,
    fixed_match,
    force_http_1_1,
    writing_through,
)
from mockserve.http.connection import FastRoute, Respond
from mockserve.http.headers import SERVER_NAME, Network, header_text, write_as_uvicorn
from mockserve.metrics.counters import counted_path
from mockserve.options.faults import ERRORS, FaultSettings
from mockserve.options.server import ROUTE_FAMILIES, in_uvicorn_form
from mockserve.protocol.errors import ApiError, engine_dead, in_form_of_route, unhandled_error
from mockserve.realtime.driver import EngineFailedError
from mockserve.reply.reply import DELIVERY
from mockserve.routes.control import OPENAPI, OpenApiText
from mockserve.routes.shared import (
    BODY_RESERVATION,
    ID_HEADER,
    LOGGED_BODY,
    MOST_LOGGED_BYTES,
    UNTYPED,
    Handler,
    json_response,
)
from mockserve.routes.table import routes_under, summaries
from mockserve.serving.model import PLAYBACK_FAMILY
from mockserve.serving.service import SERVICE, Service

MESSAGE = "Invalid HTTP request received."


class PlainErrorConnection(AiohttpConnection):
    """An aiohttp connection that answers unparsable bytes with one line."""

    __slots__ = ()

    def refusal(self) -> web.Response:
        return refusal()


def refusal() -> web.Response:
    """Return the answer to bytes that are not HTTP, after which the connection is closed."""
    headers = {
        "date": formatdate(usegmt=True),
        "server": SERVER_NAME,
        "content-length": str(len(MESSAGE)),
        "content-type": "text/plain; charset=utf-8",
        "connection": "close",
    }
    response = web.Response(status=HTTPStatus.BAD_REQUEST, body=MESSAGE.encode(), headers=headers)
    response.force_close()
    return response


MODEL_PREFIXES = ("/v1/", "/v2/", "/inference/")
EMBEDDINGS_PATH = "/v1/embeddings"
MODEL_PATHS = frozenset({"/invocations", "/pooling", "/classify", "/score", "/rerank"})


@web.middleware
async def inject_faults(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Answer with the drawn or requested fault of a request, if any. Only requests to a model draw random faults."""
    service = request.app[SERVICE]
    try:
        by_chance = bool(service.faults.settings.rates) and _is_for_model(request, service.network)
        if service.options.process.offers_ready_route and request.path.endswith(EMBEDDINGS_PATH):
            by_chance = False  # llm-d-inference-sim lets no embedding fail
        requests_fault = FAULT_HEADER in request.headers or STATUS_HEADER in request.headers
        drawn = service.faults.draw(request.headers, by_chance) if by_chance or requests_fault else None
    except OptionError as error:
        return json_response(400, ApiError(str(error)).body())
    return await (handler(request) if drawn is None else _faulty_answer(request, handler, *drawn))


async def _faulty_answer(
    request: web.Request, handler: Handler, kind: str, settings: FaultSettings
) -> web.StreamResponse:
    return (
        _error_fault(request, kind, settings)
        if kind in ERRORS
        else await _shaped_answer(request, handler, kind, settings)
    )


async def answer_with_fault(request: web.Request, handler: Handler, words: str) -> web.StreamResponse:
    """Answer a request with the fault that the words of a header name."""
    return await _faulty_answer(request, handler, *request.app[SERVICE].faults.requested(words))


def _is_for_model(request: web.Request, network: Network) -> bool:
    path = network.route_path(request.path)
    return request.method == "POST" and (path.startswith(MODEL_PREFIXES) or path in MODEL_PATHS)


def _error_fault(request: web.Request, kind: str, settings: FaultSettings) -> web.Response:
    fault = ERRORS[kind]
    headers = {"Retry-After": str(settings.retry_after_s)} if fault.sends_retry_after else None
    return json_response(fault.status, _worded_error(request, fault.error()).body(), headers)


async def _shaped_answer(
    request: web.Request, handler: Handler, kind: str, settings: FaultSettings
) -> web.StreamResponse:
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


GUARDED_PREFIXES = ("/v1", "/v2", "/inference", "/cohere", "/blis")
"""Prefixes of paths that require an API key: vLLM's, and the routes that only this server has."""

_PROPAGATED_ERRORS = (ConnectionResetError, asyncio.CancelledError, GeneratorExit, KeyboardInterrupt, SystemExit)
"""Exceptions that end a handler without a reply."""

_logger = logging.getLogger(__name__)


class ReplyWithoutCors(web.Response):
    """A reply that vLLM makes outside of its CORS middleware."""


class UnhandledErrorReply(ReplyWithoutCors):
    """A reply that vLLM's framework makes outside of all middleware."""


@web.middleware
async def errors(request: web.Request, handler: Handler) -> web.StreamResponse:  # noqa: C901 - a clause for each error
    """Convert exceptions of handlers to replies."""
    try:
        if not isinstance(request, BufferedRequest):  # which is small
            _check_size(request)
        lifecycle = request.app[SERVICE].lifecycle
        if lifecycle.is_stopping:
            lifecycle.refuse_while_stopping(request)
        return await handler(request)
    except ApiError as error:
        _forget_frames(error)
        _report_engine_failure(request, error)
        return _refused_reply(_worded_error(request, error))
    except web.HTTPNotFound:
        return await _redirected(request) or json_response(404, {"detail": "Not Found"})
    except web.HTTPMethodNotAllowed as error:
        allowed = await _declared_methods(request) or sorted(error.allowed_methods)
        return json_response(405, {"detail": "Method Not Allowed"}, {"Allow": ", ".join(allowed)})
    except web.HTTPException as error:
        refused = ApiError(error.reason, status=error.status, kind=error.reason)
        return json_response(error.status, _worded_error(request, refused).body())
    except _PROPAGATED_ERRORS:
        raise
    except UnreadableBodyError:
        return refusal()
    except EngineFailedError:
        dead = _worded_error(request, engine_dead())
        _report_engine_failure(request, dead)
        return json_response(dead.status, dead.body())
    except BaseException as error:  # a panic in a Rust library is no Exception
        _logger.exception("%s %s failed", request.method, request.path)
        _forget_frames(error)
        return _refused_reply(_worded_error(request, unhandled_error(str(error))))
    finally:
        if BODY_RESERVATION in request:
            request[BODY_RESERVATION].release_all()


def _forget_frames(error: BaseException) -> None:
    """Clear the traceback of `error`, which keeps local variables in memory.

    A function that raises an error from an argument makes a reference cycle. Objects of large work are frozen, so the
    garbage collector would never free the cycle.
    """
    error.__traceback__ = error.__context__ = None


def _worded_error(request: web.Request, error: ApiError) -> ApiError:
    return in_form_of_route(error, request.app[SERVICE].network.route_path(request.path))


def _refused_reply(error: ApiError) -> web.Response:
    """Return `error` as a reply, or as an internal error if its message has no UTF-8 encoding."""
    try:
        return json_response(
            error.status, error.body(), kind=UnhandledErrorReply if error.is_unhandled else web.Response
        )
    except ApiError as unsendable:
        return json_response(unsendable.status, unsendable.body())


def _check_size(request: web.Request) -> None:
    """Refuse a body whose Content-Length is too large, before reading it."""
    length, most = request.content_length, request.client_max_size
    if length is not None and length > most:
        raise web.HTTPRequestEntityTooLarge(max_size=most, actual_size=length)


def _report_engine_failure(request: web.Request, error: ApiError) -> None:
    service = request.app[SERVICE]
    if error.status == HTTPStatus.INTERNAL_SERVER_ERROR and service.delivery.driver.failure is not None:
        service.lifecycle.death_reported.set()


async def _redirected(request: web.Request) -> web.StreamResponse | None:
    """Return a redirect for a path with an extra or missing trailing slash; None if no route matches the other path."""
    path = request.path
    other = path.rstrip("/") if path.endswith("/") else path + "/"
    if not other:
        return None
    try:
        target = request.url.with_path(other).with_query(request.query)
        found = await request.app.router.resolve(request.clone(rel_url=target.relative()))
    except ValueError:  # an invalid URL path
        return None
    if isinstance(found.http_exception, web.HTTPNotFound):
        return None
    return web.Response(status=307, headers={"Location": str(target), "Content-Length": "0"})


async def _declared_methods(request: web.Request) -> list[str]:
    """Return the methods of the first declaration of a path; HEAD belongs to a GET that has it.

    vLLM's framework declares one method at a time and reports the first declaration only. Our own control routes are
    reported whole, as HTTP requires.
    """
    for resource in request.app.router.resources():
        _, allowed = await resource.resolve(request)
        if allowed:
            first = next(iter(resource)).method
            if "/blis/" in resource.canonical:
                return sorted(allowed)
            return [first, "HEAD"] if first == "GET" and "HEAD" in allowed else [first]
    return []


def _is_unauthorized(request: web.Request, service: Service) -> bool:
    """Whether a request to a guarded path has no valid API key."""
    path = service.network.route_path(request.path)
    if not path.startswith(GUARDED_PREFIXES) or request.method == "OPTIONS":
        return False
    scheme, _, given = request.headers.get("Authorization", "").partition(" ")
    # Compare with every key, in constant time: the duration reveals nothing about the keys.
    digest = sha256(given.encode("utf-8", "surrogateescape")).digest()
    matches = [secrets.compare_digest(digest, sha256(key.encode()).digest()) for key in service.api_keys]
    return scheme.lower() != "bearer" or not any(matches)


_SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
_CONTROL_PREFIX = "/blis/"


def _is_foreign(request: web.Request, network: Network) -> bool:
    """Whether a browser sends this change of the server for a page of another site.

    Browsers send simple requests without asking first, so a page could change a server that only its user reaches.
    Origins that --allowed-origins names are no strangers.
    """
    if request.method in _SAFE_METHODS or not network.route_path(request.path).startswith(_CONTROL_PREFIX):
        return False
    origin = request.headers.get("Origin")
    if origin is None:
        return request.headers.get("Sec-Fetch-Site", "none") not in ("none", "same-origin")
    return origin.partition("://")[2] != request.headers.get("Host") and origin not in network.cors.origins


def _preflight_reply(request: web.Request, network: Network) -> web.Response | None:
    """The reply to a CORS preflight; None for any other request."""
    found = network.cors.preflight(request.headers)
    if found is None:
        return None
    status, text, headers = found
    return web.Response(status=status, text=text, headers=headers)


async def add_common_headers(request: web.BaseRequest, response: web.StreamResponse) -> None:
    """Add the headers that every reply of vLLM has."""
    assert isinstance(request, web.Request)
    network = request.app[SERVICE].network
    headers = response.headers
    headers["Server"] = SERVER_NAME
    if not isinstance(response, ReplyWithoutCors):
        # A preflight has a `Vary` header already, which lists more than that of other replies.
        found = network.cors.reply_headers(request.headers.get("Origin"))
        headers.update({name: value for name, value in found.items() if name not in headers})
    headers.update(network.further_headers)
    if headers.get("Content-Type") == UNTYPED:
        del headers["Content-Type"]
    if network.adds_request_ids and not isinstance(response, UnhandledErrorReply):
        given = request.headers.get(ID_HEADER)
        headers[ID_HEADER] = uuid.uuid4().hex if given is None else given
    if request.version != HttpVersion11:
        _answer_in_http_1_1(request, response)
    write_as_uvicorn(headers)


def _answer_in_http_1_1(request: web.Request, response: web.StreamResponse) -> None:
    """Set HTTP/1.1 in the status line, as uvicorn does for any version of the request."""
    force_http_1_1(request)
    if not response.keep_alive:
        response.headers.setdefault("Connection", "close")


@web.middleware
async def admit(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Check API keys, answer CORS preflights, and count requests by route; refused ones are not counted, as in vLLM."""
    service = request.app[SERVICE]
    if request.version > HttpVersion11:
        force_http_1_1(request)  # aiohttp could not frame a reply for another version
    if service.api_keys and _is_unauthorized(request, service):
        return json_response(401, {"error": "Unauthorized"}, kind=ReplyWithoutCors)
    if _CONTROL_PREFIX in request.path and _is_foreign(request, service.network):
        return json_response(403, {"error": "Pages of other sites may not change this server"}, kind=ReplyWithoutCors)
    if request.method == "OPTIONS" and (asked_by_browser := _preflight_reply(request, service.network)) is not None:
        return asked_by_browser
    started_s = time.monotonic()
    status, sent_bytes = 200, 0
    response: web.StreamResponse | None = None
    try:
        response = await handler(request)
        status, sent_bytes = response.status, response.content_length or 0
        return response
    finally:
        resource = request.match_info.route.resource
        route_path = service.network.route_path
        route = None if resource is None else route_path(resource.canonical)
        path = counted_path(route, route_path(request.path) if route is None else route)
        lasted_s = time.monotonic() - started_s
        if path is not None and status != HTTPStatus.SWITCHING_PROTOCOLS:  # vLLM counts no WebSockets
            service.metrics_source.http.observe(
                path, request.method, status, request.content_length or 0, sent_bytes, lasted_s
            )
        if service.options.observability.access_log:
            _log_access(request, status, lasted_s)
        if service.options.observability.log_http:
            _log_bodies(request, response)


def _log_bodies(request: web.Request, response: web.StreamResponse | None) -> None:
    """Log a request and its reply with their bodies, without keys; of a stream log the status alone."""
    from traces.redaction import (
        Redactor,  # which few servers need
        without_secret_parameters,
    )

    redactor = Redactor(())
    path = without_secret_parameters(request.path_qs)

    def shown(body: bytes) -> str:
        return redactor.body(body[:MOST_LOGGED_BYTES].decode(errors="replace"))

    _logger.info("request %s %s %s", request.method, path, shown(request.get(LOGGED_BODY, b"")))
    if response is None:
        _logger.info("reply to %s %s: none", request.method, path)
    elif isinstance(response, web.Response) and isinstance(response.body, bytes | None):
        _logger.info("reply to %s %s: %d %s", request.method, path, response.status, shown(response.body or b""))
    else:
        _logger.info("reply to %s %s: %d, a stream", request.method, path, response.status)


def _log_access(request: web.Request, status: int, lasted_s: float) -> None:
    """Log a request that has been answered, in the form of uvicorn's access log."""
    peer = request.transport.get_extra_info("peername") if request.transport is not None else None
    client = f"{peer[0]}:{peer[1]}" if isinstance(peer, tuple) else ""
    from traces.redaction import without_secret_parameters  # which few servers need

    path = without_secret_parameters(request.path_qs)
    found = in_uvicorn_form(
        client=client, method=request.method, path=path, status=status, duration_ms=round(lasted_s * 1e3, 3),
        request_id=header_text(request, ID_HEADER),
    )  # fmt: skip
    phrase = responses.get(status, "")
    _logger.info('%s - "%s %s HTTP/1.1" %d %s', client, request.method, path, status, phrase, extra=found)


MIDDLEWARES = (admit, inject_faults, errors)
"""Middlewares from outermost to innermost; each is a coroutine of every request."""


def build_app(service: Service) -> web.Application:
    """Build the application that serves `service`."""
    app = web.Application(middlewares=MIDDLEWARES, client_max_size=service.options.process.max_body_mb * 2**20)
    app[SERVICE] = service
    app[DELIVERY] = service.delivery
    routes = routes_under(service.conditions)
    app[OPENAPI] = OpenApiText(partial(summaries, routes))
    taken: set[tuple[str, str]] = set()
    for route in routes:
        if route.condition in service.conditions and (route.method, route.path) not in taken:
            taken.add((route.method, route.path))
            handler = route.responder
            if service.playback is not None:
                played_handler = ROUTE_FAMILIES[PLAYBACK_FAMILY].played_handler
                handler = played_handler(route.method, route.path, handler, answer_with_fault)
            for path in service.network.paths_of(route.path):
                app.router.add_route(route.method, path, handler)
    app.on_response_prepare.append(add_common_headers)
    return app


def fast_routes(app: web.Application) -> Mapping[tuple[str, str], FastRoute]:
    """Return the routes of `app` without path parameters, by method and path."""
    found = {}
    for route in app.router.routes():
        resource = route.resource
        if isinstance(resource, web.PlainResource):
            respond: Respond = route.handler
            for middleware in reversed(MIDDLEWARES):
                respond = partial(middleware, handler=respond)
            found[route.method, resource.canonical] = FastRoute(
                URL.build(path=resource.canonical, encoded=True), fixed_match(route, app), respond
            )
    return found
