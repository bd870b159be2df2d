"""Requests without a recorded reply, passed on to another server; what comes back is recorded."""

import asyncio
from pathlib import Path
from time import perf_counter_ns, time_ns

from aiohttp import ClientError, ClientSession, ClientTimeout, web

from mockserve.playback.playback import Asked, Playback
from mockserve.protocol.errors import ApiError
from mockserve.serving.service import Service
from traces.append_file import AppendFile
from traces.content.recorded import RecordedExchange, line_of
from traces.content.scrubbing import without_secret_headers, without_secret_parameters
from traces.errors import TraceError

_NOT_PASSED_ON = frozenset(
    {"host", "connection", "keep-alive", "transfer-encoding", "content-length", "te", "trailer", "upgrade", "expect"}
)
_HEADERS_BACK = ("content-type", "retry-after", "x-request-id")
_MOST_RECORDED_BYTES = 64 << 20


async def forward(request: web.Request, service: Service, playback: Playback, asked: Asked) -> web.StreamResponse:
    """The reply of the upstream, piece by piece as it comes. Raises ApiError when the upstream cannot be reached."""
    url = playback.options.playback_upstream.rstrip("/").removesuffix("/v1") + request.path_qs
    headers = [(name, value) for name, value in request.headers.items() if name.lower() not in _NOT_PASSED_ON]
    headers = [(name, "identity" if name.lower() == "accept-encoding" else value) for name, value in headers]
    started_ns, sent_at_us = perf_counter_ns(), time_ns() // 1000
    body = await request.read()
    pieces: list[tuple[int, bytes]] = []
    try:
        async with (
            ClientSession(timeout=ClientTimeout(total=None, sock_connect=10), auto_decompress=False) as session,
            session.post(url, data=body, headers=headers) as reply,
        ):
            back = {name: reply.headers[name] for name in _HEADERS_BACK if name in reply.headers}
            response = web.StreamResponse(status=reply.status, headers=back)
            response.enable_chunked_encoding()
            await response.prepare(request)
            num_bytes = 0
            async for data in reply.content.iter_any():
                await response.write(data)
                num_bytes += len(data)
                if num_bytes <= _MOST_RECORDED_BYTES:
                    pieces.append(((perf_counter_ns() - started_ns) // 1000, data))
            exchange = _exchange(playback, request, asked, reply.status, list(back.items()), pieces, sent_at_us)
            playback.add(exchange)
            await asyncio.to_thread(_append, playback.options.playback, exchange)
            await response.write_eof()  # from here on the client may ask again
    except (ClientError, OSError, TimeoutError) as error:
        raise ApiError(f"cannot forward to {url}: {error}", status=502, kind="Bad Gateway") from None
    return response


def _exchange(
    playback: Playback,
    request: web.Request,
    asked: Asked,
    status: int,
    headers: list[tuple[str, str]],
    pieces: list[tuple[int, bytes]],
    sent_at_us: int,
) -> RecordedExchange:
    redactor = playback.redactor
    recorded = RecordedExchange(
        request_id=None,
        sent_at_us=sent_at_us,
        method="POST",
        path=redactor.text(without_secret_parameters(asked.path)),
        headers=[(name, redactor.text(value)) for name, value in without_secret_headers(request.headers.items())],
        body=asked.raw,
        status=status,
        reply_headers=headers,
        pieces=pieces,
        is_complete=True,
        upstream=playback.options.playback_upstream,
    )
    return recorded.in_pieces(redactor)


def _append(path: str, exchange: RecordedExchange) -> None:
    try:
        file = AppendFile(Path(path), joins=True)
    except TraceError:
        return
    try:
        file.write(line_of(exchange))
    except OSError:
        return
    finally:
        file.close()
