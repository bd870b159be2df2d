"""Reads one JSON or YAML file into a mapping, or raises an error of one line."""

import json
from pathlib import Path
from typing import Any

from blis_sim.engine.errors import EngineError
from blis_sim.options.files import read_text

YAML_SUFFIXES = (".yaml", ".yml")


def read_mapping(path: Path) -> dict[str, Any]:
    """The mapping at the top level of a YAML file (by its suffix) or a JSON file.

    Raises EngineError with the path, and the line where parsing failed.
    """
    try:
        text = read_text(path, "utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "not UTF-8 text"
        raise EngineError(f"{path}: cannot be read: {reason}") from None
    value = _parse_yaml(path, text) if path.suffix in YAML_SUFFIXES else _parse_json(path, text)
    if not isinstance(value, dict):
        raise EngineError(f"{path}: must be a mapping of names to values, got {type(value).__name__}")
    return value


def config_path(path: Path) -> Path | None:
    """The model config that `path` names, or contains as `config.json`; None when there is none."""
    try:
        if path.is_dir():
            path = path / "config.json"
        return path if path.is_file() and path.suffix in (".json", *YAML_SUFFIXES) else None
    except OSError:  # no name of a file
        return None


def _parse_json(path: Path, text: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise EngineError(f"{path}: line {error.lineno} is not valid JSON: {error.msg}") from None
    except (ValueError, RecursionError) as error:  # a number of thousands of digits, thousands of brackets
        raise EngineError(f"{path}: it is not valid JSON: {error}") from None


def _parse_yaml(path: Path, text: str) -> Any:
    from blis_sim.options.yaml_text import YamlError, load_yaml  # which few deployments need

    try:
        return load_yaml(text)
    except YamlError as error:
        place = "it is" if error.line is None else f"line {error.line} is"
        raise EngineError(f"{path}: {place} not valid YAML: {error.problem}") from None
