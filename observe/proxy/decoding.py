"""Bodies as text: content codings taken off within a limit, so that a small body never becomes a large one."""

import re
import zlib
from collections.abc import Callable
from typing import Any

MAX_BODY_BYTES = 32 << 20
"""Longer bodies are not read."""
MAX_JSON_PARTS = 2_000_000
"""JSON with more values is not parsed, which would take many times its own size."""
MAX_LINES = 400_000
"""An event takes two or three lines, and more time to read than many bytes do."""
_MAX_HELD_BYTES = 128 << 20
_SLICE_BYTES = 512
"""A slice of this size of Zstandard's blocks becomes 16 MB at most."""


class UnreadableBodyError(Exception):
    """A body in a coding that is not known, damaged, or too large."""


class Decoder:
    """Takes a content coding off, piece by piece. Raises UnreadableBodyError."""

    def __init__(self, coding: str, limit: int = MAX_BODY_BYTES) -> None:
        self._left = limit
        names = [each for each in re.split(r"[,\s]+", coding.lower()) if each and each != "identity"]
        if len(names) > 1:
            raise UnreadableBodyError(f"it has several codings, {coding[:60]}")
        self._decode = _decoder_of(names[0]) if names else None

    def feed(self, data: bytes) -> bytes:
        """The bytes that these add to the body."""
        if self._decode is None:
            decoded = data
            self._left -= len(data)
        else:
            decoded = self._decode(data, self._left + 1)
            self._left -= len(decoded)
        if self._left < 0:
            raise UnreadableBodyError(f"it is longer than {MAX_BODY_BYTES >> 20} MB")
        return decoded


def decoded(coding: str, data: bytes) -> bytes:
    """A whole body without its content coding. Raises UnreadableBodyError."""
    return Decoder(coding).feed(data)


def num_json_parts(data: bytes) -> int:
    """At most as many values are in a text of JSON."""
    return sum(map(data.count, (b",", b"[", b"{")))


def is_parsable(data: bytes) -> bool:
    """Whether the values of a text of JSON take little memory."""
    return num_json_parts(data) <= MAX_JSON_PARTS


class MemoryBudget:
    """Bytes that all bodies under way may take together."""

    def __init__(self, limit: int = _MAX_HELD_BYTES) -> None:
        self._left = limit

    def take(self, num_bytes: int) -> bool:
        """Reserve so many; false where there are not as many left."""
        if num_bytes > self._left:
            return False
        self._left -= num_bytes
        return True

    def give_back(self, num_bytes: int) -> None:
        """Return what was reserved."""
        self._left += num_bytes


def _decoder_of(name: str) -> Callable[[bytes, int], bytes]:
    if name in ("gzip", "x-gzip", "deflate"):
        return _Inflation(is_raw_allowed=name == "deflate").feed
    if name in ("br", "zstd"):
        try:
            return _Brotli().feed if name == "br" else _Zstandard().feed
        except ImportError as error:
            raise UnreadableBodyError(f"reading {name} needs pip install 'blis-mockserve[encodings]'") from error
    raise UnreadableBodyError(f"its coding {name[:20]!r} is not known")


class _Inflation:
    """gzip, also in several members, zlib, and the bare deflate that some servers send."""

    def __init__(self, *, is_raw_allowed: bool) -> None:
        self._window_bits = zlib.MAX_WBITS | 32
        self._inflating: Any = None
        self._is_raw_allowed = is_raw_allowed
        self._head = b""

    def feed(self, data: bytes, limit: int) -> bytes:
        pieces: list[bytes] = []
        data, self._head = self._head + data, b""
        if self._inflating is None and len(data) < 2:
            self._head = data
            return b""
        while data and limit > 0:
            if self._inflating is None:
                is_raw = self._is_raw_allowed and (data[0] & 15 != 8 or int.from_bytes(data[:2], "big") % 31)
                self._inflating = zlib.decompressobj(-zlib.MAX_WBITS if is_raw else self._window_bits)
            elif self._inflating.eof:
                self._inflating = zlib.decompressobj(self._window_bits)
            try:
                piece = self._inflating.decompress(data, limit)
            except zlib.error as error:
                raise UnreadableBodyError("its coding is damaged") from error
            pieces.append(piece)
            limit -= len(piece)
            data = self._inflating.unused_data if self._inflating.eof else b""
        return b"".join(pieces)


class _Brotli:
    def __init__(self) -> None:
        import brotli

        self._decompressor = brotli.Decompressor()
        self._error: type[Exception] = brotli.error

    def feed(self, data: bytes, limit: int) -> bytes:
        pieces: list[bytes] = []
        try:
            while limit > 0:
                piece: bytes = self._decompressor.process(data, output_buffer_limit=limit)
                pieces.append(piece)
                limit -= len(piece)
                data = b""
                if not piece or self._decompressor.can_accept_more_data():
                    break
        except self._error as error:
            raise UnreadableBodyError("its coding is damaged") from error
        return b"".join(pieces)


class _Zstandard:
    def __init__(self) -> None:
        import zstandard

        self._decompressor: Any = zstandard.ZstdDecompressor(max_window_size=MAX_BODY_BYTES).decompressobj(
            read_across_frames=True
        )
        self._error: type[Exception] = zstandard.ZstdError

    def feed(self, data: bytes, limit: int) -> bytes:
        pieces: list[bytes] = []
        try:
            for start in range(0, len(data), _SLICE_BYTES):
                if limit <= 0:
                    break
                piece: bytes = self._decompressor.decompress(data[start : start + _SLICE_BYTES])
                pieces.append(piece)
                limit -= len(piece)
        except self._error as error:
            raise UnreadableBodyError("its coding is damaged") from error
        return b"".join(pieces)
