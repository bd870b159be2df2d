"""Hostile ways to send a body: media types, encodings, chunks, lengths, paths, queries, headers, methods."""

import gzip
import random
import zlib
from collections.abc import Callable
from dataclasses import replace
from typing import TypeAlias

from workshop.attack.hostile import Message

Sent: TypeAlias = tuple[tuple[bytes, ...], bool]
"""Pieces to send, and whether they are a whole HTTP message."""
HttpTrick: TypeAlias = Callable[[Message, random.Random], Sent]

MEDIA_TYPES = (
    "", "text/plain", "application/jsonx", "application/json; charset=utf-16", "application/json; charset=nonsense",
    "application/json;;", "APPLICATION/JSON", "application/json; charset=\"", "application/vnd.api+json", "json", "/",
    ";", "application/x-www-form-urlencoded", "multipart/form-data", "multipart/form-data; boundary=", "*/*",
    "a" * 3000, "application/json, text/plain", "application/json; charset=utf-7",
    "multipart/form-data; boundary=x; boundary=y", "application/json; charset=latin-1", "text/json",
    "application/json; a=b; a=c", "multipart/form-data; boundary=\xe9",
)  # fmt: skip
HEADERS = (
    ("X-Request-Id", "\xe9" * 20), ("X-Request-Id", "a" * 5000), ("X-Request-Id", "a b\tc"), ("X-Request-Id", ""),
    ("X-data-parallel-rank", "9" * 5000), ("X-data-parallel-rank", "-1"), ("X-data-parallel-rank", "1e9"),
    ("X-data-parallel-rank", "\u0663"), ("X-data-parallel-rank", " 0 "),
    ("X-data-parallel-rank", "99999999999999999999"), ("X-Vllm-Priority", "9" * 5000), ("X-Vllm-Priority", "1e400"),
    ("X-Vllm-Priority", str(2**70)), ("X-Vllm-Priority", ""), ("endpoint-load-metrics-format", "XML"),
    ("endpoint-load-metrics-format", "JSON"), ("Accept", "\xff"), ("Authorization", "Bearer \xe9"),
    ("Authorization", "Basic a"), ("Authorization", "Bearer"), ("Authorization", "bearer k1"), ("Origin", "null"),
    ("Origin", "http://a" * 200), ("Cookie", "a=b;" * 300), ("Range", "bytes=0-1"), ("If-Match", "*"),
    ("Accept-Encoding", "gzip, br, zstd;q=nan"), ("Expect", "100-continue"), ("Expect", "nonsense"),
    ("TE", "trailers"), ("Upgrade", "websocket"), ("Upgrade", "h2c"), ("Connection", "upgrade"),
    ("Connection", "keep-alive, close"), ("Connection", "nonsense"), ("Content-Encoding", "gzip"),
    ("Content-Encoding", "identity"), ("Content-Encoding", "x"), ("Content-Encoding", "br"),
    ("Content-Encoding", "zstd"), ("Content-Language", "\0x"), ("X-Forwarded-For", "a" * 900),
    ("X-HTTP-Method-Override", "DELETE"), ("Trailer", "x"), ("Date", "never"), ("X-Session-ID", "\xe9" * 300),
    *(("X-Slo-E2e-Ms", each) for each in ("nan", "-1", "1e400", "9" * 5000, str(2**70), "", "1e-300", "\u0663", "0x5")),
    *(("X-Slo-Ttft-Ms", each) for each in ("inf", "-0", "1e308", str(2**63), "5;q=1")),
    ("X-Gateway-Inference-Objective", "\xe9" * 5000), ("X-Gateway-Inference-Objective", "critical"),
    ("X-Gateway-Inference-Fairness-Id", "a" * 5000), ("X-Vllm-Priority", "-9223372036854775808"),
    ("Sec-WebSocket-Key", "x"), ("traceparent", "00-zz"), ("traceparent", "a" * 4000), ("baggage", "=" * 500),
)  # fmt: skip
BROKEN_LINES = (
    b"no colon", b": empty name", b"Name : space", b" folded: line", b"\xff\xfe: x", b"A: \x00", b"A: b\rc",
    b"Host: second", b"Content-Length: 5", b"Content-Length: -1", b"Content-Length: 99999999999999999999",
    b"Content-Length: 1e3", b"Content-Length: +4", b"Content-Length:", b"Content-Length: 4, 4",
    b"Transfer-Encoding: gzip, chunked", b"Transfer-Encoding: chunked, chunked", b"Transfer-Encoding: identity",
    b"Transfer-Encoding: \x0bchunked", b"A:b" * 5000, b"\r\nX: y", b"Content-Type: application/json",
    b"Content-Type: text/plain", b"X:\ty", b"A(b): c", b"\x7f: a",
)  # fmt: skip
QUERIES = (
    "?", "?a", "?a=b&a=c", "?=", "?%", "?%ff", "?%00", "?" + "a=b&" * 500, "?" + "a" * 6000, "?instance=0",
    "?instance=", "?instance=-1", "?instance=" + "9" * 5000, "?instance=99999999999999999999", "?instance=\u0661",
    "?instance=1.5", "?level=9", "?level=" + "9" * 5000, "?level=0", "?mode=nonsense", "?tags=" + "x&tags=" * 50,
    "?starting_after=x", "?starting_after=" + "9" * 400, "?stream=maybe", "?stream=true", "?include_dp=2",
    "?config_format=xml", "?clear_cache=", "?name[]=vllm:num_requests_running", "?name[]=%ff",
    "?reset_external=9999999999999999999999", "#fragment", "?a=b#c", "?instance=%31", "?level=%00",
    "?mode=abort&mode=keep", "?;", "?&&&", "?a==b", "?\u00e9",
)  # fmt: skip
PATHS = (
    "//{0}", "/.{1}", "/..{1}", "{1}/", "{1}//", "{1}/.", "{1}/..", "{1}%00", "{1}%ff", "{1}%2e%2e%2f", "{1};a=b",
    "/%2e%2e{1}", "{1}/x", "{1}\\", "http://localhost{1}", "http://[::1{1}", "*", "{0}", "", "localhost:80",
    "{1} extra", "{1}\t", "/\xe9{1}", "{1}%", "{1}%zz", "{1}%2", "/%68ealth", "{1}?%", "/blis/instances/%ff/drain",
    "/blis/instances/" + "9" * 5000 + "/drain", "/v1/responses/%00", "/v1/responses/" + "x" * 5000,
    "/v1/responses/%ff/cancel", "/v1/responses//cancel", "/v1//models", "/blis/instances/\u0661/drain",
    "/blis/instances/-1/drain", "/blis/instances/1e3/drain", "/v1/models/m", "/metrics/x", "/docs/oauth2-redirect",
    "/" + "a/" * 3000, "//", "///", "/%2f%2f", "/:80{1}", "//localhost{1}", "http:{1}", "/?{1}",
)  # fmt: skip
METHODS = (
    "GET", "HEAD", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "CONNECT", "get", "post", "P" * 300, "PO ST", "",
    "PRI", "POST\0", "PROPFIND", "LINK", "(x)",
)  # fmt: skip
VERSIONS = (
    "HTTP/1.0", "HTTP/0.9", "HTTP/2", "HTTP/2.0", "HTTP/1.10", "HTTP/1.", "http/1.1", "HTTP/9.9", "", "X/1.1",
    "HTTP/1.1 x",
)  # fmt: skip
BROKEN_CHUNKS = (
    b"zz\r\n", b"-1\r\nx\r\n", b"ffffffffffffffffff\r\nx", b"5\r\nab\r\n0\r\n\r\n", b"2\r\nabc\r\n0\r\n\r\n",
    b"0\r\n", b"0x5\r\nhello\r\n0\r\n\r\n", b"5 \r\nhello\r\n0\r\n\r\n", b"\r\n\r\n", b"1\n{\n1\n}\n0\n\n",
    b"5;" + b"a" * 20_000 + b"\r\nhello\r\n0\r\n\r\n", b"7fffffff\r\n{}", b"00000000000000000002\r\n{}\r\n0\r\n\r\n",
    b"2\r\n{}\r\n0\r\n" + b"a: b\r\n" * 3000,
)  # fmt: skip
NOT_HTTP = (
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"\x16\x03\x01\x02\x00\x01\x00", b"\x00" * 500, b"\r\n" * 500,
    b"GET\r\n\r\n",
    b"GET /\n\n", b"A" * 100_000, b"\xff" * 3000, b"POST /v1/completions\r\n\r\n", b"{}\r\n\r\n",
    b"GET / HTTP/1.1\r\n\r\n",
    b"\n", b" GET / HTTP/1.1\r\n\r\n",
)  # fmt: skip
CHUNKED = b"Transfer-Encoding: chunked"


def hostile_message(message: Message, rng: random.Random) -> tuple[str, Sent]:
    """The name of a trick, and what is to be sent."""
    trick = rng.choice(TRICKS)
    return trick.__name__.removeprefix("_"), trick(message, rng)


def _media_type(message: Message, rng: random.Random) -> Sent:
    kind: str | None = rng.choice(MEDIA_TYPES)
    return (message.with_headers(Content_Type=kind or None).serialised(),), True


def _header(message: Message, rng: random.Random) -> Sent:
    name, value = rng.choice(HEADERS)
    return (replace(message, headers={**message.headers, name: value}).serialised(),), True


def _header_twice(message: Message, rng: random.Random) -> Sent:
    name, value = rng.choice(HEADERS)
    line = f"{name}: {value}".encode("utf-8", "surrogateescape")
    return (message.serialised([line] * rng.choice([2, 40, 300])),), True


def _broken_line(message: Message, rng: random.Random) -> Sent:
    return (message.serialised([rng.choice(BROKEN_LINES)]),), False


def _query(message: Message, rng: random.Random) -> Sent:
    return (replace(message, path=message.path.partition("?")[0] + rng.choice(QUERIES)).serialised(),), True


def _path(message: Message, rng: random.Random) -> Sent:
    path = rng.choice(PATHS).format(message.path.removeprefix("/"), message.path)
    return (replace(message, path=path).serialised(),), False


def _method(message: Message, rng: random.Random) -> Sent:
    return (replace(message, method=rng.choice(METHODS)).serialised(),), False


def _version(message: Message, rng: random.Random) -> Sent:
    return (replace(message, version=rng.choice(VERSIONS)).serialised(),), False


def _compressed(message: Message, rng: random.Random) -> Sent:
    kind = rng.choice(["gzip", "deflate", "bomb", "broken"])
    if kind == "deflate":
        body = zlib.compress(message.body)
    elif kind == "bomb":
        body = gzip.compress(b" " * 20_000_000 + message.body, mtime=0)
    else:
        body = gzip.compress(message.body, mtime=0)
        body = body if kind == "gzip" else body[:-9] + b"\xff" * 9
    encoding = "deflate" if kind == "deflate" else "gzip"
    return (replace(message, body=body).with_headers(Content_Encoding=encoding).serialised(),), True


def _chunked(message: Message, rng: random.Random) -> Sent:
    """Well-formed chunks in several packets."""
    body, size = message.body, rng.choice([1, 7, 1000])
    parts = [body[at : at + size] for at in range(0, min(len(body), 40 * size), size)] + [body[40 * size :]]
    extension = rng.choice([b"", b";a=b", b';q="x"'])
    chunks = b"".join(b"%x%s\r\n%s\r\n" % (len(part), extension, part) for part in parts if part)
    end = b"0\r\n" + rng.choice([b"", b"X-Trailer: y\r\n", b"Content-Length: 3\r\n"]) + b"\r\n"
    head = replace(message, body=b"").serialised([CHUNKED], adds_length=False)
    return ((head, chunks + end) if rng.random() < 0.5 else (head + chunks + end,)), True


def _broken_chunks(message: Message, rng: random.Random) -> Sent:
    head = replace(message, body=b"").serialised([CHUNKED], adds_length=rng.random() < 0.3)
    return (head, rng.choice(BROKEN_CHUNKS)), False


def _wrong_length(message: Message, rng: random.Random) -> Sent:
    size = len(message.body)
    said = rng.choice([0, max(size - 1, 0), size // 2, size + 1, size + 10_000, 10**9, 10**18, 2**64])
    return (message.serialised([b"Content-Length: %d" % said], adds_length=False),), said == 0


def _no_length(message: Message, _chance: random.Random) -> Sent:
    return (message.serialised(adds_length=False),), False


def _in_pieces(message: Message, rng: random.Random) -> Sent:
    data = message.serialised()
    cuts = sorted(rng.randrange(1, len(data)) for _ in range(rng.randint(1, 4)))
    return tuple(data[begin:end] for begin, end in zip([0, *cuts], [*cuts, len(data)], strict=True)), True


def _half_sent(message: Message, rng: random.Random) -> Sent:
    data = message.serialised()
    return (data[: rng.randrange(1, len(data))],), False


def _pipelined(message: Message, rng: random.Random) -> Sent:
    return (message.serialised() * rng.choice([2, 5]),), True


def _not_http(_message: Message, rng: random.Random) -> Sent:
    return (rng.choice(NOT_HTTP),), False


TRICKS: tuple[HttpTrick, ...] = (
    _media_type, _media_type, _header, _header, _header, _header_twice, _broken_line, _query, _query, _path, _path,
    _method, _version, _compressed, _chunked, _broken_chunks, _wrong_length, _no_length, _in_pieces, _half_sent,
    _pipelined, _not_http,
)  # fmt: skip
