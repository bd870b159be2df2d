"""Hostile ways to send a body: odd heads, queries, encodings, chunks and lengths, pieces, and what is no HTTP."""

import gzip
import zlib
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TypeAlias

from hypothesis import strategies as st

from workshop.attack.mutations import PIECES, respelled, spoiled
from workshop.attack.sending import Message

Sent: TypeAlias = tuple[tuple[bytes, ...], bool]
"""Pieces to send, and whether they are a whole HTTP message."""
HttpTrick: TypeAlias = Callable[[st.DrawFn, Message], Sent]

NAMES = (
    *("Content-Type",) * 8, "X-data-parallel-rank", "X-Vllm-Priority", "X-Slo-E2e-Ms", "X-Request-Id", "X-Session-ID",
    "Accept", "Origin", "X-Gateway-Inference-Objective", "X-Gateway-Inference-Fairness-Id", "Authorization", "Cookie",
    "endpoint-load-metrics-format", "Content-Encoding", "Accept-Encoding", "Connection", "Upgrade", "traceparent",
    "baggage", "Expect", "TE", "Trailer", "Range", "X-HTTP-Method-Override", "Sec-WebSocket-Key",
)  # fmt: skip
VALUES = (
    "", "-1", "0", "1e400", "9" * 5000, str(2**70), "nan", "\u0663", "null", " ", "\xff", "a" * 5000, "a b\tc", "\0x",
    "=" * 500, "a=b;" * 300, "true", "text/plain", "application/json; charset=utf-16", "application/json;;", ";", "*/*",
    'application/json; charset="', "application/x-www-form-urlencoded", "multipart/form-data; boundary=x; boundary=y",
    "multipart/form-data", "bearer k1", "100-continue", "gzip, br, zstd;q=nan", "websocket", "h2c", "00-zz", "gzip",
    "zstd", "keep-alive, close", "DELETE", "JSON", "http://a" * 200,
)  # fmt: skip
IN_HEADS = (
    "GET", "HEAD", "DELETE", "OPTIONS", "CONNECT", "get", "P" * 300, "PO ST", "", "PRI", "\0", "HTTP/1.0", "1.10", "2",
    "0.9", "//", "..", "a/" * 3000, "%00", "%ff", "%2e%2e%2f", "%zz", ";a=b", "\\", "http://[::1", "*", " x", "\t",
    "x" * 5000, "/responses//cancel", "\u0661", "-1", "99999999999999999999", "1e3", "4, 4", "gzip, chunked", "chunked",
    "a\r\nno colon", "a\r\n: empty", "a\r\nName : space", "a\r\n folded: line", "a\r\nTransfer-Encoding: \x0bchunked",
    "a\r\nContent-Length: 5", "a\r\nContent-Length: -1", "a\r\nHost: second", "a\r\n" + "A:b" * 5000, "a\r\n\r\nX: y",
)  # fmt: skip
"""What stands in the place of a word of a head."""
QUERIES = (
    "?a", "?a=b&a=c", "?=", "?%", "?%ff", "?%00", "?" + "a=b&" * 500, "?" + "a" * 6000, "#fragment", "?;", "?\u00e9",
    "?tags=" + "x&tags=" * 50, "?config_format=xml", "?name[]=vllm:num_requests_running", "?instance=-1", "?level=1e9",
    "?mode=abort&mode=keep", "?reset_external=9999999999999999999999", "?stream=nan", "?starting_after=" + "9" * 5000,
)  # fmt: skip
BROKEN_CHUNKS = (
    b"zz\r\n", b"-1\r\nx\r\n", b"ffffffffffffffffff\r\nx", b"5\r\nab\r\n0\r\n\r\n", b"0\r\n", b"\r\n\r\n",
    b"0x5\r\nhello\r\n0\r\n\r\n", b"1\n{\n1\n}\n0\n\n", b"7fffffff\r\n{}", b"2\r\n{}\r\n0\r\n" + b"a: b\r\n" * 3000,
    b"5;" + b"a" * 20_000 + b"\r\nhello\r\n0\r\n\r\n", b"00000000000000000002\r\n{}\r\n0\r\n\r\n",
)  # fmt: skip
NOT_HTTP = (
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"\x16\x03\x01\x02\x00\x01\x00", b"\x00" * 500, b"\r\n" * 500, b"GET /\n\n",
    b"A" * 100_000, b"POST /v1/completions\r\n\r\n", b"{}\r\n\r\n", b" GET / HTTP/1.1\r\n\r\n", *PIECES[1:],
)  # fmt: skip
CHUNKED = b"Transfer-Encoding: chunked"


def _header(draw: st.DrawFn, message: Message) -> Sent:
    """A field more, or one in place of another, once or many times."""
    name, value = draw(st.sampled_from(NAMES)), draw(st.sampled_from(VALUES))
    if name == "Content-Type" or (times := draw(st.sampled_from((1, 1, 2, 300)))) == 1:
        return (replace(message, headers={**message.headers, name: value}).serialised(),), True
    return (message.serialised([f"{name}: {value}".encode("utf-8", "surrogateescape")] * times),), True


def _head(draw: st.DrawFn, message: Message) -> Sent:
    head, end, body = message.serialised().partition(b"\r\n\r\n")
    words = respelled(head.decode("utf-8", "surrogateescape"), IN_HEADS)
    odd = draw(words.map(lambda text: text.encode("utf-8", "surrogateescape")) | spoiled(head))
    return (odd + end + body,), False


def _query(draw: st.DrawFn, message: Message) -> Sent:
    path = message.path.partition("?")[0] + draw(st.sampled_from(QUERIES))
    return (replace(message, path=path).serialised(),), "%00" not in path


def _chunked(draw: st.DrawFn, message: Message) -> Sent:
    """Well-formed chunks in one packet or two."""
    body, size = message.body, draw(st.sampled_from([1, 7, 1000]))
    parts = [body[at : at + size] for at in range(0, min(len(body), 40 * size), size)] + [body[40 * size :]]
    extension = draw(st.sampled_from([b"", b";a=b", b';q="x"']))
    chunks = b"".join(b"%x%s\r\n%s\r\n" % (len(part), extension, part) for part in parts if part)
    end = b"0\r\n" + draw(st.sampled_from([b"", b"X-Trailer: y\r\n", b"Content-Length: 3\r\n"])) + b"\r\n"
    head = replace(message, body=b"").serialised([CHUNKED], adds_length=False)
    return ((head, chunks + end) if draw(st.booleans()) else (head + chunks + end,)), True


def _broken_chunks(draw: st.DrawFn, message: Message) -> Sent:
    head = replace(message, body=b"").serialised([CHUNKED], adds_length=draw(st.booleans()))
    return (head, draw(st.sampled_from(BROKEN_CHUNKS))), False


def _compressed(draw: st.DrawFn, message: Message) -> Sent:
    kind = draw(st.sampled_from(["gzip", "deflate", "bomb", "broken"]))
    body = b" " * 20_000_000 + message.body if kind == "bomb" else message.body
    packed = zlib.compress(body) if kind == "deflate" else gzip.compress(body, mtime=0)
    packed = packed[:-9] + b"\xff" * 9 if kind == "broken" else packed
    encoding = "deflate" if kind == "deflate" else "gzip"
    return (replace(message, body=packed).with_headers(Content_Encoding=encoding).serialised(),), True


def _in_pieces(draw: st.DrawFn, message: Message) -> Sent:
    data = message.serialised()
    cuts = sorted(draw(st.lists(st.integers(1, len(data) - 1), min_size=1, max_size=4)))
    return tuple(data[begin:end] for begin, end in zip([0, *cuts], [*cuts, len(data)], strict=True)), True


def _wrong_length(draw: st.DrawFn, message: Message) -> Sent:
    size = len(message.body)
    said = draw(st.sampled_from([0, max(size - 1, 0), size // 2, size + 1, 10**9, 10**18, 2**64, None]))
    further = [] if said is None else [b"Content-Length: %d" % said]
    return (message.serialised(further, adds_length=False),), said == 0


TRICKS: Mapping[str, HttpTrick] = {
    "header": _header,
    "head": _head,
    "query": _query,
    "compressed": _compressed,
    "chunked": _chunked,
    "broken chunks": _broken_chunks,
    "wrong length": _wrong_length,
    "in pieces": _in_pieces,
    "half sent": lambda draw, m: ((m.serialised()[: draw(st.integers(1, len(m.serialised()) - 1))],), False),
    "pipelined": lambda draw, m: ((m.serialised() * draw(st.sampled_from((2, 5))),), True),
    "not HTTP": lambda draw, _: ((draw(st.sampled_from(NOT_HTTP) | st.binary(min_size=1)),), False),
}


@st.composite
def hostile_messages(draw: st.DrawFn, message: Message) -> tuple[str, Sent]:
    """The name of a trick, and what is to be sent."""
    name = draw(st.sampled_from(sorted(TRICKS)) | st.sampled_from(("head", "header")))
    return name, TRICKS[name](draw, message)
