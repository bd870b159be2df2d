from pathlib import Path

import pytest

from traces import TraceError
from traces.content import ContentWriter, RecordedExchange, complete_content_lines, line_of, read_content
from traces.redaction import Redactor

EXCHANGE = RecordedExchange(
    request_id=3,
    sent_at_us=12,
    method="POST",
    path="/v1/completions",
    headers=[("Host", "h")],
    body=b'{"prompt":"\xc3\xa9"}',
    status=200,
    reply_headers=[("content-type", "text/event-stream; charset=utf-8")],
    pieces=[(5, b"data: 1\n\n"), (9, b"\xff\x00")],
    is_complete=True,
)


def written(path: Path) -> None:
    writer = ContentWriter(path, Redactor(["a+"]))
    writer.write_lines([line_of(EXCHANGE)])
    writer.close()


def test_exchanges_are_read_as_they_were_written(tmp_path: Path) -> None:
    written(tmp_path / "c.jsonl")
    recording = read_content(tmp_path / "c.jsonl")
    assert recording.exchanges == [EXCHANGE]
    assert recording.redacted == ("a+",)
    assert recording.exchanges[0].is_event_stream
    assert recording.exchanges[0].reply_body == b"data: 1\n\n\xff\x00"


def test_a_line_that_a_kill_has_cut_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "c.jsonl"
    written(path)
    with path.open("a") as file:
        file.write(b"".join(line_of(EXCHANGE)).decode()[:40])
    assert read_content(path).exchanges == [EXCHANGE]
    assert complete_content_lines(path) == [b"".join(line_of(EXCHANGE)).decode()]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("", r"line 1: expected .*blis_content"),
        ('{"blis_content":1,"redact":[3]}\n', r"line 1 redact: expected a list of patterns, got \[3\]"),
        ('{"blis_content":1}\n[]\n', "line 2: expected a JSON object"),
        ('{"blis_content":1}\n{"status":"x"}\n', "line 2 status: expected int, got 'x'"),
        ('{"blis_content":1}\n{"status":true}\n', "line 2 status: expected int, got True"),
        ('{"blis_content":1}\n{"headers":[1]}\n', "line 2 headers: expected pairs of texts"),
        ('{"blis_content":1}\n{"reply":[{"text":"x"}]}\n', "line 2 reply: expected after_us"),
        ('{"blis_content":1}\n{"body_base64":"?"}\n', "line 2 body: expected a text"),
    ],
)
def test_what_is_no_recording_is_refused_by_line_and_member(text: str, found: str, tmp_path: Path) -> None:
    path = tmp_path / "c.jsonl"
    path.write_text(text)
    with pytest.raises(TraceError, match=found):
        read_content(path)
