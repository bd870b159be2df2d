"""Files of a user, read within limits: no device is read for ever, and no small file unpacks to a large one."""

import errno
import io
import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

if TYPE_CHECKING:
    from gzip import GzipFile

MOST_BYTES = 4 << 30
"""Larger files are refused before they are read."""
_PIECE_BYTES = 1 << 20
_LEAST_UNPACKED_BYTES = 64 << 20
_MOST_UNPACKED_SHARE = 60
"""How many times larger than the packed file what it unpacks to may be; text is 5 to 20 times larger."""


def read_file(path: Path | str, most_bytes: int = MOST_BYTES) -> bytes:
    """The content of a file or a pipe. Raises OSError for a device, a file with holes, and one that is too large."""
    with open(path, "rb") as file:
        check_open_file(file.fileno(), most_bytes)
        content = _read_up_to(file, most_bytes)
    if content is None:
        raise OSError(errno.EFBIG, f"expected at most {most_bytes} bytes, got more")
    return content


def _read_up_to(file: "BinaryIO | GzipFile", most_bytes: int) -> bytes | None:
    """The whole content, or None where it is longer. Memory is taken for what is there, not for what is allowed."""
    pieces: list[bytes] = []
    num_bytes = 0
    while piece := file.read(_PIECE_BYTES):
        pieces.append(piece)
        num_bytes += len(piece)
        if num_bytes > most_bytes:
            return None
    return b"".join(pieces)


def check_open_file(descriptor: int, most_bytes: int = MOST_BYTES) -> None:
    """Raise OSError for a device, a file with holes, and one that is too large."""
    found = os.fstat(descriptor)
    if stat.S_ISBLK(found.st_mode) or (stat.S_ISCHR(found.st_mode) and not _ends(descriptor, found)):
        raise OSError(errno.EINVAL, "expected a file, got a device")
    if not stat.S_ISREG(found.st_mode):
        return
    if found.st_size > most_bytes:
        raise OSError(errno.EFBIG, f"expected at most {most_bytes} bytes, got {found.st_size}")
    if _first_hole(descriptor) < found.st_size:
        raise OSError(errno.EINVAL, "expected a file with content, got one with holes")
    os.lseek(descriptor, 0, os.SEEK_SET)


def most_unpacked_bytes(content: bytes) -> int:
    """The largest size to which this content of a gzip file may unpack."""
    return max(_LEAST_UNPACKED_BYTES, _MOST_UNPACKED_SHARE * len(content))


def unpacked(content: bytes) -> bytes:
    """The content of a gzip file. Raises EOFError, zlib.error and OSError, of which gzip.BadGzipFile is one."""
    import gzip  # takes 3 ms to load, and few files are compressed

    most = most_unpacked_bytes(content)
    with gzip.GzipFile(fileobj=io.BytesIO(content)) as file:
        found = _read_up_to(file, most)
    if found is None:
        raise OSError(
            errno.EFBIG, f"expected at most {most} bytes unpacked, got more; unpack it first if that is right"
        )
    return found


def read_given(path: Path | str) -> bytes:
    """The content of a file, unpacked where its name ends in `.gz`. Raises what the two functions above raise."""
    content = read_file(path)
    return unpacked(content) if str(path).endswith(".gz") else content


def read_text(path: Path | str, encoding: str = "utf-8") -> str:
    """The text of a file. Raises OSError, and UnicodeDecodeError for other bytes."""
    return read_file(path).decode(encoding)


def _ends(descriptor: int, found: os.stat_result) -> bool:
    """Whether a device comes to an end: a terminal, or the one that is always empty."""
    return os.isatty(descriptor) or found.st_rdev == os.stat(os.devnull).st_rdev


def _first_hole(descriptor: int) -> int:
    try:
        return os.lseek(descriptor, 0, os.SEEK_HOLE)
    except OSError:  # an empty file, or a file system that cannot tell
        return 1 << 62
