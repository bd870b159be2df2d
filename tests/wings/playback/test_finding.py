import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import pytest

from blis_sim.options import OptionError
from blis_sim.wings.playback import recordings as fixtures
from blis_sim.wings.playback.recordings import (
    Playback,
    PlayedReply,
    SearchTooLongError,
    conversation_of,
    read_fixtures,
    recorded_reply,
)
from mockserve.options.content import PlaybackOptions
from traces.content import ContentWriter, RecordedExchange, line_of
from traces.redaction import Redactor
from traces.text_file import dumped_in_pieces

CHAT = "/v1/chat/completions"


def user(*contents: str) -> list[dict[str, str]]:
    return [{"role": ("user", "assistant")[at % 2], "content": each} for at, each in enumerate(contents)]


def exchange(body: dict[str, Any], says: str, path: str = CHAT) -> RecordedExchange:
    reply = {"choices": [{"message": {"content": says}}], "usage": {"prompt_tokens": 9, "completion_tokens": 4}}
    return RecordedExchange(
        request_id=0,
        sent_at_us=0,
        method="POST",
        path=path,
        headers=[],
        body=json.dumps(body).encode(),
        status=200,
        reply_headers=[("content-type", "application/json")],
        pieces=[(5, json.dumps(reply).encode())],
        is_complete=True,
    )


def playback_of(tmp_path: Path, *exchanges: RecordedExchange, redact: tuple[str, ...] = (), **options: Any) -> Playback:
    path = tmp_path / "r.content.jsonl"
    writer = ContentWriter(path, Redactor(redact))
    writer.write_lines([line_of(each) for each in exchanges])
    writer.close()
    return Playback(PlaybackOptions(playback=str(path), **options))


def found(playback: Playback, body: dict[str, Any], path: str = CHAT) -> tuple[str | None, str] | None:
    reply = answer(playback, path, {}, json.dumps(body).encode())
    return None if reply is None else (reply[0].text, reply[1])


def answer(playback: Playback, path: str, headers: dict[str, str], raw: bytes) -> tuple[PlayedReply, str] | None:
    """The reply to a request, as the server looks for it."""
    playback_request = playback.playback_request(path, headers, raw)
    rules = playback.rules(playback_request)
    while (rule := rules.next_match()) is not None:
        if rule.take():
            return rule.reply, "rule"
    return playback.recorded(playback_request)


def test_the_strictest_match_mode_comes_first(tmp_path: Path) -> None:
    one = {"model": "m", "messages": user("a"), "temperature": 1}
    playback = playback_of(tmp_path, exchange(one, "exact"), exchange({**one, "temperature": 0}, "other"))
    assert found(playback, dict(reversed(one.items()))) == ("exact", "exact")
    assert found(playback, {**one, "temperature": 0}) == ("other", "exact")
    assert found(playback, {**one, "temperature": 0.5, "messages": user(" a ")}) == ("exact", "conversation")
    assert found(playback, {"messages": user("a")}, "/v1/messages") == ("other", "conversation")
    assert found(playback, {"messages": user("b")}) is None


def test_a_turn_is_found_by_its_number_and_its_text(tmp_path: Path) -> None:
    playback = playback_of(tmp_path, exchange({"messages": user("a", "b", "c")}, "third"))
    assert found(playback, {"messages": user("a", "something else", "c")}) == ("third", "turn")
    assert found(playback, {"messages": user("c")}) is None


def test_replies_of_one_request_come_in_turn_and_the_last_again(tmp_path: Path) -> None:
    body = {"messages": user("a")}
    playback = playback_of(tmp_path, exchange(body, "1"), exchange(body, "2"))
    assert [found(playback, body) for _ in range(3)] == [("1", "exact"), ("2", "exact"), ("2", "exact")]


def test_replies_in_order_come_by_path_and_end(tmp_path: Path) -> None:
    recorded = [exchange({"n": 1}, "1"), exchange({"n": 2}, "x", "/v1/completions"), exchange({"n": 3}, "2")]
    playback = playback_of(tmp_path, *recorded, playback_match=("order",))
    assert [found(playback, {"any": 1}) for _ in range(3)] == [("1", "order"), ("2", "order"), None]


def test_requests_are_redacted_like_the_recording_before_comparison(tmp_path: Path) -> None:
    body = {"messages": user("mail [redacted]")}
    playback = playback_of(tmp_path, exchange(body, "yes"), redact=(r"\S+@\S+",))
    assert found(playback, {"messages": user("mail me@here.org")}) == ("yes", "exact")


def test_fixtures_are_found_by_all_of_their_conditions() -> None:
    playback = Playback(PlaybackOptions(enable_playback_control=True))
    playback.http_fixtures = read_fixtures(
        [
            {"match": {"last_user_regex": "(?i)weather", "model": "m"}, "reply": "sunny", "times": 1},
            {"match": {"tool_result": "4"}, "reply": {"status": 429, "body": {"error": {"message": "slow"}}}},
            {"match": {"headers": {"X-Case": "7"}, "path": CHAT}, "reply": {"text": "seven"}},
        ],
        "here",
    )
    playback_request = {"model": "m", "messages": user("the WEATHER?")}
    assert found(playback, playback_request) == ("sunny", "rule")
    assert found(playback, playback_request) is None, "it was to be given once"
    tool = {"messages": [*user("a"), {"role": "tool", "content": "4"}]}
    reply = answer(playback, CHAT, {}, json.dumps(tool).encode())
    assert reply is not None
    assert (reply[0].status, json.loads(reply[0].pieces[0].data)) == (429, {"error": {"message": "slow"}})
    assert answer(playback, CHAT, {"x-case": "7"}, b"{}") is not None
    assert answer(playback, "/v1/completions", {"x-case": "7"}, b"{}") is None


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        (3, "f: expected a list of at most 10000 fixtures, got 3"),
        ([3], "f fixture 0: expected members match, reply, times, fault, got 3"),
        ([{"if": 1}], "f fixture 0: expected match, reply, times, fault, got 'if'"),
        ([{"match": {"last": "x"}, "reply": "y"}], "f fixture 0 match: expected path, .*, got 'last'"),
        ([{"match": {"model": 1}, "reply": "y"}], "f fixture 0 match model: expected a text, got 1"),
        (
            [{"match": {"body_regex": "("}, "reply": "y"}],
            r"f fixture 0 match body_regex: expected a regular .* got '\('",
        ),
        (
            [{"reply": {"status": 99, "body": 1}}],
            "f fixture 0 reply status: expected a whole number between 200 and 599",
        ),
        (
            [{"reply": {"text": "a", "body": 1}}],
            r"f fixture 0 reply: expected a message \(text, .*\), a body or events, got text, body",
        ),
        ([{"reply": {"text": "a", "tokens": 3}}], "f fixture 0 reply: expected a message without status and tokens"),
        ([{"reply": {"text": ""}}], "f fixture 0 reply text: expected a text, got ''"),
        ([{"reply": {"tool_calls": {}}}], "f fixture 0 reply tool_calls: expected a list, got {}"),
        ([{"reply": {"tool_calls": [{}]}}], "f fixture 0 reply tool_calls 0 name: expected a text, got None"),
        ([{"reply": {"tool_calls": [{"nam": 1}]}}], "f fixture 0 reply tool_calls 0: expected name, .*, got 'nam'"),
        ([{"reply": {"body": 1 << 70}}], "f fixture 0 reply body: expected a JSON value, got 1180"),
        ([{"reply": "a", "fault": "sleepy"}], "f fixture 0 fault: .* got 'sleepy'"),
        ([{"match": {}}], "f fixture 0 reply: expected members text, .*, got None"),
        ([{"reply": "a", "fault": 429}], "f fixture 0 fault: expected a text, got 429"),
        ([{"reply": {"events": 1}}], "f fixture 0 reply events: expected a list, got 1"),
        ([{"reply": "a", "times": 0}], "f fixture 0 times: expected a whole number of at least 1, got 0"),
    ],
)
def test_a_mistake_in_a_fixture_is_named_by_its_place(value: Any, problem: str) -> None:
    with pytest.raises(OptionError, match=problem):
        read_fixtures(value, "f")


def test_a_file_that_cannot_be_used_is_refused_by_its_name(tmp_path: Path) -> None:
    path = tmp_path / "fixtures.yaml"
    path.write_text("- match: {model: 3}\n  reply: x\n")
    with pytest.raises(OptionError, match=r"--playback: .*fixtures.yaml fixture 0 match model: expected a text, got 3"):
        Playback(PlaybackOptions(playback=str(path)))
    with pytest.raises(OptionError, match=r"--playback: cannot read .*missing.yaml"):
        Playback(PlaybackOptions(playback=str(tmp_path / "missing.yaml")))
    path.write_text("trace_version: 3\n")
    with pytest.raises(
        OptionError, match=r"is the header of a trace, which has no replies; give fixtures.content.jsonl"
    ):
        Playback(PlaybackOptions(playback=str(path)))


def test_pieces_are_due_with_the_tokens_that_they_carry() -> None:
    def event(**delta: Any) -> tuple[int, bytes]:
        return 0, b"data: " + json.dumps({"choices": [{"index": 0, "delta": delta}]}).encode() + b"\n\n"

    usage = 0, b'data: {"choices":[],"usage":{"prompt_tokens":5,"completion_tokens":8}}\n\n'
    pieces = [event(role="assistant"), event(content="a"), event(content="b"), usage, (0, b"data: [DONE]\n\n")]
    reply = recorded_reply(CHAT, 200, "text/event-stream", pieces)
    assert [each.num_tokens for each in reply.pieces] == [4, 4, 8, 8, 8]
    assert (reply.num_prompt_tokens, reply.num_output_tokens, reply.text) == (5, 8, "ab")
    calls = recorded_reply(CHAT, 200, "text/event-stream", [event(tool_calls=[{"index": 0}])])
    assert (calls.num_output_tokens, calls.text) == (1, None)


def test_conversations_of_all_interfaces_have_the_same_turns() -> None:
    chat = {"messages": [{"role": "system", "content": "s"}, *user("a", "b"), {"role": "tool", "content": "4"}]}
    anthropic = {
        "system": [{"type": "text", "text": "s"}],
        "messages": [*user("a", "b"), {"role": "user", "content": [{"type": "tool_result", "content": "4"}]}],
    }
    responses = {"instructions": "s", "input": [*user("a", "b"), {"type": "function_call_output", "output": "4"}]}
    keys = {conversation_of(each).key for each in (chat, anthropic, responses)}
    assert len(keys) == 1
    assert conversation_of(chat).tool_result == "4"
    odds: tuple[Any, ...] = (
        None,
        3,
        {"messages": [3, {"role": 4, "content": {"x": 1}}]},
        {"prompt": [1, 2]},
        {"input": {}},
    )
    assert all(isinstance(conversation_of(odd).text, str) for odd in odds)


def playing(*rows: Any) -> Playback:
    playback = Playback(PlaybackOptions(enable_playback_control=True))
    playback.http_fixtures = read_fixtures(list(rows), "here")
    return playback


def test_a_search_is_quick_only_with_few_fixtures_and_little_text() -> None:
    pattern = {"match": {"body_regex": "a+b"}, "reply": "x"}
    short, long = b'{"prompt": "a"}', b'{"prompt": "%s"}' % (b"a" * 30_000)
    for rows, raw, is_quick in (
        ([pattern], short, True),
        ([pattern], long, True),
        ([pattern, pattern], long, False),
        ([{"reply": "x"}] * 501, short, False),
        ([{"match": {"last_user": "x"}, "reply": "x"}] * 400, long, True),
        ([{"match": {"last_user_regex": "a+b"}, "reply": "x"}] * 2, long, False),
    ):
        playback = playing(*rows)
        assert playback.rules(playback.playback_request("/v1/completions", {}, raw)).is_quick is is_quick


def test_a_search_that_takes_too_long_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fixtures, "MOST_SEARCH_S", 0.0)
    with pytest.raises(SearchTooLongError):
        answer(playing({"match": {"path": "x"}, "reply": "y"}), CHAT, {}, b"{}")


def test_a_fixture_that_another_request_used_up_meanwhile_is_passed_over() -> None:
    playback = playing({"reply": "once", "times": 1}, {"reply": "again"})
    playback_request = playback.playback_request(CHAT, {}, b"{}")
    one, other = playback.rules(playback_request), playback.rules(playback_request)
    (first, same) = (one.next_match(), other.next_match())
    assert first is not None
    assert same is first
    assert first.take()
    assert not first.take()
    following = other.next_match()
    assert following is not None
    assert following.reply.text == "again"


def test_patterns_go_through_bodies_that_are_no_text() -> None:
    playback = playing({"match": {"body_regex": "a.c"}, "reply": "x"})
    assert answer(playback, CHAT, {}, b"\xff abc") is not None
    assert answer(playback, CHAT, {}, b"\xff") is None


def test_few_compiled_patterns_are_kept() -> None:
    playing(*({"match": {"body_regex": f"a{number}"}, "reply": "x"} for number in range(300)))
    assert fixtures._compiled.cache_info().currsize <= 64


LARGE = {"messages": [{"role": "user", "content": f"word {number} " * 100} for number in range(800)]}
"""More than half a mebibyte of JSON."""


def test_large_bodies_are_found_by_the_same_keys_as_small_ones(tmp_path: Path) -> None:
    playback = playback_of(tmp_path, exchange(LARGE, "long"), playback_match=("exact",))
    spaced = json.dumps({"extra": None, **LARGE}, indent=1).replace('"extra": null,', "")
    assert answer(playback, CHAT, {}, spaced.encode()) is not None
    other = {"messages": [*LARGE["messages"][:-1], {"role": "user", "content": "another"}]}
    assert found(playback, other) is None


def test_a_key_in_a_large_body_is_no_difference_from_the_recording(tmp_path: Path) -> None:
    playback = playback_of(tmp_path, exchange({**LARGE, "api_key": "sk-one-1234567890"}, "long"))
    assert found(playback, {**LARGE, "api_key": "sk-two-0987654321"}) == ("long", "exact")


def test_a_member_that_is_repeated_in_a_large_body_hides_nothing(tmp_path: Path) -> None:
    playback = playback_of(tmp_path)
    raw = b'{"token": "sk-one-1234567890", "token": "x", ' + json.dumps(LARGE).encode()[1:]
    request = playback.playback_request(CHAT, {}, raw)
    assert request.is_redacted
    assert b"sk-one" not in request.raw
    assert request.body["messages"] == LARGE["messages"]
    plain = json.dumps(LARGE).encode()
    assert playback.playback_request(CHAT, {}, plain).raw is plain


def test_half_of_a_pair_of_surrogates_is_found_again(tmp_path: Path) -> None:
    playback = playback_of(tmp_path, playback_match=("conversation", "turn"))
    raw = b'{"messages":[{"role":"user","content":"cut \\ud83d"}],"prompt":[123456789012345678901234567890],"pwd":"k"}'
    request = playback.playback_request(CHAT, {}, raw)
    assert request.last_user == "cut \ud83d"
    reply = playback.read(replace(exchange({}, "says"), body=raw))
    assert reply is not None
    playback.add(reply)
    assert answer(playback, CHAT, {}, raw) == (reply.reply, "conversation")


def test_json_in_pieces_is_that_of_the_library() -> None:
    long = 'words "\u00e9\\\n\x01\U0001f600' * 60_000
    values: list[Any] = [{"b": [1, {"z": None, "a": [], "\u00e9": {}}], "a": 1.5}, [], {}, "x", [[[]]], LARGE, [long]]
    for value in values:
        assert dumped_in_pieces(value) == orjson.dumps(value)
        assert dumped_in_pieces(value, sorts_keys=True) == orjson.dumps(value, option=orjson.OPT_SORT_KEYS)
    names = {f"k{number * 7919 % 20_011}": number for number in range(20_000)}
    assert dumped_in_pieces(names, sorts_keys=True) == orjson.dumps(names, option=orjson.OPT_SORT_KEYS)
    for refused in ("\ud800", nested := [2**70], [nested]):
        with pytest.raises(TypeError):
            dumped_in_pieces(refused)
