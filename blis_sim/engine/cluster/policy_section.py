"""One mapping of a policy file, and what its values must be."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from blis_sim.engine.errors import EngineError


@dataclass(frozen=True, slots=True)
class Section:
    """A section of the file; its methods read values and check them. Raises EngineError that names the file and the
    key."""

    path: Path
    name: str
    content: Mapping[str, Any]

    def demand_known(self, *keys: str) -> None:
        for key in self.content:
            if key not in keys:
                raise self.error(f"unknown key {key!r}, known are {', '.join(keys)}")

    def section(self, key: str) -> "Section":
        value = self.content.get(key)
        if value is None:
            value = {}
        if not isinstance(value, Mapping) or not all(isinstance(name, str) for name in value):
            raise self.error(f"{key} must be a mapping of names to values, got {value!r}")
        return Section(self.path, self._label(key), value)

    def sections(self, key: str) -> "list[Section]":
        value = self.content.get(key)
        if value is None:
            return []
        if not isinstance(value, Sequence) or not all(isinstance(each, Mapping) for each in value):
            raise self.error(f"{key} must be a list of mappings, got {value!r}")
        return [Section(self.path, f"{self._label(key)}[{number}]", each) for number, each in enumerate(value)]

    def choice(self, key: str, choices: Mapping[str, object]) -> str | None:
        value = self.content.get(key)
        if value is not None and (not isinstance(value, str) or value not in choices):
            raise self.error(f"{key} must be one of {', '.join(choices)}, got {value!r}")
        return value

    def text(self, key: str) -> str | None:
        value = self.content.get(key)
        if value is not None and not isinstance(value, str):
            raise self.error(f"{key} must be text, got {value!r}")
        return value

    def switch(self, key: str) -> bool | None:
        value = self.content.get(key)
        if value is not None and not isinstance(value, bool):
            raise self.error(f"{key} must be true or false, got {value!r}")
        return value

    def whole(self, key: str, at_least: int, at_most: int | None) -> int | None:
        value = self.content.get(key)
        if value is None:
            return None
        bounds = f"of at least {at_least}" if at_most is None else f"between {at_least} and {at_most}"
        is_whole = isinstance(value, int) and not isinstance(value, bool)
        if not is_whole or value < at_least or (at_most is not None and value > at_most):
            raise self.error(f"{key} must be a whole number {bounds}, got {value!r}")
        return int(value)

    def number(
        self, key: str, above: float | None = None, at_least: float | None = None, at_most: float | None = None
    ) -> float | None:
        value = self.content.get(key)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int | float) or not _fits_float(value):
            raise self.error(f"{key} must be a number, got {value!r}")
        if above is not None and value <= above:
            raise self.error(f"{key} must be above {above:g}, got {value}")
        if at_least is not None and value < at_least:
            raise self.error(f"{key} must be at least {at_least:g}, got {value}")
        if at_most is not None and value > at_most:
            raise self.error(f"{key} must be at most {at_most:g}, got {value}")
        return float(value)

    def _label(self, key: str) -> str:
        return f"{self.name}.{key}" if self.name else key

    def error(self, message: str) -> EngineError:
        return EngineError(f"{self.path}: {self.name + ': ' if self.name else ''}{message}")


def _fits_float(value: float) -> bool:
    """Whether a number is finite, as one with hundreds of digits is not when it is computed with."""
    try:
        return math.isfinite(value)
    except OverflowError:
        return False
