"""Large JSON bodies, read in pieces between which other threads may run, and refused if they would take much memory.

Fast readers of JSON hold Python's interpreter until they are done, which is a tenth of a second for 5 MB of small
objects. The reader here is the standard library's, of which only strings and numbers are read in C.
"""

import re
from json import JSONDecodeError, JSONDecoder, decoder, detect_encoding, scanner
from typing import Any

from mockserve.protocol.reading.narrow_text import NarrowText, narrow_text

LARGE_BYTES = 1 << 19
"""Smaller bodies are read in one go."""

CHECKED_BYTES = 1 << 22
"""The values of smaller bodies cannot take too much."""

MOST_VALUE_BYTES = 192 << 20
CONTAINER_BYTES = 260
ITEM_BYTES = 40
"""What values may take together, and what an item and an object or array with a short text in it take on average."""

COPIES = 2.6
"""Texts as long as the body that there are at worst while it is read: the whole, a value, and one that grows."""

NARROW_COPIES = 3
"""Texts of one byte for each character, where few strings have other characters."""
WIDE_STRING_BYTES = 24
"""What a byte of such a string takes, with its escapes."""

_SLICE_BYTES = 1 << 20
_FOUR_BYTES = re.compile(rb"[\xf0-\xff]")
_TWO_BYTES = re.compile(rb"[\xc4-\xff]")
_WITHIN_CHARACTERS = bytes(range(0x80, 0xC0))
"""All bytes of UTF-8 that begin no character."""


MEMBERS_AT_ONCE = 1000
"""Larger objects are made in Python: `dict` holds the interpreter for a third of a second where there are 300,000."""


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """The object of its members, which are taken out of their list."""
    if len(pairs) <= MEMBERS_AT_ONCE:
        return dict(pairs)
    made: dict[str, Any] = {}
    for name, value in pairs:
        made[name] = value  # noqa: PERF403  (a comprehension may be one call)
    while pairs:
        del pairs[-MEMBERS_AT_ONCE:]
    return made


class _Decoder(JSONDecoder):
    """The standard library's decoder without the parts that are written in C."""

    def __init__(self) -> None:
        super().__init__(object_pairs_hook=_object)
        self.parse_object = decoder.JSONObject  # type: ignore[attr-defined]
        self.parse_array = decoder.JSONArray  # type: ignore[attr-defined]
        self.scan_once = scanner.py_make_scanner(self)  # type: ignore[attr-defined]


_DECODER = _Decoder()
"""One decoder for all bodies: each is a cycle of references, which a frozen collector would never free."""


def loads_in_pieces(bodies: list[bytes]) -> Any:
    """What `json.loads` gives for the only item of `bodies`, with the same errors.

    The item is taken out of the list, so that the bytes do not take memory beside their text.
    """
    narrow = _narrow_text(bodies[0])
    text = _text(bodies.pop()) if narrow is None else narrow.of(bodies.pop())
    try:
        return _DECODER.decode(text)
    except JSONDecodeError as error:
        raise error if narrow is None else narrow.explained(error) from None
    except RecursionError:
        raise RecursionError(
            "maximum recursion depth exceeded while decoding a JSON array from a unicode string"
        ) from None


def value_bytes(raw: bytes) -> int:
    """About what the values in `raw` would take, from above: brackets and commas in strings count as if they were none.

    Short bodies are not looked at.
    """
    if len(raw) < CHECKED_BYTES:
        return 0
    num_containers = _count(raw, b"[") + _count(raw, b"{")
    return _text_bytes(raw) + CONTAINER_BYTES * num_containers + ITEM_BYTES * _count(raw, b",")


def _text_bytes(raw: bytes) -> int:
    """What a body takes as text, and its strings with it."""
    if raw.isascii():
        return len(raw)
    narrow = _narrow_text(raw)
    if narrow is None:
        return _wide_text_bytes(raw)
    return NARROW_COPIES * len(raw) + WIDE_STRING_BYTES * narrow.num_bytes


def _wide_text_bytes(raw: bytes) -> int:
    """The same where the whole text has characters of the width of the widest."""
    slices = [raw[start : start + _SLICE_BYTES] for start in range(0, len(raw), _SLICE_BYTES)]
    wide = [each for each in slices if not each.isascii()]
    width = 4 if any(map(_FOUR_BYTES.search, wide)) else 2 if any(map(_TWO_BYTES.search, wide)) else 1
    num_characters = sum(len(each.translate(None, _WITHIN_CHARACTERS)) for each in slices)
    return len(raw) + int(COPIES * width * num_characters)


def _narrow_text(raw: bytes) -> NarrowText | None:
    """How to read a body with escapes, where that takes less than to read it as it is."""
    if len(raw) < CHECKED_BYTES or raw.isascii() or detect_encoding(raw) != "utf-8":
        return None
    return narrow_text(raw)


def _text(raw: bytes) -> str:
    return raw.decode(detect_encoding(raw), "surrogatepass")


def _count(raw: bytes, mark: bytes) -> int:
    """How often `mark` is in `raw`, counted in slices."""
    return sum(raw.count(mark, start, start + _SLICE_BYTES) for start in range(0, len(raw), _SLICE_BYTES))
