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


def _files(settings: Mapping[str, Any]) -> Iterator[bytes]:
    """The content of the files that settings name; beside the header of a trace lie its rows."""
    for name in sorted(settings):
        value = settings[name]
        path = Path(value) if isinstance(value, str) and value else None
        for each in (path, path.with_suffix(".csv")) if path is not None and path.name else ():
            try:
                if each.is_file():
                    yield hashlib.sha256(each.read_bytes()).digest()
            except OSError:  # no name of a file, or none that may be read: the point itself will say so
                continue
