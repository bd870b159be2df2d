"""What tells a point from all others: a short name made of everything that decides its figures."""

import hashlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

_DIGITS = 16


def digest_of(command: str, settings: Mapping[str, Any]) -> str:
    """A hexadecimal name of these settings and of what is in the files they name."""
    described = json.dumps([command, sorted(settings.items())], default=list)
    found = hashlib.sha256(described.encode())
    for content in _files(settings):
        found.update(content)
    return found.hexdigest()[:_DIGITS]


def with_whole_paths(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The same settings with the files they name by their whole paths, for a process that works in another folder."""
    return {name: str(Path(value).absolute()) if _is_path(value) else value for name, value in settings.items()}


def _is_path(value: Any) -> bool:
    if not isinstance(value, str) or not value:
        return False
    try:
        path = Path(value)
        return path.is_file() or ("/" in value and path.is_dir())
    except (OSError, ValueError):  # no name of a file
        return False


def _files(settings: Mapping[str, Any]) -> Iterator[bytes]:
    """The content of the files that settings name; beside the header of a trace lie its rows."""
    for name in sorted(settings):
        value = settings[name]
        if not _is_path(value):
            continue
        for each in (Path(value), Path(value).with_suffix(".csv")):
            try:
                if each.is_file():
                    yield hashlib.sha256(each.read_bytes()).digest()
            except OSError:  # one that may not be read: the point itself will say so
                continue
