"""Files of policies, adapters and CPU memory: keys as they are declared, and errors that name file, section and key."""

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
        raise EngineError(error.about(path)) from None


def problem_in(path: Path, within: str, message: str) -> EngineError:
    """The error about a section of a file."""
    return EngineError(f"{path}{' key ' if within else ''}{within}: {message}")


def naming_file(path: Path, error: EngineError) -> EngineError:
    """The error about a part of a file, with the name of the file in front where it is missing."""
    text = str(error)
    return error if text.startswith((f"{path}:", f"{path} key ")) else EngineError(f"{path}: {text}")


def given(content: Mapping[str, Any], **names: str) -> dict[str, Any]:
    """The values of the keys that are there, each under the name that it has here."""
    return {name: content[key] for name, key in names.items() if key in content}
