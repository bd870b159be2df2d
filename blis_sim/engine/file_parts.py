"""Files of policies, adapters and CPU memory: keys as they are declared, and errors that name file, section and key."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from blis_sim.engine.errors import EngineError
from blis_sim.options.file_fields import FieldError, read


def read_part(path: Path, kind: type, content: Any, within: str = "") -> Any:
    """The values of a mapping of a file, with the keys that a TypedDict declares. Raises EngineError.

    `within` are the keys that lead to it.
    """
    try:
        return read(kind, content, within)
    except FieldError as error:
        raise problem_in(path, error.within, _in_words(error)) from None


def problem_in(path: Path, within: str, message: str) -> EngineError:
    """The error about a section of a file."""
    return EngineError(f"{path}: {within + ': ' if within else ''}{message}")


def _in_words(error: FieldError) -> str:
    if error.known:
        return f"unknown key {error.key!r}, known are {', '.join(error.known)}"
    if error.problem:
        return f"{error.key}: {error.problem}"
    if error.loaded is None:
        return f"{error.key} must be given a value"
    return f"{error.key} must be {_allowed_values(error)}, got {error.loaded!r}"


def _allowed_values(error: FieldError) -> str:
    bounds, value = error.bounds, error.loaded
    if error.kind is None:
        return "a list of mappings" if error.expected == "a list" else "a mapping of names to values"
    if bounds.choices:
        return f"one of {', '.join(filter(None, bounds.choices))}"
    if error.kind is not float:
        return error.expected
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < math.inf:
        return error.noun
    return bounds.broken_by(value) or error.expected


def given(content: Mapping[str, Any], **names: str) -> dict[str, Any]:
    """The values of the keys that are there, each under the name that it has here."""
    return {name: content[key] for name, key in names.items() if key in content}
