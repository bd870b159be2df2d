"""Functions shared by all handlers: reading and checking bodies, errors with vLLM's messages, and JSON replies."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping
from contextlib import AbstractContextManager, asynccontextmanager, nullcontext, suppress
from typing import Any, ParamSpec, TypeAlias, TypeVar

from aiohttp import hdrs, web
from multidict import istr

from mockserve.executor.executor import LARGE_BYTES, run_to_completion
from mockserve.executor.memory import BodyReservation
from mockserve.http.aiohttp_internals import BufferedRequest, forget_body
from mockserve.http.connection import arrived_at
from mockserve.http.headers import RANK_HEADER, header_text, requested_rank
from mockserve.protocol.bodies import BodyT, read_as
from mockserve.protocol.completions import ParsedBodyCache
from mockserve.protocol.errors import ApiError, bad_request, mark_late, not_an_object, unhandled_error, wrong_media_type
from mockserve.protocol.forms import QueryFields
from mockserve.protocol.json_text import (
    CHECKED_BYTES,
    MOST_VALUE_BYTES,
    large_json,
    parse_json,
    parse_large_json,
    reply_json,
    value_bytes,
)
from mockserve.protocol.sampling import SamplingParams
from mockserve.reply.reply import CHOICE_OVERHEAD_TOKENS, ReplyDelivery, ReplyJob
from mockserve.serving.planner import likely_tokens
from mockserve.serving.service import SERVICE, Service

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
"""Request key of the body's length, present for a long body only."""

GENERATES = web.RequestKey("generates", bool)
"""Request key that is present if the engine generates the reply, and waits for the request while it is prepared."""

BODY_RESERVATION = web.RequestKey("body_reservation", BodyReservation)
"""Request key of the memory that the request has acquired for its body."""

LOGGED_BODY = web.RequestKey("logged_body", bytes)
"""Request key of the beginning of the body, where bodies are logged."""
MOST_LOGGED_BYTES = 64 * 1024

TEMPLATE_FIELDS = {"chat_template", "chat_template_kwargs"}
"""Body fields that may contain a chat template."""
LONG_BODY_BYTES = 1 << 15
"""Length from which parsing a body takes more than a few milliseconds."""
LONG_ANSWER_TOKENS = 10_000

MOST_TRIALS = 1000
"""Limit of validations, items times types, on the event loop: each failing one takes 2 us."""

HUGE_BYTES = LARGE_BYTES + 1
"""Length that a body with a chat template counts as: rendering may take as long."""

P = ParamSpec("P")
T = TypeVar("T")

JSON = "application/json"
PARSED_BODY: web.RequestKey[dict[str, Any]] = web.RequestKey("parsed_body", dict)
"""Request key under which one route passes a parsed body to another."""
UNTYPED = "application/x-untyped"
"""Stands for the absence of a media type: aiohttp would add a default."""


async def read_body(request: web.Request, num_kinds: int = 1, num_item_kinds: int = 1) -> dict[str, Any]:
    """Return the JSON object of a body, which may be of `num_kinds` types. Raises ApiError for any other body.

    `num_item_kinds` is the number of types that each item is validated against.
    """
    parsed: dict[str, Any] | None = request.get(PARSED_BODY)
    if parsed is not None:
        forget_body(request)
        return parsed
    if request.headers.get(hdrs.CONTENT_TYPE) != JSON and request.content_type != JSON:
        raise wrong_media_type()
    raw = await receive_body(request)
    num_trials = max(num_kinds, num_item_kinds)
    has_many_trials = num_trials > 1 and raw.count(b",") * num_trials > MOST_TRIALS
    if len(raw) <= LONG_BODY_BYTES and not has_many_trials:
        body = parse_json(raw, num_kinds)
        if body.keys() & TEMPLATE_FIELDS and request.app[SERVICE].model.planner.conversations.has_own_template(body):
            request[NUM_BODY_BYTES] = HUGE_BYTES
        return body
    request[NUM_BODY_BYTES] = len(raw)
    bodies = [raw]
    # The raw body may be tens of megabytes and is parsed only once.
    del raw
    forget_body(request)
    return await offload(request, parse_large_json, bodies, num_kinds)


async def read_model(request: web.Request, kind: type[BodyT]) -> BodyT:
    """Return a body as a model, which its first use builds on a thread. Raises ApiError for a body that does not
    fit."""
    if not kind.__pydantic_complete__:
        await request.app[SERVICE].delivery.executor.in_thread(kind.model_rebuild)
    return await offload(request, read_as, kind, await read_body(request))


async def receive_body(request: web.Request) -> bytes:
    """Return the body of a request. Raises ApiError if it does not arrive in time.

    A large body waits for memory, and keeps it until the request has been answered.
    """
    raw = request.whole_body if isinstance(request, BufferedRequest) else await _receive_body(request)
    if request.app[SERVICE].options.observability.log_http:
        request[LOGGED_BODY] = raw[:MOST_LOGGED_BYTES]
    return raw


async def _receive_body(request: web.Request) -> bytes:
    if request.content.is_eof():
        return await request.read()
    service = request.app[SERVICE]
    num_bytes = request.content_length
    if num_bytes is not None and num_bytes <= LARGE_BYTES:
        async with receive_timeout(service):
            return await request.read()
    reservation = request[BODY_RESERVATION] = BodyReservation(service.body_memory)
    async with receive_timeout(service):
        await reservation.acquire_raw(num_bytes or request.client_max_size)
        raw = await request.read()
    reservation.shrink_raw(len(raw) if len(raw) > LARGE_BYTES else 0)
    if len(raw) > CHECKED_BYTES:
        made_bytes = await service.delivery.executor.run(True, value_bytes, raw)
        if made_bytes <= MOST_VALUE_BYTES:  # larger bodies are refused
            await reservation.acquire_values(made_bytes)
    return raw


@asynccontextmanager
async def receive_timeout(service: Service) -> AsyncIterator[None]:
    """Raise ApiError if the block takes longer than the receive timeout."""
    try:
        async with asyncio.timeout(service.options.network.request_receive_timeout):
            yield
    except TimeoutError:
        raise ApiError("Request Timeout", status=408, kind="Request Timeout") from None


async def offload(request: web.Request, work: Callable[P, T], *arguments: P.args, **named: P.kwargs) -> T:
    """Run `work` on a body and return its result: in place for a short body, on a thread for a long one."""
    num_bytes = request.get(NUM_BODY_BYTES)
    if num_bytes is None:
        return work(*arguments, **named)
    delivery = request.app[SERVICE].delivery
    with _pending_arrival(request, delivery, num_bytes > LARGE_BYTES):
        return await delivery.executor.run(num_bytes > LARGE_BYTES, work, *arguments, **named)


def _pending_arrival(request: web.Request, delivery: ReplyDelivery, is_huge: bool) -> AbstractContextManager[None]:
    """Let the engine wait for a request that it will generate the reply of, unless the work in the block is huge."""
    if is_huge or GENERATES not in request:
        return nullcontext()
    return delivery.driver.pending_arrival(arrived_at(request, delivery.driver))


async def parsed(request: web.Request, known: ParsedBodyCache[T], body: dict[str, Any]) -> T:
    """Parse a body. Raises ApiError."""
    if NUM_BODY_BYTES in request:
        return await offload(request, known.parse_long, body)
    return known.parse(body)


async def run_single_plan(request: web.Request, body: Mapping[str, Any], plan: Coroutine[Any, Any, T]) -> T:
    """Plan one answer to `body` and return the plan; long bodies and answers are planned on a thread."""
    num_bytes, max_tokens = request.get(NUM_BODY_BYTES), body.get("max_output_tokens")
    is_bounded = isinstance(max_tokens, int) and max_tokens <= LONG_ANSWER_TOKENS
    if num_bytes is None and (is_bounded or not body.get("ignore_eos")):
        return await plan
    return await _on_thread(request, request.app[SERVICE].delivery, (num_bytes or 0) > LARGE_BYTES, plan)


async def run_plan(
    request: web.Request, sampling: SamplingParams, plan: Coroutine[Any, Any, ReplyJob], num_prompts: int = 1
) -> ReplyJob:
    """Plan the answers that `sampling` describes, for each prompt, and return the plan.

    Answers that are long together are planned on a thread. Raises ApiError if a header names an unknown engine.
    """
    service, num_bytes = request.app[SERVICE], request.get(NUM_BODY_BYTES)
    max_model_len = service.model.planner.max_model_len
    budget = max_model_len if sampling.max_tokens is None else min(sampling.max_tokens, max_model_len)
    num_tokens = likely_tokens(sampling, budget) + CHOICE_OVERHEAD_TOKENS
    is_long = num_prompts * sampling.n * num_tokens > LONG_ANSWER_TOKENS
    if num_bytes is None and not is_long:
        job = await plan
    else:
        job = await _on_thread(request, service.delivery, is_long or (num_bytes or 0) > LARGE_BYTES, plan)
    if RANK_HEADER in request.headers:
        check_rank(request, service, job)
    return job


async def _on_thread(request: web.Request, delivery: ReplyDelivery, is_huge: bool, plan: Coroutine[Any, Any, T]) -> T:
    """Run a planning coroutine on a thread. It is closed if the client disconnects before it begins."""
    try:
        with _pending_arrival(request, delivery, is_huge):
            return await delivery.executor.run(is_huge, run_to_completion, plan)
    finally:
        with suppress(ValueError):  # the thread is executing the plan
            plan.close()


def is_long(request: web.Request) -> bool:
    """Whether the body of a request is long, so that its reply may also be long."""
    return NUM_BODY_BYTES in request


def reply_id(request: web.Request, prefix: str, requested: str | None) -> str:
    """Return the id of a reply: from the request header, else from the body, else a new id."""
    named = header_text(request, ID_HEADER) if ID_HEADER in request.headers else requested
    return f"{prefix}-{next(request.app[SERVICE].ids) if named is None else named}"


def requested_priority(request: web.Request) -> int | None:
    """The priority in a request header; None without the header or with a value that is no number."""
    if PRIORITY_HEADER not in request.headers:
        return None
    return _header_number(header_text(request, PRIORITY_HEADER))


def addressed_service(request: web.Request) -> Service:
    """Return the service that a control route acts on: the instance in `?instance=`, else all. Raises ApiError."""
    service = request.app[SERVICE]
    query = QueryFields(request.query)
    number = query.number("instance")
    query.check()
    if number is None:
        return service
    if service.cluster is None:
        raise ApiError(f"there are no instances to choose from, got instance {number}")
    return service.cluster.service(number)


def check_rank(request: web.Request, service: Service, job: ReplyJob) -> None:
    """Raise ApiError when a header names an engine that does not exist; by then vLLM has logged the request."""
    rank = requested_rank(request)
    if rank is not None and not 0 <= rank < service.num_engines:
        for observer in service.delivery.observers:
            observer.received(job)
        raise mark_late(ApiError(f"data_parallel_rank {rank} is out of range [0, {service.num_engines})."))


def _header_number(text: str | None) -> int | None:
    try:
        return None if text is None else int(text)
    except ValueError:
        return None


def json_reply(body: Mapping[str, Any], status: int = 200) -> web.Response:
    """A JSON object as a reply."""
    return web.Response(status=status, body=reply_json(body), content_type="application/json")


def untyped_reply(text: str = "") -> web.Response:
    """Return a reply without a media type, as FastAPI sends a plain string."""
    return web.Response(body=text.encode(), content_type=UNTYPED)


async def read_object(request: web.Request, error_message: str | None = None) -> dict[str, Any]:
    """Return the JSON object of a route that reads its body on its own, whatever its media type.

    `error_message` replaces the JSON parser's message. Raises ApiError when there is no object.
    """
    body = await read_json(request, error_message)
    if not isinstance(body, dict):
        raise bad_request("Request body must be a JSON object")
    return body


async def read_fields(request: web.Request, error_message: str | None = None) -> dict[str, Any]:
    """Return the JSON object of a body. Any other value is an error of status 500, since vLLM's routes do not check."""
    body = await read_json(request, error_message)
    if not isinstance(body, dict):
        raise not_an_object(body)
    return body


async def read_json(request: web.Request, error_message: str | None = None) -> Any:
    """The JSON value of a body. Raises ApiError; `error_message` replaces the JSON parser's message."""
    parsed = request.get(PARSED_BODY)
    if parsed is not None:
        forget_body(request)
        return parsed
    raw = await receive_body(request)
    try:
        if len(raw) <= LONG_BODY_BYTES:
            return json.loads(raw)
        request[NUM_BODY_BYTES] = len(raw)
        return await offload(request, large_json, [raw])
    except json.JSONDecodeError as error:
        raise bad_request(error_message or f"JSON decode error: {error}") from None
    except ValueError as error:  # invalid UTF-8, or a number with thousands of digits
        raise ApiError(str(error)) from None
    except RecursionError as error:
        if request.path.startswith("/blis/"):
            raise ApiError(str(error)) from None
        raise unhandled_error(str(error)) from None
