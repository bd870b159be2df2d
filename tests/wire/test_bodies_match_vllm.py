"""Complete replies and streams equal those of a genuine vLLM for equal requests.

Ids, times, fingerprints, texts and prompt lengths differ by nature; they are blanked on both sides and all else must be
equal byte for byte.
"""

import json
import re
from pathlib import Path

import pytest

from tests.wire.captures import Capture, captures_by_name
from tests.wire.plain_http import PlainReply, call, events_of
from tests.wire.serving import TestServer

WHOLE = (
    "chat no model",
    "chat max_completion_tokens wins",
    "comp full",
    "comp default max_tokens",
    "comp best_of",
    "comp 2 prompts n=2",
)
STREAMS = ("comp stream", "comp stream usage cont", "comp 2 prompts stream", "chat n=2 stream usage")


def blanked(text: str) -> str:
    """Return `text` without values that differ between any two servers."""
    for pattern, replacement in (
        (r'"id":"(chatcmpl|cmpl)-[^"]*"', r'"id":"\1-X"'),
        (r'"created":\d+', '"created":0'),
        (r'"system_fingerprint":"vllm-0\.33\.0-[0-9a-f]{8}"', '"system_fingerprint":"X"'),
        (r'"(content|text)":"(?:[^"\\]|\\.)+"', r'"\1":"X"'),
        (r'"prompt_tokens":\d+,"total_tokens":\d+', '"prompt_tokens":0,"total_tokens":0'),
    ):
        text = re.sub(pattern, replacement, text)
    return text


def ask(server: TestServer, capture: Capture) -> PlainReply:
    headers = {"content-type": "application/json", **capture.headers}
    return call(server, capture.method, capture.path, capture.body or None, headers)


def by_choice(events: list[str]) -> list[str]:
    """Events grouped by choice, in order within each: how choices interleave is the machine's business."""
    return sorted(events, key=lambda event: next(iter(re.findall(r'"index":(\d+)', event)), "9"))


@pytest.mark.parametrize("name", WHOLE)
def test_a_whole_reply_has_the_fields_of_vllm_in_its_order(server: TestServer, reference: Path, name: str) -> None:
    capture = captures_by_name(reference / "golden/vllm/golden1.txt")[name]
    reply = ask(server, capture)
    assert reply.status == capture.status
    assert blanked(reply.body.decode()) == blanked(capture.reply)


@pytest.mark.parametrize("name", STREAMS)
def test_a_stream_has_the_events_of_vllm(server: TestServer, reference: Path, name: str) -> None:
    capture = captures_by_name(reference / "golden/vllm/golden1.txt")[name]
    reply = ask(server, capture)
    theirs = [blanked(each) for each in events_of(capture.reply.rstrip("\n").encode() + b"\n\n")]
    ours = [blanked(each) for each in events_of(reply.body)]
    assert by_choice(ours) == by_choice(theirs)
    assert [each for each in ours if "choices" not in each or '"choices":[]' in each] == [
        each for each in theirs if "choices" not in each or '"choices":[]' in each
    ]


def test_a_chat_stream_with_running_counts_has_the_events_of_vllm(server: TestServer, reference: Path) -> None:
    capture = captures_by_name(reference / "golden/vllm/golden3.txt")["stream force usage"]
    options = {"include_usage": True, "continuous_usage_stats": True}
    reply = call(server, "POST", capture.path, {**json.loads(capture.body), "stream_options": options})
    theirs = [blanked(each) for each in events_of(capture.reply.rstrip("\n").encode() + b"\n\n")]
    # The captured server had flags to report prompt details and per-request metrics, in its last chunk.
    theirs[-2] = re.sub(r',"prompt_tokens_details":\{[^}]*\}', "", re.sub(r',"metrics":\{[^}]*\}', "", theirs[-2]))
    assert [blanked(each) for each in events_of(reply.body)] == theirs


@pytest.mark.parametrize(("name", "reply_id"), [("chat x-request-id", "abc123"), ("chat request_id body", "bodyid")])
def test_a_reply_takes_the_id_it_is_given(server: TestServer, reference: Path, name: str, reply_id: str) -> None:
    capture = captures_by_name(reference / "golden/vllm/golden1.txt")[name]
    assert ask(server, capture).json["id"] == f"chatcmpl-{reply_id}"


@pytest.mark.parametrize("name", ["comp full", "comp stream"])
def test_headers_are_those_of_vllm(server: TestServer, reference: Path, name: str) -> None:
    capture = captures_by_name(reference / "golden/vllm/golden1.txt")[name]
    reply = ask(server, capture)
    expected = {key: value for key, value in capture.reply_headers.items() if key != "content-length"}
    assert {key: value for key, value in reply.headers.items() if key in expected} == expected
    assert set(reply.headers) - set(expected) == {"date", "server"} | (
        {"content-length"} if "content-length" in capture.reply_headers else set()
    )
