"""Flags that a command line leaves out, taken from the settings of the server that a recording was made on."""

import re
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from blis_sim.options import options_of
from blis_sim.options.command_line import read_command_line
from traces.errors import TraceError
from traces.header import read_header
from traces.server_settings import engine_settings, located_settings

_ALSO_SET_BY = {
    "total_kv_blocks": ("kv_cache_memory_bytes", "gpu_memory_utilization", "tp", "hardware", "quantization"),
    "gpu_memory_utilization": ("total_kv_blocks", "kv_cache_memory_bytes"),
    "max_model_len": ("model",),
}
"""Settings of a recording that other flags make pointless: blocks that were counted hold for that memory alone."""


def taken_settings(options_class: type, given: Mapping[str, Any], header_path: Path) -> dict[str, Any]:
    """Return the settings that a recording adds to given ones, by name. Raises TraceError.

    BLIS's engine takes none: BLIS does not read them. Another model or GPU than that of the recording takes none of the
    settings that follow from these.
    """
    if given.get("engine") == "blis" or given.get("ignore_server_settings"):
        return {}
    known = {setting.name for setting in options_of(options_class)}
    found = {name: value for name, value in engine_settings(header_path).items() if name in known}
    is_other_model = "model" in given and _short(given["model"]) != _short(str(found.get("model", given["model"])))
    return {
        name: value
        for name, value in found.items()
        if name not in given
        and not any(each in given for each in _ALSO_SET_BY.get(name, ()) if each != "model")
        and not (is_other_model and name in ("max_model_len", "total_kv_blocks", "tp"))
    }


def _short(model: str) -> str:
    """Return the name of a model without its organisation and case."""
    return model.rstrip("/").rpartition("/")[2].lower()


def with_server_settings(program: str, options_class: type, arguments: Sequence[str]) -> list[str]:
    """Return a command line with flags for the settings of a recording that it names; one line says which."""
    header, taken = _taken_by(options_class, arguments)
    if header is None or not taken:
        return list(arguments)
    flags = {setting.name: setting for setting in options_of(options_class)}
    added, said = [], []
    for name, value in taken.items():
        flag = flags[name].flags[0] if value is not False else flags[name].spellings[-1]
        added += [flag] if isinstance(value, bool) else [flag, str(value)]
        said.append(flag if isinstance(value, bool) else f"{flag} {value}")
    with suppress(OSError):
        sys.stderr.write(f"{program}: from the server of {header}: {' '.join(said)} (flags win over these)\n")
    return [*added, *arguments]


def place_of_fault(options_class: type, arguments: Sequence[str], message: str) -> str | None:
    """The file and key of the setting taken from a recording that an error message is about, or None."""
    header, taken = _taken_by(options_class, arguments)
    flags = {setting.name: setting.spellings for setting in options_of(options_class)}
    for name, value in taken.items():
        if header is not None and _is_about(message, flags[name], value):
            return located_settings(header)[name][1]
    return None


def _taken_by(options_class: type, arguments: Sequence[str]) -> tuple[Path | None, dict[str, Any]]:
    """Return the header of the recording that a command line names, with the settings to take from it."""
    read = read_command_line(options_class, arguments)
    given = read.values
    first = given.get("trace_header") or given.get("trace") or next(iter(given.get("traces", ())), None)
    if read.asks_for_help or not first:
        return None, {}
    header = Path(first)
    if not header.exists() and "model" not in given:  # else a flag that it would have set would be missed first
        raise TraceError(f"{first}: no such file")
    if not header.is_file():
        return None, {}
    try:
        read_header(header)
    except TraceError:
        if "model" not in given:
            raise
        return None, {}  # the command refuses the recording when it has checked what it would write over
    return header, taken_settings(options_class, given, header)


def _is_about(message: str, spellings: Sequence[str], value: object) -> bool:
    if isinstance(value, str) and repr(value) in message:
        return True
    words = "|".join(re.escape(each.lstrip("-")) for each in spellings)
    if re.search(rf"(?<![\w-])(--?)?({words})(?![\w-])", message) is None:
        return False
    if isinstance(value, bool | str):
        return isinstance(value, bool) or value in message
    return any(float(each) == value for each in re.findall(r"(?<![\w.])\d+(?:\.\d+)?(?!\w)", message))
