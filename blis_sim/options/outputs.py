"""Files that a command would write over other files, over each other, or nowhere: known before it begins."""

from collections.abc import Hashable, Iterable, Iterator, Mapping
from os import stat
from os.path import basename, dirname, exists, isdir, isfile, realpath  # which take any text for a path
from pathlib import Path
from typing import Any, TypeAlias

from blis_sim.options.errors import OptionError
from blis_sim.options.file_kinds import obstacle
from blis_sim.options.option import options_of

_NAMELESS = (".yaml", ".csv", ".itl.csv")
"""What becomes of a prefix that is empty behind its folder: hidden files, of which none is found beside another."""


Output: TypeAlias = tuple[str, str] | tuple[str, str, str]
"""A file that is written, the flag to name, and the kind of the file where an earlier one of that kind may be there."""


def check_outputs(options: Any, *also_read: Path, also_written: Iterable[Output] = ()) -> None:
    """Raise OptionError for a file that is to be written although another setting names it too, or has no folder,
    or is one.

    Every value of another setting that names a file counts as read; `also_read` are files that no value names, and
    `also_written` those, each with the flag to name. Devices and pipes may be written by several.
    """
    check_written([*_written(options), *also_written], _read(options, also_read))


def check_written(written: Iterable[Output], read: Iterable[tuple[str, str]]) -> None:
    """Raise OptionError for files that cannot be written as asked; each that is read comes with a reason such as
    `--trace reads`.

    A file of another kind than the one to be written is never replaced, nor is what a link leads to.
    """
    outputs = list(written)
    if not outputs:
        return
    reasons = {_identity(path): reason for path, reason in read if isfile(path)}
    labels: dict[Hashable, str] = {}
    for path, label, *kind in outputs:
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
        problem = obstacle(path, kind[0]) if kind else None
        if problem is not None:
            raise OptionError(f"{label} would write over {problem}")


def _identity(path: str) -> Hashable:
    """What all names of a file have in common, links of both kinds among them."""
    if not exists(path):
        return realpath(path)
    found = stat(path)
    return found.st_dev, found.st_ino


def _written(options: Any) -> Iterator[Output]:
    for setting in options_of(type(options)):
        value, writes = setting.of(options), setting.option.writes
        for suffix in writes if value else ():
            path = f"{value}{suffix}"
            yield (path, setting.label, writes[suffix]) if isinstance(writes, Mapping) else (path, setting.label)


def _read(options: Any, also_read: tuple[Path, ...]) -> Iterator[tuple[str, str]]:
    for path in also_read:
        yield str(path), "belongs to what is read"
    for setting in options_of(type(options)):
        value = setting.of(options)
        if setting.option.writes or not value:
            continue
        for each in value if isinstance(value, tuple) else (value,):
            if isinstance(each, str):
                yield each, f"{setting.label} reads"
