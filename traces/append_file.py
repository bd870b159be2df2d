"""A file that grows by whole pieces, each with the operating system before the next, so that a kill loses none."""

import fcntl
import os
import zlib
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from traces.errors import TraceError
from traces.text_file import cannot_write

_GZIP = 31
"""The window bits that make zlib read and write gzip."""


class AppendFile:
    """Appends text to a new file, gzipped when the name ends in `.gz`.

    A piece that does not fit on the disk raises OSError and leaves nothing of itself behind. Lone surrogates (bytes
    of a reply that were no UTF-8) are written as escapes, lest a row be lost to them. Raises TraceError when the
    file cannot be opened.

    With `joins` the file is there already, and other processes may append to it at the same time; it is not gzipped.
    """

    def __init__(self, path: Path, *, joins: bool = False) -> None:
        flags = os.O_WRONLY | os.O_CLOEXEC | (os.O_APPEND if joins else os.O_CREAT | os.O_TRUNC)
        try:
            self._descriptor = os.open(path, flags, 0o666)
        except OSError as error:
            raise cannot_write(path, error) from error
        self._joins = joins
        self._size = 0
        self._encoding: _Encoding = _Gzip() if path.suffix == ".gz" and not joins else _Plain()
        self._closed = False

    def write(self, text: str) -> None:
        """Append a piece."""
        piece = self._encoding.encode(text.encode("utf-8", "backslashreplace"))
        if not self._joins:
            self._append(piece)
            return
        # What others append while a piece goes out in parts would end up inside of it.
        fcntl.flock(self._descriptor, fcntl.LOCK_EX)
        try:
            self._size = os.lseek(self._descriptor, 0, os.SEEK_END)
            self._append(piece)
        finally:
            fcntl.flock(self._descriptor, fcntl.LOCK_UN)

    def _append(self, piece: bytes) -> None:
        left = memoryview(piece)
        length = len(left)
        try:
            while left:
                left = left[os.write(self._descriptor, left) :]
        except OSError:
            with suppress(OSError):  # a device has no length
                os.ftruncate(self._descriptor, self._size)
                os.lseek(self._descriptor, self._size, os.SEEK_SET)
            raise
        self._encoding.keep()
        self._size += length

    def close(self) -> None:
        """Close the file; nothing can be written afterwards."""
        if self._closed:
            return
        self._closed = True
        try:
            end = self._encoding.end()
            if end:
                os.write(self._descriptor, end)
        finally:
            os.close(self._descriptor)


def open_with_header(path: Path, header: str, kept: Iterable[str] | None = None) -> AppendFile:
    """A new file with its first line on disk; with `kept` the pieces of one that is there, whose place it takes.

    The earlier file stays as it is until all of them are written. Raises TraceError, and OSError when a piece cannot
    be written.
    """
    written = path if kept is None else path.with_name(f".resumed-{path.name}")
    file = AppendFile(written)
    try:
        file.write(header + "\n")
        for piece in kept or ():
            file.write(piece)
        if written != path:
            written.replace(path)
    except OSError:
        with suppress(OSError):
            file.close()
        if written != path:
            written.unlink(missing_ok=True)
        raise
    return file


def whole_records(path: Path) -> str:
    """The complete records of a CSV file whose writer may have been killed; what follows the last one is left out.

    A record ends with a newline outside quotes. Raises TraceError when the file cannot be read.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise TraceError(f"{path}: {(error.strerror or str(error)).lower()}") from error
    content = _unzipped(path, content) if path.suffix == ".gz" else content
    end = len(content)
    quotes = content.count(b'"')
    while True:
        newline = content.rfind(b"\n", 0, end)
        quotes -= content.count(b'"', newline + 1, end)
        if newline < 0 or quotes % 2 == 0:
            return content[: newline + 1].decode("utf-8", "replace")
        end = newline


def _unzipped(path: Path, content: bytes) -> bytes:
    """What can be read of a gzip file that may end in the middle."""
    pieces = []
    try:
        while content:
            member = zlib.decompressobj(_GZIP)
            pieces.append(member.decompress(content))
            content = member.unused_data
    except zlib.error as error:
        raise TraceError(f"{path}: not a gzip file ({error})") from error
    return b"".join(pieces)


class _Encoding(Protocol):
    """How text becomes the bytes of a file."""

    def encode(self, data: bytes) -> bytes:
        """The bytes of a piece, complete for a reader of all bytes so far."""

    def keep(self) -> None:
        """The piece is in the file; without this call it never was."""

    def end(self) -> bytes:
        """The last bytes."""


class _Plain:
    def encode(self, data: bytes) -> bytes:
        return data

    def keep(self) -> None:
        pass

    def end(self) -> bytes:
        return b""


class _Gzip:
    def __init__(self) -> None:
        self._kept = zlib.compressobj(wbits=_GZIP)
        self._tried = self._kept

    def encode(self, data: bytes) -> bytes:
        self._tried = self._kept.copy()
        return self._tried.compress(data) + self._tried.flush(zlib.Z_SYNC_FLUSH)

    def keep(self) -> None:
        self._kept = self._tried

    def end(self) -> bytes:
        return self._kept.flush(zlib.Z_FINISH)
