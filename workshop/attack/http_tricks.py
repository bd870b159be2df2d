"""Hostile ways to send a body: media types, encodings, chunks, lengths, paths, queries, headers, methods."""

import gzip
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

from hypothesis import strategies as st

from workshop.attack.mutations import PIECES
from workshop.attack.sending import Message

Sent: TypeAlias = tuple[tuple[bytes, ...], bool]
"""Pieces to send, and whether they are a whole HTTP message."""
HttpTrick: TypeAlias = Callable[[st.DrawFn, Message], Sent]

MEDIA_TYPES = (
    "", "text/plain", "application/json; charset=utf-16", "application/json;;", 'application/json; charset="', ";", "/",
    "application/x-www-form-urlencoded", "multipart/form-data", "multipart/form-data; boundary=x; boundary=y",
    "*/*", "a" * 3000, "multipart/form-data; boundary=\xe9",
)  # fmt: skip
VALUES = (
    "", "-1", "0", "1e400", "9" * 5000, str(2**70), "nan", "\u0663", "null", " ", "\xff", "a" * 5000, "a b\tc", "\0x",
    "=" * 500, "a=b;" * 300, "true",
)  # fmt: skip
NAMES = (
    "X-data-parallel-rank", "X-Vllm-Priority", "X-Slo-E2e-Ms", "X-Request-Id", "X-Session-ID", "Accept", "Origin",
    "X-Gateway-Inference-Objective", "X-Gateway-Inference-Fairness-Id", "endpoint-load-metrics-format",
    "Authorization", "Content-Encoding", "Accept-Encoding", "Connection", "Upgrade", "traceparent", "baggage", "Cookie",
    "Expect", "TE", "Trailer", "Range",
)  # fmt: skip
HEADERS = (
    ("endpoint-load-metrics-format", "JSON"), ("Authorization", "bearer k1"), ("Origin", "http://a" * 200),
    ("Expect", "100-continue"), ("Accept-Encoding", "gzip, br, zstd;q=nan"), ("Upgrade", "websocket"),
    ("Upgrade", "h2c"), ("Connection", "keep-alive, close"), ("X-HTTP-Method-Override", "DELETE"),
    ("Sec-WebSocket-Key", "x"), ("traceparent", "00-zz"), ("Content-Encoding", "gzip"), ("Content-Encoding", "zstd"),
)  # fmt: skip
BROKEN_LINES = (
    b"no colon", b": empty name", b"Name : space", b" folded: line", b"\xff\xfe: x", b"A: \x00", b"A: b\rc",
    b"Host: second", b"Content-Length: 5", b"Content-Length: -1", b"Content-Length: 99999999999999999999",
    b"Content-Length: 1e3", b"Content-Length:", b"Content-Length: 4, 4", b"Transfer-Encoding: gzip, chunked",
    b"Transfer-Encoding: identity", b"Transfer-Encoding: \x0bchunked", b"A:b" * 5000, b"\r\nX: y", b"A(b): c",
)  # fmt: skip
QUERIES = (
    "?a", "?a=b&a=c", "?=", "?%", "?%ff", "?%00", "?" + "a=b&" * 500, "?" + "a" * 6000, "#fragment", "?;", "?\u00e9",
    "?tags=" + "x&tags=" * 50, "?config_format=xml", "?name[]=vllm:num_requests_running", "?instance=-1", "?level=1e9",
    "?mode=abort&mode=keep", "?reset_external=9999999999999999999999", "?stream=nan", "?starting_after=" + "9" * 5000,
)  # fmt: skip
PATHS = (
    "//{0}", "/.{1}", "/..{1}", "{1}/", "{1}//", "{1}/..", "{1}%00", "{1}%ff", "{1}%2e%2e%2f", "{1};a=b", "{1}/x",
    "{1}\\", "http://localhost{1}", "http://[::1{1}", "*", "{0}", "", "{1} extra", "{1}\t", "/\xe9{1}", "{1}%zz",
    "/%68ealth", "/v1/responses/%00", "/v1/responses/" + "x" * 5000, "/v1/responses//cancel", "/v1//models",
    "/" + "a/" * 3000, "//", "/%2f%2f", "/:80{1}", "/?{1}", "/blis/instances/\u0661/drain", "/blis/instances/-1/drain",
)  # fmt: skip
METHODS = (
    "GET",
    "HEAD",
    "PUT",
    "DELETE",
    "OPTIONS",
    "TRACE",
    "CONNECT",
    "get",
    "P" * 300,
    "PO ST",
    "",
    "PRI",
    "POST\0",
)
VERSIONS = ("HTTP/1.0", "HTTP/0.9", "HTTP/2", "HTTP/1.10", "HTTP/1.", "http/1.1", "HTTP/9.9", "", "X/1.1")
BROKEN_CHUNKS = (
    b"zz\r\n", b"-1\r\nx\r\n", b"ffffffffffffffffff\r\nx", b"5\r\nab\r\n0\r\n\r\n", b"0\r\n", b"\r\n\r\n",
    b"0x5\r\nhello\r\n0\r\n\r\n", b"1\n{\n1\n}\n0\n\n", b"7fffffff\r\n{}", b"2\r\n{}\r\n0\r\n" + b"a: b\r\n" * 3000,
    b"5;" + b"a" * 20_000 + b"\r\nhello\r\n0\r\n\r\n", b"00000000000000000002\r\n{}\r\n0\r\n\r\n",
)  # fmt: skip
NOT_HTTP = (
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"\x16\x03\x01\x02\x00\x01\x00", b"\x00" * 500, b"\r\n" * 500, b"GET /\n\n",
    b"A" * 100_000, b"POST /v1/completions\r\n\r\n", b"{}\r\n\r\n", b" GET / HTTP/1.1\r\n\r\n",
)  # fmt: skip
headers = st.tuples(st.sampled_from(NAMES), st.sampled_from(VALUES)) | st.sampled_from(HEADERS)


def _in_chunks(draw: st.DrawFn, message: Message) -> Sent:
    """Well-formed chunks in one packet or two."""
    body, size = message.body, draw(st.sampled_from([1, 7, 1000]))
    parts = [body[at : at + size] for at in range(0, min(len(body), 40 * size), size)] + [body[40 * size :]]
    extension = draw(st.sampled_from([b"", b";a=b", b';q="x"']))
    chunks = b"".join(b"%x%s\r\n%s\r\n" % (len(part), extension, part) for part in parts if part)
    end = b"0\r\n" + draw(st.sampled_from([b"", b"X-Trailer: y\r\n", b"Content-Length: 3\r\n"])) + b"\r\n"
    head = replace(message, body=b"").serialised([b"Transfer-Encoding: chunked"], adds_length=False)
    return ((head, chunks + end) if draw(st.booleans()) else (head + chunks + end,)), True


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
    said = draw(st.sampled_from([0, max(size - 1, 0), size // 2, size + 1, 10**9, 10**18, 2**64]))
    return (message.serialised([b"Content-Length: %d" % said], adds_length=False),), said == 0


def _queried(message: Message, query: str) -> Sent:
    path = message.path.partition("?")[0] + query
    return (replace(message, path=path).serialised(),), "%00" not in path


def _with(values: Sequence[Any], send: Callable[[Message, Any], Sent]) -> HttpTrick:
    """A trick that takes one of some values."""
    return lambda draw, message: send(message, draw(st.sampled_from(values)))


TRICKS: Mapping[str, HttpTrick] = {
    "media type": _with(MEDIA_TYPES, lambda m, each: ((m.with_headers(Content_Type=each or None).serialised(),), True)),
    "header": lambda draw, m: ((replace(m, headers={**m.headers, **dict([draw(headers)])}).serialised(),), True),
    "header twice": lambda draw, m: (
        (m.serialised([": ".join(draw(headers)).encode("utf-8", "surrogateescape")] * draw(st.integers(2, 300))),),
        True,
    ),
    "broken line": _with(BROKEN_LINES, lambda m, line: ((m.serialised([line]),), False)),
    "query": _with(QUERIES, _queried),
    "path": _with(PATHS, lambda m, path: ((replace(m, path=path.format(m.path[1:], m.path)).serialised(),), False)),
    "method": _with(METHODS, lambda m, method: ((replace(m, method=method).serialised(),), False)),
    "version": _with(VERSIONS, lambda m, version: ((replace(m, version=version).serialised(),), False)),
    "compressed": _compressed,
    "chunked": _in_chunks,
    "broken chunks": _with(BROKEN_CHUNKS, lambda m, chunk: (
        (replace(m, body=b"").serialised([b"Transfer-Encoding: chunked"], adds_length=len(chunk) % 2 == 0), chunk),
        False,
    )),
    "wrong length": _wrong_length,
    "no length": lambda _draw, m: ((m.serialised(adds_length=False),), False),
    "in pieces": _in_pieces,
    "half sent": lambda draw, m: ((m.serialised()[: draw(st.integers(1, len(m.serialised()) - 1))],), False),
    "pipelined": _with((2, 5), lambda m, times: ((m.serialised() * times,), True)),
    "not HTTP": lambda draw, _: ((draw(st.sampled_from(NOT_HTTP + PIECES[1:]) | st.binary(min_size=1)),), False),
}  # fmt: skip


@st.composite
def hostile_messages(draw: st.DrawFn, message: Message) -> tuple[str, Sent]:
    """The name of a trick, and what is to be sent."""
    name = draw(st.sampled_from(sorted(TRICKS)))
    return name, TRICKS[name](draw, message)
