import pytest

from observe.http import get_bytes, parse_server, post_bytes, post_bytes_of, post_head


@pytest.mark.parametrize(
    ("url", "host", "port", "tls", "prefix"),
    [
        ("http://localhost:8000", "localhost", 8000, False, ""),
        ("http://localhost:8000/", "localhost", 8000, False, ""),
        ("http://localhost:8000/v1/", "localhost", 8000, False, ""),
        ("https://api.example.com/llm/v1", "api.example.com", 443, True, "/llm"),
        ("http://[::1]:8000", "::1", 8000, False, ""),
    ],
)
def test_a_base_url_may_end_in_v1_or_a_slash(url: str, host: str, port: int, tls: bool, prefix: str) -> None:
    server = parse_server(url)
    assert (server.host, server.port, server.tls, server.prefix) == (host, port, tls, prefix)


def test_a_request_is_complete_http() -> None:
    server = parse_server("http://h:8000/p")
    shared = b"host: h:8000\r\nuser-agent: blis-observe\r\naccept: */*\r\n"
    assert post_bytes(server, "/v1/completions", {"x-request-id": "7"}, b"{}") == (
        b"POST /p/v1/completions HTTP/1.1\r\n" + shared + b"x-request-id: 7\r\n"
        b"content-type: application/json\r\ncontent-length: 2\r\n\r\n{}"
    )
    head = post_head(server, "/v1/completions", {"a": "b"})
    with_identity = post_bytes(server, "/v1/completions", {"a": "b", "x-request-id": "7"}, b"{}")
    assert post_bytes_of(head, "7", b"{}") == with_identity
    assert get_bytes(server, "/health", {}) == b"GET /p/health HTTP/1.1\r\n" + shared + b"\r\n"


def test_the_host_header_leaves_the_usual_port_out() -> None:
    assert parse_server("https://h").authority == "h"
    assert parse_server("http://[::1]:80").authority == "[::1]"
