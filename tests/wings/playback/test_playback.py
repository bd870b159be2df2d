"""Recorded replies over sockets: recorded bytes at the engine's times."""

import json
import re
import socket
import socketserver
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from blis_sim.wings.playback.playing import playback_of
from mockserve.protocol import json_text
from mockserve.protocol import json_text as body
from tests.patience import PATIENCE_S
from tests.wire.serving import TestServer, running_server
from traces.content import ContentWriter, RecordedExchange, line_of, read_content
from traces.redaction import Redactor

CHAT = "/v1/chat/completions"
ASKED = {"messages": [{"role": "user", "content": "hi"}], "stream": True}


def event(**delta: Any) -> bytes:
    return b"data: " + json.dumps({"choices": [{"index": 0, "delta": delta}]}).encode() + b"\n\n"


STREAM = [
    (20_000, event(role="assistant", content="")),
    (20_000, event(content="Hel")),
    (420_000, event(content="lo")),
    (420_000, b'data: {"choices":[],"usage":{"prompt_tokens":100,"completion_tokens":40}}\n\n'),
    (420_000, b"data: [DONE]\n\n"),
]


def recording(path: Path, *extra: RecordedExchange) -> str:
    stream = RecordedExchange(
        request_id=0,
        sent_at_us=0,
        method="POST",
        path=CHAT,
        headers=[],
        body=json.dumps(ASKED).encode(),
        status=200,
        reply_headers=[("content-type", "text/event-stream; charset=utf-8")],
        pieces=STREAM,
        is_complete=True,
    )
    writer = ContentWriter(path, Redactor(()))
    writer.write_lines([line_of(each) for each in (stream, *extra)])
    writer.close()
    return str(path)


def ask(server: TestServer, body: Any, path: str = CHAT, method: str = "POST") -> tuple[int, bytes, list[float]]:
    """Status, body, and the seconds at which its parts came."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(
        server.url + path, data, {"Content-Type": "application/json", "Authorization": "Bearer k"}, method=method
    )
    began = time.monotonic()
    try:
        with urllib.request.urlopen(request) as reply:
            parts = []
            times = []
            while part := reply.read1():
                parts.append(part)
                times.append(time.monotonic() - began)
            return reply.status, b"".join(parts), times
    except urllib.error.HTTPError as error:
        return error.code, error.read(), []


def test_a_stream_is_played_in_its_own_bytes_at_the_times_of_the_engine(tmp_path: Path) -> None:
    with running_server(playback=recording(tmp_path / "r.content.jsonl"), speed=1.0) as server:
        status, body, times = ask(server, ASKED)
        assert (status, body) == (200, b"".join(data for _, data in STREAM))
        # A step of the test's engine takes a millisecond: half of 40 tokens come by the first words.
        assert times[0] >= 0.019
        assert 0.039 <= times[-1] < 0.4
        assert (
            b'vllm:generation_tokens_total{engine="0",model_name="m"} 40.0' in ask(server, None, "/metrics", "GET")[1]
        )
        assert b'vllm:prompt_tokens_total{engine="0",model_name="m"} 100.0' in ask(server, None, "/metrics", "GET")[1]


def test_half_of_a_pair_of_surrogates_is_refused_as_without_playback() -> None:
    bodies = [{"prompt": "a \ud83d"}, {"prompt": ["a \ud83d", "b"]}, {"prompt": "a", "\ud83d": "sk-0123456789abcdef"}]
    with running_server(enable_playback_control=True) as played, running_server() as plain:
        for each in bodies:
            answers = [ask(server, each, "/v1/completions")[:2] for server in (played, plain)]
            assert answers[0][0] == answers[1][0] != 500, answers
            assert (answers[0] == answers[1]) is (answers[0][0] == 400)
        for path in ("/blis/playback", "/blis/requests/assert"):
            with pytest.raises(urllib.error.HTTPError, match="400"):
                urllib.request.urlopen(urllib.request.Request(played.url + path, b"[" * 100_000))


def exchange(number: int, path: str, body: bytes, reply: bytes) -> RecordedExchange:
    kind = "text/event-stream; charset=utf-8" if reply.startswith((b"data:", b"event:")) else "application/json"
    events = [(0, each + b"\n\n") for each in reply.split(b"\n\n") if each] if "stream" in kind else [(0, reply)]
    return RecordedExchange(
        request_id=number, sent_at_us=0, method="POST", path=path, headers=[], body=body, status=200,
        reply_headers=[("content-type", kind)], pieces=events, is_complete=True,
    )  # fmt: skip


def test_rounds_find_as_much_in_the_prefix_cache_as_they_did_when_recorded(tmp_path: Path) -> None:
    """Tools, the words of the chat template and replies before are part of a prompt that is played."""
    schema = {"type": "object", "properties": {"words": {"type": "string"}}}
    tools = [{"type": "function", "function": {"name": "search", "description": "x " * 90, "parameters": schema}}]
    messages = [{"role": "system", "content": "You are helpful. " * 20}, {"role": "user", "content": "one " * 30}]
    kept: list[RecordedExchange] = []
    with running_server() as server:
        for number in range(3):
            body = {"messages": messages, "tools": tools, "tool_choice": "none", "max_tokens": 40}
            raw = json.dumps(body).encode()
            reply = ask(server, body)[1]
            kept.append(exchange(number, CHAT, raw, reply))
            said = json.loads(reply)["choices"][0]["message"]["content"]
            messages += [{"role": "assistant", "content": said}, {"role": "user", "content": f"go on {number}"}]
        recorded = cached_tokens(server)
    with running_server(playback=recording(tmp_path / "r.content.jsonl", *kept), playback_miss="error") as server:
        for each in kept:
            assert ask(server, json.loads(each.body))[:2] == (200, each.reply_body)
        assert cached_tokens(server) == recorded > 700


def cached_tokens(server: TestServer) -> int:
    page = ask(server, None, "/metrics", "GET")[1].decode()
    return int(
        float(next(each for each in page.splitlines() if each.startswith("vllm:prefix_cache_hits_total")).split()[-1])
    )


def test_recorded_times_can_be_kept_or_scaled(tmp_path: Path) -> None:
    path = recording(tmp_path / "r.content.jsonl")
    with running_server(playback=path, playback_timing="recorded", playback_speed=4.0) as server:
        status, body, times = ask(server, ASKED)
        assert (status, body) == (200, b"".join(data for _, data in STREAM))
        assert times[-1] >= 0.105


def test_replies_in_another_form_or_tokenization_have_equal_text(tmp_path: Path) -> None:
    with running_server(playback=recording(tmp_path / "r.content.jsonl"), playback_chunks="tokens") as server:
        whole = json.loads(ask(server, {**ASKED, "stream": False})[1])
        assert whole["choices"][0]["message"]["content"] == "Hello"
        stream = ask(server, ASKED)[1]
        assert stream != b"".join(data for _, data in STREAM)
        assert b"Hel" in stream
        message = json.loads(ask(server, {**ASKED, "stream": False, "max_tokens": 9, "model": "m"}, "/v1/messages")[1])
        assert message["content"][0]["text"] == "Hello"


def test_misses_are_generated_or_errors_by_setting(tmp_path: Path) -> None:
    path = recording(tmp_path / "r.content.jsonl")
    other = {"messages": [{"role": "user", "content": "unknown"}], "max_tokens": 2}
    with running_server(playback=path) as server:
        assert ask(server, other)[0] == 200
    with running_server(playback=path, playback_miss="error") as server:
        status, body, _ = ask(server, other)
        assert (status, json.loads(body)["error"]["type"]) == (404, "NotFoundError")
        assert ask(server, ASKED)[0] == 200
        assert ask(server, None, "/v1/models", "GET")[0] == 200


def test_misses_that_are_forwarded_are_recorded_and_played_from_then_on(tmp_path: Path) -> None:
    path = recording(tmp_path / "r.content.jsonl")
    other = {"messages": [{"role": "user", "content": "unknown"}], "max_tokens": 3, "stream": True}
    with running_server() as upstream:
        settings: dict[str, Any] = {"playback": path, "playback_miss": "forward", "playback_upstream": upstream.url}
        with running_server(**settings) as server:
            first = ask(server, other)
            assert first[0] == 200
            assert first[1].endswith(b"data: [DONE]\n\n")
            assert ask(server, other)[1] == first[1]
    kept = read_content(tmp_path / "r.content.jsonl").exchanges
    assert len(kept) == 2
    assert kept[1].reply_body == first[1]
    assert b"Bearer k" not in (tmp_path / "r.content.jsonl").read_bytes()


def upstream_of(reply: bytes) -> socket.socket:
    """A server that sends these bytes to each request and hangs up."""
    listening = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        with suppress(OSError):
            while True:
                connection, _ = listening.accept()
                with connection:
                    connection.recv(65536)
                    connection.sendall(reply)

    threading.Thread(target=serve, daemon=True).start()
    return listening


@pytest.mark.parametrize(
    ("head", "part"),
    [
        (b"content-length: 500", b'{"choices":'),
        (b"transfer-encoding: chunked", b"5\r\nhello\r\n"),
        (b"transfer-encoding: chunked", b""),
    ],
)
def test_a_connection_whose_upstream_ended_early_is_closed_without_a_second_reply(
    head: bytes, part: bytes, tmp_path: Path
) -> None:
    path = recording(tmp_path / "r.content.jsonl")
    with upstream_of(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n%s\r\n\r\n%s" % (head, part)) as upstream:
        url = f"http://127.0.0.1:{upstream.getsockname()[1]}"
        with running_server(playback=path, playback_miss="forward", playback_upstream=url) as server:
            body = b'{"prompt":"x"}'
            with socket.create_connection((server.host, server.port), timeout=PATIENCE_S) as connection:
                head = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
                connection.sendall(b"%scontent-length: %d\r\n\r\n%s" % (head, len(body), body))
                received = b""
                with suppress(ConnectionResetError):
                    while data := connection.recv(65536):
                        received += data
    assert received.count(b"HTTP/1.1") == 1
    assert not received.endswith(b"0\r\n\r\n")
    assert len(read_content(tmp_path / "r.content.jsonl").exchanges) == 1


def test_fixtures_and_the_journal_work_over_http() -> None:
    with running_server(enable_playback_control=True, api_key=("k",)) as server:
        fixture = {"match": {"last_user_regex": "weather"}, "reply": "It is sunny."}
        broken = {"match": {"model": "down"}, "reply": {"status": 503, "body": {"error": "no"}}, "times": 1}
        assert ask(server, {"fixtures": [fixture, broken]}, "/blis/playback")[0] == 201
        asked = {"messages": [{"role": "user", "content": "the weather?"}]}
        assert json.loads(ask(server, asked)[1])["choices"][0]["message"]["content"] == "It is sunny."
        assert ask(server, {**asked, "messages": [{"role": "user", "content": "x"}], "model": "down"})[0] == 503
        assert ask(server, {"messages": [{"role": "user", "content": "else"}], "max_tokens": 2})[0] == 200
        noted = json.loads(ask(server, None, "/blis/requests?answered_by=playback", "GET")[1])
        assert [(each["matched_by"], each["last_user"]) for each in noted["requests"]] == [
            ("rule", "the weather?"),
            ("rule", "x"),
        ]
        assert (noted["count"], noted["seen"]) == (2, 3)
        assert noted["requests"][0]["headers"]["authorization"] == "[removed]"
        assert ask(server, {"contains": "weather", "count": 1}, "/blis/requests/assert")[0] == 200
        status, body, _ = ask(server, {"contains": "weather", "count": 2}, "/blis/requests/assert")
        assert (status, json.loads(body)) == (417, {"expected": 2, "found": 1})
        assert ask(server, {"wrong": "x", "count": 2}, "/blis/requests/assert")[0] == 400
        assert ask(server, [{"reply": {"status": 9}}], "/blis/playback")[0] == 400
        ask(server, None, "/blis/requests", "DELETE")
        assert json.loads(ask(server, None, "/blis/requests", "GET")[1])["seen"] == 0
        assert json.loads(ask(server, None, "/blis/playback", "DELETE")[1])["fixtures"] == []
        request = urllib.request.Request(f"{server.url}/blis/requests")
        with pytest.raises(urllib.error.HTTPError, match="401"):
            urllib.request.urlopen(request)


def test_a_fixture_calls_tools_thinks_or_fails_in_the_form_of_each_route() -> None:
    call = {"name": "weather", "arguments": {"city": "Paris"}}
    fixtures = [
        {"match": {"last_user": "call"}, "reply": {"reasoning": "Where?", "text": "I look.", "tool_calls": [call]}},
        {"match": {"last_user": "fail"}, "fault": "429"},
        {"match": {"last_user": "break"}, "reply": "one two three", "fault": "malformed; after_events=1"},
    ]
    with running_server(enable_playback_control=True) as server:
        assert ask(server, {"fixtures": fixtures}, "/blis/playback")[0] == 201
        asked = {"messages": [{"role": "user", "content": "call"}], "max_tokens": 99}
        choice = json.loads(ask(server, asked)[1])["choices"][0]
        function = choice["message"]["tool_calls"][0]["function"]
        assert (choice["message"]["reasoning"], choice["message"]["content"]) == ("Where?", "I look.")
        assert (function, choice["finish_reason"]) == (
            {"name": "weather", "arguments": '{"city":"Paris"}'},
            "tool_calls",
        )
        blocks = json.loads(ask(server, {**asked, "model": "m"}, "/v1/messages")[1])["content"]
        assert [each["type"] for each in blocks] == ["thinking", "text", "tool_use"]
        assert blocks[2]["input"] == {"city": "Paris"}
        items = json.loads(ask(server, {"input": "call"}, "/v1/responses")[1])["output"]
        assert [each["type"] for each in items] == ["reasoning", "message", "function_call"]
        streamed = ask(server, {**asked, "stream": True})[1]
        assert b'"name":"weather"' in streamed
        assert b'"finish_reason":"tool_calls"' in streamed
        assert ask(server, {"prompt": "fail"}, "/v1/completions")[0] == 429
        broken = ask(server, {"prompt": "break", "stream": True}, "/v1/completions")[1]
        assert [_is_json(each[6:]) for each in broken.split(b"\n\n") if each and b"DONE" not in each].count(False) == 1


def _is_json(text: bytes) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


ANSWERS = {"alpha": "The first answer.", "beta": "The second answer.", "gamma": "The third answer."}


@pytest.fixture(scope="module")
def answering(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestServer]:
    """A server with an answer to each of three prompts."""
    fixtures = [{"match": {"last_user": prompt}, "reply": text} for prompt, text in ANSWERS.items()]
    path = tmp_path_factory.mktemp("played") / "f.yaml"
    path.write_text(json.dumps({"fixtures": fixtures}))
    with running_server(playback=str(path), enable_playback_control=True, enable_scale_out=True) as running:
        yield running


def texts_of(server: TestServer, prompts: list[str]) -> list[str]:
    reply = ask(server, {"prompt": prompts, "max_tokens": 20}, "/v1/completions")
    return [each["text"] for each in json.loads(reply[1])["choices"]]


def test_each_prompt_of_a_request_finds_its_reply(answering: TestServer) -> None:
    assert texts_of(answering, list(ANSWERS)) == list(ANSWERS.values())
    first, other, third = texts_of(answering, ["gamma", "else", "alpha"])
    assert (first, third) == (ANSWERS["gamma"], ANSWERS["alpha"])
    assert other not in ANSWERS.values()


def test_each_conversation_of_a_batch_finds_its_reply(answering: TestServer) -> None:
    messages = [[{"role": "user", "content": prompt}] for prompt in ("beta", "alpha")]
    _, body, _ = ask(answering, {"messages": messages, "max_tokens": 20}, f"{CHAT}/batch")
    contents = [each["message"]["content"] for each in json.loads(body)["choices"]]
    assert contents == [ANSWERS["beta"], ANSWERS["alpha"]]


@pytest.mark.parametrize("last", [{"author": {"role": "tool"}}, {"role": "user", "content": [{"type": "none"}]}])
def test_a_batch_with_messages_of_no_prompt_is_left_to_the_route(answering: TestServer, last: Any) -> None:
    status, _, _ = ask(answering, {"messages": [[{"role": "user", "content": "beta"}, last]]}, f"{CHAT}/batch")
    assert status == 400


def test_a_missing_reply_to_one_of_several_prompts_is_an_error_by_setting(tmp_path: Path) -> None:
    path = tmp_path / "f.yaml"
    path.write_text(json.dumps({"fixtures": [{"match": {"last_user": "alpha"}, "reply": "The first answer."}]}))
    with running_server(playback=str(path), playback_miss="error") as server:
        assert texts_of(server, ["alpha", "alpha"]) == 2 * ["The first answer."]
        assert ask(server, {"prompt": ["alpha", "beta"]}, "/v1/completions")[0] == 404


@pytest.mark.parametrize("prompts", [[[5], ["a"]], [[5], [-1]], ["a", [5]], [5, 6], [{}, {}]])
def test_what_is_no_list_of_prompts_is_left_to_the_route(answering: TestServer, prompts: Any) -> None:
    status, _, _ = ask(answering, {"prompt": prompts, "max_tokens": 1}, "/v1/completions")
    assert status == (200 if prompts == [5, 6] else 400)


@pytest.mark.parametrize("path", ["/openapi.json", "/docs", "/redoc", "/docs/oauth2-redirect"])
def test_the_documents_are_those_of_a_server_without_playback(answering: TestServer, path: str) -> None:
    with running_server(enable_playback_control=False, enable_scale_out=True) as plain:
        _, expected, _ = ask(plain, None, path, "GET")
    status, found, _ = ask(answering, None, path, "GET")
    assert status == 200
    if path == "/openapi.json":
        shown, others = json.loads(found)["paths"], json.loads(expected)["paths"]
        assert {name: shown[name] for name in others} == others
    else:
        assert set(re.findall(b"<tr>.*?</tr>", expected)) <= set(re.findall(b"<tr>.*?</tr>", found))


def test_long_bodies_are_searched_and_few_of_the_journal_are_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("blis_sim.wings.playback.routes.MOST_BYTES", 500_000)
    with running_server(enable_playback_control=True) as server:
        rule = {"match": {"body_regex": "a+ (?i)WEATHER"}, "reply": {"body": {"found": True}}}
        assert ask(server, [rule], "/blis/playback")[0] == 400, "the body is an object"
        assert ask(server, {"fixtures": [rule] * 3}, "/blis/playback")[0] == 201
        assert json.loads(ask(server, {"prompt": "a" * 70_000 + " weather"})[1]) == {"found": True}
        assert json.loads(ask(server, {"prompt": "a weather", "n": 2})[1]) == {"found": True}
        for limit, shown in ((0, []), (1, [{"prompt": "a weather", "n": 2}])):
            noted = json.loads(ask(server, None, f"/blis/requests?limit={limit}", "GET")[1])
            assert (noted["count"], [each["body"] for each in noted["requests"]]) == (2, shown)
        large = {"match": {}, "reply": {"body": "x" * 200_000}}
        statuses = [ask(server, {"fixtures": [large]}, "/blis/playback")[0] for _ in range(3)]
        assert statuses == [201, 201, 400]


@contextmanager
def upstream_that_answers(reply: bytes) -> Iterator[str]:
    """The address of a server that gives every connection this reply and closes it."""

    class Handler(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            self.request.recv(65536)
            self.request.sendall(reply)

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()


def test_a_forwarded_reply_that_ends_early_ends_the_connection_and_is_not_recorded(tmp_path: Path) -> None:
    path = recording(tmp_path / "r.content.jsonl")
    cut = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 500\r\n\r\n{}"
    with upstream_that_answers(cut) as url:
        settings: dict[str, Any] = {"playback": path, "playback_miss": "forward", "playback_upstream": url}
        with running_server(**settings) as server, socket.create_connection((server.host, server.port), 10) as client:
            body = b'{"messages": [{"role": "user", "content": "unknown"}]}'
            head = f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
            client.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
            received = b"".join(iter(lambda: client.recv(65536), b""))
    assert received.count(b"HTTP/1.1 ") == 1
    assert received.endswith(b"\r\n2\r\n{}\r\n"), "no last chunk, by which a client knows a whole reply"
    assert len(read_content(tmp_path / "r.content.jsonl").exchanges) == 1


def test_what_is_forwarded_is_kept_in_memory_up_to_a_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("blis_sim.wings.playback.recordings.MOST_FORWARDED_BYTES", 1000)
    path = recording(tmp_path / "r.content.jsonl")
    whole = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{}"
    with upstream_that_answers(whole) as url:
        settings: dict[str, Any] = {"playback": path, "playback_miss": "forward", "playback_upstream": url}
        with running_server(**settings) as server:
            for number in range(10):
                assert ask(server, {"prompt": str(number)})[1] == b"{}"
            playback = playback_of(server.service)
            assert 1 < playback.num_replies < 6
    assert len(read_content(tmp_path / "r.content.jsonl").exchanges) == 11


@pytest.mark.parametrize("miss", ["generate", "error"])
def test_a_large_body_is_parsed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, miss: str) -> None:
    parsed: list[int] = []
    parse = json_text.loads_in_pieces

    def counting(bodies: list[bytes]) -> Any:
        parsed.append(len(bodies[0]))
        return parse(bodies)

    monkeypatch.setattr(json_text, "loads_in_pieces", counting)
    monkeypatch.setattr(body, "loads_in_pieces", counting)
    large = {"messages": [{"role": "user", "content": "x" * 600_000}], "max_tokens": 1}
    with running_server(playback=recording(tmp_path / "a.content.jsonl"), playback_miss=miss) as server:
        status, reply, _ = ask(server, large)
    assert (status, len(parsed)) == ((400, 1) if miss == "generate" else (404, 1)), reply
