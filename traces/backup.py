"""Moves the files of an earlier recording, whose name is reused, together into a backup folder beside it."""

import os
import zlib
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import count
from pathlib import Path

from traces.text_file import TraceError

_PROBE_BYTES = 1 << 20
_GZIP = 31
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

    The files keep their names. `rows` are what shows that there is a recording, and move last: one that is left half
    moved by a kill is found again by them, and what is left of it follows into the same folder. Nothing is ever copied,
    so a file that a link names, or that lies in another folder than `name`, moves beside itself and is linked to.
    Raises TraceError when a file cannot be moved, with all of them where they were.
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
        _move_back(moved, there, folder)
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


def _move_back(moved: Sequence[tuple[Path, Path]], there: Sequence[Path], folder: Path) -> None:
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
