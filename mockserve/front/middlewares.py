"""What happens around every handler: errors become replies, keys are checked, browsers are answered, replies signed."""

import asyncio
import logging
import secrets
import time
import uuid
from hashlib import sha256
from http import HTTPStatus

from aiohttp import HttpVersion11, web

from mockserve.connections.aiohttp_internals import UnreadableBodyError, name_http_1_1
from mockserve.connections.headers import write_as_uvicorn
from mockserve.connections.network import SERVER_NAME
from mockserve.front.fault_injection import inject_faults
from mockserve.front.plain_errors import refusal
from mockserve.metrics.http import NO_ROUTE
from mockserve.protocol.errors import ApiError, engine_dead, internal_error
from mockserve.realtime.interface import EngineFailedError
from mockserve.routes.shared import ROOM_TAKEN, UNTYPED, Handler, json_response
from mockserve.serving.lifecycle import refuse_while_stopping
from mockserve.serving.service import SERVICE, Service

GUARDED_PREFIXES = ("/v1", "/v2", "/inference", "/cohere", "/blis")
"""Where an API key is demanded: where vLLM demands one, and for what only this server has."""

_PASSED_ON = (ConnectionResetError, asyncio.CancelledError, GeneratorExit, KeyboardInterrupt, SystemExit)
"""What ends a handler without a reply."""

_logger = logging.getLogger(__name__)


class OutsideCors(web.Response):
    """A reply that vLLM makes outside of what adds the headers for browsers."""


@web.middleware
async def errors(request: web.Request, handler: Handler) -> web.StreamResponse:
    """The one place where an exception becomes a reply."""
    try:
        _check_size(request)
        refuse_while_stopping(request, request.app[SERVICE])
        return await handler(request)
    except ApiError as error:
        _forget_frames(error)
        _note_death(request, error)
        return _refused(error)
    except web.HTTPNotFound:
        return await _moved(request) or json_response(404, {"detail": "Not Found"})
    except web.HTTPMethodNotAllowed as error:
        allowed = await _declared_methods(request) or sorted(error.allowed_methods)
        return json_response(405, {"detail": "Method Not Allowed"}, {"Allow": ", ".join(allowed)})
    except web.HTTPException as error:
        refused = ApiError(error.reason, status=error.status, kind=error.reason)
        return json_response(error.status, refused.body())
    except _PASSED_ON:
        raise
    except UnreadableBodyError:
        return refusal()
    except EngineFailedError:
        dead = engine_dead()
        _note_death(request, dead)
        return json_response(dead.status, dead.body())
    except BaseException as error:  # a panic of a library in Rust is no Exception
        _logger.exception("%s %s failed", request.method, request.path)
        _forget_frames(error)
        return json_response(500, internal_error(str(error)).body(), kind=OutsideCors)
    finally:
        if ROOM_TAKEN in request:
            request[ROOM_TAKEN].leave()


def _forget_frames(error: BaseException) -> None:
    """Free what the functions had that `error` came through.

    A function that raises an error it was given makes a cycle of references, and the collector never looks at what
    large work has made.
    """
    error.__traceback__ = error.__context__ = None


def _refused(error: ApiError) -> web.Response:
    """`error` as a reply, or why it cannot be sent: its message may repeat what has no UTF-8."""
    try:
        return json_response(error.status, error.body(), kind=OutsideCors if error.is_unhandled else web.Response)
    except ApiError as unsendable:
        return json_response(unsendable.status, unsendable.body())


def _check_size(request: web.Request) -> None:
    """Refuse a body that says it is too large, before any of it is kept."""
    length, most = request.content_length, request.client_max_size
    if length is not None and length > most:
        raise web.HTTPRequestEntityTooLarge(max_size=most, actual_size=length)


def _note_death(request: web.Request, error: ApiError) -> None:
    service = request.app[SERVICE]
    if error.status == HTTPStatus.INTERNAL_SERVER_ERROR and service.driver.failure is not None:
        service.death_told.set()


async def _moved(request: web.Request) -> web.StreamResponse | None:
    """Where a path leads that has a slash too many or too few at its end; None if nowhere."""
    path = request.path
    other = path.rstrip("/") if path.endswith("/") else path + "/"
    if not other:
        return None
    try:
        target = request.url.with_path(other).with_query(request.query)
        found = await request.app.router.resolve(request.clone(rel_url=target.relative()))
    except ValueError:  # a path that no URL can have
        return None
    if isinstance(found.http_exception, web.HTTPNotFound):
        return None
    return web.Response(status=307, headers={"Location": str(target), "Content-Length": "0"})


async def _declared_methods(request: web.Request) -> list[str]:
    """Return the methods of the first declaration of a path; HEAD belongs to a GET that has it.

    vLLM's framework declares one method at a time and reports the first declaration only. Our own control routes are
    reported whole, as HTTP wants it.
    """
    for resource in request.app.router.resources():
        _, allowed = await resource.resolve(request)
        if allowed:
            first = next(iter(resource)).method
            if "/blis/" in resource.canonical:
                return sorted(allowed)
            return [first, "HEAD"] if first == "GET" and "HEAD" in allowed else [first]
    return []


def _lacks_key(request: web.Request, service: Service) -> bool:
    """Whether a guarded path is asked for without one of the keys."""
    if not service.api_keys:
        return False
    path = service.network.route_path(request.path)
    if not path.startswith(GUARDED_PREFIXES) or request.method == "OPTIONS":
        return False
    scheme, _, given = request.headers.get("Authorization", "").partition(" ")
    # Compare with every key, in constant time: how long it takes says nothing about them.
    digest = sha256(given.encode("utf-8", "surrogateescape")).digest()
    matches = [secrets.compare_digest(digest, sha256(key.encode()).digest()) for key in service.api_keys]
    return scheme.lower() != "bearer" or not any(matches)


def _preflight(request: web.Request, service: Service) -> web.Response | None:
    """The answer to a browser that asks whether it may send; None for any other request."""
    found = service.network.cors.preflight(request.headers) if request.method == "OPTIONS" else None
    if found is None:
        return None
    status, text, headers = found
    return web.Response(status=status, text=text, headers=headers)


async def sign(request: web.BaseRequest, response: web.StreamResponse) -> None:
    """Headers that every reply of vLLM has."""
    assert isinstance(request, web.Request)
    network = request.app[SERVICE].network
    headers = response.headers
    headers["Server"] = SERVER_NAME
    if not isinstance(response, OutsideCors):
        # A preflight has said what it varies with, and more than others do.
        found = network.cors.reply_headers(request.headers.get("Origin"))
        headers.update({name: value for name, value in found.items() if name not in headers})
    headers.update(network.further_headers)
    if headers.get("Content-Type") == UNTYPED:
        del headers["Content-Type"]
    if network.adds_request_ids:
        headers["X-Request-Id"] = request.headers.get("X-Request-Id") or uuid.uuid4().hex
    if request.version != HttpVersion11:
        _answer_in_http_1_1(request, response)
    write_as_uvicorn(headers)


def _answer_in_http_1_1(request: web.Request, response: web.StreamResponse) -> None:
    """Name HTTP/1.1 in the status line, as uvicorn does whatever version a client names."""
    name_http_1_1(request)
    if not response.keep_alive:
        response.headers.setdefault("Connection", "close")


def _route_of(request: web.Request, service: Service) -> str:
    resource = request.match_info.route.resource
    return NO_ROUTE if resource is None else service.network.route_path(resource.canonical)


@web.middleware
async def admit(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Check keys, answer browsers, and count all others under their routes: refused ones are not, as in vLLM."""
    service = request.app[SERVICE]
    if request.version > HttpVersion11:
        name_http_1_1(request)  # which it is, whatever it names: the library could not frame a reply
    if _lacks_key(request, service):
        return json_response(401, {"error": "Unauthorized"}, kind=OutsideCors)
    asked_by_browser = _preflight(request, service)
    if asked_by_browser is not None:
        return asked_by_browser
    started_s = time.monotonic()
    status, sent_bytes = 200, 0
    try:
        response = await handler(request)
        status, sent_bytes = response.status, response.content_length or 0
        return response
    finally:
        path = _route_of(request, service)
        service.metrics_source.http.observe(
            path, request.method, status, request.content_length or 0, sent_bytes, time.monotonic() - started_s
        )


MIDDLEWARES = (admit, inject_faults, errors)
"""From the outside inwards; each is a coroutine of every request."""
