"""Conversion of a planned reply to an HTTP response: streamed or whole, and released when the client disconnects."""

import asyncio
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from http import HTTPStatus
from types import TracebackType
from typing import Any, Protocol, Self

from aiohttp import HttpVersion11, web
from multidict import istr

from blis_sim.engine.core import Engine
from blis_sim.engine.request import Request
from blis_sim.engine.stats import EngineStats
from blis_sim.engine.units import Micros
from mockserve.generation.answer import Answer
from mockserve.in_flight_request import Reply, new_parent
from mockserve.protocol.bodies import Choice, Ending
from mockserve.protocol.errors import ApiError, bad_value, paused
from mockserve.protocol.json_text import reply_blocks, reply_json
from mockserve.realtime.cluster import ClusterDriver
from mockserve.replies.choice_writer import Generation, PlannedPrompt
from mockserve.replies.choices import CollectedChoice, LazyChoices, StreamedChoice
from mockserve.replies.event_stream import DeferredStream, EventStream, LongEventStream
from mockserve.replies.frames import DONE, event
from mockserve.replies.reply_set import CompletedChoice, ReplyJob, ReplySet
from mockserve.responding.sse_writer import EventOutlet, SSEWriter
from mockserve.responding.submission import behind, run_choices_in_turn
from mockserve.serving.service import SERVICE, ReplyDelivery
from mockserve.transport.clients import UNKNOWN_CALLER, Caller, caller_of

_BELOW_THRESHOLD = Answer([], Ending("cache_threshold"), [], [])
"""The answer to a prompt of which the KV cache holds too little."""

COMMENT = b": keep-alive\n\n"
"""vLLM's keep-alive comment; SSE clients ignore it."""


class KeepAlive:
    """Context manager that sends a comment to `outlet` after each `interval_s` seconds without data; 0 for never."""

    def __init__(self, outlet: SSEWriter, interval_s: int) -> None:
        self._outlet = outlet
        self._interval_s = interval_s
        self._timer: asyncio.TimerHandle | None = None
        self._last_s = 0.0

    def note_activity(self) -> None:
        """Record that data is sent."""
        self._last_s = asyncio.get_running_loop().time()

    def __enter__(self) -> Self:
        if self._interval_s:
            self._outlet.keep_alive = self
            self.note_activity()
            self._schedule_check()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._outlet.keep_alive = None

    def _schedule_check(self) -> None:
        loop = asyncio.get_running_loop()
        self._timer = loop.call_at(self._last_s + self._interval_s, self._check_idle)

    def _check_idle(self) -> None:
        if asyncio.get_running_loop().time() >= self._last_s + self._interval_s:
            self._outlet.send(COMMENT)
        self._schedule_check()


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
            return await _stream(request, delivery, ReplySet(job, caller), arrived_at)
    replies, choices = await collect(delivery, job, arrived_at, caller)

    def whole() -> dict[str, Any]:
        return job.bodies.whole(choices, replies.usage(is_stream=False), replies.metrics(is_stream=False))

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
    async with EventOutlet(request) as outlet:
        for each in events or (event(error.body()), DONE):
            outlet.send(each)
    return outlet.response


async def collect(
    delivery: ReplyDelivery, job: ReplyJob, arrived_at: Micros, caller: Caller = UNKNOWN_CALLER
) -> tuple[ReplySet, Sequence[Choice] | LazyChoices]:
    """Return all choices of a reply once they are complete, and their usage and metrics. Raises ApiError if one fails.

    The choices of a long reply are written during iteration, which must run on another thread.
    """
    replies = ReplySet(job, caller)
    if job.is_long:
        late = LazyChoices(replies)
        with delivery.open_replies:
            if delivery.suspension.rejects_new:
                raise paused()
            await run_choices_in_turn(delivery, replies, late.reply, arrived_at)
        return replies, late
    choices = [
        CollectedChoice(replies, job.new_writer(prompt, each), each)
        for prompt in job.prompts
        for each in prompt.generations
    ]
    with delivery.open_replies:
        if delivery.suspension.rejects_new:
            raise paused()
        await run_choices(delivery, replies, choices, arrived_at)
    return replies, [each.choice for each in choices if each.choice is not None]


async def _stream(
    request: web.Request, delivery: ReplyDelivery, replies: ReplySet, arrived_at: Micros
) -> web.StreamResponse:
    needs_engine = not (delivery.suspension.rejects_new or replies.job.is_empty)
    if replies.job.is_long and needs_engine:
        return await _stream_in_turn(request, delivery, replies, arrived_at)
    driver = delivery.driver
    if isinstance(driver, ClusterDriver) and needs_engine:
        return await _stream_once_routed(request, delivery, driver, replies, arrived_at)
    async with EventOutlet(request) as outlet:
        stream = EventStream(replies, outlet, outlet.chunked)
        choices = _streamed_choices(stream)
        if delivery.suspension.rejects_new:
            stream.fail(replies.job.errors.paused())
        else:
            with KeepAlive(outlet, _comment_interval_s(delivery, replies.job)):
                await run_choices(delivery, replies, choices, arrived_at)
    return outlet.response


def _comment_interval_s(delivery: ReplyDelivery, job: ReplyJob) -> int:
    return delivery.keep_alive_s if job.gets_comments else 0


async def _stream_in_turn(
    request: web.Request, delivery: ReplyDelivery, replies: ReplySet, arrived_at: Micros
) -> web.StreamResponse:
    """Stream a long reply: its choices are submitted one after the other, and long events are made on another
    thread."""
    job = replies.job
    async with EventOutlet(request) as outlet:
        stream = LongEventStream(replies, outlet, outlet.chunked, partial(delivery.aside.run, True))

        def choice(index: int, prompt: PlannedPrompt, number: int, generation: Generation) -> StreamedChoice:
            return StreamedChoice(stream, job.new_writer(prompt, generation), prompt, number, index)

        with KeepAlive(outlet, _comment_interval_s(delivery, job)):
            await run_choices_in_turn(delivery, replies, choice, arrived_at)
    return outlet.response


async def _stream_once_routed(
    request: web.Request, delivery: ReplyDelivery, driver: ClusterDriver, replies: ReplySet, arrived_at: Micros
) -> web.StreamResponse:
    """Stream a reply after routing: the router refuses a request with a status, so nothing is sent before that."""
    stream = DeferredStream(replies, request.version >= HttpVersion11)
    started_ns = time.time_ns() if delivery.observers else 0
    try:
        _submit(delivery, replies, _streamed_choices(stream), arrived_at)
        await driver.until_routed([each.request.id for prompt in replies.job.prompts for each in prompt.generations])
        if replies.done.done():
            await replies.done  # which may raise
        async with EventOutlet(request) as outlet:
            stream.release(outlet)
            with KeepAlive(outlet, _comment_interval_s(delivery, replies.job)):
                await replies.done
        if started_ns:
            _note_completed(delivery, replies, started_ns)
    finally:
        _free(delivery, replies)
    return outlet.response


def _streamed_choices(stream: EventStream) -> list[StreamedChoice]:
    job, choices = stream.job, list[StreamedChoice]()
    for prompt in job.prompts:
        for number, generation in enumerate(prompt.generations):
            writer = job.new_writer(prompt, generation)
            choices.append(StreamedChoice(stream, writer, prompt, number, len(choices)))
    return choices


async def run_choices(delivery: ReplyDelivery, replies: ReplySet, choices: Sequence[Reply], arrived_at: Micros) -> None:
    """Submit every choice and wait for the last one. Requests still in the engine are aborted at the end."""
    if replies.job.is_empty:
        for choice in choices:
            choice.finish(0)
        return
    started_ns = time.time_ns() if delivery.observers else 0
    try:
        _submit(delivery, replies, choices, arrived_at)
        await replies.done
        if started_ns:
            _note_completed(delivery, replies, started_ns)
    finally:
        _free(delivery, replies)


def _note_completed(delivery: ReplyDelivery, replies: ReplySet, started_ns: int) -> None:
    engine_requests = iter(replies.engine_requests)
    for number, prompt in enumerate(replies.job.prompts):
        for generation, flight in zip(prompt.generations, engine_requests, strict=False):
            choice = CompletedChoice(replies.job, number, generation, flight, replies.caller, started_ns)
            for observer in delivery.observers:
                observer.completed(choice)


def _submit(delivery: ReplyDelivery, replies: ReplySet, choices: Sequence[Reply], arrived_at: Micros) -> None:
    driver, caller = delivery.driver, replies.caller
    for observer in delivery.observers:
        observer.received(replies.job)
    waiting = iter(choices)
    leader = ""
    for prompt in replies.job.prompts:
        parent = new_parent(len(prompt.generations))
        for generation in prompt.generations:
            request = caller.applied_to(behind(generation.request, leader))
            leader = leader or request.id
            replies.add_request(driver.submit(request, next(waiting), arrived_at, parent, caller.rank))


def _free(delivery: ReplyDelivery, replies: ReplySet) -> None:
    """Abort the requests of a reply that are still in the engine, and drop their choices."""
    replies.done.cancel()
    for prompt in replies.job.prompts:
        for generation in prompt.generations:
            delivery.driver.abort(generation.request.id)
    replies.release()


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
    aside = request.app[SERVICE].delivery.aside
    first = await aside.run(True, parts.next, WHOLE_BYTES)
    if parts.is_exhausted:
        return web.Response(status=status, body=first, content_type=JSON, headers=headers)
    response = web.StreamResponse(status=status, headers={**(headers or {}), "Content-Type": JSON})
    if request.version >= HttpVersion11:
        response.enable_chunked_encoding()
    else:
        response.force_close()
    await response.prepare(request)
    await response.write(first)
    while not parts.is_exhausted:
        await response.write(await aside.run(True, parts.next, PART_BYTES))
    await response.write_eof()
    return response


class _JsonParts:
    """The text of a JSON value, part by part."""

    def __init__(self, make: Callable[[], Any]) -> None:
        self._make = make
        self._blocks: Iterator[bytes] | None = None
        self.is_exhausted = False

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
            self.is_exhausted = True
        return b"".join(found)
