"""Large JSON text in which few strings have characters beyond ASCII, without the memory that these cost elsewhere.

Python keeps a text with one emoji in four bytes for each of its characters, so a body of pictures with one emoji in a
message would take four times its size. Here such strings are written with JSON's own escapes, and the text is ASCII.
"""

import re
from bisect import bisect_right
from dataclasses import dataclass
from functools import cached_property
from json import JSONDecodeError

MOST_WIDE_BYTES = 1 << 22
"""What strings with other characters may have together."""

MOST_STRINGS = 10_000
MOST_QUOTES = 40_000
"""What is looked at to find their ends."""

_SLICE_BYTES = 1 << 16
_BACKSLASHES = 64
"""More of them in a row are not counted."""

_WIDE_BYTE = re.compile(rb"[\x80-\xff]")
_ESCAPED_WIDE_BYTE = re.compile(rb"\\[\x80-\xff]")
_WIDE = re.compile(r"[^\x00-\x7f]+")


@dataclass(frozen=True)
class WideString:
    """The content of one string: `characters` from `begin` on, and its place `at` in the text, with escapes."""

    begin: int
    end: int
    at: int
    characters: str

    @cached_property
    def escaped(self) -> str:
        """The content with escapes."""
        return _WIDE.sub(_escapes, self.characters)


@dataclass(frozen=True)
class NarrowText:
    """The strings of one body that are to be written with escapes, in their order."""

    strings: list[WideString]

    @property
    def num_bytes(self) -> int:
        """What the strings have in UTF-8."""
        return sum(each.end - each.begin for each in self.strings)

    def of(self, raw: bytes) -> str:
        """The text of the body."""
        parts: list[str] = []
        end = 0
        for each in self.strings:
            parts += (str(memoryview(raw)[end : each.begin], "ascii"), each.escaped)
            end = each.end
        parts.append(str(memoryview(raw)[end:], "ascii"))
        return "".join(parts)

    def explained(self, error: JSONDecodeError) -> JSONDecodeError:
        """An error in the text as one in the body, where each character counts as one."""
        parts: list[str] = []
        end = 0
        for each in self.strings[: bisect_right(self.strings, error.pos, key=lambda string: string.at)]:
            parts.append(error.doc[end : each.at])
            end = min(each.at + len(each.escaped), error.pos)
            parts.append(_plain(each.characters[: _num_characters(each.characters, end - each.at)]))
        parts.append(error.doc[end : error.pos])
        before = "".join(parts)
        return JSONDecodeError(error.msg, before, len(before))


class _NotCheapError(Exception):
    """A body that is better read in the usual way."""


def narrow_text(raw: bytes) -> NarrowText | None:
    """How to read a body in UTF-8; None if that would not be cheap, or if it may be no JSON."""
    try:
        return NarrowText(_wide_strings(raw))
    except (_NotCheapError, UnicodeDecodeError):
        return None


def _wide_strings(raw: bytes) -> list[WideString]:
    strings: list[WideString] = []
    end = growth = 0
    looking = _Looking(raw)
    while (found := _next_wide(raw, end)) is not None:
        begin = looking.quote_before(end, found) + 1
        end = looking.quote_after(found)
        looking.num_bytes += end - begin
        content = raw[begin:end]
        is_over = looking.num_bytes > MOST_WIDE_BYTES or len(strings) == MOST_STRINGS
        if is_over or _ESCAPED_WIDE_BYTE.search(content):
            raise _NotCheapError
        string = WideString(begin, end, begin + growth, content.decode())
        strings.append(string)
        growth += len(string.escaped) - len(content)
    return strings


def _next_wide(raw: bytes, start: int) -> int | None:
    """The first byte from `start` on that is not ASCII."""
    for at in range(start, len(raw), _SLICE_BYTES):
        if not raw[at : at + _SLICE_BYTES].isascii():
            found = _WIDE_BYTE.search(raw, at)
            assert found is not None
            return found.start()
    return None


@dataclass
class _Looking:
    """Looks for the ends of strings, within limits for all of them together."""

    raw: bytes
    num_bytes: int = 0
    num_quotes: int = 0

    def quote_before(self, start: int, end: int) -> int:
        """Where the string begins that holds the byte at `end`."""
        while True:
            end = self.raw.rfind(b'"', max(start, end - MOST_WIDE_BYTES), end)
            if not self._is_escaped(end):
                return end

    def quote_after(self, start: int) -> int:
        """Where the string ends that holds the byte at `start`."""
        while True:
            at = self.raw.find(b'"', start, start + MOST_WIDE_BYTES)
            if not self._is_escaped(at):
                return at
            start = at + 1

    def _is_escaped(self, at: int) -> bool:
        """Whether an odd number of backslashes is before a quote. Raises where there is no quote."""
        self.num_quotes += 1
        before = self.raw[max(at - _BACKSLASHES, 0) : at]
        rest = before.rstrip(b"\\")
        if at < 0 or self.num_quotes > MOST_QUOTES or (not rest and before):
            raise _NotCheapError
        return (len(before) - len(rest)) % 2 == 1


def _escapes(wide: "re.Match[str]") -> str:
    return "\\u" + wide[0].encode("utf-16-be").hex("\\", 2).replace("\\", "\\u")


def _plain(text: str) -> str:
    """Text of the same length in ASCII."""
    return text.encode("ascii", "replace").decode("ascii")


def _num_characters(text: str, num_escaped: int) -> int:
    """How many characters of a text are within so many of it with escapes."""
    for number, character in enumerate(text):
        if num_escaped <= 0:
            return number
        num_escaped -= 1 if character.isascii() else 6 if character < "\U00010000" else 12
    return len(text)
