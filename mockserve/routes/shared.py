"""What every route starts with."""

import json
from collections.abc import Mapping
from typing import Any

from aiohttp import hdrs, web
from multidict import istr

from mockserve.connections.header_text import header_text
from mockserve.connections.stamped import wanted_rank
from mockserve.protocol.errors import ApiError, bad_request, internal_error, late, no_fields, wrong_media_type
from mockserve.protocol.json_text import reply_json
from mockserve.protocol.reading.body import parse_json
from mockserve.protocol.reading.query import QueryFields
from mockserve.serving.service import SERVICE, Service

ID_HEADER = istr("X-Request-Id")
PRIORITY_HEADER = istr("X-Vllm-Priority")

JSON = "application/json"
PARSED_BODY: web.RequestKey[dict[str, Any]] = web.RequestKey("parsed_body", dict)
"""Key of a request under which one route hands a body on to another."""
UNTYPED = "application/x-untyped"
"""Stands for no media type at all: the library would choose one."""


async def read_body(request: web.Request, num_kinds: int = 1) -> dict[str, Any]:
    """The JSON object a client sent, of one of so many types. Raises ApiError when it did not send one as JSON."""
    parsed: dict[str, Any] | None = request.get(PARSED_BODY)
    if parsed is not None:
        return parsed
    if request.headers.get(hdrs.CONTENT_TYPE) != JSON and request.content_type != JSON:
        raise wrong_media_type()
    return parse_json(await request.read(), num_kinds)


def reply_id(request: web.Request, prefix: str, wanted: str | None) -> str:
    """The id of a reply: the request header's, else the body's, else a new one."""
    named = header_text(request, ID_HEADER) if ID_HEADER in request.headers else wanted
    return f"{prefix}-{next(request.app[SERVICE].ids) if named is None else named}"


def wanted_priority(request: web.Request) -> int | None:
    """The priority a request header asks for; None if there is none, or no number."""
    return _number(header_text(request, PRIORITY_HEADER))


def meant(request: web.Request) -> Service:
    """What a control route is to act on: one instance when `?instance=` names it, else all. Raises ApiError."""
    service = request.app[SERVICE]
    query = QueryFields(request.query)
    number = query.number("instance")
    query.check()
    if number is None:
        return service
    if service.cluster is None:
        raise ApiError(f"there are no instances to choose from, got instance {number}")
    return service.cluster.service(number)


def check_rank(request: web.Request, service: Service) -> None:
    """Raise ApiError when a header asks for an engine that there is not."""
    rank = wanted_rank(request)
    if rank is not None and not 0 <= rank < service.num_engines:
        raise late(ApiError(f"data_parallel_rank {rank} is out of range [0, {service.num_engines})."))


def _number(text: str | None) -> int | None:
    try:
        return None if text is None else int(text)
    except ValueError:
        return None


def json_reply(body: Mapping[str, Any], status: int = 200) -> web.Response:
    """A JSON object as a reply."""
    return web.Response(status=status, body=reply_json(body), content_type="application/json")


def untyped_reply(text: str = "") -> web.Response:
    """Text, or nothing, without a media type, as FastAPI sends a bare string."""
    return web.Response(body=text.encode(), content_type=UNTYPED)


async def read_object(request: web.Request, complaint: str | None = None) -> dict[str, Any]:
    """The JSON object of a route that reads its body by itself, whatever its media type.

    `complaint` replaces what the JSON parser says. Raises ApiError when there is no object.
    """
    body = await read_json(request, complaint)
    if not isinstance(body, dict):
        raise bad_request("Request body must be a JSON object")
    return body


async def read_fields(request: web.Request, complaint: str | None = None) -> dict[str, Any]:
    """The JSON object of a route of vLLM that does not check that there is one, and fails with status 500."""
    body = await read_json(request, complaint)
    if not isinstance(body, dict):
        raise no_fields(body)
    return body


async def read_json(request: web.Request, complaint: str | None = None) -> Any:
    """The JSON value of a body. Raises ApiError; `complaint` replaces what the JSON parser says."""
    try:
        return json.loads(await request.read())
    except json.JSONDecodeError as error:
        raise bad_request(complaint or f"JSON decode error: {error}") from None
    except ValueError as error:  # no UTF-8, or a number of thousands of digits
        raise ApiError(str(error)) from None
    except RecursionError as error:
        raise internal_error(str(error)) from None
