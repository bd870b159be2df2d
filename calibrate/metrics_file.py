"""Figures out of JSON files of other commands: one object, of which a few numbers are wanted."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from calibrate.errors import CalibrateError
from traces.text_file import read_json


@dataclass(frozen=True, slots=True)
class MetricsFile:
    """The object of a file."""

    path: Path
    values: Mapping[str, Any]

    def has(self, key: str) -> bool:
        """Whether the object says anything under a key."""
        return self.values.get(key) is not None

    def number(self, key: str) -> float:
        """The number under a key, `a.b` for the key b of the object a. Raises CalibrateError."""
        value: Any = self.values
        for part in key.split("."):
            value = value.get(part) if isinstance(value, Mapping) else None
        if isinstance(value, bool) or not isinstance(value, int | float):
            found = "but the key is missing" if value is None else f"got {value!r}"
            raise CalibrateError(f"{self.path} key {key}: expected a number, {found}")
        return value


def read_metrics(path: Path) -> MetricsFile:
    """Read a JSON object. Raises TraceError when it is no JSON, CalibrateError when it is no object."""
    values = read_json(path)
    if not isinstance(values, Mapping):
        raise CalibrateError(f"{path}: expected a JSON object, got {type(values).__name__}")
    return MetricsFile(path, values)
