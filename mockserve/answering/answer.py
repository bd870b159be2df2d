"""From a planned reply to an HTTP response: submit it, deliver what comes, and free it when the client leaves."""

import asyncio
from collections.abc import Mapping, Sequence
from functools import partial
from types import TracebackType
from typing import Any, Self

from aiohttp import HttpVersion11, web

from blis_sim.engine.units import Micros
from mockserve.answering.in_turn import fly_in_turn
from mockserve.answering.json_reply import json_body
from mockserve.answering.outlet import EventOutlet, Outlet
from mockserve.connections.caller import ANYBODY, Caller, caller_of
from mockserve.flight import Reply, new_siblings
from mockserve.protocol.bodies import Choice
from mockserve.protocol.errors import ApiError, paused
from mockserve.realtime.cluster import ClusterDriver
from mockserve.replies.collected import CollectedChoice, LateChoices
from mockserve.replies.event_stream import EventStream, HeldStream, LongEventStream
from mockserve.replies.frames import DONE, event
from mockserve.replies.generation import Generation, PlannedPrompt
from mockserve.replies.reply_set import ReplyJob, ReplySet
from mockserve.replies.streamed import StreamedChoice
from mockserve.serving.service import Service

COMMENT = b": keep-alive\n\n"
"""As vLLM has it; readers of events ignore it."""


class KeepAlive:
    """While this is open, a comment leaves `outlet` whenever nothing has for `interval_s` seconds; 0 for never."""

    def __init__(self, outlet: Outlet, interval_s: int) -> None:
        self._outlet = outlet
        self._interval_s = interval_s
        self._timer: asyncio.TimerHandle | None = None
        self._last_s = 0.0

    def heard(self) -> None:
        """Something leaves."""
        self._last_s = asyncio.get_running_loop().time()

    def __enter__(self) -> Self:
        if self._interval_s:
            self._outlet.keep_alive = self
            self.heard()
            self._wait()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._outlet.keep_alive = None

    def _wait(self) -> None:
        loop = asyncio.get_running_loop()
        self._timer = loop.call_at(self._last_s + self._interval_s, self._look)

    def _look(self) -> None:
        if asyncio.get_running_loop().time() >= self._last_s + self._interval_s:
            self._outlet.send(COMMENT)
        self._wait()


async def answer(
    request: web.Request,
    service: Service,
    job: ReplyJob,
    arrived_at: Micros,
    headers: Mapping[str, str] | None = None,
) -> web.StreamResponse:
    """Reply to `request`. `headers` are for a whole reply.

    `arrived_at` is when the request came in on the driver's clock, so that reading it costs no simulated time.
    """
    caller = caller_of(request)
    if job.delivery.stream:
        with service.answering:
            return await _stream(request, service, ReplySet(job, caller), arrived_at)
    replies, choices = await collect(service, job, arrived_at, caller)

    def whole() -> dict[str, Any]:
        return job.bodies.whole(choices, replies.usage(is_stream=False), replies.metrics(is_stream=False))

    return await json_body(request, whole, job.is_long, headers)


async def refuse(
    request: web.Request, error: ApiError, is_stream: bool, told: Sequence[bytes] = ()
) -> web.StreamResponse:
    """What becomes of a request that cannot be answered. Raises `error` unless a stream is to tell it.

    `told` are the events that do, if they are not those of OpenAI's API.
    """
    if not (is_stream and error.is_late):
        raise error
    async with EventOutlet(request) as outlet:
        for each in told or (event(error.body()), DONE):
            outlet.send(each)
    return outlet.response


async def collect(
    service: Service, job: ReplyJob, arrived_at: Micros, caller: Caller = ANYBODY
) -> tuple[ReplySet, Sequence[Choice] | LateChoices]:
    """All choices of a reply once they are complete, and what they have cost. Raises ApiError if one fails.

    Those of a long reply are written when they are gone through, which is for another thread to do.
    """
    replies = ReplySet(job, caller)
    if job.is_long:
        late = LateChoices(replies)
        with service.answering:
            if service.suspension.rejects_new:
                raise paused()
            await fly_in_turn(service, replies, late.reply, arrived_at)
        return replies, late
    choices = [
        CollectedChoice(replies, job.new_writer(prompt, each), each)
        for prompt in job.prompts
        for each in prompt.generations
    ]
    with service.answering:
        if service.suspension.rejects_new:
            raise paused()
        await fly(service, replies, choices, arrived_at)
    return replies, [each.choice for each in choices if each.choice is not None]


async def _stream(request: web.Request, service: Service, replies: ReplySet, arrived_at: Micros) -> web.StreamResponse:
    asks_engine = not (service.suspension.rejects_new or replies.job.is_empty)
    if replies.job.is_long and asks_engine:
        return await _stream_in_turn(request, service, replies, arrived_at)
    driver = service.driver
    if isinstance(driver, ClusterDriver) and asks_engine:
        return await _stream_once_routed(request, service, driver, replies, arrived_at)
    async with EventOutlet(request) as outlet:
        stream = EventStream(replies, outlet, outlet.chunked)
        choices = _streamed_choices(stream)
        if service.suspension.rejects_new:
            stream.fail(replies.job.errors.paused())
        else:
            with KeepAlive(outlet, service.options.replies.sse_keep_alive_interval):
                await fly(service, replies, choices, arrived_at)
    return outlet.response


async def _stream_in_turn(
    request: web.Request, service: Service, replies: ReplySet, arrived_at: Micros
) -> web.StreamResponse:
    """A long stream: its choices come in turn, and its long events are made on another thread."""
    job = replies.job
    async with EventOutlet(request) as outlet:
        stream = LongEventStream(replies, outlet, outlet.chunked, partial(service.aside.run, True))

        def choice(index: int, prompt: PlannedPrompt, number: int, generation: Generation) -> StreamedChoice:
            return StreamedChoice(stream, job.new_writer(prompt, generation), prompt, number, index)

        with KeepAlive(outlet, service.options.replies.sse_keep_alive_interval):
            await fly_in_turn(service, replies, choice, arrived_at)
    return outlet.response


async def _stream_once_routed(
    request: web.Request, service: Service, driver: ClusterDriver, replies: ReplySet, arrived_at: Micros
) -> web.StreamResponse:
    """A router answers a request that comes to no instance with a status, so nothing is sent before that is known."""
    stream = HeldStream(replies, request.version >= HttpVersion11)
    try:
        _submit(service, replies, _streamed_choices(stream), arrived_at)
        await driver.until_routed([each.request.id for prompt in replies.job.prompts for each in prompt.generations])
        if replies.done.done():
            await replies.done  # which may raise
        async with EventOutlet(request) as outlet:
            stream.let_go(outlet)
            with KeepAlive(outlet, service.options.replies.sse_keep_alive_interval):
                await replies.done
    finally:
        _free(service, replies)
    return outlet.response


def _streamed_choices(stream: EventStream) -> list[StreamedChoice]:
    job, choices = stream.job, list[StreamedChoice]()
    for prompt in job.prompts:
        for number, generation in enumerate(prompt.generations):
            writer = job.new_writer(prompt, generation)
            choices.append(StreamedChoice(stream, writer, prompt, number, len(choices)))
    return choices


async def fly(service: Service, replies: ReplySet, choices: Sequence[Reply], arrived_at: Micros) -> None:
    """Submit every choice and wait for the last. Whatever ends the wait, what is still in the engine is freed."""
    if replies.job.is_empty:
        for choice in choices:
            choice.finish(0)
        return
    try:
        _submit(service, replies, choices, arrived_at)
        await replies.done
    finally:
        _free(service, replies)


def _submit(service: Service, replies: ReplySet, choices: Sequence[Reply], arrived_at: Micros) -> None:
    driver, caller = service.driver, replies.caller
    waiting = iter(choices)
    for prompt in replies.job.prompts:
        siblings = new_siblings(len(prompt.generations))
        for generation in prompt.generations:
            request = caller.named_in(generation.request)
            replies.add_flight(driver.submit(request, next(waiting), arrived_at, siblings, caller.rank))


def _free(service: Service, replies: ReplySet) -> None:
    """Let go of what is still in the engine."""
    replies.done.cancel()
    for prompt in replies.job.prompts:
        for generation in prompt.generations:
            service.driver.abort(generation.request.id)
    replies.let_go()
