"""JSON in vLLM's format: compact, in UTF-8."""

import json
import secrets
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any

import orjson

from mockserve.protocol.errors import ApiError

_MARK = f"blocks {secrets.token_hex(16)}"
"""Placeholder of a `JsonBlocks` in the text around it. Clients cannot guess it."""
_ENCODED_MARK = f'"{_MARK}"'.encode()


class JsonBlocks:
    """A JSON value whose text is made block by block while it is sent; the whole text is never in memory."""

    __slots__ = ("write",)

    def __init__(self, write: Callable[[], Iterator[bytes]]) -> None:
        self.write = write
        """Return the blocks of the text, from the beginning in each call."""


class JsonArray(JsonBlocks):
    """An array whose items are made while it is sent. Each call of `items` begins with the first item."""

    __slots__ = ("items",)

    def __init__(self, write: Callable[[], Iterator[bytes]], items: Callable[[], Iterable[Any]]) -> None:
        super().__init__(write)
        self.items = items


class EncodedItems:
    """Items of a growing array, kept as JSON text: the text takes a tenth of the memory of the objects."""

    __slots__ = ("_encoded",)

    def __init__(self) -> None:
        self._encoded: list[bytes] = []

    def add(self, items: Sequence[Any] | JsonBlocks) -> None:
        """Append items; `items` may be empty."""
        encoded = compact_json(items)[1:-1]
        if encoded:
            self._encoded.append(encoded)

    def array(self) -> JsonBlocks:
        """Return the array of the items so far."""
        encoded = self._encoded[:]

        def write() -> Iterator[bytes]:
            yield b"["
            for number, each in enumerate(encoded):
                yield b"," + each if number else each
            yield b"]"

        return JsonBlocks(write)


def compact_json(value: Any) -> bytes:
    """Return `value` as JSON without spaces, keys in their order. Arrays become lists with numbers in the shortest form
    of their type."""
    try:
        return orjson.dumps(value, option=orjson.OPT_SERIALIZE_NUMPY)
    except TypeError:
        return b"".join(json_blocks(value))


def json_blocks(value: Any) -> Iterator[bytes]:
    """Yield the text of a value that may contain `JsonBlocks`, piece by piece."""
    found: list[JsonBlocks] = []

    def mark(each: Any) -> str:
        if not isinstance(each, JsonBlocks):
            raise TypeError(f"{type(each).__name__} has no form in JSON")
        found.append(each)
        return _MARK

    try:
        text = orjson.dumps(value, default=mark, option=orjson.OPT_SERIALIZE_NUMPY)
    except TypeError:
        # Text with half a surrogate pair, which a client may send, has no UTF-8 and must be escaped.
        found.clear()
        text = json.dumps(value, separators=(",", ":"), default=mark).encode()
    if not found:
        yield text
        return
    first, *others = text.split(_ENCODED_MARK)
    yield first
    for blocks, after in zip(found, others, strict=True):
        yield from blocks.write()
        yield after


def reply_json(value: Any) -> bytes:
    """Return `value` as the body of a whole reply. Raises ApiError, as vLLM does, for a value that cannot be
    encoded."""
    return b"".join(reply_blocks(value))


def reply_blocks(value: Any) -> Iterator[bytes]:
    """Yield the body of a whole reply that may contain `JsonBlocks`, piece by piece.

    Raises ApiError, as vLLM does, for a value that cannot be encoded.
    """
    found: list[JsonBlocks] = []

    def mark(each: Any) -> Any:
        if not isinstance(each, JsonBlocks):
            return each.tolist()  # an array of numbers
        found.append(each)
        return _MARK

    try:
        text = orjson.dumps(value, default=mark, option=orjson.OPT_SERIALIZE_NUMPY)
    except TypeError:  # half a surrogate pair, integers of more than 64 bits, more than 254 lists within lists
        found.clear()
        text = _lenient_json(value, mark)
    first, *others = text.split(_ENCODED_MARK) if found else (text,)
    yield first
    for blocks, after in zip(found, others, strict=True):
        yield from blocks.write()
        yield after


def _lenient_json(value: Any, default: Callable[[Any], Any]) -> bytes:
    try:
        return json.dumps(value, separators=(",", ":"), ensure_ascii=False, default=default).encode()
    except UnicodeEncodeError as error:
        raise ApiError(str(error)) from None
    except RecursionError:
        raise ApiError("Maximum serialization depth exceeded") from None


def json_array(items: Callable[[], Iterable[Any]], items_per_block: int = 64) -> JsonArray:
    """Return an array whose items are made and encoded in blocks while it is sent."""

    def write() -> Iterator[bytes]:
        waiting, separator = iter(items()), b"["
        while batch := list(islice(waiting, items_per_block)):
            yield separator + compact_json(batch)[1:-1]
            separator = b","
        yield b"[]" if separator == b"[" else b"]"

    return JsonArray(write, items)


def json_array_of_blocks(items: Callable[[], Iterable[Any]]) -> JsonBlocks:
    """Return an array whose items are made one by one while it is sent, and may contain `JsonBlocks`."""

    def write() -> Iterator[bytes]:
        separator = b"["
        for each in items():
            yield separator
            yield from json_blocks(each)
            separator = b","
        yield b"[]" if separator == b"[" else b"]"

    return JsonBlocks(write)
