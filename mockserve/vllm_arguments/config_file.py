"""`--config FILE`: flags from a YAML file. They come before those of the command line, so the command line wins."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from blis_sim.options import OptionError
from blis_sim.options.yaml_text import load_yaml

FLAG = "--config"


def without_config_file(arguments: list[str], opposites: Mapping[str, str]) -> list[str]:
    """`arguments` with what the file of `--config` says in front, its model only if none is given otherwise.

    `opposites` maps a switch to the spelling that turns it off. Raises OptionError for a file that cannot be used.
    """
    positions = [index for index, each in enumerate(arguments) if each.partition("=")[0] == FLAG]
    if not positions:
        return arguments
    if len(positions) > 1:
        raise OptionError("--config may be given once, got it more often")
    index = positions[0]
    _, has_value, path = arguments[index].partition("=")
    used = 1 if has_value else 2
    if not has_value:
        if index + 1 == len(arguments):
            raise OptionError("--config must name a YAML file, got nothing")
        path = arguments[index + 1]
    rest = arguments[:index] + arguments[index + used :]
    settings = _read(path)
    names_model = bool(rest) and not rest[0].startswith("-")
    if names_model:
        settings = {key: value for key, value in settings.items() if key not in ("model", "model_tag")}
    from_file = [each for key, value in settings.items() for each in _as_arguments(f"--{key}", value, opposites)]
    # A list would swallow what follows it, so the model stays in front.
    return [*rest[:names_model], *from_file, *rest[names_model:]]


def _read(path: str) -> dict[str, Any]:
    if Path(path).suffix not in (".yaml", ".yml"):
        raise OptionError(f"--config must name a file that ends in .yaml or .yml, got {path!r}")
    try:
        settings = load_yaml(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise OptionError(f"--config {path} cannot be read: {reason}") from error
    if settings is None:
        return {}
    if not isinstance(settings, dict) or not all(isinstance(key, str) for key in settings):
        raise OptionError(f"--config {path} must map names of flags to values, got {type(settings).__name__}")
    return settings


def _as_arguments(flag: str, value: Any, opposites: Mapping[str, str]) -> list[str]:
    if isinstance(value, bool):
        if value:
            return [flag]
        opposite = opposites.get(flag.replace("_", "-"))
        return [opposite] if opposite else []
    if isinstance(value, list):
        return [flag, *map(str, value)] if value else []
    if isinstance(value, dict):
        return [flag, json.dumps(value)]
    return [flag, str(value)]
