"""A server that answers every request with the same few events at once: what is slow then is the client.

    python -m workshop.bare_server [NUM_TOKENS [GAP_MS]]

With a gap, events are written one by one, so long after each other. The server finds the end of a request by its
content-length, and prints its address as `blis serve` does.
"""

import asyncio
import json
import re
import sys
from typing import cast

import uvloop

_LENGTH = re.compile(rb"content-length: *(\d+)", re.IGNORECASE)


def reply(num_tokens: int) -> list[bytes]:
    """The pieces of a streamed answer, each event a chunk as servers write them; the last has the end, too."""
    events: list[dict[str, object]] = [{"choices": [{"index": 0, "text": " word", "finish_reason": None}]}] * num_tokens
    events.append({"choices": [], "usage": {"prompt_tokens": 32, "completion_tokens": num_tokens}})
    data = [b"data: " + json.dumps(each).encode() + b"\n\n" for each in events] + [b"data: [DONE]\n\n"]
    first, *chunks = [b"%x\r\n%b\r\n" % (len(each), each) for each in data]
    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
    return [head + first, *chunks[:-2], b"".join(chunks[-2:]) + b"0\r\n\r\n"]


def whole(body: bytes) -> bytes:
    """The bytes of an answer in one piece."""
    return b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body)


class BareConnection(asyncio.Protocol):
    """One connection."""

    def __init__(self, num_tokens: int, gap_s: float) -> None:
        self._pieces = reply(num_tokens)
        self._stream = b"".join(self._pieces)
        self._gap_s = gap_s
        usage = {"prompt_tokens": 2 * 128, "completion_tokens": 1}
        answer = {"object": "list", "data": [{"id": "m"}], "choices": [{"index": 0, "text": "a"}], "usage": usage}
        self._whole = whole(json.dumps(answer).encode())
        self._data = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self._data += data
        while (end := self._data.find(b"\r\n\r\n")) >= 0:
            found = _LENGTH.search(self._data, 0, end)
            size = end + 4 + (int(found[1]) if found else 0)
            if len(self._data) < size:
                return
            streams = b'"stream":true' in self._data[end:size] or b'"stream": true' in self._data[end:size]
            if streams and self._gap_s:
                self._write_slowly(0)
            else:
                self._transport.write(self._stream if streams else self._whole)
            self._data = self._data[size:]

    def _write_slowly(self, place: int) -> None:
        self._transport.write(self._pieces[place])
        if place + 1 < len(self._pieces):
            asyncio.get_running_loop().call_later(self._gap_s, self._write_slowly, place + 1)


async def serve(num_tokens: int = 8, gap_ms: int = 0) -> None:
    server = await asyncio.get_running_loop().create_server(
        lambda: BareConnection(num_tokens, gap_ms / 1000), "127.0.0.1", 0, backlog=4096
    )
    port = server.sockets[0].getsockname()[1]
    print(f"serving on http://127.0.0.1:{port} ", file=sys.stderr, flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(serve(*map(int, sys.argv[1:])))
