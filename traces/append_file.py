"""A file that grows by whole pieces, so that a kill loses none, and the backup of an earlier recording."""

import fcntl
import os
import stat
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from itertools import count
from pathlib import Path
from typing import Self

from blis_sim.options.files import most_unpacked_bytes, read_file
from traces.text_file import TraceError, cannot_write, naming_write_errors

# A file that grows by whole pieces, each with the operating system before the next, so that a kill loses none.

_GZIP = 31
"""The window bits that make zlib read and write gzip."""


class AppendFile:
    """Appends text to a new file, gzipped when the name ends in `.gz`.

    A piece that does not fit on the disk raises OSError and leaves nothing of itself behind. Lone surrogates (bytes
    of a reply that were no UTF-8) are written as escapes, so that the row is not lost. Raises TraceError when the file
    cannot be opened. With `is_shared` the file exists, is not gzipped, and other processes may append to it at the same
    time. With `is_exclusive` no other process may have it open in this way, which is a TraceError, too.
    """

    def __init__(self, path: Path, *, is_shared: bool = False, is_exclusive: bool = False) -> None:
        beginning = os.O_APPEND if is_shared else os.O_CREAT if is_exclusive else os.O_CREAT | os.O_TRUNC
        try:
            self._descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC | beginning, 0o666)
        except OSError as error:
            raise cannot_write(path, error) from error
        if is_exclusive:
            _lock(path, self._descriptor)
            with suppress(OSError):  # a device has no length
                os.ftruncate(self._descriptor, 0)
        self._joins = is_shared
        self._size = 0
        self._encoding = _Gzip() if path.suffix == ".gz" and not is_shared else _Plain()
        self._closed = False

    def write(self, text: str) -> None:
        """Append a piece."""
        self.write_parts((text.encode("utf-8", "backslashreplace"),))

    def write_parts(self, parts: Iterable[bytes]) -> None:
        """Append a piece that comes in parts, which are not joined: it may be large."""
        if not self._joins:
            self._append(parts)
            return
        # A piece that is written in parts could be interleaved with pieces of other processes.
        fcntl.flock(self._descriptor, fcntl.LOCK_EX)
        try:
            self._size = os.lseek(self._descriptor, 0, os.SEEK_END)
            self._append(parts)
        finally:
            fcntl.flock(self._descriptor, fcntl.LOCK_UN)

    def _append(self, parts: Iterable[bytes]) -> None:
        length = 0
        try:
            for part in parts:
                left = memoryview(self._encoding.encode(part))
                length += len(left)
                while left:
                    left = left[os.write(self._descriptor, left) :]
        except OSError:
            self._encoding.discard()
            with suppress(OSError):  # a device has no length
                os.ftruncate(self._descriptor, self._size)
                os.lseek(self._descriptor, self._size, os.SEEK_SET)
            raise
        self._encoding.commit()
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


def open_with_header(
    path: Path, header: str, kept: Iterable[str] | None = None, *, is_exclusive: bool = False
) -> AppendFile:
    """A new file with its first line on disk; with `kept` the pieces of one that is there, whose place it takes.

    The earlier file stays as it is until all of them are written, and a link to it stays a link. With `is_exclusive` no
    other process may be writing it in this way. Raises TraceError, and OSError when a piece cannot be written.
    """
    path = path.resolve() if kept is not None and path.is_symlink() else path
    if is_exclusive and path.is_file():
        with exclusive_writer(path):
            pass
    has_place = kept is not None and (path.is_file() or not path.exists())  # not that of a device or a pipe
    written = path.with_name(f".resumed-{path.name}") if has_place else path
    file = AppendFile(written, is_exclusive=is_exclusive)
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


@contextmanager
def open_pipes(paths: Iterable[Path]) -> Iterator[None]:
    """Within a `with` block, each of these that is a named pipe has a reader.

    Opening one waits for its reader, and inside of an event loop no signal would end that.
    """
    with ExitStack() as opened:
        for path in paths:
            if path.is_fifo():
                with naming_write_errors(path):
                    opened.callback(os.close, os.open(path, os.O_WRONLY | os.O_CLOEXEC))
        yield


@contextmanager
def exclusive_writer(path: Path) -> Iterator[None]:
    """Keep other processes from opening the file in this way while the context lasts; raises TraceError. The file is
    made if it is not there, and goes away again if nothing has been written to it."""
    is_new = not path.exists()
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    except OSError as error:
        raise cannot_write(path, error) from error
    try:
        _lock(path, descriptor)
        if not _is_same_file(path, descriptor):
            raise TraceError(f"{path}: another process is writing it")
        yield
    finally:
        if is_new and not os.fstat(descriptor).st_size:
            path.resolve().unlink(missing_ok=True)
        os.close(descriptor)


def _is_same_file(path: Path, descriptor: int) -> bool:
    """Whether the file has not been moved since it was opened."""
    try:
        return os.path.samestat(path.stat(), os.fstat(descriptor))
    except OSError:
        return False


def _lock(path: Path, descriptor: int) -> None:
    """Lock the file against other writers until the descriptor is closed."""
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):  # devices may have several writers
        return
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise TraceError(f"{path}: another process is writing it") from error
    except OSError:  # a file system without locks
        return


def complete_records(path: Path) -> str:
    """The complete records of a CSV file whose writer may have been killed; what follows the last one is left out.

    A record ends with a newline outside quotes. Raises TraceError when the file cannot be read.
    """
    content = _content(path)
    end = len(content)
    quotes = content.count(b'"')
    while True:
        newline = content.rfind(b"\n", 0, end)
        quotes -= content.count(b'"', newline + 1, end)
        if newline < 0 or quotes % 2 == 0:
            return content[: newline + 1].decode("utf-8", "replace")
        end = newline


def complete_lines(path: Path) -> list[str]:
    """Return the complete lines of a file whose writer may have been killed, each with its newline. Raises
    TraceError."""
    *lines, _ = _content(path).decode("utf-8", "replace").split("\n")
    return [f"{line}\n" for line in lines]


def _content(path: Path) -> bytes:
    try:
        content = read_file(path)
    except OSError as error:
        raise TraceError(f"{path}: {(error.strerror or str(error)).lower()}") from error
    return _unzipped(path, content) if path.suffix == ".gz" else content


def _unzipped(path: Path, content: bytes) -> bytes:
    """Return the readable part of a gzip file that may end in the middle."""
    pieces = []
    left = most_unpacked_bytes(content)
    try:
        while content:
            member = zlib.decompressobj(_GZIP)
            pieces.append(member.decompress(content, left + 1))
            left -= len(pieces[-1])
            if left < 0:
                raise TraceError(f"{path}: expected at most {most_unpacked_bytes(content)} bytes unpacked, got more")
            content = member.unused_data
    except zlib.error as error:
        raise TraceError(f"{path}: not a gzip file ({error})") from error
    return b"".join(pieces)


class _Plain:
    def encode(self, data: bytes) -> bytes:
        """The bytes of a part of a piece, complete for a reader of all bytes so far."""
        return data

    def commit(self) -> None:
        """Mark the parts since the last call as written."""

    def discard(self) -> None:
        """Forget the parts since the last commit: they are not written."""

    def end(self) -> bytes:
        """The last bytes."""
        return b""


class _Gzip(_Plain):
    def __init__(self) -> None:
        self._committed = zlib.compressobj(wbits=_GZIP)
        self._pending = self._committed

    def encode(self, data: bytes) -> bytes:
        if self._pending is self._committed:
            self._pending = self._committed.copy()
        return self._pending.compress(data) + self._pending.flush(zlib.Z_SYNC_FLUSH)

    def commit(self) -> None:
        self._committed = self._pending

    def discard(self) -> None:
        self._pending = self._committed

    def end(self) -> bytes:
        return self._committed.flush(zlib.Z_FINISH)


class RowWriter:
    """A file of rows that is open until it is closed, or within a `with` block."""

    _file: AppendFile

    def close(self) -> None:
        """Close the file; nothing can be written afterwards."""
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()


class JsonLinesWriter(RowWriter):
    """Appends lines to a new file, or with `resume` to those of one that is there.

    Raises TraceError when the file cannot be made, and OSError when a line does not fit on the disk.
    """

    def __init__(self, path: Path, *, resume: bool = False) -> None:
        earlier = complete_lines(path) if resume and path.is_file() else []
        if earlier:
            self._file = open_with_header(path, earlier[0].rstrip("\n"), earlier[1:])
        else:
            self._file = AppendFile(path)

    def write(self, line: str) -> None:
        """Append a line."""
        self._file.write(line + "\n")


# Moves the files of an earlier recording, whose name is reused, together into a backup folder beside it.

_PROBE_BYTES = 1 << 20
"""The window bits that make zlib read gzip."""


def has_rows(path: Path) -> bool:
    """Whether there is anything behind the first line of a file, gzipped or not. Raises TraceError."""
    if not os.path.isfile(path):
        return False
    try:
        with path.open("rb") as file:
            start = file.read(_PROBE_BYTES)
    except OSError as error:
        raise TraceError(f"{path}: {(error.strerror or str(error)).lower()}") from error
    if path.suffix == ".gz":
        try:
            start = zlib.decompressobj(_GZIP).decompress(start, _PROBE_BYTES)
        except zlib.error:  # a file that is no gzip file is not empty
            return True
    _, _, behind = start.partition(b"\n")
    return bool(behind)


def back_up(name: Path, files: Sequence[Path], rows: Sequence[Path]) -> Path | None:
    """Move what is there of these files into a new folder `NAME.earlier-1`, or -2, and so on; None if nothing is.

    The files keep their names. `rows` are what shows that there is a recording, and move last. A recording that a kill
    left half moved is found again by them. What is left of it follows into the same folder. Nothing is ever copied. So
    a file that a link names, or that lies in another folder than `name`, moves beside itself and is linked to. Raises
    TraceError when a file cannot be moved, with all of them where they were.
    """
    there = [each for each in dict.fromkeys([*files, *rows]) if os.path.isfile(each)]
    if not there:
        return None
    folder = _folder(name, there, [*there, *rows])
    moved: list[tuple[Path, Path]] = []
    file = name
    try:
        folder.mkdir(exist_ok=True)
        for file in there:
            moved.extend(_move(file, folder))
    except OSError as error:
        for source, place in reversed(moved):
            with suppress(OSError):
                if not os.path.lexists(source):
                    place.rename(source)
            with suppress(OSError):
                if (folder / place.name).is_symlink():
                    (folder / place.name).unlink()
        for parent in {folder.parent, *(file.resolve().parent for file in there)}:
            with suppress(OSError):  # it may hold something of an earlier attempt
                (parent / folder.name).rmdir()
        reason = (error.strerror or str(error)).lower()
        raise TraceError(
            f"{file}: the earlier recording cannot be moved to {folder}, {reason}; --overwrite deletes it"
        ) from error
    return folder


def _folder(name: Path, there: Sequence[Path], expected_files: Sequence[Path]) -> Path:
    """First unused backup folder; reuse the last if no name collides."""
    parents = {name.parent, *(file.resolve().parent for file in there)}

    def numbered(number: int) -> list[Path]:
        return [parent / f"{name.name}.earlier-{number}" for parent in parents]

    number = next(number for number in count(1) if not any(map(os.path.lexists, numbered(number))))
    begun = numbered(number - 1)
    if number > 1 and not any(os.path.lexists(each / file.name) for each in begun for file in expected_files):
        number -= 1
    return name.parent / f"{name.name}.earlier-{number}"


def _move(file: Path, folder: Path) -> Iterator[tuple[Path, Path]]:
    """Move a file, and yield whence and whither as soon as that is done."""
    source = file.resolve() if file.is_symlink() else file
    beside = source.parent / folder.name
    beside.mkdir(exist_ok=True)
    if os.path.lexists(beside / file.name):
        raise FileExistsError(f"{beside / file.name} exists")
    source.rename(beside / file.name)
    yield source, beside / file.name
    if not beside.samefile(folder):
        (folder / file.name).symlink_to((beside / file.name).resolve())
