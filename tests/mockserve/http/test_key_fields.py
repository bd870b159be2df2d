"""A key with space behind it reaches aiohttp as another one, however its bytes come."""

import pytest

from mockserve.http.connection import MOST_PARTS, KeyFields

HEAD = b"POST /a HTTP/1.1\r\nHost: x\r\n%sTransfer-Encoding: chunked\r\n\r\n"
CHUNKS = b"5\r\nabcde\r\n1a;note=1\r\nauthorization: Bearer k  \r\n\r\n0\r\n\r\n"
"""A body with text like a field."""
WITH_SPACE, WITHOUT, EMPTY = b"Authorization: Bearer k \t\r\n", b"Authorization: Bearer k\r\n", b"Authorization:\r\n"


def passed_on(fields: KeyFields, data: bytes, size: int) -> bytes:
    """The bytes that aiohttp gets when they come in pieces of a size."""
    found = b""
    for place in range(0, len(data), size):
        later = data[place : place + size]
        while later:
            now, later = fields.passed(later)
            found += now
    return found


@pytest.mark.parametrize("size", [1, 2, 7, 1000])
@pytest.mark.parametrize(("given", "passed"), [(WITH_SPACE, EMPTY), (WITHOUT, WITHOUT), (b"", b"")])
def test_only_a_key_with_space_behind_it_is_changed(size: int, given: bytes, passed: bytes) -> None:
    data = (HEAD % given + CHUNKS) * 2  # a second request on the same connection
    assert passed_on(KeyFields(), data, size) == (HEAD % passed + CHUNKS) * 2


@pytest.mark.parametrize("size", [1, 3, 1000])
def test_a_body_of_known_length_is_no_head(size: int) -> None:
    body = b"authorization: Bearer k \r\n"
    request = b"PUT / HTTP/1.1\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)
    data = request + b"GET / HTTP/1.1\r\n" + WITH_SPACE + b"\r\n"
    assert passed_on(KeyFields(), data, size) == request + b"GET / HTTP/1.1\r\n" + EMPTY + b"\r\n"


@pytest.mark.parametrize("data", [b"no request", b"GET / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nnone\r\nmore"])
def test_bytes_that_are_no_request_are_passed_on(data: bytes) -> None:
    assert KeyFields().passed(data) == (data, b"")


def test_a_line_without_end_takes_bounded_memory() -> None:
    fields = KeyFields()
    total = sum(len(fields.passed(b"a" * 10_000)[0]) for _ in range(100))
    assert total == 1_000_000


@pytest.mark.parametrize("line", [b"\n", b"a\n", b"a: 1\r\n"])
def test_many_lines_are_read_a_part_at_a_time(line: bytes) -> None:
    fields, data = KeyFields(), line * (3 * MOST_PARTS)
    passed, later = fields.passed(data)
    assert (len(passed), len(later)) == (len(data) // 3, len(data) * 2 // 3)
    assert passed + passed_on(fields, later, len(later)) == data
