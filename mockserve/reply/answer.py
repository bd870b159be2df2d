"""Conversion of a planned reply to an HTTP response: streamed or whole, and released when the client disconnects."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from http import HTTPStatus
from typing import Any, Protocol

from aiohttp import HttpVersion11, web
from multidict import istr

from blis_sim.engine.core import Engine
from blis_sim.engine.request import Request
from blis_sim.engine.stats import EngineStats
from blis_sim.engine.units import Micros
from mockserve.generation.answer import Answer
from mockserve.http.clients import UNKNOWN_CALLER, Caller, caller_of
from mockserve.protocol.bodies import Choice, Ending
from mockserve.protocol.errors import ApiError, bad_value, paused
from mockserve.protocol.json_text import reply_blocks, reply_json
from mockserve.reply.choices import EndedChoices, StreamedChoice
from mockserve.reply.delivery import DELIVERY, ReplyDelivery
from mockserve.reply.event_stream import EventStream
from mockserve.reply.frames import DONE, event
from mockserve.reply.plan import ReplyJob
from mockserve.reply.reply import Reply
from mockserve.reply.sse_writer import SSEWriter

_BELOW_THRESHOLD = Answer([], Ending("cache_threshold"), [], [])
"""The answer to a prompt that the KV cache holds too little of."""


async def answer(
    request: web.Request,
    delivery: ReplyDelivery,
    job: ReplyJob,
    arrived_at: Micros,
    headers: Mapping[str, str] | None = None,
    cache_hit_threshold: object = None,
) -> web.StreamResponse:
    """Reply to `request`. `headers` are for a whole reply.

    `arrived_at` is the arrival of the request on the driver's clock, so that reading the body costs no simulated time.
    `cache_hit_threshold` is that of the request, in place of the server's.
    """
    caller = caller_of(request)
    if delivery.cache_hit_threshold is not None:
        threshold = delivery.cache_hit_threshold if cache_hit_threshold is None else cache_hit_threshold
        job = _with_threshold(delivery, job, threshold)
    if job.delivery.stream:
        with delivery.open_replies:
            return await _stream_reply(request, Reply(delivery, job, arrived_at, caller))
    reply, choices = await collect(delivery, job, arrived_at, caller)

    def whole() -> dict[str, Any]:
        return job.bodies.whole(choices, reply.usage(is_stream=False), reply.metrics(is_stream=False))

    return await json_body(request, whole, job.is_long, headers)


def _with_threshold(delivery: ReplyDelivery, job: ReplyJob, threshold: object) -> ReplyJob:
    """Return the job without tokens if the KV cache holds less of a prompt. Raises ApiError for a bad threshold."""
    if isinstance(threshold, bool) or not isinstance(threshold, int | float) or not 0 <= threshold <= 1:
        raise bad_value("cache_hit_threshold must be between 0 and 1", "cache_hit_threshold", repr(threshold)[:40])
    requests = [prompt.generations[0].request for prompt in job.prompts]
    fractions = delivery.driver.call_engine(lambda engine, _at: [_cached_fraction(engine, each) for each in requests])
    if min(fractions) >= threshold:
        return job
    prompts = [
        prompt._replace(generations=[each._replace(answer=_BELOW_THRESHOLD) for each in prompt.generations])
        for prompt in job.prompts
    ]
    return job._replace(prompts=prompts, is_empty=True)


def _cached_fraction(engine: Engine, request: Request) -> float:
    """Return the fraction of a prompt's tokens in full blocks that the KV cache holds at present."""
    known, block_tokens = engine.kv.index.identities_now(), engine.config.block_size_tokens
    num_blocks = 0
    while (num_blocks + 1) * block_tokens <= request.input_tokens and request.blocks.identity(num_blocks) in known:
        num_blocks += 1
    return num_blocks * block_tokens / request.input_tokens


async def refuse(
    request: web.Request, error: ApiError, is_stream: bool, events: Sequence[bytes] = ()
) -> web.StreamResponse:
    """Answer a request with an error. Raises `error` unless it must be an event of a stream.

    `events` replace the error events of OpenAI's API.
    """
    if not (is_stream and error.is_late):
        raise error
    async with SSEWriter(request) as writer:
        for each in events or (event(error.body()), DONE):
            writer.send(each)
    return writer.response


async def collect(
    delivery: ReplyDelivery, job: ReplyJob, arrived_at: Micros, caller: Caller = UNKNOWN_CALLER
) -> tuple[Reply, Sequence[Choice] | EndedChoices]:
    """Return all choices of a reply once they are complete, and their usage and metrics. Raises ApiError if one fails.

    The choices of a long reply are written during iteration, which must run on another thread.
    """
    reply = Reply(delivery, job, arrived_at, caller)
    ended = EndedChoices(reply)
    with delivery.open_replies:
        if delivery.suspension.rejects_new:
            raise paused()
        await reply.run(ended.receiver)
    return reply, ended if job.is_long else list(ended)


async def _stream_reply(request: web.Request, reply: Reply) -> web.StreamResponse:
    """Stream a reply. The response begins when the engine has placed the requests: a router refuses with a status."""
    delivery, job, writer = reply.delivery, reply.job, SSEWriter(request)
    stream = EventStream(reply, writer, partial(delivery.executor.run, True))
    if delivery.suspension.rejects_new:
        async with writer:
            stream.fail(job.errors.paused())
        return writer.response
    with reply:
        await reply.placed(partial(StreamedChoice, stream))
        async with writer:
            if job.gets_comments:
                writer.send_comments(delivery.keep_alive_s)
            await reply.ended()
    return writer.response


FORMAT_HEADER = istr("endpoint-load-metrics-format")
LOAD_HEADER = "endpoint-load-metrics"


class HasStats(Protocol):
    """An engine with statistics, which are computed on access."""

    @property
    def stats(self) -> EngineStats: ...


def load_headers(api_request: str | None, engine: HasStats) -> Mapping[str, str]:
    """Return the load header in the requested format, `TEXT` or `JSON`; no header for any other."""
    if not api_request:
        return {}
    stats = engine.stats
    metrics = {
        "num_requests_waiting": float(stats.num_waiting),
        "kv_cache_usage_perc": float(stats.kv_usage_fraction),
    }
    requested = api_request.upper()
    if requested == "TEXT":
        named = ", ".join(f"named_metrics.{name}={value}" for name, value in metrics.items())
        return {LOAD_HEADER: f"TEXT {named}"}
    if requested == "JSON":
        return {LOAD_HEADER: f"JSON {json.dumps({'named_metrics': metrics})}"}
    return {}


JSON = "application/json"
WHOLE_BYTES = 1 << 20
"""A longer body is sent in parts."""
PART_BYTES = 1 << 18


async def json_body(
    request: web.Request,
    make: Callable[[], Any],
    is_long: bool,
    headers: Mapping[str, str] | None = None,
    status: int = HTTPStatus.OK,
) -> web.StreamResponse:
    """Respond to `request` with the result of `make` as JSON."""
    if not is_long:
        return web.Response(status=status, body=reply_json(make()), content_type=JSON, headers=headers)
    parts = _JsonParts(make)
    executor = request.app[DELIVERY].executor
    body = await executor.run(True, parts.next, WHOLE_BYTES)
    if not parts.has_more:
        return web.Response(status=status, body=body, content_type=JSON, headers=headers)
    response = web.StreamResponse(status=status, headers={**(headers or {}), "Content-Type": JSON})
    if request.version >= HttpVersion11:
        response.enable_chunked_encoding()
    else:
        response.force_close()
    await response.prepare(request)
    while body:
        await response.write(body)
        body = await executor.run(True, parts.next, PART_BYTES) if parts.has_more else b""
    await response.write_eof()
    return response


class _JsonParts:
    """The text of a JSON value, part by part."""

    def __init__(self, make: Callable[[], Any]) -> None:
        self._make = make
        self._blocks: Iterator[bytes] | None = None
        self.has_more = True

    def next(self, least_bytes: int) -> bytes:
        """Return at least `least_bytes` bytes; fewer at the end."""
        if self._blocks is None:
            self._blocks = reply_blocks(self._make())
        found: list[bytes] = []
        num_bytes = 0
        for each in self._blocks:
            found.append(each)
            num_bytes += len(each)
            if num_bytes >= least_bytes:
                break
        else:
            self.has_more = False
        return b"".join(found)
