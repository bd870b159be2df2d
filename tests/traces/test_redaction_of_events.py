"""Contents of streams with many events: redacted and written as each alone would be, in little memory."""

import json
import tracemalloc

from traces.content import RecordedExchange, line_of
from traces.redaction import REDACTED, Redactor


def event(text: str) -> bytes:
    return b'data: {"id":"c","choices":[{"index":0,"delta":{"content":%s}}]}\n\n' % json.dumps(text).encode()


def stream(*texts: str) -> RecordedExchange:
    return RecordedExchange(
        request_id=0,
        sent_at_us=0,
        method="POST",
        path="/v1/chat/completions",
        headers=[],
        body=b"{}",
        status=200,
        reply_headers=[("content-type", "text/event-stream")],
        pieces=[(7, b"".join(map(event, texts)))],
        is_complete=True,
    )


def test_a_match_across_events_is_replaced_where_it_begins() -> None:
    found = stream("a", "se", "cret", "b", "secret", "").in_pieces(Redactor(["secret"]))
    texts = [json.loads(each[6:])["choices"][0]["delta"]["content"] for _, each in found.pieces]
    assert texts == ["a", REDACTED, "", "b", REDACTED, ""]


def test_unchanged_events_keep_their_bytes() -> None:
    exchange = stream(*"abc")
    assert b"".join(each for _, each in exchange.in_pieces(Redactor(["secret"])).pieces) == exchange.pieces[0][1]


def test_more_pieces_than_are_written_at_once_are_all_written() -> None:
    found = stream(*(f"t{number}" for number in range(2500))).in_pieces(Redactor([]))
    reply = json.loads(b"".join(line_of(found)))["reply"]
    assert [each["text"] for each in reply] == [each.decode() for _, each in found.pieces]
    assert len(reply) == 2500


def test_an_event_takes_a_few_times_its_bytes_while_it_is_redacted() -> None:
    exchange = stream(*["word"] * 1000)
    redactor = Redactor(["secret"])
    stream("x").in_pieces(redactor)
    tracemalloc.start()
    found = exchange.in_pieces(redactor)
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(found.pieces) == 1000
    assert peak_bytes < 12 * len(exchange.pieces[0][1])
