"""Bytes through a proxy: those of replies as they are, those of requests but for the host."""

import gzip
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.observe.proxy.running import ByteServer, running_proxy, talk
from tests.patience import wait_until
from tests.ports import reserved_port
from traces import read_itl, read_trace
from traces.content import read_content

CHAT = b'{"model":"m","stream":true,"messages":[{"role":"user","content":"hi"}]}'


def post(path: bytes, body: bytes, host: bytes, extra: bytes = b"") -> bytes:
    return b"POST %s HTTP/1.1\r\nhost: %s\r\n%scontent-length: %d\r\n\r\n%s" % (path, host, extra, len(body), body)


EVENTS = (
    b'data: {"choices":[{"index":0,"delta":{"content":"a"}}]}\n\n',
    b'data: {"choices":[{"index":0,"delta":{"content":"b"},"finish_reason":"stop"}]}\n\n',
    b'data: {"choices":[],"usage":{"prompt_tokens":7,"completion_tokens":2}}\n\n',
    b"data: [DONE]\n\n",
)
STREAM_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n"
CHUNKED = b"".join(b"%x\r\n%s\r\n" % (len(each), each) for each in EVENTS)
WHOLE = (
    b'{"choices":[{"message":{"content":"x"},"finish_reason":"stop"}],'
    b'"usage":{"prompt_tokens":5,"completion_tokens":1}}'
)
ZIPPED = gzip.compress(b"".join(EVENTS))
REPLIES = {
    "a stream with trailers": STREAM_HEAD
    + b"Transfer-Encoding: chunked\r\nTrailer: T\r\n\r\n"
    + CHUNKED
    + b"0\r\nT: 1\r\n\r\n",
    "an interim reply": b"HTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\nHTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%s"
    % (len(WHOLE), WHOLE),
    "headers in odd forms": b"HTTP/1.1 200 Fine\r\nX-A:  1 \r\nx-a: 2\r\nContent-Length: %d\r\n\r\n%s"
    % (len(WHOLE), WHOLE),
    "a body to the end": STREAM_HEAD + b"connection: close\r\n\r\n" + b"".join(EVENTS),
    "a gzipped stream": STREAM_HEAD + b"content-encoding: gzip\r\ncontent-length: %d\r\n\r\n%s" % (len(ZIPPED), ZIPPED),
    "an error": b'HTTP/1.1 400 Bad Request\r\ncontent-length: 17\r\n\r\n{"error":{"a":1}}',
    "a stream that is cut": STREAM_HEAD + b"transfer-encoding: chunked\r\nconnection: close\r\n\r\n" + CHUNKED[:70],
    "no reply in HTTP": b"hello\r\nconnection: close\r\n\r\n",
}


def path_of(name: str) -> bytes:
    return b"/" + name.replace(" ", "-").encode() + b"/v1/chat/completions"


@pytest.fixture(scope="module")
def server() -> Iterator[ByteServer]:
    made = ByteServer({})
    host = b"127.0.0.1:%d" % made.port
    made.replies |= {post(path_of(name), CHAT, host): reply for name, reply in REPLIES.items()}
    made.replies |= {
        b"HEAD /x HTTP/1.1\r\nhost: %s\r\n\r\n" % host: b"HTTP/1.1 200 OK\r\ncontent-length: 99\r\n\r\n",
        b"\x16\x03\x01 no HTTP": b"\x15\x03connection: close",
    }
    yield made
    made.close()


class Passed(NamedTuple):
    """Replies that came back through a proxy, what arrived at the server, and what was recorded."""

    replies: dict[str, list[bytes]]
    """Of each request, sent whole and in pieces."""
    in_a_row: tuple[bytes, bytes]
    """Replies to several requests on one connection, and what the server received."""
    unparsed: bytes
    summary: dict[str, Any]
    prefix: Path


IN_A_ROW = ("a stream with trailers", "headers in odd forms", "an error")
SENT_IN_A_ROW = b"".join(post(path_of(name), CHAT, b"c") for name in IN_A_ROW) + b"HEAD /x HTTP/1.1\r\nhost: c\r\n\r\n"


@pytest.fixture(scope="module")
def passed(server: ByteServer, tmp_path_factory: pytest.TempPathFactory) -> Passed:
    """All that passes one proxy until it is stopped, so that each test holds on its own, wherever it runs."""
    prefix = tmp_path_factory.mktemp("proxy") / "r"
    with running_proxy(server.url, prefix, "--record-itl", "--record-content") as proxy:
        (port,) = proxy.ports
        replies = {}
        for name, reply in REPLIES.items():
            # A client that hangs up before its server does would be the one that ended the connection.
            end = b"" if b"connection: close" in reply else reply[-8:]
            request = post(path_of(name), CHAT, b"client.example")
            pieces = ([request], [request[:9], request[9:60], request[60:]])
            replies[name] = [talk(port, *each, until=end) for each in pieces]
        num_before = len(server.received)
        in_a_row = talk(port, SENT_IN_A_ROW, until=b"99\r\n\r\n")
        (received,) = server.received[num_before:]
        unparsed = talk(port, b"\x16\x03\x01 no HTTP")
        proxy.stop()
    return Passed(replies, (in_a_row, received), unparsed, proxy.summary, prefix)


@pytest.mark.parametrize("name", REPLIES)
def test_replies_come_as_they_were_sent(name: str, passed: Passed) -> None:
    assert passed.replies[name] == [REPLIES[name]] * 2


def test_requests_in_a_row_share_a_connection_and_arrive_with_the_host_of_the_server(
    server: ByteServer, passed: Passed
) -> None:
    replies, received = passed.in_a_row
    expected = b"".join(REPLIES[name] for name in IN_A_ROW) + b"HTTP/1.1 200 OK\r\ncontent-length: 99\r\n\r\n"
    assert replies == expected
    assert received == SENT_IN_A_ROW.replace(b"host: c\r\n", b"host: 127.0.0.1:%d\r\n" % server.port)


def test_bytes_that_are_no_request_pass_unparsed(passed: Passed) -> None:
    assert passed.unparsed == b"\x15\x03connection: close"


def test_rows_and_contents_match_the_forwarded_bytes(passed: Passed) -> None:
    prefix = passed.prefix
    rows = read_trace(f"{prefix}.yaml").rows
    assert len(rows) == 2 * len(REPLIES) - 2 + 3, "what is no HTTP has no row"
    assert [row.request_id for row in rows] == list(range(len(rows)))
    contents = {each.request_id: each for each in read_content(Path(f"{prefix}.content.jsonl")).exchanges}
    by_name = {
        name: [row for row in rows if contents[row.request_id].path.encode() == path_of(name)] for name in REPLIES
    }
    chunks = read_itl(f"{prefix}.itl.csv")
    for name in ("a stream with trailers", "a body to the end", "a gzipped stream"):
        for row in by_name[name]:
            assert (row.status, row.finish_reason, row.server_input_tokens, row.output_tokens) == ("ok", "stop", 7, 2)
            assert len(chunks[row.request_id]) == row.num_chunks == 3
            assert [data for _, data in contents[row.request_id].pieces] == list(EVENTS)
            assert contents[row.request_id].body == CHAT
    assert {row.status for row in by_name["an error"]} == {"error"}
    assert by_name["an error"][0].error_message == 'HTTP 400: {"error":{"a":1}}'
    assert {(row.status, row.output_tokens) for row in by_name["a stream that is cut"]} == {("error", 1)}
    assert {row.server_input_tokens for row in by_name["an interim reply"]} == {5}
    assert passed.summary["by_status"] == {"error": 5, "ok": len(rows) - 5}


def test_a_proxy_that_is_killed_leaves_rows_of_all_that_passed(server: ByteServer, tmp_path: Path) -> None:
    with running_proxy(server.url, tmp_path / "k") as proxy:
        reply = REPLIES["an error"]
        with_no_reply = socket.create_connection(("127.0.0.1", proxy.ports[0]))
        for _ in range(5):
            assert talk(proxy.ports[0], post(path_of("an error"), CHAT, b"h"), until=reply[-8:]) == reply
        with_no_reply.sendall(post(b"/silence/v1/completions", CHAT, b"h"))
        wait_until(lambda: any(b"/silence" in each for each in server.received))
        time.sleep(0.1)
        proxy.process.kill()
        rows = tmp_path / "k.csv"
        wait_until(lambda: rows.read_text().count("\n") == 7)
        with_no_reply.close()
    found = read_trace(tmp_path / "k.yaml").rows
    assert [row.error_message for row in found[5:]] == ["the proxy was stopped"]


def test_a_server_out_of_reach_is_answered_for_and_recorded(tmp_path: Path) -> None:
    with reserved_port() as port, running_proxy(f"http://127.0.0.1:{port}", tmp_path / "u") as proxy:
        reply = talk(proxy.ports[0], post(b"/v1/completions", CHAT, b"h"))
        assert reply.startswith(b"HTTP/1.1 502 Bad Gateway\r\n")
        assert b"connection refused" in reply
        proxy.stop()
    assert [row.status for row in read_trace(tmp_path / "u.yaml").rows] == ["error"]
