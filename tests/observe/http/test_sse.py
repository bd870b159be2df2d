from hypothesis import given
from hypothesis import strategies as st

from observe.responses import EventSplitter


def split(pieces: list[bytes]) -> list[bytes]:
    splitter = EventSplitter()
    return [event for piece in pieces for event in splitter.feed(piece)] + splitter.end()


def test_an_event_is_given_back_by_the_piece_that_ends_its_line() -> None:
    splitter = EventSplitter()
    assert splitter.feed(b'data: {"a"') == []
    assert splitter.feed(b": 1}") == []
    assert splitter.feed(b"\n") == [b'{"a": 1}']
    assert splitter.feed(b"\n") == []


def test_a_last_line_without_an_end_is_an_event_at_the_end() -> None:
    assert split([b"data: a\n\ndata: b"]) == [b"a", b"b"]


LINES = st.sampled_from([b"data: x", b"data:y", b": comment", b"", b"event: e", b"data: data: z", b"dat"])
ENDS = st.sampled_from([b"\n", b"\r\n"])


@given(st.lists(st.tuples(LINES, ENDS)), st.data())
def test_where_the_bytes_are_cut_changes_nothing(lines: list[tuple[bytes, bytes]], data: st.DataObject) -> None:
    stream = b"".join(line + end for line, end in lines)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)))))
    pieces = [stream[start:end] for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True)]
    assert split(pieces) == split([stream])
    assert split(pieces) == [line[5:].strip() for line, _ in lines if line.startswith(b"data:")]
