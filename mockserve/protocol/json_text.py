"""JSON as vLLM writes it, and the parsing of JSON bodies, large ones in pieces."""

import json
import re
import secrets
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import islice
from json import JSONDecodeError, JSONDecoder, decoder, detect_encoding, loads, scanner
from threading import local
from typing import Any

import orjson

from mockserve.protocol.errors import ApiError, Problem, bad_fields
from mockserve.protocol.forms import LARGEST_INT64

# JSON in vLLM's format: compact, in UTF-8.

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
    return _blocks(value, partial(json.dumps, separators=(",", ":")))


def reply_json(value: Any) -> bytes:
    """Return `value` as the body of a whole reply. Raises ApiError, as vLLM does, for a value that cannot be
    encoded."""
    return b"".join(reply_blocks(value))


def reply_blocks(value: Any) -> Iterator[bytes]:
    """Yield the body of a whole reply that may contain `JsonBlocks`, piece by piece.

    Raises ApiError, as vLLM does, for a value that cannot be encoded.
    """
    return _blocks(value, _lenient_json)


def _blocks(value: Any, write_leniently: Callable[..., str]) -> Iterator[bytes]:
    """Yield the text of a value; what orjson does not take is written by another function, with `default` as it has."""
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
        text = write_leniently(value, default=mark).encode()
    first, *others = text.split(_ENCODED_MARK) if found else (text,)
    yield first
    for blocks, after in zip(found, others, strict=True):
        yield from blocks.write()
        yield after


def _lenient_json(value: Any, default: Callable[[Any], Any]) -> str:
    try:
        text = json.dumps(value, separators=(",", ":"), ensure_ascii=False, default=default)
        text.encode()
    except UnicodeEncodeError as error:
        raise ApiError(str(error)) from None
    except RecursionError:
        raise ApiError("Maximum serialization depth exceeded") from None
    return text


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


# Large JSON bodies: parsed in pieces between which other threads run, in bounded memory, non-ASCII strings escaped.

MOST_WIDE_BYTES = 1 << 22
"""Maximum number of bytes of all strings with non-ASCII characters."""

MOST_STRINGS = 10_000
MOST_QUOTES = 40_000
"""Maximum number of quotes inspected to find the ends of non-ASCII strings."""

_ASCII_SLICE_BYTES = 1 << 16
_BACKSLASHES = 64
"""Longest run of backslashes that is counted."""

_WIDE_BYTE = re.compile(rb"[\x80-\xff]")
_ESCAPED_WIDE_BYTE = re.compile(rb"\\[\x80-\xff]")
_WIDE = re.compile(r"[^\x00-\x7f]+")


@dataclass(frozen=True)
class WideString:
    """The content of one string: `characters` from `begin` on, and its position `at` in the text with escapes."""

    begin: int
    end: int
    at: int
    characters: str

    @cached_property
    def escaped(self) -> str:
        """The content with escapes."""
        return _WIDE.sub(
            lambda wide: "\\u" + wide[0].encode("utf-16-be").hex("\\", 2).replace("\\", "\\u"), self.characters
        )


@dataclass(frozen=True)
class NarrowText:
    """The strings of one body that are escaped, in order."""

    strings: list[WideString]

    @property
    def num_bytes(self) -> int:
        """Return the bytes of the strings in UTF-8."""
        return sum(each.end - each.begin for each in self.strings)

    def of(self, raw: bytes) -> str:
        """Return the text of the body."""
        parts: list[str] = []
        end = 0
        for each in self.strings:
            parts += (str(memoryview(raw)[end : each.begin], "ascii"), each.escaped)
            end = each.end
        parts.append(str(memoryview(raw)[end:], "ascii"))
        return "".join(parts)

    def in_original_text(self, error: JSONDecodeError) -> JSONDecodeError:
        """Convert an error in the text to an error in the body, where each character counts as one."""
        parts: list[str] = []
        end = 0
        for each in self.strings[: bisect_right(self.strings, error.pos, key=lambda string: string.at)]:
            parts.append(error.doc[end : each.at])
            end = min(each.at + len(each.escaped), error.pos)
            parts.append(_ascii_text(each.characters[: _num_characters(each.characters, end - each.at)]))
        parts.append(error.doc[end : error.pos])
        before = "".join(parts)
        return JSONDecodeError(error.msg, before, len(before))


class _TooExpensiveError(Exception):
    """A body for which the usual way is cheaper."""


def narrow_text(raw: bytes) -> NarrowText | None:
    """Return a `NarrowText` for a body in UTF-8; None if that would not be cheap, or if the body may be invalid
    JSON."""
    try:
        return NarrowText(_wide_strings(raw))
    except (_TooExpensiveError, UnicodeDecodeError):
        return None


def _wide_strings(raw: bytes) -> list[WideString]:
    strings: list[WideString] = []
    end = growth = 0
    quote_finder = _QuoteFinder(raw)
    while (found := _next_wide(raw, end)) is not None:
        begin = quote_finder.quote_before(end, found) + 1
        end = quote_finder.quote_after(found)
        quote_finder.num_bytes += end - begin
        content = raw[begin:end]
        is_over = quote_finder.num_bytes > MOST_WIDE_BYTES or len(strings) == MOST_STRINGS
        if is_over or _ESCAPED_WIDE_BYTE.search(content):
            raise _TooExpensiveError
        string = WideString(begin, end, begin + growth, content.decode())
        strings.append(string)
        growth += len(string.escaped) - len(content)
    return strings


def _next_wide(raw: bytes, start: int) -> int | None:
    """The first byte from `start` on that is not ASCII."""
    for at in range(start, len(raw), _ASCII_SLICE_BYTES):
        if not raw[at : at + _ASCII_SLICE_BYTES].isascii():
            found = _WIDE_BYTE.search(raw, at)
            assert found is not None
            return found.start()
    return None


@dataclass
class _QuoteFinder:
    """Finds the ends of strings, within limits for all of them together."""

    raw: bytes
    num_bytes: int = 0
    num_quotes: int = 0

    def quote_before(self, start: int, end: int) -> int:
        """Return the beginning of the string that contains the byte at `end`."""
        while True:
            end = self.raw.rfind(b'"', max(start, end - MOST_WIDE_BYTES), end)
            if not self._is_escaped(end):
                return end

    def quote_after(self, start: int) -> int:
        """Return the end of the string that contains the byte at `start`."""
        while True:
            at = self.raw.find(b'"', start, start + MOST_WIDE_BYTES)
            if not self._is_escaped(at):
                return at
            start = at + 1

    def _is_escaped(self, at: int) -> bool:
        """Whether an odd number of backslashes precedes a quote. Raises where there is no quote."""
        self.num_quotes += 1
        before = self.raw[max(at - _BACKSLASHES, 0) : at]
        rest = before.rstrip(b"\\")
        if at < 0 or self.num_quotes > MOST_QUOTES or (not rest and before):
            raise _TooExpensiveError
        return (len(before) - len(rest)) % 2 == 1


def _ascii_text(text: str) -> str:
    """Return text of equal length in ASCII."""
    return text.encode("ascii", "replace").decode("ascii")


def _num_characters(text: str, num_escaped: int) -> int:
    """Return the number of characters of a text that `num_escaped` characters of the escaped text represent."""
    for number, character in enumerate(text):
        if num_escaped <= 0:
            return number
        num_escaped -= 1 if character.isascii() else 6 if character < "\U00010000" else 12
    return len(text)


LARGE_BYTES = 1 << 19
"""Size from which bodies are parsed in pieces."""

CHECKED_BYTES = 1 << 22
"""Size from which the memory of the values is estimated; values of smaller bodies are always within the limit."""

MOST_VALUE_BYTES = 192 << 20
CONTAINER_BYTES = 260
ITEM_BYTES = 40
"""Maximum memory of all values; average memory of an object or array with a short text in it, and of an item."""

COPIES = 2.6
"""Maximum number of simultaneous texts as long as the body during parsing: the whole, a value, and a growing one."""

NARROW_COPIES = 3
"""Number of texts with one byte for each character, where few strings have non-ASCII characters."""
WIDE_STRING_BYTES = 24
"""Memory in bytes for each byte of a non-ASCII string, with its escapes."""

_SLICE_BYTES = 1 << 20
_FOUR_BYTES = re.compile(rb"[\xf0-\xff]")
_TWO_BYTES = re.compile(rb"[\xc4-\xff]")
_WITHIN_CHARACTERS = bytes(range(0x80, 0xC0))
"""All continuation bytes of UTF-8."""


SHORT_CHARS = 16
MOST_SHORT_STRINGS = 10_000
"""Strings that are kept to be shared within one body, and their length."""
MEMBERS_AT_ONCE = 1000
"""Number of members from which objects are made in Python: `dict` blocks all threads for 0.3 s for 300,000 members."""


class _Found(local):
    """Findings of the parser on this thread: whether an object has had two members of one name, and short strings."""

    repeats = False

    def __init__(self) -> None:
        self.strings: dict[str, str] = {}


_found = _Found()


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return the object of the members in `pairs`, which are removed from the list."""
    if len(pairs) <= MEMBERS_AT_ONCE:
        made = dict(pairs)
        _found.repeats = _found.repeats or len(made) < len(pairs)
        return made
    made = {}
    for name, value in pairs:
        made[name] = value
    _found.repeats = _found.repeats or len(made) < len(pairs)
    while pairs:
        del pairs[-MEMBERS_AT_ONCE:]
    return made


def _string(text: str, end: int, strict: bool = True) -> tuple[str, int]:
    """Return a string and its end. Equal short ones, such as roles, share their memory."""
    value, end = decoder.scanstring(text, end, strict)  # type: ignore[attr-defined]
    if len(value) > SHORT_CHARS:
        return value, end
    strings = _found.strings
    if len(strings) < MOST_SHORT_STRINGS:
        return strings.setdefault(value, value), end
    return strings.get(value, value), end


class _Decoder(JSONDecoder):
    """The standard library's decoder without the parts that are written in C."""

    def __init__(self) -> None:
        super().__init__(object_pairs_hook=_object)
        self.parse_object = decoder.JSONObject  # type: ignore[attr-defined]
        self.parse_string = _string
        self.parse_array = decoder.JSONArray  # type: ignore[attr-defined]
        self.scan_once = scanner.py_make_scanner(self)  # type: ignore[attr-defined]


_DECODER = _Decoder()
"""One decoder for all bodies: a decoder is a reference cycle, which a frozen collector would never free."""


def loads_with_repeats(raw: bytes) -> tuple[Any, bool]:
    """Return the value of `loads_in_pieces`, and whether one of its objects has two members of one name."""
    _found.repeats = False
    return loads_in_pieces([raw]), _found.repeats


def loads_in_pieces(bodies: list[bytes]) -> Any:
    """Parse the only item of `bodies` like `json.loads`, with equal errors.

    The item is removed from the list, to free the bytes while the text is parsed.
    """
    narrow = _narrow_text(bodies[0])
    text = _text(bodies.pop()) if narrow is None else narrow.of(bodies.pop())
    try:
        return _DECODER.decode(text)
    except JSONDecodeError as error:
        raise error if narrow is None else narrow.in_original_text(error) from None
    except RecursionError:
        raise RecursionError(
            "maximum recursion depth exceeded while decoding a JSON array from a unicode string"
        ) from None
    finally:
        _found.strings.clear()


def value_bytes(raw: bytes) -> int:
    """Return an upper estimate of the memory of the values in `raw`: brackets and commas in strings count, too.

    Short bodies are not inspected.
    """
    if len(raw) < CHECKED_BYTES:
        return 0
    num_containers = _count(raw, b"[") + _count(raw, b"{")
    return _text_bytes(raw) + CONTAINER_BYTES * num_containers + ITEM_BYTES * _count(raw, b",")


def _text_bytes(raw: bytes) -> int:
    """Return the memory of a body as text, with its strings."""
    if raw.isascii():
        return len(raw)
    narrow = _narrow_text(raw)
    if narrow is None:
        return _wide_text_bytes(raw)
    return NARROW_COPIES * len(raw) + WIDE_STRING_BYTES * narrow.num_bytes


def _wide_text_bytes(raw: bytes) -> int:
    """Return the memory that a body takes where all characters have the width of the widest."""
    slices = [raw[start : start + _SLICE_BYTES] for start in range(0, len(raw), _SLICE_BYTES)]
    wide = [each for each in slices if not each.isascii()]
    width = 4 if any(map(_FOUR_BYTES.search, wide)) else 2 if any(map(_TWO_BYTES.search, wide)) else 1
    num_characters = sum(len(each.translate(None, _WITHIN_CHARACTERS)) for each in slices)
    return len(raw) + int(COPIES * width * num_characters)


def _narrow_text(raw: bytes) -> NarrowText | None:
    """Return a `NarrowText` if parsing with escapes takes less memory than parsing the body itself."""
    if len(raw) < CHECKED_BYTES or raw.isascii() or detect_encoding(raw) != "utf-8":
        return None
    return narrow_text(raw)


def _text(raw: bytes) -> str:
    return raw.decode(detect_encoding(raw), "surrogatepass")


def _count(raw: bytes, mark: bytes) -> int:
    """Return how often `mark` is in `raw`, counted in slices."""
    return sum(raw.count(mark, start, start + _SLICE_BYTES) for start in range(0, len(raw), _SLICE_BYTES))


# Bodies of JSON: an object, with the messages of vLLM's web framework for any other body.


def parse_json(raw: bytes, num_kinds: int = 1) -> dict[str, Any]:
    """Return the JSON object in `raw`. Raises ApiError, with FastAPI's message, for any other value.

    A body that may have one of `num_kinds` types is refused once for each type.
    """
    if not raw:
        raise bad_fields([Problem("missing", "body", "Field required", None)])
    return _as_object(json_value(raw), num_kinds)


def _as_object(body: Any, num_kinds: int) -> dict[str, Any]:
    if body is None:
        raise bad_fields([Problem("missing", "body", "Field required", None)])
    if not isinstance(body, dict):
        message = "Input should be a valid dictionary or object to extract fields from"
        raise bad_fields([Problem("model_attributes_type", "body", message, body)] * num_kinds)
    return body


def json_value(raw: bytes) -> Any:
    """Return the JSON value in `raw`. Raises ApiError, with FastAPI's message, for invalid JSON."""
    try:
        body = orjson.loads(raw)
    except orjson.JSONDecodeError:
        return _parse_leniently(raw)
    if isinstance(body, dict) and _has_large_number(body):
        return _parse_leniently(raw)  # which keeps whole numbers of any size whole
    return body


def parse_large_json(bodies: list[bytes], num_kinds: int = 1) -> dict[str, Any]:
    """Parse a large body like `parse_json`, in pieces between which other threads can run.

    The only item of `bodies` is removed from it. Raises ApiError, also for too many values.
    """
    if len(bodies[0]) <= LARGE_BYTES:
        return parse_json(bodies.pop(), num_kinds)
    return _as_object(_leniently(lambda: large_json(bodies)), num_kinds)


def large_json(bodies: list[bytes]) -> Any:
    """Parse a body like `json.loads`, in pieces between which other threads can run. Raises ApiError for too many
    values."""
    if len(bodies[0]) <= LARGE_BYTES:
        return loads(bodies.pop())
    if value_bytes(bodies[0]) > MOST_VALUE_BYTES:
        raise too_large()
    return loads_in_pieces(bodies)


def too_large() -> ApiError:
    """Return the error for a body whose values take too much memory."""
    return ApiError("Request Entity Too Large", status=413, kind="Request Entity Too Large")


def _has_large_number(body: Mapping[str, Any]) -> bool:
    for each in body.values():  # noqa: SIM110  # a loop costs a third of what `any` does
        if each.__class__ is float and abs(each) >= LARGEST_INT64:
            return True
    return False


def _parse_leniently(raw: bytes) -> Any:
    """Parse text that strict JSON refuses with the standard library; it also words the error."""
    return _leniently(lambda: loads(raw))


def _leniently(read: Callable[[], Any]) -> Any:
    try:
        return read()
    except JSONDecodeError as error:
        context = {"error": error.msg}
        problem = Problem("json_invalid", f"body.{error.pos}", "JSON decode error", {}, context)
        raise bad_fields([problem]) from None
    except (ValueError, RecursionError):  # no UTF-8, a number of thousands of digits, lists within lists without end
        raise ApiError("There was an error parsing the body", is_bare=True) from None
