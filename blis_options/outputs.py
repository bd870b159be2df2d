"""Files that a command would write over what it reads, over each other, or nowhere: known before it begins."""

from collections.abc import Hashable, Iterable, Iterator
from os import stat
from os.path import basename, dirname, exists, isdir, isfile, realpath  # which take any text for a path
from pathlib import Path
from typing import Any

from blis_options.errors import OptionError
from blis_options.option import options_of

_NAMELESS = (".yaml", ".csv", ".itl.csv")
"""What becomes of a prefix that is empty behind its folder: hidden files, of which none is found beside another."""


def check_outputs(options: Any, *also_read: Path, also_written: Iterable[tuple[str, str]] = ()) -> None:
    """Raise OptionError for a file that is to be written although another setting names it too, or has no folder,
    or is one.

    Every value of another setting that names a file counts as read; `also_read` are files that no value names, and
    `also_written` those, each with the flag to name. Devices and pipes may be written by several.
    """
    check_written([*_written(options), *also_written], _read(options, also_read))


def check_written(written: Iterable[tuple[str, str]], read: Iterable[tuple[str, str]]) -> None:
    """The same of files that are known otherwise: each that is written with its flag, each that is read with a reason
    such as `--trace reads`."""
    outputs = list(written)
    if not outputs:
        return
    reasons = {_identity(path): reason for path, reason in read if isfile(path)}
    labels: dict[Hashable, str] = {}
    for path, label in outputs:
        if isdir(path):
            raise OptionError(f"{label} must be a file, got the folder {path}")
        if basename(path) in _NAMELESS:
            raise OptionError(f"{label} must name files, got only the folder {dirname(path)}/")
        if exists(path) and not isfile(path):
            continue
        if not isdir(dirname(path) or "."):
            raise OptionError(f"{label} must be in a folder that exists, got {path}")
        file = _identity(path)
        if file in reasons:
            raise OptionError(f"{label} would write over {path}, which {reasons[file]}")
        if file in labels:
            raise OptionError(f"{labels[file]} and {label} would both write {path}")
        labels[file] = label


def _identity(path: str) -> Hashable:
    """What all names of a file have in common, links of both kinds among them."""
    if not exists(path):
        return realpath(path)
    found = stat(path)
    return found.st_dev, found.st_ino


def _written(options: Any) -> Iterator[tuple[str, str]]:
    for setting in options_of(type(options)):
        value = getattr(options, setting.name)
        for suffix in setting.option.writes if value else ():
            yield f"{value}{suffix}", setting.label


def _read(options: Any, also_read: tuple[Path, ...]) -> Iterator[tuple[str, str]]:
    for path in also_read:
        yield str(path), "belongs to what is read"
    for setting in options_of(type(options)):
        value = getattr(options, setting.name)
        if setting.option.writes or not value:
            continue
        for each in value if isinstance(value, tuple) else (value,):
            if isinstance(each, str):
                yield each, f"{setting.label} reads"
