"""Large JSON bodies, read in pieces between which other threads may run, and refused if they would take much memory.

Fast readers of JSON hold Python's interpreter until they are done, which is a tenth of a second for 5 MB of small
objects. The reader here is the standard library's, of which only strings and numbers are read in C.
"""

from json import JSONDecoder, decoder, detect_encoding, scanner
from typing import Any

LARGE_BYTES = 1 << 19
"""Smaller bodies are read in one go."""

CHECKED_BYTES = 1 << 22
"""The values of smaller bodies cannot take too much."""

MOST_VALUE_BYTES = 192 << 20
CONTAINER_BYTES = 260
ITEM_BYTES = 40
"""What values may take together, and what an item and an object or array with a short text in it take on average."""

WIDE_BYTES = 12
"""What a byte takes at worst while it is read, where one character of a text is not ASCII."""

_SLICE_BYTES = 1 << 20


class _Decoder(JSONDecoder):
    """The standard library's decoder without the parts that are written in C."""

    def __init__(self) -> None:
        super().__init__()
        self.parse_object = decoder.JSONObject  # type: ignore[attr-defined]
        self.parse_array = decoder.JSONArray  # type: ignore[attr-defined]
        self.scan_once = scanner.py_make_scanner(self)  # type: ignore[attr-defined]


_DECODER = _Decoder()
"""One decoder for all bodies: each is a cycle of references, which a frozen collector would never free."""


def loads_in_pieces(bodies: list[bytes]) -> Any:
    """What `json.loads` gives for the only item of `bodies`, with the same errors.

    The item is taken out of the list, so that the bytes do not take memory beside their text.
    """
    try:
        return _DECODER.decode(_text(bodies.pop()))
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
    text_bytes = len(raw) if raw.isascii() else WIDE_BYTES * len(raw)
    return text_bytes + CONTAINER_BYTES * num_containers + ITEM_BYTES * _count(raw, b",")


def _text(raw: bytes) -> str:
    return raw.decode(detect_encoding(raw), "surrogatepass")


def _count(raw: bytes, mark: bytes) -> int:
    """How often `mark` is in `raw`, counted in slices."""
    return sum(raw.count(mark, start, start + _SLICE_BYTES) for start in range(0, len(raw), _SLICE_BYTES))
