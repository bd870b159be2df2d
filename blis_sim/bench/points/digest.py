"""What tells a point from all others: a short name made of everything that decides its figures."""

import hashlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from blis_sim.bench.points.commands import RECORDINGS

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
    """The content of the files that settings name."""
    for name in sorted(settings):
        if isinstance(settings[name], str) and settings[name]:
            for path in _named(name, Path(settings[name])):
                try:
                    if path.is_file():
                        yield hashlib.sha256(path.read_bytes()).digest()
                except (OSError, ValueError):  # no name of a file, or one that may not be read: the point will say so
                    continue


def _named(setting: str, path: Path) -> Iterator[Path]:
    """The files that are read for a setting: a model may be a folder, and rows lie beside the header of a trace."""
    yield path
    yield path / "config.json"
    if setting in RECORDINGS and path.name:
        yield path.with_suffix(".csv")
        yield path.with_suffix(".csv.gz")
