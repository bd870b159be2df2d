"""Recorded and hand-written replies in the place of generated ones, and requests forwarded to another server."""

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial, update_wrapper
from http import HTTPStatus
from pathlib import Path
from time import perf_counter_ns, time_ns
from typing import Any, NamedTuple, TypeAlias

from aiohttp import ClientError, ClientSession, ClientTimeout, hdrs, web

from blis_sim.engine.request import Request
from blis_sim.wings.playback.recordings import (
    MOST_BODY_BYTES,
    MOST_CHARACTERS,
    MOST_SEARCH_S,
    Conversation,
    Fixture,
    FixtureSearch,
    JournalEntry,
    KeyedReply,
    Playback,
    PlaybackRequest,
    PlayedReply,
    RecordedPiece,
    SearchTooLongError,
    conversation_of,
)
from mockserve.generation.composer import SCRIPTED, Scripted
from mockserve.http.connection import arrived_at
from mockserve.protocol.chat_messages import check_parts
from mockserve.protocol.completions import chat_bodies_of
from mockserve.protocol.errors import ApiError
from mockserve.protocol.json_text import CHECKED_BYTES, LARGE_BYTES
from mockserve.realtime.in_flight import InFlightRequest, new_id
from mockserve.reply.reply import failure
from mockserve.routes.shared import BODY_RESERVATION, JSON, NUM_BODY_BYTES, PARSED_BODY, Handler, receive_body
from mockserve.serving.planner import Planner, draft_request
from mockserve.serving.service import SERVICE, Service
from traces.append_file import AppendFile
from traces.content import RecordedExchange, line_of
from traces.redaction import without_secret_headers, without_secret_parameters
from traces.text_file import TraceError, dumped_in_pieces


def played_request(planner: Planner, body: Any, conversation: Conversation, raw: bytes, reply: PlayedReply) -> Request:
    """Return the engine request for a recorded reply; its prompt has the recorded number of tokens.

    Blocks of prompt and reply are hashed by their tokens, so that a next round finds both in the prefix cache. Raises
    ApiError if prompt and reply exceed the context.
    """
    ids = _prompt_ids(planner, body, conversation) or planner.encode(raw.decode("utf-8", "replace")) or [0]
    requested = reply.num_prompt_tokens or len(ids)
    ids = ids[:requested] if len(ids) >= requested else [*ids, *[ids[-1]] * (requested - len(ids))]
    planner.check_length(len(ids) + reply.num_output_tokens)
    return planner.recorded_request(
        ids, draft_request(f"playback-{new_id()}"), reply.num_output_tokens, _reply_ids(planner, reply)
    )


def _prompt_ids(planner: Planner, body: Any, conversation: Conversation) -> list[int]:
    if isinstance(body, Mapping) and isinstance(body.get("prompt"), str) and "messages" not in body:
        return planner.encode(body["prompt"], add_special_tokens=True)
    if not conversation.turns:
        return []
    spaced = conversation_of(body, keeps_spaces=True)
    messages = [{"role": role, "content": words} for role, words in spaced.turns]
    try:
        text = planner.conversations.prompt({"messages": messages, "tools": _tools(body) or None})
    except (ApiError, RecursionError):  # a template may not support the roles of another server, or the depth of a body
        text = conversation.text
    return planner.encode(text)


def _tools(body: Any) -> list[dict[str, Any]]:
    """Return the functions of a body of any API in the format of chat completions."""
    found = body.get("tools") if isinstance(body, Mapping) else None
    tools = []
    for each in found if isinstance(found, list) else ():
        function = each.get("function", each) if isinstance(each, Mapping) else None
        if isinstance(function, Mapping) and isinstance(function.get("name"), str):
            shown = {
                "name": function["name"],
                "description": function.get("description"),
                "parameters": function.get("parameters", function.get("input_schema")),
            }
            given = {name: value for name, value in shown.items() if value is not None}
            tools.append({"type": "function", "function": given})
    return tools


def _reply_ids(planner: Planner, reply: PlayedReply) -> list[int]:
    """Return the tokens of a text reply; empty for other replies, whose tokens the recording does not contain."""
    if reply.text is None:
        return []
    try:
        return planner.encode(reply.text)[: reply.num_output_tokens]
    except ApiError:
        return []


_DROPPED_HEADERS = frozenset(
    {"host", "connection", "keep-alive", "transfer-encoding", "content-length", "te", "trailer", "upgrade", "expect"}
)
_FORWARDED_HEADERS = ("content-type", "content-encoding", "retry-after", "x-request-id")
_MOST_RECORDED_BYTES = 8 << 20
"""Bytes of a reply that is recorded; a longer one is forwarded alone."""


async def forward(
    request: web.Request, service: Service, playback: Playback, playback_request: PlaybackRequest
) -> web.StreamResponse:
    """Forward the request and stream the reply of the upstream. Raises ApiError if the upstream is unreachable."""
    url = playback.options.playback_upstream.rstrip("/").removesuffix("/v1") + request.path_qs
    headers = [(name, value) for name, value in request.headers.items() if name.lower() not in _DROPPED_HEADERS]
    headers = [(name, "identity" if name.lower() == "accept-encoding" else value) for name, value in headers]
    started_ns, sent_at_us = perf_counter_ns(), time_ns() // 1000
    body = await request.read()
    pieces: list[tuple[int, bytes]] = []
    response: web.StreamResponse | None = None
    try:
        async with (
            ClientSession(timeout=ClientTimeout(total=None, sock_connect=10), auto_decompress=False) as session,
            session.post(url, data=body, headers=headers) as reply,
        ):
            back = {name: reply.headers[name] for name in _FORWARDED_HEADERS if name in reply.headers}
            response = web.StreamResponse(status=reply.status, headers=back)
            response.enable_chunked_encoding()
            await response.prepare(request)
            num_bytes = 0
            async for data in reply.content.iter_any():
                await response.write(data)
                num_bytes += len(data)
                if num_bytes <= _MOST_RECORDED_BYTES:
                    pieces.append(((perf_counter_ns() - started_ns) // 1000, data))
                else:
                    pieces.clear()
            if num_bytes <= _MOST_RECORDED_BYTES and "content-encoding" not in back:
                is_huge = num_bytes + len(body) > LARGE_BYTES
                recorded = _exchange(
                    playback, request, playback_request, reply.status, list(back.items()), pieces, sent_at_us
                )
                found = await service.delivery.executor.run(
                    is_huge, _read_and_append, playback, recorded, playback_request
                )
                if found is not None:
                    playback.keep(found)
            await response.write_eof()  # the client may repeat the request from here on
    except (ClientError, OSError, TimeoutError) as error:
        if response is not None and response.prepared:
            response.force_close()
            if request.transport is not None:
                request.transport.close()
            return response
        raise ApiError(f"cannot forward to {url}: {error}", status=502, kind="Bad Gateway") from None
    return response


def _exchange(
    playback: Playback,
    request: web.Request,
    playback_request: PlaybackRequest,
    status: int,
    headers: list[tuple[str, str]],
    pieces: list[tuple[int, bytes]],
    sent_at_us: int,
) -> Callable[[], RecordedExchange]:
    """Return what makes the record of an exchange without secrets, which may take long."""
    redactor = playback.redactor_for(request.headers.items(), request.path_qs)
    recorded = RecordedExchange(
        request_id=None,
        sent_at_us=sent_at_us,
        method="POST",
        path=redactor.text(without_secret_parameters(playback_request.path)),
        headers=[(name, redactor.text(value)) for name, value in without_secret_headers(request.headers.items())],
        body=playback_request.raw,
        status=status,
        reply_headers=headers,
        pieces=pieces,
        is_complete=True,
        upstream=playback.options.playback_upstream,
    )
    return partial(recorded.in_pieces, redactor)


def _read_and_append(
    playback: Playback, make: Callable[[], RecordedExchange], playback_request: PlaybackRequest
) -> KeyedReply | None:
    """Make the record of an exchange, append it to the file, and return the reply with its keys."""
    exchange = make()
    _append(playback.options.playback, exchange)
    return playback.read(exchange, playback_request)


def _append(path: str, exchange: RecordedExchange) -> None:
    try:
        file = AppendFile(Path(path), is_shared=True)
    except TraceError:
        return
    try:
        file.write_parts(line_of(exchange))
    except OSError:
        return
    finally:
        file.close()


FaultyAnswer: TypeAlias = Callable[[web.Request, Handler, str], Awaitable[web.StreamResponse]]
"""Answers a request with a fault, given in the words of the header for faults."""

_PREFIXES = ("/v1/", "/v2/", "/inference/")
_PATHS = frozenset({"/invocations", "/pooling", "/classify", "/score", "/rerank", "/generative_scoring"})
_READ_IN_PLACE_BYTES = 1 << 13


def played_handler(method: str, path: str, handler: Handler, answer_with_fault: FaultyAnswer) -> Handler:
    """Return the handler of a route, wrapped for recorded replies if its requests may have some."""
    if method != "POST" or not (path.startswith(_PREFIXES) or path in _PATHS):
        return handler
    # The documents show the name and the docstring of a route's handler.
    return update_wrapper(partial(play_back, handler=handler, answer_with_fault=answer_with_fault), handler)


def playback_of(service: Service) -> Playback:
    """Return the recorded replies of a server that has some."""
    assert isinstance(service.playback, Playback)
    return service.playback


async def play_back(request: web.Request, handler: Handler, answer_with_fault: FaultyAnswer) -> web.StreamResponse:
    """Answer with a matching recorded reply, else with `handler`; record both in the journal.

    The reply of a fixture with a fault goes through `answer_with_fault`.
    """
    service = request.app[SERVICE]
    playback = playback_of(service)
    path = service.network.route_path(request.path)
    raw = await receive_body(request)
    headers = {name.lower(): value for name, value in request.headers.items()}
    reservation = request.get(BODY_RESERVATION)
    if len(raw) > CHECKED_BYTES and (reservation is None or not reservation.value_bytes):
        return await handler(request)  # which refuses a body with so many values
    try:
        if len(raw) > _READ_IN_PLACE_BYTES:
            search = await service.delivery.executor.run(True, _search, playback, path, headers, raw)
        else:
            search = _search(playback, path, headers, raw)
        found = await _found(service, playback, search)
        texts = {} if found is not None else await _texts_by_prompt(service, search.playback_request)
    except SearchTooLongError:
        message = f"The search of the fixtures takes more than {MOST_SEARCH_S:g} s for this request."
        raise ApiError(message, status=503, kind="Service Unavailable") from None
    playback_request = search.playback_request
    if found is not None:
        reply, way = found
        _add_to_journal(playback, playback_request, request, "playback", way)
        play = partial(_played, handler=handler, service=service, playback_request=playback_request, reply=reply)
        return await (play(request) if not reply.fault else answer_with_fault(request, play, reply.fault))
    miss = playback.options.playback_miss
    if texts and (miss == "generate" or None not in texts.values()):
        _add_to_journal(playback, playback_request, request, "playback", "prompts")
        known = {prompt: text for prompt, text in texts.items() if text is not None}
        _pass_on(request, playback_request)
        with _scripted(known):
            return await handler(request)
    _add_to_journal(
        playback,
        playback_request,
        request,
        {"generate": "generated", "error": "error", "forward": "forwarded"}[miss],
        "",
    )
    if miss == "error":
        raise ApiError("There is no recorded reply to this request.", status=404, kind="NotFoundError")
    if miss == "forward":
        return await forward(request, service, playback, playback_request)
    _pass_on(request, playback_request)
    del raw, search, playback_request  # a large body takes memory until its handler has read it
    return await handler(request)


def _pass_on(request: web.Request, playback_request: PlaybackRequest) -> None:
    """Let the handler use the value of a large body, unless it was redacted or the handler would read it otherwise."""
    raw, body = playback_request.raw, playback_request.body
    is_json = request.headers.get(hdrs.CONTENT_TYPE) == JSON or request.content_type == JSON
    if len(raw) > LARGE_BYTES and is_json and isinstance(body, dict) and not playback_request.is_redacted:
        request[NUM_BODY_BYTES], request[PARSED_BODY] = len(raw), body


@contextmanager
def _scripted(answers: Scripted | None) -> Iterator[None]:
    """Let answers that are planned within the block be these."""
    token = SCRIPTED.set(answers)
    try:
        yield
    finally:
        SCRIPTED.reset(token)


_BATCH = "/batch"
_MOST_PARTS = 1024
_PARTS_AT_ONCE = 8
"""Prompts of one request that are looked up before other requests have their turn."""


async def _texts_by_prompt(service: Service, playback_request: PlaybackRequest) -> dict[str, str | None]:
    """Return the text of the reply to each prompt of a request with several, None for an unknown prompt.

    The result is empty for a request with one prompt, and where no prompt is known.
    """
    playback = playback_of(service)
    find_parts = partial(_parts, service, playback_request)
    is_large = len(playback_request.raw) > _READ_IN_PLACE_BYTES
    parts = await service.delivery.executor.run(True, find_parts) if is_large else find_parts()
    texts: dict[str, str | None] = {}
    for number, (prompt, path, body) in enumerate(parts):
        if number and number % _PARTS_AT_ONCE == 0:
            await asyncio.sleep(0)
        look_up = partial(_search_part, playback, path, playback_request.headers, body)
        part = await service.delivery.executor.run(True, look_up) if is_large else look_up()
        found = await _found(service, playback, part)
        texts[prompt] = found[0].text if found is not None and found[0].status == HTTPStatus.OK else None
    return texts if any(text is not None for text in texts.values()) else {}


def _parts(service: Service, playback_request: PlaybackRequest) -> list[tuple[str, str, dict[str, Any]]]:
    """Return each prompt of a request with several: its text, and path and body of a request for it alone."""
    path, body, planner = playback_request.path, playback_request.body, service.model.planner
    if not isinstance(body, Mapping):
        return []
    prompts, conversations = body.get("prompt"), body.get("messages")
    try:
        if path.endswith(_BATCH) and isinstance(conversations, list) and len(conversations) <= _MOST_PARTS:
            chats = chat_bodies_of(dict(body))
            for each in chats:
                check_parts(each["messages"])
            rendered = [planner.conversations.prompt(each) for each in chats]
            one = path.removesuffix(_BATCH)
            return [
                (prompt, one, {**body, "messages": each}) for prompt, each in zip(rendered, conversations, strict=True)
            ]
        if isinstance(prompts, list) and conversations is None and 1 < len(prompts) <= _MOST_PARTS:
            texts = [each if isinstance(each, str) else _decoded(planner, each) for each in prompts]
            return [(text, path, {**body, "prompt": each}) for text, each in zip(texts, prompts, strict=True)]
    except (ApiError, TypeError, ValueError, OverflowError, RecursionError):  # the handler refuses such a body
        return []
    return []


def _decoded(planner: Planner, token_ids: Any) -> str:
    """Return the text of token ids. Raises ValueError for anything else."""
    if not isinstance(token_ids, list) or not all(type(each) is int and each >= 0 for each in token_ids):
        raise ValueError("no token ids")
    return planner.tokenizer.decode(token_ids)


class _Search(NamedTuple):
    """The search for the reply to a request, as far as it went where the body was parsed."""

    playback_request: PlaybackRequest
    rules: FixtureSearch
    rule: Fixture | None = None
    is_begun: bool = False


def _search_part(playback: Playback, path: str, headers: Mapping[str, str], body: Any) -> _Search:
    try:
        raw = dumped_in_pieces(body)
    except TypeError:  # a lone surrogate
        raw = json.dumps(body).encode()
    return _search(playback, path, headers, raw)


def _search(playback: Playback, path: str, headers: Mapping[str, str], raw: bytes) -> _Search:
    """Parse a request and, if that is quick or on a thread, find the first fixture. Raises SearchTooLongError."""
    playback_request = playback.playback_request(path, headers, raw)
    rules = playback.rules(playback_request)
    if len(raw) <= _READ_IN_PLACE_BYTES and not rules.is_quick:
        return _Search(playback_request, rules)
    rule = rules.next_match()
    if rule is None and len(raw) > MOST_BODY_BYTES and not playback.may_know(playback_request):
        playback_request = playback_request.without_content()
        rules = FixtureSearch((), playback_request)
    return _Search(playback_request, rules, rule, is_begun=True)


async def _found(service: Service, playback: Playback, search: _Search) -> tuple[PlayedReply, str] | None:
    """Return the reply to a request and what found it. A long search for fixtures runs on a thread."""
    rules, rule = search.rules, search.rule
    is_over = search.is_begun and rule is None
    while not is_over:
        if rule is not None and rule.take():
            return rule.reply, "rule"
        rule = rules.next_match() if rules.is_quick else await service.delivery.executor.run(True, rules.next_match)
        is_over = rule is None
    return playback.recorded(search.playback_request)


def _add_to_journal(
    playback: Playback, playback_request: PlaybackRequest, request: web.Request, answered_by: str, way: str
) -> None:
    is_kept = playback_request.body is not None and len(playback_request.raw) <= MOST_BODY_BYTES
    playback.journal.note(
        JournalEntry(
            number=playback.journal.num_seen,
            at_s=time.time(),
            method=request.method,
            path=playback_request.path,
            headers=dict(without_secret_headers(playback_request.headers.items())),
            model=playback_request.model[:MOST_CHARACTERS],
            body_bytes=len(playback_request.raw),
            body=playback_request.raw if is_kept else None,
            last_user=playback_request.last_user[:MOST_CHARACTERS],
            answered_by=answered_by,
            matched_by=way,
        )
    )


async def _played(
    request: web.Request, handler: Handler, service: Service, playback_request: PlaybackRequest, reply: PlayedReply
) -> web.StreamResponse:
    options = playback_of(service).options
    has_output_constraint = bool(reply.pieces) and (
        reply.status != 200
        or (reply.is_stream == playback_request.is_stream and reply.path in ("", playback_request.path))
    )
    is_reencoded = options.playback_chunks == "tokens" and reply.status == 200
    if reply.text is not None and (is_reencoded or not has_output_constraint):
        _pass_on(request, playback_request)
        with _scripted(reply.text):
            return await handler(request)
    if not reply.pieces:
        _pass_on(request, playback_request)
        with _scripted(reply.script or None):
            return await handler(request)
    if options.playback_timing == "recorded" or reply.status != 200 or not reply.num_output_tokens:
        speed = options.playback_speed if options.playback_timing == "recorded" else float("inf")
        return await _send(request, reply, _RecordedTimes(speed))
    with service.delivery.open_replies:
        driver = service.delivery.driver
        if len(playback_request.raw) > _READ_IN_PLACE_BYTES:
            engine_request = await service.delivery.executor.run(
                True, _engine_request, service, playback_request, reply
            )
        else:
            engine_request = _engine_request(service, playback_request, reply)
        tokens = _Tokens(engine_request)
        try:
            driver.submit(tokens, arrived_at(request, driver))
            await tokens.wait_for_token(1)  # the engine may still refuse the request
            return await _send(request, reply, tokens)
        finally:
            driver.abort(engine_request.id)


def _engine_request(service: Service, playback_request: PlaybackRequest, reply: PlayedReply) -> Request:
    return played_request(
        service.model.planner, playback_request.body, playback_request.conversation, playback_request.raw, reply
    )


async def _send(request: web.Request, reply: PlayedReply, times: "_Tokens | _RecordedTimes") -> web.StreamResponse:
    if not reply.is_stream:
        await times.wait_until_due(reply.pieces[-1])
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
            await times.wait_until_due(piece)
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
    """Sends pieces at their recorded times, `speed` recorded seconds per real second."""

    def __init__(self, speed: float) -> None:
        self._speed = speed
        self._started = time.monotonic()

    def is_due(self, piece: RecordedPiece) -> bool:
        return self._left_s(piece) <= 0

    async def wait_until_due(self, piece: RecordedPiece) -> None:
        """Wait until a piece is due."""
        if (left_s := self._left_s(piece)) > 0:
            await asyncio.sleep(left_s)

    def _left_s(self, piece: RecordedPiece) -> float:
        return self._started + piece.after_us / 1e6 / self._speed - time.monotonic()


class _Tokens(InFlightRequest):
    """Sends pieces with the engine's tokens."""

    is_streamed = True
    finish_reason = "stop"

    def __init__(self, request: Request) -> None:
        super().__init__(request)
        self._number = 0
        self._has_ended = False
        self._error: ApiError | None = None
        self._moved = asyncio.Event()

    def is_due(self, piece: RecordedPiece) -> bool:
        return self._number >= piece.num_tokens or self._has_ended

    async def wait_until_due(self, piece: RecordedPiece) -> None:
        """Wait until a piece is due."""
        await self.wait_for_token(piece.num_tokens)

    async def wait_for_token(self, number: int) -> None:
        """Wait for `number` tokens. Raises ApiError if the engine refuses the request or fails."""
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
