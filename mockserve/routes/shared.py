"""Functions of all handlers: reading and checking bodies, errors in vLLM's words, and replies as JSON."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Any, ParamSpec, TypeAlias, TypeVar

from aiohttp import hdrs, web
from multidict import istr

from mockserve.protocol.completions.requests import KnownBodies
from mockserve.protocol.errors import ApiError, bad_request, internal_error, late, no_fields, wrong_media_type
from mockserve.protocol.json_text import reply_json
from mockserve.protocol.reading.body import large_json, parse_json, parse_large_json
from mockserve.protocol.reading.forms import QueryFields
from mockserve.protocol.reading.long_json import CHECKED_BYTES, MOST_VALUE_BYTES, value_bytes
from mockserve.protocol.sampling import SamplingParams
from mockserve.serving.aside import LARGE_BYTES, RoomTaken, finished
from mockserve.serving.planner import likely_tokens
from mockserve.serving.service import SERVICE, ReplyDelivery, Service
from mockserve.transport.aiohttp_internals import forget_body
from mockserve.transport.clients import requested_rank
from mockserve.transport.headers import header_text

Handler: TypeAlias = Callable[[web.Request], Awaitable[web.StreamResponse]]


def json_response(
    status: int,
    body: Mapping[str, Any],
    headers: Mapping[str, str] | None = None,
    kind: type[web.Response] = web.Response,
) -> web.Response:
    """`body` as compact JSON."""
    return kind(status=status, body=reply_json(body), content_type="application/json", headers=headers)


ID_HEADER = istr("X-Request-Id")
PRIORITY_HEADER = istr("X-Vllm-Priority")

NUM_BODY_BYTES = web.RequestKey("num_body_bytes", int)
"""Under this key a request keeps how long its body was, if it was long."""

ROOM_TAKEN = web.RequestKey("room_taken", RoomTaken)
"""Under this key a request keeps how much of the room for bodies it has."""

TEMPLATE_FIELDS = {"chat_template", "chat_template_kwargs"}
"""Fields of a body that may bring a template."""
LONG_BODY_BYTES = 1 << 15
"""Parsing a longer body takes more than a few milliseconds."""
LONG_ANSWER_TOKENS = 10_000

MOST_TRIALS = 1000
"""Items of a body of several types, each tried as each: what fits none makes a problem for every trial, of 2 us."""

HUGE_BYTES = LARGE_BYTES + 1
"""A body that brings a chat template may take as long as one of this length."""

P = ParamSpec("P")
T = TypeVar("T")

JSON = "application/json"
PARSED_BODY: web.RequestKey[dict[str, Any]] = web.RequestKey("parsed_body", dict)
"""Key of a request under which one route hands a body on to another."""
UNTYPED = "application/x-untyped"
"""Stands for no media type at all: the library would choose one."""


async def read_body(request: web.Request, num_kinds: int = 1, num_item_kinds: int = 1) -> dict[str, Any]:
    """The JSON object a client sent, of one of so many types. Raises ApiError when it did not send one as JSON.

    `num_item_kinds` is the number of types that each item is tried as.
    """
    parsed: dict[str, Any] | None = request.get(PARSED_BODY)
    if parsed is not None:
        return parsed
    if request.headers.get(hdrs.CONTENT_TYPE) != JSON and request.content_type != JSON:
        raise wrong_media_type()
    raw = await received(request)
    num_trials = max(num_kinds, num_item_kinds)
    has_many_trials = num_trials > 1 and raw.count(b",") * num_trials > MOST_TRIALS
    if len(raw) <= LONG_BODY_BYTES and not has_many_trials:
        body = parse_json(raw, num_kinds)
        if body.keys() & TEMPLATE_FIELDS and request.app[SERVICE].model.planner.conversations.brings_template(body):
            request[NUM_BODY_BYTES] = HUGE_BYTES
        return body
    request[NUM_BODY_BYTES] = len(raw)
    bodies = [raw]
    # What has been read is not needed twice, and may be tens of megabytes.
    del raw
    forget_body(request)
    return await aside(request, parse_large_json, bodies, num_kinds)


async def received(request: web.Request) -> bytes:
    """The body of a request. Raises ApiError when it does not come in time.

    A large one waits for room, and keeps it until the request has been answered.
    """
    if request.content.is_eof():
        return await request.read()
    service = request.app[SERVICE]
    num_bytes = request.content_length
    if num_bytes is not None and num_bytes <= LARGE_BYTES:
        async with receiving(service):
            return await request.read()
    taken = request[ROOM_TAKEN] = RoomTaken(service.body_room)
    async with receiving(service):
        await taken.take_raw(num_bytes or request.client_max_size)
        raw = await request.read()
    taken.keep_raw(len(raw) if len(raw) > LARGE_BYTES else 0)
    if len(raw) > CHECKED_BYTES:
        made_bytes = await service.delivery.aside.run(True, value_bytes, raw)
        if made_bytes <= MOST_VALUE_BYTES:  # others are refused
            await taken.take_values(made_bytes)
    return raw


@asynccontextmanager
async def receiving(service: Service) -> AsyncIterator[None]:
    """Raises ApiError when what a client has to send takes too long."""
    try:
        async with asyncio.timeout(service.options.network.request_receive_timeout):
            yield
    except TimeoutError:
        raise ApiError("Request Timeout", status=408, kind="Request Timeout") from None


async def aside(request: web.Request, work: Callable[P, T], *arguments: P.args, **named: P.kwargs) -> T:
    """The result of what has to be done with a body: at once for a short one, on another thread for a long one."""
    num_bytes = request.get(NUM_BODY_BYTES)
    if num_bytes is None:
        return work(*arguments, **named)
    return await request.app[SERVICE].delivery.aside.run(num_bytes > LARGE_BYTES, work, *arguments, **named)


async def parsed(request: web.Request, known: KnownBodies[T], body: dict[str, Any]) -> T:
    """Parse a body. Raises ApiError."""
    if is_long(request):
        return await aside(request, known.parse_long, body)
    return known.parse(body)


async def planned_alone(request: web.Request, body: Mapping[str, Any], plan: Coroutine[Any, Any, T]) -> T:
    """The result of planning one answer to `body`: for long bodies and long answers it is done on another thread."""
    num_bytes = request.get(NUM_BODY_BYTES)
    if num_bytes is None and not body.get("ignore_eos"):
        return await plan
    return await _on_thread(request.app[SERVICE].delivery, (num_bytes or 0) > LARGE_BYTES, plan)


async def planned(request: web.Request, sampling: SamplingParams, plan: Coroutine[Any, Any, T]) -> T:
    """The result of planning the answers that `sampling` describes, on another thread where that takes long."""
    service, num_bytes = request.app[SERVICE], request.get(NUM_BODY_BYTES)
    is_long = sampling.n * likely_tokens(sampling, service.model.planner.max_model_len) > LONG_ANSWER_TOKENS
    if num_bytes is None and not is_long:
        return await plan
    return await _on_thread(service.delivery, is_long or (num_bytes or 0) > LARGE_BYTES, plan)


async def _on_thread(delivery: ReplyDelivery, is_huge: bool, plan: Coroutine[Any, Any, T]) -> T:
    """The result of a plan made on another thread. A plan that has not begun when the client hangs up is closed."""
    try:
        return await delivery.aside.run(is_huge, finished, plan)
    finally:
        with suppress(ValueError):  # the thread is executing the plan
            plan.close()


def is_long(request: web.Request) -> bool:
    """Whether the body of a request is so long that its reply may be, too."""
    return NUM_BODY_BYTES in request


def reply_id(request: web.Request, prefix: str, requested: str | None) -> str:
    """The id of a reply: the request header's, else the body's, else a new one."""
    named = header_text(request, ID_HEADER) if ID_HEADER in request.headers else requested
    return f"{prefix}-{next(request.app[SERVICE].ids) if named is None else named}"


def requested_priority(request: web.Request) -> int | None:
    """The priority in a request header; None without the header or with a value that is no number."""
    return _number(header_text(request, PRIORITY_HEADER))


def meant(request: web.Request) -> Service:
    """The service that a control route acts on: one instance when `?instance=` names it, else all. Raises ApiError."""
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
    """Raise ApiError when a header names an engine that does not exist."""
    rank = requested_rank(request)
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
    """Return the JSON object of a route that reads its body on its own, whatever its media type.

    `complaint` replaces the JSON parser's message. Raises ApiError when there is no object.
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
    """The JSON value of a body. Raises ApiError; `complaint` replaces the JSON parser's message."""
    raw = await received(request)
    try:
        if len(raw) <= LONG_BODY_BYTES:
            return json.loads(raw)
        request[NUM_BODY_BYTES] = len(raw)
        return await aside(request, large_json, [raw])
    except json.JSONDecodeError as error:
        raise bad_request(complaint or f"JSON decode error: {error}") from None
    except ValueError as error:  # no UTF-8, or a number of thousands of digits
        raise ApiError(str(error)) from None
    except RecursionError as error:
        raise internal_error(str(error)) from None
