"""What the events of a stream have in common, so that most of them are understood without being decoded."""

from typing import Any

from observe.completion_event import only_text

_PLAIN = bytes(each for each in range(0x20, 0x7F) if each not in b'"\\')
_LONGEST_TEXT = 1024
_SIZES = tuple(b"%x" % size for size in range(8192))


class Stencil:
    """The bytes around the text of an event that said nothing but this text, and had no escapes.

    Another event with the same bytes around plain text (printable ASCII without quotes and backslashes) is the same
    JSON but for that text, so it carries tokens and says nothing else either. What differs in any byte is not
    recognized and has to be decoded.
    """

    __slots__ = ("_after", "_before", "_chunk_after", "_chunk_before", "_num_around", "_num_tries")

    def __init__(self, *, num_tries: int = 3) -> None:
        self._num_tries = num_tries
        self._before = b""
        self._after = b""
        self._chunk_before = b""
        self._chunk_after = b""
        self._num_around = 0

    @property
    def is_cut(self) -> bool:
        """Whether there is anything to compare with."""
        return self._num_around > 0

    def cut(self, payload: bytes, event: dict[str, Any]) -> None:
        """Learn from an event and its bytes, if they are fit for it; after a few times no more."""
        text = only_text(event)
        if not text or not self._num_tries or b"\\" in payload:
            return
        self._num_tries -= 1
        # Without escapes the text stands there as it is; where it is found once, that is its place.
        quoted = b'"%b"' % text.encode()
        place = payload.find(quoted)
        if place < 0 or place != payload.rfind(quoted):
            return
        self._before = payload[: place + 1]
        self._after = payload[place + len(quoted) - 1 :]
        self._chunk_before = b"\r\ndata: " + self._before
        self._chunk_after = self._after + b"\n\n\r\n"
        self._num_around = len(b"data: \n\n") + len(self._before) + len(self._after)

    def text_of(self, payload: bytes) -> str:
        """The text of an event; empty if it has to be decoded."""
        if not self._num_around or not payload.startswith(self._before) or not payload.endswith(self._after):
            return ""
        text = payload[len(self._before) : len(payload) - len(self._after)]
        return "" if text.translate(None, _PLAIN) else text.decode()

    def take_chunks(self, data: bytes, start: int) -> tuple[list[bytes], int]:
        """Texts of the events from this place on, as far as each is a chunk of its own, and the place behind them."""
        before, after, num_around = self._chunk_before, self._chunk_after, self._num_around
        texts: list[bytes] = []
        while True:
            size_end = data.find(before, start, start + 4 + len(before))
            if size_end < 0:
                break
            text_start = size_end + len(before)
            end = data.find(after, text_start, text_start + _LONGEST_TEXT + len(after))
            if end <= text_start or data[start:size_end] != _size(num_around + end - text_start):
                break
            text = data[text_start:end]
            if text.translate(None, _PLAIN):
                break
            texts.append(text)
            start = end + len(after)
        return texts, start


def _size(num_bytes: int) -> bytes:
    return _SIZES[num_bytes] if num_bytes < len(_SIZES) else b"%x" % num_bytes
