"""Recognises the bytes that the events of a stream have in common, so that most events need no JSON decoding."""

import re

_NOT_PLAIN = re.compile(rb"[^ !#-\[\]-~]").search


class Stencil:
    """The bytes around the text of an event that carried only this text, without escapes.

    Another event with the same bytes around plain text (printable ASCII without quotes and backslashes) is the same
    JSON but for that text, so it carries tokens and says nothing else either. What differs in any byte is not
    recognized and has to be decoded.
    """

    __slots__ = ("_after", "_before", "_in_chunk", "_num_tries", "is_cut")

    def __init__(self, *, num_tries: int = 3) -> None:
        self._num_tries = num_tries
        self._before = b""
        self._after = b""
        self._in_chunk = (b"", b"")
        self.is_cut = False
        """Whether there is anything to compare with."""

    def cut(self, payload: bytes, text: str) -> None:
        """Learn from an event that carried only this text, if its bytes allow it; ends after a few attempts."""
        if not self._num_tries or b"\\" in payload:
            return
        self._num_tries -= 1
        # Without escapes the text stands there as it is; where it is found once, that is its place.
        quoted = b'"%b"' % text.encode()
        place = payload.find(quoted)
        if place < 0 or place != payload.rfind(quoted):
            return
        self._before = payload[: place + 1]
        self._after = payload[place + len(quoted) - 1 :]
        self._in_chunk = (b"\r\ndata: " + self._before, self._after + b"\n\n\r\n")
        self.is_cut = True

    def text_of(self, payload: bytes) -> bytes:
        """The text of an event; empty if it has to be decoded."""
        if not self.is_cut or not payload.startswith(self._before) or not payload.endswith(self._after):
            return b""
        text = payload[len(self._before) : len(payload) - len(self._after)]
        return b"" if _NOT_PLAIN(text) else text

    def take_chunks(self, data: bytes, start: int) -> tuple[list[bytes], int]:
        """Texts of the events from this place on, as far as each is a chunk of its own, and the place behind them."""
        before, after = self._in_chunk
        num_before, num_after = len(before), len(after)
        texts: list[bytes] = []
        try:
            while (size_end := data.find(b"\r\n", start, start + 8)) > 0:
                end = size_end + 4 + int(data[start:size_end], 16)
                text_start, text_end = size_end + num_before, end - num_after
                if text_end <= text_start or not data.startswith(before, size_end):
                    break
                text = data[text_start:text_end]
                if not data.startswith(after, text_end) or _NOT_PLAIN(text):
                    break
                texts.append(text)
                start = end
        except ValueError:
            # A size with an extension, or none at all, is for the parser.
            return texts, start
        return texts, start
