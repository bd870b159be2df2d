"""Answers of vLLM to requests that are odd before their fields are looked at; each fact was asked of it."""

import re
import socket
from collections.abc import Iterator
from typing import Any

import pytest

from tests.patience import PATIENCE_S
from tests.wire.plain_http import call, complete, raw_completion, read_all, read_until
from tests.wire.serving import TestServer, running_server

CHAT = "/v1/chat/completions"
BODY = b'{"prompt":"hello there","max_tokens":1}'


@pytest.mark.parametrize(
    ("method", "path", "status", "allow"),
    [
        ("HEAD", CHAT, 405, "POST"),
        ("HEAD", "/health", 405, "GET"),
        ("HEAD", "/nope", 404, None),
        ("OPTIONS", CHAT, 405, "POST"),
        ("OPTIONS", "/nope", 404, None),
        ("PUT", "/v1/models", 405, "GET"),
        ("DELETE", "/version", 405, "GET"),
        ("TRACE", CHAT, 405, "POST"),
        ("PATCH", "/", 404, None),
    ],
)
def test_a_method_without_a_route_is_refused(
    server: TestServer, method: str, path: str, status: int, allow: str | None
) -> None:
    reply = call(server, method, path)
    assert (reply.status, reply.headers.get("allow"), reply.headers["vary"]) == (status, allow, "Origin")
    detail = {404: b'{"detail":"Not Found"}', 405: b'{"detail":"Method Not Allowed"}'}[status]
    assert reply.body == (b"" if method == "HEAD" else detail)
    assert reply.headers["content-length"] == str(len(detail))


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/v1/models?x=1", 200),
        ("/%761/models", 200),
        ("/health?%", 200),
        ("/v1//models", 404),
        ("//health", 404),
        ("/V1/models", 404),
        ("/v1/chat", 404),
        ("/v1/chat/../models", 404),
    ],
)
def test_paths_are_taken_as_they_are(server: TestServer, path: str, status: int) -> None:
    assert call(server, "GET", path).status == status


@pytest.mark.parametrize(("method", "path"), [("GET", "/v1/models/"), ("POST", f"{CHAT}/"), ("GET", f"{CHAT}/?a=b")])
def test_a_slash_too_many_leads_to_the_route(server: TestServer, method: str, path: str) -> None:
    reply = call(server, method, path)
    there, _, query = path.partition("?")
    assert reply.status == 307
    assert reply.headers["location"] == server.url + there.rstrip("/") + (f"?{query}" if query else "")
    assert reply.body == b""


@pytest.mark.parametrize(
    ("content_type", "status"),
    [
        ("application/json; charset=utf-8", 200),
        ("application/json;charset=latin-1", 200),
        ("APPLICATION/JSON", 200),
        ("application/json;", 200),
        ("application/vnd.api+json", 400),
        ("multipart/form-data", 400),
        ("json", 400),
        ("", 400),
    ],
)
def test_only_one_media_type_is_taken(server: TestServer, content_type: str, status: int) -> None:
    assert call(server, "POST", "/v1/completions", BODY, {"content-type": content_type}).status == status


@pytest.mark.parametrize(
    ("body", "place", "problem"),
    [
        (b'{"prompt":"a"} x', 15, "Extra data"),
        (b'{"prompt":"a",}', 14, "Expecting property name enclosed in double quotes"),
        (b'{"prompt":"a\nb"}', 12, "Invalid control character at"),
        (b'{"prompt":"\\x"}', 11, "Invalid \\\\escape"),
        (b'{"prompt": tru}', 11, "Expecting value"),
        (b'{"prompt":"abc', 10, "Unterminated string starting at"),
        (b"//x", 0, "Expecting value"),
    ],
)
def test_a_body_that_is_no_json_is_refused_with_the_place(
    server: TestServer, body: bytes, place: int, problem: str
) -> None:
    error = call(server, "POST", "/v1/completions", body).json["error"]
    assert (error["type"], error["param"], error["code"]) == ("Bad Request", f"body.{place}", 400)
    assert problem in error["message"]


@pytest.mark.parametrize("body", [b"[" * 5000, b'{"a":' * 5000, b'{"prompt":"a","n":' + b"9" * 5000 + b"}", b"\xff"])
def test_a_body_that_cannot_be_parsed_at_all_is_refused_without_the_envelope(server: TestServer, body: bytes) -> None:
    reply = call(server, "POST", "/v1/completions", body)
    assert (reply.status, reply.body) == (400, b'{"detail":"There was an error parsing the body"}')


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b'{"prompt":"a","prompt":"b"}', 200),
        (b' {"prompt":"a"} ', 200),
        (b'{"prompt":"a","max_tokens":1e1}', 200),
        (b'{"prompt":"a","temperature":-0}', 200),
        (b'{"prompt":"\\u0000"}', 200),
        (b'{"prompt":"a","temperature":NaN}', 400),
        (b'{"prompt":"a","max_tokens":1e400}', 400),
        (b'{"prompt":"\\ud800"}', 400),
        (b'{"prompt":"a","model":"\\u00e9"}', 404),
    ],
)
def test_odd_json_is_taken_or_refused_as_python_does(server: TestServer, body: bytes, status: int) -> None:
    assert call(server, "POST", "/v1/completions", body).status == status


@pytest.mark.parametrize("sent", [b"FOO / HTTP/1.1\r\n\r\n", b"\x16\x03\x01\x02\x00\r\n\r\n", b"GET\r\n\r\n"])
def test_bytes_that_are_no_http_are_answered_in_one_line(server: TestServer, sent: bytes) -> None:
    with socket.create_connection((server.host, server.port), timeout=PATIENCE_S) as connection:
        connection.sendall(sent)
        head, _, body = read_all(connection).partition(b"\r\n\r\n")
    assert head.partition(b" ")[2].startswith(b"400 Bad Request\r\n")
    assert b"connection: close" in head.lower()
    assert body == b"Invalid HTTP request received."


@pytest.mark.parametrize(
    ("fields", "message", "param"),
    [
        ({"frequency_penalty": -7}, "frequency_penalty must be in [-2, 2], got -7.0.", None),
        ({"repetition_penalty": 1e999}, "repetition_penalty must be a finite number, got inf.", None),
        ({"bad_words": [""]}, "bad_words cannot contain an empty string. Got bad_words=['']", None),
        (
            {"bad_words": [" "]},
            "bad_words entries must tokenize to at least one token. (parameter=bad_words, value=[' '])",
            "bad_words",
        ),
        (
            {"allowed_token_ids": []},
            "allowed_token_ids is not None and empty! (parameter=allowed_token_ids, value=[])",
            "allowed_token_ids",
        ),
        (
            {"logprobs": "zz"},
            "`logprobs` must be an integer. (parameter=logprobs, value=zz)",
            "logprobs",
        ),
        (
            {"prompt_logprobs": -7},
            "`prompt_logprobs` must be a positive value or -1. (parameter=prompt_logprobs, value=-7)",
            "prompt_logprobs",
        ),
        (
            {"prompt_logprobs": 30},
            "Requested prompt logprobs of 30, which is greater than max allowed: 20 "
            "(parameter=prompt_logprobs, value=30)",
            "prompt_logprobs",
        ),
        (
            {"logprob_token_ids": [1]},
            "when using `logprob_token_ids`, `logprobs` must be set. (parameter=logprob_token_ids)",
            "logprob_token_ids",
        ),
        (
            {"truncate_prompt_tokens": 3000},
            "truncate_prompt_tokens=3000 cannot be greater than max_model_len = 2048. "
            "Please request a smaller truncation size. (parameter=truncate_prompt_tokens, value=3000)",
            "truncate_prompt_tokens",
        ),
        (
            {"n": 10**30},
            f"n must be at most 16384, got {10**30}. "
            "To increase this limit, set the VLLM_MAX_N_SEQUENCES environment variable.",
            None,
        ),
        ({"prompt": [[1], []]}, "The decoder prompt cannot be empty", None),
        (
            {"prompt": None, "prompt_embeds": "AAAA"},
            "You must set `--enable-prompt-embeds` to input `prompt_embeds`. (parameter=prompt_embeds)",
            "prompt_embeds",
        ),
        (
            {"logprob_token_ids": [1] * 129, "logprobs": 1},
            "Requested logprob_token_ids of length 129, which is greater than max allowed: 128 "
            "(parameter=logprob_token_ids, value=129)",
            "logprob_token_ids",
        ),
        (
            {"repetition_detection": {"max_pattern_size": 1, "min_count": 1}},
            "min_count must be >= 2 to detect repetitive patterns in engine output. "
            "If you do not wish to detect repetitive patterns, set max_pattern_size to 0.",
            None,
        ),
        (
            {"thinking_token_budget": 1.5},
            "`thinking_token_budget` must be a non-negative integer or -1 for unlimited. "
            "(parameter=thinking_token_budget, value=1.5)",
            "thinking_token_budget",
        ),
    ],
)
def test_a_value_out_of_bounds_is_refused_in_the_words_of_vllm(
    server: TestServer, fields: dict[str, Any], message: str, param: str | None
) -> None:
    error = complete(server, **fields).json["error"]
    assert error == {"message": message, "type": "BadRequestError", "param": param, "code": 400}


@pytest.mark.parametrize(
    "fields",
    [
        {"min_p": "0.5"},
        {"echo": "yes"},
        {"max_tokens": " 3 "},
        {"seed": -1},
        {"n": True},
        {"logprob_token_ids": [1] * 128, "logprobs": 1},
    ],
)
def test_convertible_and_just_allowed_values_are_accepted(server: TestServer, fields: dict[str, Any]) -> None:
    assert complete(server, **fields).status == 200


def test_at_most_ten_problems_are_listed(server: TestServer) -> None:
    names = ["frequency_penalty", "n", "presence_penalty", "seed", "temperature", "top_p", "top_k", "min_p"]
    names += ["repetition_penalty", "length_penalty", "min_tokens", "priority"]
    message = complete(server, **dict.fromkeys(names, "x")).json["error"]["message"]
    assert message.startswith("12 validation errors:\n")
    assert message.endswith("\n  ...and 2 more errors")
    assert len(message.splitlines()) == 12


@pytest.mark.parametrize(("rank", "status"), [("0", 200), ("1", 400), ("-1", 400), ("zz", 200)])
def test_a_requested_rank_must_exist(server: TestServer, rank: str, status: int) -> None:
    assert call(server, "POST", "/v1/completions", BODY, {"X-data-parallel-rank": rank}).status == status


@pytest.mark.parametrize(
    ("wanted", "prefix"), [("TEXT", "TEXT named_metrics."), ("json", 'JSON {"named_'), ("xml", "")]
)
def test_a_load_balancer_gets_the_load_in_a_header(server: TestServer, wanted: str, prefix: str) -> None:
    reply = call(server, "POST", "/v1/completions", BODY, {"endpoint-load-metrics-format": wanted})
    assert reply.headers.get("endpoint-load-metrics", "").startswith(prefix)
    assert ("endpoint-load-metrics" in reply.headers) == bool(prefix)


def test_stream_heads_written_here_and_by_aiohttp_are_equal(server: TestServer) -> None:
    """Headers of connections that stay open are put together here, others by the library; Date may differ."""
    heads = []
    with socket.create_connection((server.host, server.port), timeout=PATIENCE_S) as connection:
        asked = raw_completion(prompt="hello there", max_tokens=2, stream=True)
        for request in (asked, asked, asked.replace(b"Host: x", b"Host: x\r\nConnection: close")):
            connection.sendall(request)
            head, _, _ = read_until(connection, b"[DONE]\n\n\r\n0\r\n\r\n").partition(b"\r\n\r\n")
            heads.append([line for line in head.split(b"\r\n") if not line.startswith(b"date: ")])
        assert connection.recv(1) == b""
    ours, again, of_library = heads
    assert ours == again
    assert b"connection: close" in of_library
    assert ours == [line for line in of_library if line != b"connection: close"]


def raw_head(server: TestServer, request: bytes) -> list[str]:
    """The head of a reply as it is written, line by line, without values that change."""
    with socket.create_connection((server.host, server.port), timeout=PATIENCE_S) as connection:
        connection.sendall(request)
        head = read_until(connection, b"\r\n\r\n").partition(b"\r\n\r\n")[0].decode("latin-1")
    return [
        line.partition(": ")[0] if line.startswith(("date", "content-length")) else line for line in head.split("\r\n")
    ]


HEADS = {
    b"GET /version HTTP/1.1\r\nHost: x\r\n\r\n": [
        "HTTP/1.1 200 OK", "date", "server: uvicorn", "content-length", "content-type: application/json", "vary: Origin"
    ],
    b"GET /health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n": [
        "HTTP/1.1 200 OK", "date", "server: uvicorn", "content-length", "vary: Origin", "connection: close"
    ],
    b"DELETE /version HTTP/1.1\r\nHost: x\r\n\r\n": [
        "HTTP/1.1 405 Method Not Allowed", "date", "server: uvicorn", "allow: GET", "content-length",
        "content-type: application/json", "vary: Origin",
    ],
    b"GET /health/ HTTP/1.1\r\nHost: x\r\n\r\n": [
        "HTTP/1.1 307 Temporary Redirect", "date", "server: uvicorn", "content-length", "location: http://x/health",
        "vary: Origin",
    ],
    raw_completion(prompt="a", max_tokens=2, stream=True): [
        "HTTP/1.1 200 OK", "date", "server: uvicorn", "content-type: text/event-stream; charset=utf-8", "vary: Origin",
        "transfer-encoding: chunked",
    ],
    b"garbage\r\n\r\n": [
        "HTTP/1.1 400 Bad Request", "date", "server: uvicorn", "content-length",
        "content-type: text/plain; charset=utf-8", "connection: close",
    ],
}  # fmt: skip


@pytest.mark.parametrize("request_bytes", HEADS)
def test_header_names_are_written_as_uvicorn_writes_them(server: TestServer, request_bytes: bytes) -> None:
    assert raw_head(server, request_bytes) == HEADS[request_bytes]


@pytest.fixture(scope="module")
def guarded() -> Iterator[TestServer]:
    with running_server(api_key=("k1", "k 2"), enable_request_id_headers=True) as running:
        yield running


def is_authorized(server: TestServer, authorization: bytes) -> bool:
    """Whether a key opens a usual route and one with a parameter, which are read by two parsers."""
    answers = set()
    for path in (b"/v1/models", b"/v1/responses/resp_x"):
        with socket.create_connection((server.host, server.port), timeout=PATIENCE_S) as connection:
            head = b"GET %b HTTP/1.1\r\nHost: x\r\nConnection: close\r\nAuthorization: %b\r\n\r\n"
            connection.sendall(head % (path, authorization))
            answers.add(read_all(connection).startswith(b"HTTP/1.1 401 "))
    (is_refused,) = answers
    return not is_refused


@pytest.mark.parametrize("key", [b"Bearer k1", b"bearer k1", b"Bearer k 2", b"  Bearer k1"])
def test_a_key_is_taken_as_it_is(guarded: TestServer, key: bytes) -> None:
    assert is_authorized(guarded, key)


@pytest.mark.parametrize("key", [b"Bearer k1 ", b"Bearer k1\t", b"Bearer k 2  ", b"Bearer  k1", b"Bearer k1,"])
def test_space_makes_another_key(guarded: TestServer, key: bytes) -> None:
    assert not is_authorized(guarded, key)


@pytest.mark.parametrize("key", [b"Bearer k1 ", b"Bearer k1\t", b"bearer k1  "])
@pytest.mark.parametrize("further", [b"", b"X-A: 1\r\nX-A: 2\r\n"])
def test_space_makes_another_key_before_a_body_in_chunks(guarded: TestServer, key: bytes, further: bytes) -> None:
    body = b'{"prompt": "a", "max_tokens": 1}'
    chunks = b"%x\r\n%s\r\n0\r\n\r\n" % (len(body), body)
    head = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nConnection: close\r\n"
    for given, status in ((key, b"401"), (key.strip(), b"200")):
        fields = b"%sAuthorization: %s\r\nTransfer-Encoding: chunked\r\n\r\n" % (further, given)
        with socket.create_connection((guarded.host, guarded.port), timeout=PATIENCE_S) as connection:
            connection.sendall(head + fields + chunks)
            assert read_all(connection).split()[1] == status


@pytest.mark.parametrize("given", ["", "q", "a b"])
def test_a_given_id_is_returned_even_if_it_is_empty(guarded: TestServer, given: str) -> None:
    key = {"Authorization": "Bearer k1"}
    for body in (BODY, b'{"prompt":"a","max_tokens":1,"stream":true}'):
        reply = call(guarded, "POST", "/v1/completions", body, {**key, "X-Request-Id": given})
        assert reply.headers["x-request-id"] == given
    assert re.fullmatch("[0-9a-f]{32}", call(guarded, "GET", "/v1/models", None, key).headers["x-request-id"])


def test_an_error_that_no_handler_of_vllm_knows_has_no_id(guarded: TestServer) -> None:
    fields = {"Authorization": "Bearer k1", "X-Request-Id": "q"}
    reply = call(guarded, "POST", "/v1/chat/completions", {"messages": [], "structured_outputs": [1]}, fields)
    assert (reply.status, reply.headers.get("x-request-id")) == (500, None)


FLAT = {"type": "function", "name": "f", "parameters": {"type": "object"}}


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (CHAT, {"tools": [FLAT], "tool_choice": {"type": "function", "function": {"name": "f"}}}),
        (
            "/v1/responses",
            {"input": [{"type": "message", "role": "assistant", "id": "a", "status": "completed", "content": []}]},
        ),
        ("/v1/completions", {"prompt": "a", "structured_outputs": "x"}),
        ("/scale_elastic_ep", b"[]"),
    ],
)
def test_an_exception_that_nothing_handles_has_no_headers_for_browsers(
    server: TestServer, path: str, body: Any
) -> None:
    if isinstance(body, dict):
        body = {"messages": [{"role": "user", "content": "hi"}], **body}
    reply = call(server, "POST", path, body)
    assert reply.status == 500
    assert "vary" not in reply.headers


def counted(server: TestServer) -> str:
    page = call(server, "GET", "/metrics").body.decode()
    return "".join(line for line in page.splitlines() if line.startswith("http_") and 'handler="none"' in line)


@pytest.mark.parametrize(
    ("method", "path"), [("POST", "/health"), ("DELETE", "/version"), ("PUT", "/ping"), ("GET", "/x/load")]
)
def test_refused_requests_to_paths_that_do_not_count_are_not_counted(
    server: TestServer, method: str, path: str
) -> None:
    before = counted(server)
    assert call(server, method, path).status in (404, 405)
    assert counted(server) == before
    call(server, "GET", "/nothing")
    assert counted(server) != before


@pytest.mark.parametrize(
    ("part", "message"),
    [
        ({"type": "image_embeds", "image_embeds": "AAAA"}, "The model is not multimodal."),
        ({"type": "audio_embeds", "audio_embeds": "AAAA"}, "The model is not multimodal."),
        ({"image_embeds": None, "uuid": "u"}, "The model is not multimodal."),
        ({"type": "input_image", "image_url": "data:a", "detail": "low"}, "m is not a multimodal model"),
        ({"type": "input_image", "image_url": None, "detail": "auto"}, "m is not a multimodal model"),
    ],
)
def test_a_model_of_text_refuses_media(server: TestServer, part: Any, message: str) -> None:
    messages = [{"role": "user", "content": [{"type": "text", "text": "x"}, part]}]
    for path in (CHAT, "/tokenize"):
        reply = call(server, "POST", path, {"model": "m", "messages": messages})
        assert (reply.status, reply.json["error"]["message"]) == (400, message)


@pytest.mark.parametrize(
    ("detail", "problem"),
    [
        ({}, "Field required [type=missing, input_value={'image_url': 'data:image..., 'type': 'input_image'}, "),
        ({"detail": "huge"}, "Input should be 'low', 'high', 'auto' or 'original' [type=literal_error, "),
        ({"detail": None}, "Input should be 'low', 'high', 'auto' or 'original' [type=literal_error, "),
    ],
)
@pytest.mark.parametrize("tokens", [0, 8])
def test_a_picture_in_the_form_of_responses_must_state_its_detail(tokens: int, detail: Any, problem: str) -> None:
    part = {"type": "input_image", "image_url": "data:image/png;base64,AAAA", **detail}
    with running_server(tokens_per_medium=tokens) as server:
        reply = call(server, "POST", CHAT, {"messages": [{"role": "user", "content": [part]}], "max_tokens": 1})
    message = reply.json["error"]["message"]
    assert message.startswith(f"1 validation error for ResponseInputImageParam\ndetail\n  {problem}")
