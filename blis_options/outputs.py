"""Files that a command would write over what it reads, over each other, or nowhere: known before it begins."""

from collections.abc import Iterator
from os.path import dirname, exists, isdir, isfile, realpath  # which take any text for a path
from pathlib import Path
from typing import Any

from blis_options.errors import OptionError
from blis_options.option import options_of


def check_outputs(options: Any, *also_read: Path) -> None:
    """Raise OptionError for a file that is to be written although another setting names it too, or has no folder,
    or is one.

    Every value of another setting that names a file counts as read; `also_read` are files that no value names. Devices
    and pipes may be written by several.
    """
    outputs = list(_written(options))
    if not outputs:
        return
    read = {realpath(path): name for path, name in _read(options, also_read) if isfile(path)}
    written: dict[str, str] = {}
    for path, label in outputs:
        if isdir(path):
            raise OptionError(f"{label} must be a file, got the folder {path}")
        if exists(path) and not isfile(path):
            continue
        if not isdir(dirname(path) or "."):
            raise OptionError(f"{label} must be in a folder that exists, got {path}")
        whole = realpath(path)
        if whole in read:
            raise OptionError(f"{label} would write over {path}, which {read[whole]}")
        if whole in written:
            raise OptionError(f"{written[whole]} and {label} would both write {path}")
        written[whole] = label


def _written(options: Any) -> Iterator[tuple[str, str]]:
    for setting in options_of(type(options)):
        value = getattr(options, setting.name)
        for suffix in setting.option.writes if value else ():
            yield f"{value}{suffix}", setting.label


def _read(options: Any, also_read: tuple[Path, ...]) -> Iterator[tuple[str, str]]:
    for path in also_read:
        yield str(path), "is read"
    for setting in options_of(type(options)):
        value = getattr(options, setting.name)
        if setting.option.writes or not value:
            continue
        for each in value if isinstance(value, tuple) else (value,):
            if isinstance(each, str):
                yield each, f"{setting.label} reads"
