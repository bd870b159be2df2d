"""config.json: the settings of a run, nested as they are in the program."""

from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from enum import Enum
from pathlib import Path
from typing import Any

import orjson

from replay.report_options import METRICS_CONFIG
from traces.text_file import write_content


def plain(value: Any) -> Any:
    """Return settings as values that JSON has: dataclasses become objects, other types their text."""
    if value is None or isinstance(value, bool | int | float | str):
        return value.value if isinstance(value, Enum) else value
    if is_dataclass(value) and not isinstance(value, type):
        return {each.name: plain(getattr(value, each.name)) for each in fields(value)}
    if isinstance(value, Mapping):
        return {str(key): plain(each) for key, each in value.items()}
    if isinstance(value, Sequence | set | frozenset):
        return [plain(each) for each in value]
    return str(value)


def write_config(folder: Path, config: Mapping[str, Any]) -> None:
    """Write config.json into a folder. Raises TraceError."""
    write_content(folder / METRICS_CONFIG, orjson.dumps(plain(config), option=orjson.OPT_INDENT_2) + b"\n")
