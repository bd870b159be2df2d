import pytest
from hypothesis import given
from hypothesis import strategies as st

from observe.errors import ResponseError
from observe.http import Head, HeadCache, ResponseParser, parse_head


def parsed(*pieces: bytes) -> tuple[ResponseParser, bytes]:
    parser = ResponseParser()
    body = b"".join(parser.feed(piece) for piece in pieces)
    return parser, body


def head_of(parser: ResponseParser) -> Head:
    assert parser.head is not None
    return parser.head


def chunk(data: bytes, extension: bytes = b"") -> bytes:
    return b"%x%s\r\n%s\r\n" % (len(data), extension, data)


SIZED = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello"
CHUNKED = (
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    + chunk(b"hel")
    + chunk(b"l\r\no", b";x=1")
    + b"0\r\nTrailer: t\r\n\r\n"
)


def test_a_body_of_known_length_ends_after_it() -> None:
    parser, body = parsed(SIZED)
    assert (head_of(parser).status, body, parser.complete, head_of(parser).keep_alive) == (200, b"hello", True, True)


def test_a_chunked_body_ends_after_its_trailers() -> None:
    parser, body = parsed(CHUNKED)
    assert (body, parser.complete) == (b"hell\r\no", True)


@pytest.mark.parametrize("response", [SIZED, CHUNKED])
def test_every_place_to_cut_a_response_gives_the_same(response: bytes) -> None:
    whole, body = parsed(response)
    for cut in range(len(response) + 1):
        parser, same_body = parsed(response[:cut], response[cut:])
        assert (same_body, parser.complete, parser.head) == (body, True, whole.head)


@given(st.lists(st.binary(min_size=1, max_size=40)), st.data())
def test_chunks_come_back_joined_however_they_are_cut(chunks: list[bytes], data: st.DataObject) -> None:
    response = CHUNKED[: CHUNKED.index(b"3\r\nhel")] + b"".join(map(chunk, chunks)) + b"0\r\n\r\n"
    cuts = sorted(data.draw(st.lists(st.integers(0, len(response)))))
    pieces = [response[start:end] for start, end in zip([0, *cuts], [*cuts, len(response)], strict=True)]
    parser, body = parsed(*pieces)
    assert (body, parser.complete) == (b"".join(chunks), True)


def test_without_a_length_the_body_lasts_until_the_connection_is_closed() -> None:
    parser, body = parsed(b"HTTP/1.0 200 OK\r\n\r\nabc", b"def")
    assert (body, parser.complete, head_of(parser).keep_alive) == (b"abcdef", False, False)
    parser.end()
    assert parser.complete


def test_interim_responses_are_skipped() -> None:
    parser, body = parsed(b"HTTP/1.1 100 Continue\r\n\r\n" + SIZED)
    assert (head_of(parser).status, body) == (200, b"hello")


def test_a_connection_close_header_is_read() -> None:
    parser, _ = parsed(b"HTTP/1.1 200 OK\r\nConnection: Close\r\nContent-Length: 0\r\n\r\n")
    assert parser.complete
    assert not head_of(parser).keep_alive


def test_a_connection_that_ends_early_leaves_the_response_incomplete() -> None:
    parser, _ = parsed(SIZED[:-1])
    parser.end()
    assert not parser.complete


def test_cached_heads_equal_parsed_heads() -> None:
    heads = HeadCache()
    for second in [*range(200), *range(200)]:
        head = b"HTTP/1.1 200 OK\r\nDate: %d\r\nContent-Length: 5" % second
        assert heads.parse(head) == parse_head(head)


@pytest.mark.parametrize(
    "response",
    [
        b"SSH-2.0-OpenSSH\r\n\r\n",
        b"HTTP/1.1 abc\r\n\r\n",
        b"HTTP/1.1 2\xb90 OK\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: " + b"1" * 5000 + b"\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nab\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n-1\r\n",
        b"HTTP/1.1 200 OK\r\n" + b"a" * 70000,
    ],
)
def test_bytes_that_are_no_response_are_an_error(response: bytes) -> None:
    with pytest.raises(ResponseError):
        parsed(response)
