"""Recorded and hand-written replies in the place of generated ones, and the journal of requests."""

import asyncio
import time
from contextlib import suppress

from aiohttp import hdrs, web

from blis_sim.engine.request import Request
from mockserve.generation.composer import SCRIPTED_TEXT
from mockserve.planning.played import played_request
from mockserve.playback.journal import MOST_BODY_BYTES, NotedRequest
from mockserve.playback.playback import Asked, Playback
from mockserve.playback.reply import Piece, PlayedReply
from mockserve.protocol.errors import ApiError
from mockserve.replies.choices import failure
from mockserve.responding.forwarding import forward
from mockserve.routes.shared import Handler, received
from mockserve.serving.service import SERVICE, Service
from mockserve.transport.clients import arrived_at
from traces.content.scrubbing import without_secret_headers

_PREFIXES = ("/v1/", "/v2/", "/inference/")
_PATHS = frozenset({"/invocations", "/pooling", "/classify", "/score", "/rerank", "/generative_scoring"})
_READ_IN_PLACE_BYTES = 1 << 16
_MOST_WORDS = 10_000


def is_played(method: str, path: str) -> bool:
    """Whether requests to this route may have recorded replies."""
    return method == "POST" and (path.startswith(_PREFIXES) or path in _PATHS)


async def play_back(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Answer with the recorded reply if there is one, else as `handler` does; note how each was answered."""
    service = request.app[SERVICE]
    playback = service.playback
    assert playback is not None
    path = service.network.route_path(request.path)
    raw = await received(request)
    headers = {name.lower(): value for name, value in request.headers.items()}
    if len(raw) > _READ_IN_PLACE_BYTES:
        asked = await service.delivery.aside.run(True, playback.asked, path, headers, raw)
    else:
        asked = playback.asked(path, headers, raw)
    found = playback.find(asked)
    if found is not None:
        reply, way = found
        _note(playback, asked, request, "playback", way)
        return await _played(request, handler, service, asked, reply)
    miss = playback.options.playback_miss
    _note(playback, asked, request, {"generate": "generated", "error": "error", "forward": "forwarded"}[miss], "")
    if miss == "error":
        raise ApiError("There is no recorded reply to this request.", status=404, kind="NotFoundError")
    if miss == "forward":
        return await forward(request, service, playback, asked)
    return await handler(request)


def _note(playback: Playback, asked: Asked, request: web.Request, answered_by: str, way: str) -> None:
    playback.journal.note(
        NotedRequest(
            number=playback.journal.num_seen,
            at_s=time.time(),
            method=request.method,
            path=asked.path,
            headers=dict(without_secret_headers(asked.headers.items())),
            model=asked.model,
            body_bytes=len(asked.raw),
            body=asked.body if len(asked.raw) <= MOST_BODY_BYTES else None,
            last_user=asked.conversation.last_user[:_MOST_WORDS],
            answered_by=answered_by,
            matched_by=way,
        )
    )


async def _played(
    request: web.Request, handler: Handler, service: Service, asked: Asked, reply: PlayedReply
) -> web.StreamResponse:
    assert service.playback is not None
    options = service.playback.options
    has_form = bool(reply.pieces) and (
        reply.status != 200 or (reply.is_stream == asked.is_stream and reply.path in ("", asked.path))
    )
    is_said_anew = options.playback_chunks == "tokens" and reply.status == 200
    if reply.text is not None and (is_said_anew or not has_form):
        token = SCRIPTED_TEXT.set(reply.text)
        try:
            return await handler(request)
        finally:
            SCRIPTED_TEXT.reset(token)
    if not reply.pieces:
        return await handler(request)
    if options.playback_timing == "recorded" or reply.status != 200 or not reply.num_output_tokens:
        speed = options.playback_speed if options.playback_timing == "recorded" else float("inf")
        return await _send(request, reply, _RecordedTimes(speed))
    with service.delivery.open_replies:
        return await _timed_by_engine(request, service, asked, reply)


async def _timed_by_engine(
    request: web.Request, service: Service, asked: Asked, reply: PlayedReply
) -> web.StreamResponse:
    driver = service.delivery.driver
    if len(asked.raw) > _READ_IN_PLACE_BYTES:
        engine_request = await service.delivery.aside.run(True, _engine_request, service, asked, reply)
    else:
        engine_request = _engine_request(service, asked, reply)
    tokens = _Tokens()
    try:
        driver.submit(engine_request, tokens, arrived_at(request, driver))
        await tokens.reached(1)  # a request that is refused has no reply yet
        return await _send(request, reply, tokens)
    finally:
        driver.abort(engine_request.id)


def _engine_request(service: Service, asked: Asked, reply: PlayedReply) -> Request:
    return played_request(service.model.planner, asked.body, asked.conversation, asked.raw, reply)


async def _send(request: web.Request, reply: PlayedReply, times: "_Tokens | _RecordedTimes") -> web.StreamResponse:
    if not reply.is_stream:
        await times.come(reply.pieces[-1])
        body = b"".join(each.data for each in reply.pieces)
        return web.Response(status=reply.status, body=body, headers={hdrs.CONTENT_TYPE: reply.content_type})
    response = web.StreamResponse(status=reply.status, headers={hdrs.CONTENT_TYPE: reply.content_type})
    response.enable_chunked_encoding()
    due: list[bytes] = []
    with suppress(ConnectionResetError):
        for piece in reply.pieces:
            if due and not times.is_due(piece):
                if not response.prepared:
                    await response.prepare(request)
                await response.write(b"".join(due))
                due.clear()
            await times.come(piece)
            due.append(piece.data)
        if not response.prepared:
            await response.prepare(request)
        await response.write(b"".join(due))
        if reply.is_cut and request.transport is not None:
            request.transport.abort()
            return response
        await response.write_eof()
    return response


class _RecordedTimes:
    """Pieces come at their recorded times, so many recorded seconds in a real one."""

    def __init__(self, speed: float) -> None:
        self._speed = speed
        self._started = time.monotonic()

    def is_due(self, piece: Piece) -> bool:
        return self._left_s(piece) <= 0

    async def come(self, piece: Piece) -> None:
        """Return when a piece is due."""
        if (left_s := self._left_s(piece)) > 0:
            await asyncio.sleep(left_s)

    def _left_s(self, piece: Piece) -> float:
        return self._started + piece.after_us / 1e6 / self._speed - time.monotonic()


class _Tokens:
    """Pieces come with the tokens of the engine."""

    is_streamed = True
    finish_reason = "stop"

    def __init__(self) -> None:
        self._number = 0
        self._has_ended = False
        self._error: ApiError | None = None
        self._moved = asyncio.Event()

    def is_due(self, piece: Piece) -> bool:
        return self._number >= piece.num_tokens or self._has_ended

    async def come(self, piece: Piece) -> None:
        """Return when a piece is due."""
        await self.reached(piece.num_tokens)

    async def reached(self, number: int) -> None:
        """Return when so many tokens have come. Raises ApiError when the engine refuses the request or fails."""
        while self._number < number and not self._has_ended:
            self._moved.clear()
            await self._moved.wait()
        if self._error is not None:
            raise self._error

    def token(self, number: int) -> None:
        self._move(number)

    def tokens(self, first: int, last: int) -> None:
        self._move(last)

    def finish(self, num_tokens: int) -> None:
        self._has_ended = True
        self._move(num_tokens)

    def abort(self, num_tokens: int) -> None:
        self._has_ended = True
        self._move(num_tokens)

    def fail(self, message: str, status: int) -> None:
        self._error = failure(message, status)
        self._has_ended = True
        self._move(0)

    def _move(self, number: int) -> None:
        self._number = max(self._number, number)
        self._moved.set()
