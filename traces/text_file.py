"""Whole text files and JSON, read and written, gzipped or not, with one clear error when that fails."""

import io
import json
import os
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import lru_cache
from heapq import merge
from pathlib import Path
from typing import Any, TextIO, TypeAlias

import orjson

from blis_sim.options import BlisError
from blis_sim.options.file_fields import FieldError, number_text, read
from blis_sim.options.files import check_open_file, read_file, unpacked
from blis_sim.options.yaml_text import YamlError, load_yaml

# JSON of large values, made in pieces between which other threads run.

_MOST_DEPTH = 254
"""Containers within each other that orjson writes, too."""
_SORTED_AT_ONCE = 5000
_JOINED_AT_ONCE = 1000
_SLICE_CHARS = 1 << 19


def dumped_in_pieces(value: Any, *, sorts_keys: bool = False) -> bytes:
    """Return the bytes of `orjson.dumps`. Raises TypeError for the values that it refuses."""
    return b"".join(json_pieces(value, sorts_keys=sorts_keys))


def json_pieces(value: Any, *, sorts_keys: bool = False) -> Iterator[bytes]:
    """Yield the bytes of `orjson.dumps` in pieces. Raises TypeError for the values that it refuses."""
    small: list[bytes] = []
    for piece in _pieces(value, sorts_keys, 0):
        small.append(piece)
        if len(small) == _JOINED_AT_ONCE or len(piece) >= _SLICE_CHARS:
            yield b"".join(small)
            small.clear()
    if small:
        yield b"".join(small)


def _pieces(value: Any, sorts_keys: bool, depth: int) -> Iterator[bytes]:
    if isinstance(value, str) and len(value) > _SLICE_CHARS:
        yield b'"'
        for at in range(0, len(value), _SLICE_CHARS):
            yield orjson.dumps(value[at : at + _SLICE_CHARS])[1:-1]
        yield b'"'
        return
    if not value or not isinstance(value, dict | list):
        yield orjson.dumps(value)
        return
    if depth == _MOST_DEPTH:
        raise TypeError("Recursion limit reached")
    if isinstance(value, list):
        mark = b"["
        for item in value:
            yield mark
            yield from _pieces(item, sorts_keys, depth + 1)
            mark = b","
        yield b"]"
        return
    mark = b"{"
    for name in _in_order(value) if sorts_keys else value:
        yield mark + orjson.dumps(name) + b":"
        yield from _pieces(value[name], sorts_keys, depth + 1)
        mark = b","
    yield b"}"


def _in_order(names: Iterable[str]) -> Iterator[str]:
    """Sort names, of which there may be so many that one call would take long."""
    left = list(names)
    return merge(*(sorted(left[at : at + _SORTED_AT_ONCE]) for at in range(0, len(left), _SORTED_AT_ONCE)))


class TraceError(BlisError):
    """A file that cannot be read or written: names file and place, what was found and what is allowed."""


_STREAMS = ("/dev/", "/proc/")
"""Folders with names of open files, such as /dev/stdout, which nothing can take the place of."""


def read_bytes(path: Path) -> bytes:
    """The content of a file, decompressed when its name ends in `.gz`. Raises TraceError."""
    try:
        content = read_file(path)
    except OSError as error:
        raise TraceError(f"{path}: {_reason(path, error)}") from error
    return _decompressed(path, content) if path.suffix == ".gz" else content


def _decompressed(path: Path, content: bytes) -> bytes:
    """The content of a gzip file. Raises TraceError."""
    import gzip  # takes 3 ms to load, and few files are compressed
    import zlib

    try:
        return unpacked(content)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise TraceError(f"{path}: not a complete gzip file ({error})") from error
    except OSError as error:
        raise TraceError(f"{path}: {_reason(path, error)}") from error


def read_text(path: Path) -> str:
    """The content of a UTF-8 text file, without its byte order mark. Raises TraceError."""
    content = read_bytes(path)
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        # With a byte order mark the codec counts from behind it.
        bad = error.object[error.start]
        line = error.object.count(b"\n", 0, error.start) + 1
        raise TraceError(f"{path} line {line}: expected UTF-8 text, got the byte 0x{bad:02x}") from error


def can_be_read_again(path: Path) -> bool:
    """Whether a file is a plain one that can be read by lines as often as needed; a pipe cannot."""
    return path.suffix != ".gz" and path.is_file()


@contextmanager
def reading_lines(path: Path) -> Iterator[Iterable[str]]:
    """Yield the lines of a UTF-8 text file with their ends, without its byte order mark. Raises TraceError."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            check_open_file(file.fileno())
            yield file
    except UnicodeDecodeError:
        read_text(path)  # its error names the line
        raise
    except OSError as error:
        raise TraceError(f"{path}: {_reason(path, error)}") from error


def read_json(path: Path) -> Any:
    """The value of a JSON file. Raises TraceError."""
    try:
        return orjson.loads(read_bytes(path).removeprefix(b"\xef\xbb\xbf"))
    except orjson.JSONDecodeError as error:
        raise TraceError(f"{path} line {error.lineno}: expected JSON, {error.msg}") from error


def read_yaml(path: Path) -> Any:
    """The value of a YAML file, None of an empty one. Raises TraceError."""
    return parse_yaml(path, read_text(path))


def parse_yaml(path: Path | str, text: str) -> Any:
    """The value of the text of a YAML file that has been read, as a pipe can be only once. Raises TraceError."""
    try:
        return load_yaml(text)
    except YamlError as error:
        place = "" if error.line is None else f" line {error.line}"
        raise TraceError(f"{path}{place}: expected YAML, {error.problem}") from error


def read_keys(source: Path | str, kind: Any, loaded: Any, within: str = "", *, numbers_are_text: bool = False) -> Any:
    """Return the result of `file_fields.read` for a file that errors name. Raises TraceError."""
    try:
        return read(kind, loaded, within, numbers_are_text=numbers_are_text)
    except FieldError as error:
        raise TraceError(error.about(source)) from None


def write_text(path: Path, text: str) -> None:
    """Write a whole text file. Raises TraceError."""
    with writing(path) as file:
        file.write(text)


def write_content(path: Path, content: bytes) -> None:
    """Write a whole file. Raises TraceError."""
    with naming_write_errors(path), replacing(path) as place:
        place.write_bytes(content)


@contextmanager
def writing(path: Path) -> Iterator[TextIO]:
    """A text file to write piece by piece, in its place as a whole at the end. Raises TraceError if that fails."""
    with naming_write_errors(path), replacing(path) as place, open_for_writing(place) as file:
        yield file


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield the path to write to; the new file replaces the old one when it is complete, and an error leaves the old
    one.

    A link stays a link. Devices, pipes and files in a folder where no other can be made are written as they are.
    Raises OSError.
    """
    target = path.resolve() if path.is_symlink() else path
    aside = target.with_name(f".partial-{os.getpid()}-{target.name}") if target.name else target
    if not _may_replace(path, target, aside):
        yield path
        return
    try:
        yield aside
        if aside.exists():
            if target.exists():
                aside.chmod(stat.S_IMODE(target.stat().st_mode))
            aside.replace(target)
    finally:
        with suppress(OSError):
            aside.unlink(missing_ok=True)


def _may_replace(path: Path, target: Path, aside: Path) -> bool:
    """Whether a file beside the target could be moved to its place, instead of writing to the target itself."""
    if str(path).startswith(_STREAMS) or (target.exists() and not target.is_file()):
        return False
    try:
        os.close(os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666))
    except OSError:  # a name too long, no folder, no permission: reading the target itself gives the better message
        return False
    aside.unlink()
    return True


@contextmanager
def naming_write_errors(path: Path) -> Iterator[None]:
    """While a file is written, errors of the system become a TraceError that names it."""
    try:
        yield
    except OSError as error:
        raise cannot_write(path, error) from error


def open_for_writing(path: Path) -> TextIO:
    """An empty UTF-8 text file, gzipped when its name ends in `.gz`. Raises TraceError.

    Lone surrogates (bytes of a reply that were no UTF-8) are written as escapes, lest a row be lost to them.
    """
    try:
        if path.suffix == ".gz":
            import gzip

            return io.TextIOWrapper(gzip.open(path, "wb"), "utf-8", errors="backslashreplace", newline="")
        return path.open("w", encoding="utf-8", errors="backslashreplace", newline="")
    except OSError as error:
        raise cannot_write(path, error) from error


def cannot_write(path: Path, error: OSError) -> TraceError:
    """The error for a file that the system does not let us write."""
    return TraceError(f"{path}: cannot be written, {_reason(path, error)}")


def _reason(path: Path, error: OSError) -> str:
    if isinstance(error, FileNotFoundError):
        return "no such folder" if not path.parent.is_dir() else "no such file"
    if isinstance(error, IsADirectoryError):
        return "expected a file, got a folder"
    return (error.strerror or str(error)).lower()


Write: TypeAlias = Callable[[str], object]


def dump_json(value: Any) -> str:
    """JSON text of plain values, keys in the order given, two-space indent, no newline at the end.

    Integral floats have no `.0`. Raises ValueError for nan and infinity, TypeError for what JSON cannot hold.
    """
    pieces: list[str] = []
    _write(value, "\n", pieces.append)
    return "".join(pieces)


def write_json(path: Path | str, value: Any, end: str = "") -> None:
    """Write that text to a file piece by piece, so that an iterator, written as an array, is never held as a whole.

    `end` follows the text. Raises TraceError.
    """
    with writing(Path(path)) as file:
        _write(value, "\n", file.write)
        file.write(end)


def _write(value: Any, newline: str, write: Write) -> None:
    if value is None or value is True or value is False:
        write({None: "null", True: "true", False: "false"}[value])
    elif isinstance(value, str):
        write(json.dumps(value, ensure_ascii=False))
    elif isinstance(value, int):
        write(str(int(value)))
    elif isinstance(value, float):
        write(number_text(value))
    elif isinstance(value, Mapping):
        _write_items("{}", ((_label(str(key)), each) for key, each in value.items()), newline, write)
    elif isinstance(value, Sequence | Iterator):
        _write_items("[]", (("", each) for each in value), newline, write)
    else:
        raise TypeError(f"JSON cannot hold a {type(value).__name__}")


def _write_items(brackets: str, items: Iterable[tuple[str, Any]], newline: str, write: Write) -> None:
    inner = newline + "  "
    separator = brackets[0] + inner
    is_empty = True
    for label, value in items:
        write(separator + label)
        _write(value, inner, write)
        separator = "," + inner
        is_empty = False
    write(brackets if is_empty else newline + brackets[1])


@lru_cache(maxsize=1024)
def _label(key: str) -> str:
    """A key as it stands before its value; there are few keys, and millions of objects that have them."""
    return json.dumps(key, ensure_ascii=False) + ": "
