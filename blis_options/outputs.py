"""Files that a command would write over what it reads, or over each other."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from blis_options.errors import OptionError
from blis_options.option import options_of


def check_outputs(options: Any, *also_read: Path) -> None:
    """Raise OptionError for a file that is to be written although another setting names it too.

    Every value of another setting that names a file counts as read; `also_read` are files that no value names. Devices
    and pipes may be written by several.
    """
    outputs = list(_written(options))
    if not outputs:
        return
    read = {path.resolve(): name for path, name in _read(options, also_read) if path.is_file()}
    written: dict[Path, str] = {}
    for path, label in outputs:
        whole = path.resolve()
        if path.exists() and not path.is_file():
            continue
        if whole in read:
            raise OptionError(f"{label} would write over {path}, which {read[whole]}")
        if whole in written:
            raise OptionError(f"{written[whole]} and {label} would both write {path}")
        written[whole] = label


def _written(options: Any) -> Iterator[tuple[Path, str]]:
    for setting in options_of(type(options)):
        value = getattr(options, setting.name)
        for suffix in setting.option.writes if value else ():
            yield Path(f"{value}{suffix}"), setting.label


def _read(options: Any, also_read: tuple[Path, ...]) -> Iterator[tuple[Path, str]]:
    for path in also_read:
        yield path, "is read"
    for setting in options_of(type(options)):
        value = getattr(options, setting.name)
        if setting.option.writes or not value:
            continue
        for each in value if isinstance(value, tuple) else (value,):
            if isinstance(each, str) and "\0" not in each:
                yield Path(each), f"{setting.label} reads"
