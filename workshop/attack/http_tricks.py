"""Hostile ways to send a body: media types, encodings, chunks, lengths, paths, queries, headers, methods."""

import gzip
import zlib
from collections.abc import Callable
from dataclasses import replace
from typing import TypeAlias

from hypothesis import strategies as st

from workshop.attack.hostile import Message
from workshop.attack.mutations import PIECES

Sent: TypeAlias = tuple[tuple[bytes, ...], bool]
"""Pieces to send, and whether they are a whole HTTP message."""
HttpTrick: TypeAlias = Callable[[st.DrawFn, Message], Sent]

MEDIA_TYPES = (
    "", "text/plain", "application/jsonx", "application/json; charset=utf-16", "application/json; charset=nonsense",
    "application/json;;", "APPLICATION/JSON", 'application/json; charset="', "application/vnd.api+json", "json", "/",
    ";", "application/x-www-form-urlencoded", "multipart/form-data", "multipart/form-data; boundary=", "*/*",
    "a" * 3000, "application/json, text/plain", "multipart/form-data; boundary=x; boundary=y",
    "application/json; a=b; a=c", "multipart/form-data; boundary=\xe9",
)  # fmt: skip
NUMBERS = (
    "", "-1", "0", " 0 ", "1e9", "1e400", "1e-300", "9" * 5000, "9" * 20, str(2**63), str(2**70),
    "-9223372036854775808", "nan", "inf", "-0", "5;q=1", "\u0663", "0x5", "null",
)  # fmt: skip
TEXTS = ("", " ", "\xe9" * 20, "\xff", "a" * 5000, "a b\tc", "*", "\0x", "nonsense", "=" * 500, "a=b;" * 300, "true")
NUMBER_NAMES = ("X-data-parallel-rank", "X-Vllm-Priority", "X-Slo-E2e-Ms", "X-Slo-Ttft-Ms")
NAMES = (
    "X-Request-Id", "X-Session-ID", "X-Gateway-Inference-Objective", "X-Gateway-Inference-Fairness-Id", "Accept",
    "endpoint-load-metrics-format", "Origin", "Authorization", "Content-Encoding", "Content-Language",
    "Accept-Encoding", "Connection", "Upgrade", "traceparent", "baggage", "X-Forwarded-For", "Cookie", "Expect", "TE",
    "Trailer", "Date", "Range", "If-Match",
)  # fmt: skip
HEADERS = (
    ("endpoint-load-metrics-format", "JSON"), ("Authorization", "Bearer \xe9"), ("Authorization", "Basic a"),
    ("Authorization", "bearer k1"), ("Origin", "http://a" * 200), ("Range", "bytes=0-1"), ("Expect", "100-continue"),
    ("Accept-Encoding", "gzip, br, zstd;q=nan"), ("Upgrade", "websocket"), ("Upgrade", "h2c"), ("Connection",
    "upgrade"), ("Connection", "keep-alive, close"), ("X-HTTP-Method-Override", "DELETE"), ("Sec-WebSocket-Key", "x"),
    ("X-Gateway-Inference-Objective", "critical"), ("traceparent", "00-zz"),
    *(("Content-Encoding", each) for each in ("gzip", "identity", "x", "br", "zstd")),
)  # fmt: skip
BROKEN_LINES = (
    b"no colon", b": empty name", b"Name : space", b" folded: line", b"\xff\xfe: x", b"A: \x00", b"A: b\rc",
    b"Host: second", b"Content-Length: 5", b"Content-Length: -1", b"Content-Length: 99999999999999999999",
    b"Content-Length: 1e3", b"Content-Length: +4", b"Content-Length:", b"Content-Length: 4, 4",
    b"Transfer-Encoding: gzip, chunked", b"Transfer-Encoding: chunked, chunked", b"Transfer-Encoding: identity",
    b"Transfer-Encoding: \x0bchunked", b"A:b" * 5000, b"\r\nX: y", b"Content-Type: text/plain", b"X:\ty", b"A(b): c",
)  # fmt: skip
QUERY_NAMES = ("instance", "level", "mode", "tags", "starting_after", "stream", "include_dp", "config_format", "name[]")
QUERIES = (
    "?", "?a", "?a=b&a=c", "?=", "?%", "?%ff", "?%00", "?" + "a=b&" * 500, "?" + "a" * 6000, "#fragment", "?a=b#c",
    "?mode=abort&mode=keep", "?;", "?&&&", "?a==b", "?\u00e9", "?tags=" + "x&tags=" * 50, "?config_format=xml",
    "?name[]=vllm:num_requests_running", "?reset_external=9999999999999999999999",
)  # fmt: skip
PATHS = (
    "//{0}", "/.{1}", "/..{1}", "{1}/", "{1}//", "{1}/.", "{1}/..", "{1}%00", "{1}%ff", "{1}%2e%2e%2f", "{1};a=b",
    "/%2e%2e{1}", "{1}/x", "{1}\\", "http://localhost{1}", "http://[::1{1}", "*", "{0}", "", "localhost:80",
    "{1} extra", "{1}\t", "/\xe9{1}", "{1}%", "{1}%zz", "/%68ealth", "{1}?%", "/v1/responses/%00",
    "/v1/responses/" + "x" * 5000, "/v1/responses/%ff/cancel", "/v1/responses//cancel", "/v1//models", "/v1/models/m",
    "/metrics/x", "/docs/oauth2-redirect", "/" + "a/" * 3000, "//", "///", "/%2f%2f", "/:80{1}", "//localhost{1}",
    "http:{1}", "/?{1}", *(f"/blis/instances/{each}/drain" for each in ("%ff", "9" * 5000, "\u0661", "-1", "1e3")),
)  # fmt: skip
METHODS = (
    "GET", "HEAD", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "CONNECT", "get", "post", "P" * 300, "PO ST", "",
    "PRI", "POST\0", "PROPFIND", "(x)",
)  # fmt: skip
VERSIONS = ("HTTP/1.0", "HTTP/0.9", "HTTP/2", "HTTP/2.0", "HTTP/1.10", "HTTP/1.", "http/1.1", "HTTP/9.9", "", "X/1.1")
BROKEN_CHUNKS = (
    b"zz\r\n", b"-1\r\nx\r\n", b"ffffffffffffffffff\r\nx", b"5\r\nab\r\n0\r\n\r\n", b"2\r\nabc\r\n0\r\n\r\n", b"0\r\n",
    b"0x5\r\nhello\r\n0\r\n\r\n", b"5 \r\nhello\r\n0\r\n\r\n", b"\r\n\r\n", b"1\n{\n1\n}\n0\n\n", b"7fffffff\r\n{}",
    b"5;" + b"a" * 20_000 + b"\r\nhello\r\n0\r\n\r\n", b"00000000000000000002\r\n{}\r\n0\r\n\r\n",
    b"2\r\n{}\r\n0\r\n" + b"a: b\r\n" * 3000,
)  # fmt: skip
NOT_HTTP = (
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"\x16\x03\x01\x02\x00\x01\x00", b"\x00" * 500, b"\r\n" * 500, b"GET\r\n\r\n",
    b"GET /\n\n", b"A" * 100_000, b"\xff" * 3000, b"POST /v1/completions\r\n\r\n", b"{}\r\n\r\n", b"\n",
    b"GET / HTTP/1.1\r\n\r\n", b" GET / HTTP/1.1\r\n\r\n",
)  # fmt: skip
headers = (
    st.tuples(st.sampled_from(NAMES), st.sampled_from(TEXTS))
    | st.tuples(st.sampled_from(NUMBER_NAMES), st.sampled_from(NUMBERS + TEXTS[2:5]))
    | st.sampled_from(HEADERS)
)
queries = st.sampled_from(QUERIES) | st.builds(
    "?{}={}".format, st.sampled_from(QUERY_NAMES), st.sampled_from(NUMBERS + TEXTS)
)


@st.composite
def hostile_messages(draw: st.DrawFn, message: Message) -> tuple[str, Sent]:
    """The name of a trick, and what is to be sent."""
    trick = draw(st.sampled_from(TRICKS))
    return trick.__name__.removeprefix("_"), trick(draw, message)


def _media_type(draw: st.DrawFn, message: Message) -> Sent:
    return (message.with_headers(Content_Type=draw(st.sampled_from(MEDIA_TYPES)) or None).serialised(),), True


def _header(draw: st.DrawFn, message: Message) -> Sent:
    name, value = draw(headers)
    return (replace(message, headers={**message.headers, name: value}).serialised(),), True


def _header_twice(draw: st.DrawFn, message: Message) -> Sent:
    line = ": ".join(draw(headers)).encode("utf-8", "surrogateescape")
    return (message.serialised([line] * draw(st.sampled_from([2, 40, 300]))),), True


def _broken_line(draw: st.DrawFn, message: Message) -> Sent:
    return (message.serialised([draw(st.sampled_from(BROKEN_LINES))]),), False


def _query(draw: st.DrawFn, message: Message) -> Sent:
    path = message.path.partition("?")[0] + draw(queries).replace(" ", "+")
    return (replace(message, path=path).serialised(),), "\0" not in path and "\t" not in path


def _path(draw: st.DrawFn, message: Message) -> Sent:
    path = draw(st.sampled_from(PATHS)).format(message.path.removeprefix("/"), message.path)
    return (replace(message, path=path).serialised(),), False


def _method(draw: st.DrawFn, message: Message) -> Sent:
    return (replace(message, method=draw(st.sampled_from(METHODS))).serialised(),), False


def _version(draw: st.DrawFn, message: Message) -> Sent:
    return (replace(message, version=draw(st.sampled_from(VERSIONS))).serialised(),), False


def _compressed(draw: st.DrawFn, message: Message) -> Sent:
    kind = draw(st.sampled_from(["gzip", "deflate", "bomb", "broken"]))
    body = b" " * 20_000_000 + message.body if kind == "bomb" else message.body
    packed = zlib.compress(body) if kind == "deflate" else gzip.compress(body, mtime=0)
    packed = packed[:-9] + b"\xff" * 9 if kind == "broken" else packed
    encoding = "deflate" if kind == "deflate" else "gzip"
    return (replace(message, body=packed).with_headers(Content_Encoding=encoding).serialised(),), True


def _chunked(draw: st.DrawFn, message: Message) -> Sent:
    """Well-formed chunks in one packet or two."""
    body, size = message.body, draw(st.sampled_from([1, 7, 1000]))
    parts = [body[at : at + size] for at in range(0, min(len(body), 40 * size), size)] + [body[40 * size :]]
    extension = draw(st.sampled_from([b"", b";a=b", b';q="x"']))
    chunks = b"".join(b"%x%s\r\n%s\r\n" % (len(part), extension, part) for part in parts if part)
    end = b"0\r\n" + draw(st.sampled_from([b"", b"X-Trailer: y\r\n", b"Content-Length: 3\r\n"])) + b"\r\n"
    head = replace(message, body=b"").serialised([b"Transfer-Encoding: chunked"], adds_length=False)
    return ((head, chunks + end) if draw(st.booleans()) else (head + chunks + end,)), True


def _broken_chunks(draw: st.DrawFn, message: Message) -> Sent:
    head = replace(message, body=b"").serialised([b"Transfer-Encoding: chunked"], adds_length=draw(st.booleans()))
    return (head, draw(st.sampled_from(BROKEN_CHUNKS))), False


def _wrong_length(draw: st.DrawFn, message: Message) -> Sent:
    size = len(message.body)
    said = draw(st.sampled_from([0, max(size - 1, 0), size // 2, size + 1, size + 10_000, 10**9, 10**18, 2**64]))
    return (message.serialised([b"Content-Length: %d" % said], adds_length=False),), said == 0


def _no_length(_draw: st.DrawFn, message: Message) -> Sent:
    return (message.serialised(adds_length=False),), False


def _in_pieces(draw: st.DrawFn, message: Message) -> Sent:
    data = message.serialised()
    cuts = sorted(draw(st.lists(st.integers(1, len(data) - 1), min_size=1, max_size=4)))
    return tuple(data[begin:end] for begin, end in zip([0, *cuts], [*cuts, len(data)], strict=True)), True


def _half_sent(draw: st.DrawFn, message: Message) -> Sent:
    data = message.serialised()
    return (data[: draw(st.integers(1, len(data) - 1))],), False


def _pipelined(draw: st.DrawFn, message: Message) -> Sent:
    return (message.serialised() * draw(st.sampled_from([2, 5])),), True


def _not_http(draw: st.DrawFn, _message: Message) -> Sent:
    return (draw(st.sampled_from(NOT_HTTP) | st.sampled_from(PIECES[1:]) | st.binary(min_size=1)),), False


TRICKS: tuple[HttpTrick, ...] = (
    _media_type, _media_type, _header, _header, _header, _header, _header, _header_twice, _broken_line, _query, _query,
    _path, _path, _method, _version, _compressed, _chunked, _broken_chunks, _wrong_length, _no_length, _in_pieces,
    _half_sent, _pipelined, _not_http,
)  # fmt: skip
