from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from observe.proxy.exchanges import Part, RequestReader, UnreadableError, with_host

REQUESTS = (
    b"\r\nPOST /v1/completions HTTP/1.1\r\nHost: a:1\r\nX-Odd:  v \r\nContent-Length: 5\r\n\r\nhello"
    b"GET /health HTTP/1.1\r\nHost: a\r\n\r\n"
    b"POST /c HTTP/1.1\r\nhost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
    b"3;x=1\r\nabc\r\n2\r\nde\r\n0\r\nTrailer: t\r\n\r\n"
    b"DELETE /x HTTP/1.0\r\n\r\n"
)


def parts_of(pieces: list[bytes]) -> list[Part]:
    reader = RequestReader()
    return [part for piece in pieces for part in reader.feed(piece)]


@given(st.lists(st.integers(0, len(REQUESTS)), max_size=12))
def test_requests_cut_anywhere_are_taken_apart_and_keep_every_byte(cuts: list[int]) -> None:
    places = sorted({0, len(REQUESTS), *cuts})
    parts = parts_of([REQUESTS[first:last] for first, last in pairwise(places)])
    assert b"".join(part.raw for part in parts) == REQUESTS
    heads = [part.head for part in parts if part.head is not None]
    assert [(head.method, head.target) for head in heads] == [
        ("POST", "/v1/completions"),
        ("GET", "/health"),
        ("POST", "/c"),
        ("DELETE", "/x"),
    ]
    assert heads[0].header("x-odd") == "v"
    bodies = [b""]
    for part in parts:
        bodies[-1] += part.body
        bodies += [b""] if part.is_end else []
    assert bodies == [b"hello", b"", b"abcde", b"", b""]


@pytest.mark.parametrize(
    "data",
    [
        b"\x16\x03\x01\x02\x00",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"GET / HTTP/1.1\r\nUpgrade: websocket\r\n\r\n\x81",
        b"POST / HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
        b"POST / HTTP/1.1\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"POST / HTTP/1.1\r\nTransfer-Encoding: gzip, chunked\r\n\r\n",
        b"POST / HTTP/1.1\r\nContent-Length: -1\r\n\r\n",
        b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n",
        b"GET / HTTP/1.1\r\n folded: x\r\n\r\n",
        b"hello there\r\n",
    ],
)
def test_ambiguous_requests_are_not_parsed(data: bytes) -> None:
    reader = RequestReader()
    parts = reader.feed(data)
    seen = b""

    def take_all() -> None:
        nonlocal seen
        for part in parts:
            seen += part.raw

    with pytest.raises(UnreadableError):
        take_all()
    assert seen + reader.rest == data


def test_the_host_and_the_path_in_front_are_those_of_the_server() -> None:
    raw = b"GET /v1/models?a=1 HTTP/1.1\r\nAccept: */*\r\nHOST: old:1\r\nX-Host: keep\r\n\r\n"
    assert with_host(raw, "new:2", "/p") == (
        b"GET /p/v1/models?a=1 HTTP/1.1\r\nAccept: */*\r\nHOST: new:2\r\nX-Host: keep\r\n\r\n"
    )
    assert with_host(b"GET http://o/ HTTP/1.1\r\n\r\n", "n", "/p") == b"GET http://o/ HTTP/1.1\r\n\r\n"
