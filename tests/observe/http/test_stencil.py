"""A stream understood by comparing is understood as one whose events are all decoded."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from observe.errors import ResponseError
from observe.responses import EventTemplate, Reply
from tests.examples import examples

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
STREAM = {"id": "cmpl-1", "created": 1, "model": "m"}

TEXTS = st.one_of(
    st.sampled_from([" word", "", "a", "b", '"', "\\", ",", ":", "m", "text", "\n", "é", "\x7f", " " * 1100]),
    st.text(max_size=12),
)
Fields = dict[str, Any]
"""Fields that make an event another one, none of them most of the time."""


def fields(*rare: Fields) -> st.SearchStrategy[Fields]:
    return st.sampled_from([{}, {}, {}, *rare])


EXTRAS = fields(
    {"usage": {"prompt_tokens": 3, "completion_tokens": 2}},
    {"usage": None},
    {"error": {"message": "engine died"}},
    {"model": "another"},
)
CHOICE_EXTRAS = fields(
    {"index": 1},
    {"finish_reason": "stop"},
    {"finish_reason": "length", "stop_reason": 7},
    {"logprobs": {"tokens": [" word"], "token_logprobs": [-1.0]}},
    {"token_ids": [1, 2]},
)
DELTA_EXTRAS = fields({"role": "assistant"}, {"reasoning": "hm"}, {"tool_calls": [{"index": 0}]})


@st.composite
def completions(draw: st.DrawFn) -> Fields:
    choice = {"index": 0, "text": draw(TEXTS), "finish_reason": None, **draw(CHOICE_EXTRAS)}
    return {**STREAM, "choices": [choice], **draw(EXTRAS)}


@st.composite
def chats(draw: st.DrawFn) -> Fields:
    delta = {"content": draw(TEXTS), **draw(DELTA_EXTRAS)}
    choice = {"index": 0, "delta": delta, "finish_reason": None, **draw(CHOICE_EXTRAS)}
    return {**STREAM, "choices": [choice], **draw(EXTRAS)}


OTHERS = st.sampled_from(
    [
        b"[DONE]",
        b"{not json",
        b"[1]",
        b'{"choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": 4}}',
        b'{"choices": [{"text": "a"}, {"text": "b"}]}',
        b'{"choices": [{"text": "a", "text": "b"}]}',
        b'{"choices": [{"text": "\\u0061", "model": "a"}]}',
        b'{"choices": [{"text":":"}]}',
        b'{"type": "response.output_text.delta", "delta": "a"}',
    ]
)


@st.composite
def payloads(draw: st.DrawFn) -> list[bytes]:
    """The data of the events of a stream, written as one server would."""
    separators = draw(st.sampled_from([(",", ":"), (", ", ": ")]))
    is_ascii = draw(st.booleans())
    events = draw(st.lists(st.one_of(draw(st.sampled_from([completions(), chats()])), OTHERS), max_size=12))
    return [
        each if isinstance(each, bytes) else json.dumps(each, separators=separators, ensure_ascii=is_ascii).encode()
        for each in events
    ]


@st.composite
def framed(draw: st.DrawFn) -> bytes:
    """The bytes of an answer: its events in chunks, for the most part each in one of its own."""
    event = draw(
        st.sampled_from([b"data: %b\n\n", b"data: %b\n\n", b"data:%b\n\n", b"data: %b\r\n\r\n", b"data: %b\n"])
    )
    size = draw(st.sampled_from(["%x", "%x", "%x", "%X", "%04x", "%x;a=b"]))
    lines = [event % each for each in draw(payloads())]
    if draw(st.integers(0, 3)) == 0:
        stream = b"".join(lines)
        cuts = sorted(draw(st.lists(st.integers(0, len(stream)), max_size=5)))
        lines = [stream[start:end] for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True)]
    chunks = [(size % len(line)).encode() + b"\r\n" + line + b"\r\n" for line in lines if line]
    return HEAD + b"".join(chunks) + draw(st.sampled_from([b"0\r\n\r\n", b"0\r\n\r\n", b"", b"zz\r\n"]))


def understood(pieces: list[bytes], *, slowly: bool) -> dict[str, Any]:
    """Return the fields of a reply of these pieces, each of which came at an instant of its own.

    Slowly, byte by byte, no event is ever there in full, and without a stencil all are decoded.
    """
    reply = Reply(streaming=True, stencil=EventTemplate(num_tries=0) if slowly else None)
    reported: dict[str, Any] = {"error": "", "completed_by": None}
    try:
        for at, piece in enumerate(pieces, 1):
            size = 1 if slowly else len(piece)
            for start in range(0, len(piece), size):
                if reply.feed(piece[start : start + size], at) and reported["completed_by"] is None:
                    reported["completed_by"] = at
        reported["ended"] = reply.end(100)
    except ResponseError as error:
        reported["error"] = str(error)
    names: tuple[str, ...] = (
        "chunk_times",
        "carries_tokens",
        "prompt_tokens",
        "completion_tokens",
        "finish_reason",
        "done",
        "content",
    )
    names += ("is_all_content", "problem", "first_byte", "complete", "keep_alive", "status_code")
    return reported | {name: getattr(reply, name) for name in names}


@pytest.mark.slow
@settings(max_examples=examples(400), deadline=None)
@given(framed(), st.data())
def test_comparing_equals_decoding(answer: bytes, data: st.DataObject) -> None:
    cuts = sorted(data.draw(st.lists(st.integers(0, len(answer)), max_size=6)))
    pieces = [answer[start:end] for start, end in zip([0, *cuts], [*cuts, len(answer)], strict=True)]
    pieces = [piece for piece in pieces if piece]
    assert understood(pieces, slowly=False) == understood(pieces, slowly=True)


def event(text: str) -> bytes:
    return json.dumps({"choices": [{"text": text, "finish_reason": None}]}).encode()


def chunk(payload: bytes) -> bytes:
    return b"%x\r\ndata: %b\n\n\r\n" % (len(payload) + 8, payload)


def cut_from(text: str) -> EventTemplate:
    stencil = EventTemplate()
    stencil.learn(event(text), text)
    return stencil


def test_events_that_differ_in_plain_text_are_recognized_up_to_the_first_that_does_not() -> None:
    stencil = cut_from(" word")
    known = chunk(event("a")) + chunk(event(", b: {c}"))
    assert stencil.take_chunks(b"xx" + known + chunk(event("\n")) + known, 2) == ([b"a", b", b: {c}"], 2 + len(known))
    assert stencil.text_of(event("a b")) == b"a b"


@pytest.mark.parametrize("text", ["", "\n", '"', "é", "\\"])
def test_text_with_escapes_is_not_recognized(text: str) -> None:
    stencil = cut_from(" word")
    assert stencil.take_chunks(chunk(event(text)), 0) == ([], 0)
    assert stencil.text_of(event(text)) == b""


@pytest.mark.parametrize(
    "payload",
    [
        event(":").replace(b": ", b":"),
        event("text"),
        event("choices"),
        event("\n"),
        b'{"choices": [{"text": "\\u0061", "model": "a"}]}',
    ],
)
def test_no_stencil_is_cut_where_the_place_of_the_text_is_in_doubt(payload: bytes) -> None:
    stencil = EventTemplate()
    stencil.learn(payload, json.loads(payload)["choices"][0]["text"])
    assert not stencil.is_learned


@pytest.mark.parametrize("size", [b"37", b"39", b"1038", b"", b"38;a=b", b"x", b"-38", b"0"])
def test_a_chunk_of_another_size_is_not_recognized(size: bytes) -> None:
    whole = chunk(event("a"))
    right, _, rest = whole.partition(b"\r\n")
    assert right != size
    assert cut_from(" word").take_chunks(size + b"\r\n" + rest, 0) == ([], 0)
