"""Which bytes are usual requests, and that the library would read them in the same way."""

import asyncio
from typing import Any, NamedTuple

import pytest
from aiohttp.base_protocol import BaseProtocol
from aiohttp.http import HttpProcessingError, HttpRequestParser
from hypothesis import given, settings
from hypothesis import strategies as st

from mockserve.http.connection import (
    MOST_KNOWN_HEADS,
    HttpLimits,
    ParseStatus,
    RequestReader,
    SimpleHead,
    bytes_for_aiohttp,
)
from tests.examples import examples

LIMITS = HttpLimits()
REQUEST = (
    b"POST /v1/completions HTTP/1.1\r\nHost: a:8000\r\nAccept: */*\r\nContent-Type: application/json\r\n"
    b'Content-Length: 13\r\nX-One: a, b;  c\r\n\r\n{"prompt":""}'
)


class Found(NamedTuple):
    """A simple request."""

    head: SimpleHead
    body: bytes
    num_bytes: int


def first_request(data: bytes) -> Found | ParseStatus:
    """Twice, for the second time the head is known."""
    reader = RequestReader(LIMITS)
    found = reader.first(data)
    assert reader.first(data) == found
    return found if isinstance(found, ParseStatus) else Found(*found)


def usual(data: bytes) -> Found:
    found = first_request(data)
    assert isinstance(found, Found)
    return found


def test_a_usual_request_is_what_was_sent() -> None:
    found = usual(REQUEST + b"GET /next")
    assert (found.head.method, found.head.path, found.body) == ("POST", "/v1/completions", b'{"prompt":""}')
    assert found.head.headers["x-one"] == "a, b;  c"
    assert found.num_bytes == len(REQUEST)


def test_the_beginning_of_a_request_is_a_part_of_one() -> None:
    assert {first_request(REQUEST[:size]) for size in range(1, len(REQUEST))} == {ParseStatus.PART}


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b"HTTP/1.1", b"HTTP/1.0"),
        (b"POST", b"FROB"),
        (b"/v1/completions", b"http://a/v1/completions"),
        (b"/v1/completions", b"/v1/\xc3\xa4"),
        (b"Host: a:8000\r\n", b"Host: a\r\nhost: b\r\n"),
        (b"Content-Length: 13", b"Content-Length: 13\r\nContent-Length: 13"),
        (b"Content-Length: 13", b"Content-Length: +13"),
        (b"Content-Length: 13", b"Content-Length: 13 "),
        (b"Content-Length: 13", b"Content-Length:\t13"),
        (b"Content-Length: 13", b"Content-Length : 13"),
        (b"Content-Length: 13", b"Content-Length: 300000"),
        (b"Content-Length: 13", b"Transfer-Encoding: chunked"),
        (b"X-One: a", b"Connection: close, TE\r\nX-One: a"),
        (b"X-One: a", b"Connection: close\r\nConnection: close\r\nX-One: a"),
        (b"X-One: a", b"x-one: b\r\nX-One: a"),
        (b"X-One: a", b"Connection: keep-alive, Upgrade\r\nX-One: a"),
        (b"X-One: a", b"Expect: 100-continue\r\nX-One: a"),
        (b"X-One: a", b"Content-Encoding: gzip\r\nX-One: a"),
        (b"X-One: a", b"X-One: \xe4"),
        (b"X-One: a, b;  c", b"X-One:"),
        (b"X-One: a", b" folded"),
        (b"X-One: a", b"X-One: a\nX-Two: b"),
        (b"X-One: a", b"X-One: a\rb"),
        (b"X-One: a", b"X-Long: " + b"a" * LIMITS.most_head_bytes),
        (b"X-One: a", b"\r\n".join(b"X-%d: a" % number for number in range(LIMITS.most_fields))),
    ],
)
def test_ambiguous_requests_go_to_the_library(old: bytes, new: bytes) -> None:
    assert old in REQUEST
    assert first_request(REQUEST.replace(old, new, 1)) is ParseStatus.OTHER


@pytest.mark.parametrize(("value", "closes"), [(b"keep-alive", False), (b"Keep-Alive", False), (b"close", True)])
def test_a_connection_header_may_keep_or_end_the_connection(value: bytes, closes: bool) -> None:
    assert usual(REQUEST.replace(b"X-One", b"Connection: " + value + b"\r\nX-One")).head.closes == closes
    assert not usual(REQUEST).head.closes


def test_no_host_need_be_named() -> None:
    found = usual(REQUEST.replace(b"Host: a:8000\r\n", b""))
    assert "Host" not in found.head.headers
    assert b"\r\nHost: localhost\r\n" in bytes_for_aiohttp(found.head, found.body)


def test_the_first_of_two_media_types_counts() -> None:
    found = usual(REQUEST.replace(b"X-One", b"content-type: text/plain\r\nX-One"))
    assert found.head.headers.getall("Content-Type") == ["application/json"]


def test_equal_heads_are_read_once_and_others_for_themselves() -> None:
    reader = RequestReader(LIMITS)
    for number in range(2 * MOST_KNOWN_HEADS):
        data = REQUEST.replace(b"a, b", b"%d" % number)
        first, second = reader.first(data), reader.first(data)
        assert not isinstance(first, ParseStatus)
        assert not isinstance(second, ParseStatus)
        found, again = Found(*first), Found(*second)
        assert again.head is found.head
        assert found.head.headers["X-One"] == f"{number};  c"


class Client(BaseProtocol):
    """The transport that the library's parser may pause."""

    def pause_reading(self) -> None:
        """Do nothing: there is no transport to pause."""

    def resume_reading(self, resume_parser: bool = True) -> None:
        """Do nothing: there is no transport to resume."""


async def by_library(data: bytes) -> tuple[str, str, list[tuple[str, str]], bytes, bool]:
    """The only request of `data` as the library reads it: method, path, fields, body, whether it is the last."""
    loop = asyncio.get_running_loop()
    parser: Any = HttpRequestParser(Client(loop), loop, 2**16, auto_decompress=False, max_line_size=8190)
    messages, _, _ = parser.feed_data(data)
    ((message, payload),) = messages
    headers = sorted((name.lower(), value) for name, value in message.headers.items())
    return message.method, message.path, headers, await payload.read(), message.should_close


NAMES = st.sampled_from(
    ["Host", "Content-Length", "X-A", "x-a", "Connection", "Accept", "Te", "Cookie", "X_B", "X.C", "User-Agent"]
)
VALUES = st.sampled_from(
    ["a", "1", "0", "13", "+1", "keep-alive", "close", "a b", " a", "a ", "", "a:b", "\x7f", "ä", "a\tb", "chunked"]
)
FIELDS = st.lists(st.tuples(NAMES, st.sampled_from([":", ": ", " :", ":  "]), VALUES), max_size=5)
LINES = st.sampled_from(
    ["GET /a", "POST /v1/x?y=1#z", "PUT /%20", 'POST /"', "OPTIONS *", "HEAD /a", "get /", "GET  /"]
)
VERSIONS = st.sampled_from(["HTTP/1.1", "HTTP/1.0", "http/1.1", "HTTP/2.0"])


@settings(max_examples=examples(200), deadline=None)
@given(LINES, VERSIONS, FIELDS, st.sampled_from(["\r\n", "\n"]))
async def test_the_library_reads_a_usual_request_in_the_same_way(
    line: str, version: str, fields: list[tuple[str, str, str]], end: str
) -> None:
    lines = [f"{line} {version}", *(name + colon + value for name, colon, value in fields)]
    data = ("\r\n".join(lines) + end + "\r\n").encode("latin-1") + b"0123456789012"
    found = first_request(data)
    if not isinstance(found, Found):
        return
    try:
        method, path, headers, body, closes = await by_library(bytes_for_aiohttp(found.head, found.body))
    except HttpProcessingError:
        raise AssertionError(f"the library refuses {data!r}") from None
    head = found.head
    assert (method, path, body, closes) == (head.method, head.path, found.body, head.closes)
    expected = dict(head.headers) if "Host" in head.headers else {"Host": "localhost", **head.headers}
    assert headers == sorted((name.lower(), value) for name, value in expected.items())


@settings(max_examples=examples(200), deadline=None)
@given(LINES, FIELDS)
async def test_requests_that_the_library_takes_as_they_came_are_read_in_the_same_way(
    line: str, fields: list[tuple[str, str, str]]
) -> None:
    lines = [f"{line} HTTP/1.1", *(name + colon + value for name, colon, value in fields)]
    data = ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1") + b"0123456789012"
    found = first_request(data)
    if not isinstance(found, Found):
        return
    try:
        as_it_came = await by_library(data[: found.num_bytes])
    except HttpProcessingError:  # no host, or a field twice
        return
    assert as_it_came == await by_library(bytes_for_aiohttp(found.head, found.body))
