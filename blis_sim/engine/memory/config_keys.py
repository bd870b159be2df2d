"""Typed access to the keys of a Hugging Face `config.json`."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from blis_sim.engine.errors import EngineError

_MOST = 10**9
_SHOWN_CHARACTERS = 60


@dataclass(frozen=True, slots=True)
class ConfigKeys:
    """The keys of one object of a `config.json`. Every error names the model and the key.

    A key whose value is null counts as missing.
    """

    model: str
    keys: Mapping[str, Any]

    def has(self, key: str) -> bool:
        """Return whether `key` is present with a value other than null."""
        return self.keys.get(key) is not None

    def count(self, *names: str, default: int | None = None) -> int:
        """Return the whole number under the first of `names` that is present, else `default`.

        Raises EngineError for a value that is no whole number from 0 to 1e9, and without a default for a missing key.
        """
        for name in names:
            value = self.keys.get(name)
            if value is None:
                continue
            is_number = isinstance(value, int | float) and not isinstance(value, bool)
            if not is_number or not 0 <= value <= _MOST or value != int(value):
                raise EngineError(f"{self.model}: {name} must be a whole number from 0 to {_MOST}, got {_shown(value)}")
            return int(value)
        if default is None:
            raise EngineError(f"{self.model}: {names[0]} must be a number of at least 1, got no such key")
        return default

    def positive(self, *names: str) -> int:
        """Return the whole number under the first of `names` that is present; EngineError for 0 or no such key."""
        value = self.count(*names)
        if value < 1:
            raise EngineError(f"{self.model}: {names[0]} must be a number of at least 1, got {value}")
        return value

    def flag(self, key: str, default: bool = False) -> bool:
        """Return the boolean under `key`."""
        value = self.keys.get(key)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise EngineError(f"{self.model}: {key} must be true or false, got {_shown(value)}")
        return value

    def text(self, key: str, default: str = "") -> str:
        """Return the string under `key`."""
        value = self.keys.get(key)
        if value is None:
            return default
        if not isinstance(value, str):
            raise EngineError(f"{self.model}: {key} must be a string, got {_shown(value)}")
        return value

    def items(self, key: str) -> list[Any]:
        """Return the list under `key`, empty when it is missing."""
        value = self.keys.get(key)
        if value is None:
            return []
        if not isinstance(value, list):
            raise EngineError(f"{self.model}: {key} must be a list, got {_shown(value)}")
        return value

    def per_layer(self, key: str, num_layers: int) -> list[Any]:
        """Return the list under `key`, empty when it is missing; EngineError for a list with fewer than all layers."""
        values = self.items(key)
        if values and len(values) < num_layers:
            raise EngineError(
                f"{self.model}: {key} must have an entry for each of {num_layers} layers, got {len(values)}"
            )
        return values

    def object(self, key: str) -> "ConfigKeys":
        """Return the keys of the object under `key`, none when it is missing."""
        value = self.keys.get(key)
        if value is not None and not isinstance(value, Mapping):
            raise EngineError(f"{self.model}: {key} must be an object, got {_shown(value)}")
        return ConfigKeys(f"{self.model}: {key}", value or {})


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN_CHARACTERS else text[: _SHOWN_CHARACTERS - 3] + "..."
