"""Settings and clock of the server that a recording was made on."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from blis_sim.options.interruptions import ABORT, RESET
from blis_sim.options.option import LATEST_US
from blis_sim.options.yaml_text import Dumper, dump_yaml
from traces.text_file import TraceError, read_yaml, write_text
from traces.trace_v2 import Trace, read_header

# Settings of the server that a recording was made on: in its header, and in a file beside it.
#
# BLIS refuses headers with keys of its own making, so what the header has no key for is in `PREFIX.server.yaml`.

SUFFIX = ".server.yaml"
_TOP, ENGINE = "server_settings", "engine_settings"
OTHERS, SPEED = "other_settings", "speed"
"""Keys for settings that a recording cannot supply to a replay, and for simulated seconds per second."""
INTERRUPTIONS = "interruptions"
"""Key for the interruptions of the engines."""
CLOCK_ORIGIN = "clock_origin_us"
"""Key for the instant at which a simulated server's clock began, in microseconds of the Unix epoch."""
_INTERRUPTION_KINDS = ("none", "admissions", "everything", ABORT, RESET)

SETTINGS: Mapping[str, tuple[type, str]] = {
    "version": (str, ""),
    "model": (str, "model"),
    "hardware": (str, "hardware"),
    "tensor_parallel": (int, "tp"),
    "pipeline_parallel": (int, "pp"),
    "data_parallel": (int, "dp"),
    "enable_expert_parallel": (bool, "enable_expert_parallel"),
    "max_num_seqs": (int, "max_num_seqs"),
    "max_num_batched_tokens": (int, "max_num_batched_tokens"),
    "block_size": (int, "block_size"),
    "num_gpu_blocks": (int, "total_kv_blocks"),
    "gpu_memory_utilization": (float, "gpu_memory_utilization"),
    "max_model_len": (int, "max_model_len"),
    "kv_cache_dtype": (str, "kv_cache_dtype"),
    "quantization": (str, "quantization"),
    "dtype": (str, "dtype"),
    "enable_prefix_caching": (bool, "enable_prefix_caching"),
    "enable_chunked_prefill": (bool, "enable_chunked_prefill"),
    "async_scheduling": (bool, "async_scheduling"),
    "enforce_eager": (bool, "enforce_eager"),
}
"""The type of each setting of a server, and the setting of the simulated engine that it is; empty for none."""

HEADER_NAMES = ("tensor_parallel", "max_num_seqs", "block_size", "gpu_memory_utilization", "max_model_len")
"""Settings that the header of a trace has keys for, besides the model."""


def blocks_of_one_engine(labels: Mapping[str, str], num_engines: int) -> int | None:
    """Return the KV blocks of one engine from the labels of `vllm:cache_config_info`; None where these state none.

    With data-parallel ranks vLLM publishes the sum of their blocks, beside the tokens that one of them holds.
    """
    try:
        blocks = int(labels["num_gpu_blocks"])
    except (KeyError, ValueError):
        return None
    try:
        of_one = int(labels["kv_cache_size_tokens"]) // int(labels["block_size"])
    except (KeyError, ValueError, ZeroDivisionError):
        return blocks
    return of_one if num_engines > 1 and blocks == num_engines * of_one else blocks


def settings_path(header_path: Path) -> Path:
    """Return where the settings beside a recording are."""
    return header_path.with_suffix(SUFFIX)


def write_settings(path: Path, settings: Mapping[str, Any]) -> None:
    """Write settings in the order of `SETTINGS`, then those of a simulated server. Raises TraceError."""
    ordered = {name: settings[name] for name in SETTINGS if name in settings}
    simulated = {
        key: settings[key] for key in (ENGINE, OTHERS, SPEED, INTERRUPTIONS, CLOCK_ORIGIN) if settings.get(key)
    }
    write_text(path, dump_yaml({_TOP: ordered, **simulated}, Dumper))


def plausible_simulation(published: object) -> dict[str, Any]:
    """Return what a simulated server publishes: its engine's settings, those it cannot supply, and its speed.

    Values that no setting can have are left out.
    """
    if not isinstance(published, Mapping):
        return {}
    found: dict[str, Any] = {}
    for key in (ENGINE, OTHERS):
        given = published.get(key)
        if isinstance(given, Mapping):
            found[key] = {name: each for name, each in given.items() if isinstance(name, str) and _is_of_engine(each)}
    if _is_speed(speed := published.get(SPEED)) and speed != 1:
        found[SPEED] = speed
    interruptions = published.get(INTERRUPTIONS)
    if isinstance(interruptions, list) and interruptions and all(map(_is_interruption, interruptions)):
        found[INTERRUPTIONS] = interruptions
    if _is_instant(origin_us := published.get(CLOCK_ORIGIN)):
        found[CLOCK_ORIGIN] = origin_us
    return found


def _is_instant(value: object) -> bool:
    return type(value) is int and 0 < value < LATEST_US


def _is_interruption(value: object) -> bool:
    """Return whether a value has an instant in microseconds of the Unix epoch and what happened then."""
    if not isinstance(value, list) or len(value) != 2:
        return False
    at_us, kind = value
    return _is_instant(at_us) and kind in _INTERRUPTION_KINDS


def _is_speed(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < math.inf


def _is_of_engine(value: object) -> bool:
    """Return whether a value is one of a setting: text, a number, a switch, or a list of texts and numbers."""
    if isinstance(value, list):
        return all(isinstance(each, str | int | float) for each in value)
    return isinstance(value, str | int | float)


def _read_engine(path: Path, key: str = ENGINE) -> dict[str, Any]:
    """Return the settings of a simulated engine in a file beside a recording. Raises TraceError."""
    loaded = read_yaml(path)
    content = loaded.get(key, {}) if isinstance(loaded, dict) else {}
    for name, value in content.items() if isinstance(content, dict) else [("", content)]:
        if not name or not _is_of_engine(value):
            raise TraceError(f"{path} key {key}.{name}: expected the value of a setting, got {value!r:.60}")
    return content


def served_name(header_path: Path, model: str) -> str:
    """Return the name that clients of a recorded server used for its model, if that is `model`; else nothing.

    Raises TraceError.
    """
    header, beside = read_header(header_path), settings_path(header_path)
    named = str(header.server.get("model", ""))
    root = read_settings_file(beside).get("model") if header.mode == "real" and beside.is_file() else None
    return named if root is not None and str(root).lower() == model.lower() else ""


def other_settings(header_path: Path) -> dict[str, str]:
    """Return the settings of a simulated server that its recording does not have, with what is known of each.

    Raises TraceError.
    """
    beside = settings_path(header_path)
    found = _read_engine(beside, OTHERS) if beside.is_file() else {}
    return {name: str(value) for name, value in found.items()}


def _beside(header_path: Path, key: str, default: Any) -> tuple[Path, Any]:
    """Return the file beside a recording and its entry of a key. Raises TraceError."""
    beside = settings_path(header_path)
    loaded = read_yaml(beside) if beside.is_file() else {}
    return beside, loaded.get(key, default) if isinstance(loaded, dict) else default


def interruptions_of(header_path: Path) -> list[tuple[int, str]]:
    """Return when the engines of a recorded server were paused, resumed or emptied, on the clock of send times.

    Raises TraceError.
    """
    beside, found = _beside(header_path, INTERRUPTIONS, [])
    if not isinstance(found, list) or not all(map(_is_interruption, found)):
        kinds = ", ".join(_INTERRUPTION_KINDS)
        raise TraceError(f"{beside} key {INTERRUPTIONS}: expected pairs of microseconds and {kinds}, got {found!r:.60}")
    speed = speed_of(header_path)
    return [(round(at_us * speed), kind) for at_us, kind in found]


def clock_origin_of(header_path: Path) -> int | None:
    """Return the instant 0 of a recorded simulated server, on the clock of send times; None where it is not known.

    Raises TraceError.
    """
    beside, origin_us = _beside(header_path, CLOCK_ORIGIN, None)
    if origin_us is None:
        return None
    if not _is_instant(origin_us):
        raise TraceError(f"{beside} key {CLOCK_ORIGIN}: expected microseconds of the Unix epoch, got {origin_us!r:.60}")
    return round(int(origin_us) * speed_of(header_path))


def speed_of(header_path: Path) -> float:
    """Return how many simulated seconds passed on the recorded server in a second. Raises TraceError."""
    beside, speed = _beside(header_path, SPEED, 1.0)
    if not _is_speed(speed):
        raise TraceError(f"{beside} key {SPEED}: expected a number above 0, got {speed!r:.60}")
    return float(speed)


def read_settings_file(path: Path) -> dict[str, Any]:
    """Return the settings of a file, below `server_settings` or at the top. Raises TraceError."""
    loaded = read_yaml(path)
    content = loaded.get(_TOP, loaded) if isinstance(loaded, dict) else loaded
    if not isinstance(content, dict):
        raise TraceError(f"{path}: expected settings of a server such as `max_num_seqs: 256`, got {content!r:.60}")
    for name, value in content.items():
        if name not in SETTINGS:
            raise TraceError(f"{path}: unknown setting {name!r}, known are {', '.join(SETTINGS)}")
        if not _is_of(SETTINGS[name][0], value):
            raise TraceError(f"{path} key {name}: expected {_WORDS[SETTINGS[name][0]]}, got {value!r:.60}")
    return content


_WORDS = {str: "text", int: "a whole number above 0", float: "a number above 0", bool: "true or false"}


def _is_of(kind: type, value: object) -> bool:
    if kind in (str, bool) or isinstance(value, bool):
        return type(value) is kind
    return isinstance(value, int if kind is int else int | float) and value > 0


def plausible(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the known settings whose values are of their types, in the order of `SETTINGS`."""
    return {name: settings[name] for name, (kind, _) in SETTINGS.items() if _is_of(kind, settings.get(name))}


def engine_settings(header_path: Path) -> dict[str, Any]:
    """Return the settings of the simulated engine for a recording of a real server, by their names. Raises TraceError.

    Those of the file beside it win over those of its header.
    """
    return {name: value for name, (value, _) in located_settings(header_path).items()}


def located_settings(header_path: Path) -> dict[str, tuple[Any, str]]:
    """Return `engine_settings`, each with its file and key. Raises TraceError."""
    header = read_header(header_path)
    if header.mode != "real":
        return {}
    beside = settings_path(header_path)
    in_header = {name: (value, f"{header_path} key server.{name}") for name, value in plausible(header.server).items()}
    own = read_settings_file(beside) if beside.is_file() else {}
    found = {**in_header, **{name: (value, f"{beside} key {name}") for name, value in own.items()}}
    of_engine = _read_engine(beside) if beside.is_file() else {}
    known = {SETTINGS[name][1]: each for name, each in found.items() if SETTINGS[name][1]}
    return {**known, **{name: (value, f"{beside} key {ENGINE}.{name}") for name, value in of_engine.items()}}


# Recordings of a simulated server whose time passes faster or slower than the client's, as that server saw them.

_TIMES = (
    *("deadline_us", "arrival_time_us", "send_time_us", "first_chunk_time_us", "last_chunk_time_us"),
    *("think_time_us", "first_event_time_us"),
)


def in_server_time(trace: Trace) -> Trace:
    """Return a recording with all times in those of its server, which `blis serve --speed` stretches.

    Raises TraceError for a speed that is none.
    """
    speed = speed_of(trace.header_path)
    if speed == 1:
        return trace
    rtt_ms = trace.header.measured_rtt_ms
    header = trace.header if rtt_ms is None else replace(trace.header, measured_rtt_ms=rtt_ms * speed)
    # Instants in the time of a server. Those that differ still do, as some schedulers take the latest first.
    instants_us = [row.send_time_us for row in trace.rows]
    sent = [round(each * speed) for each in instants_us]
    for before, after in pairwise(sorted(range(len(sent)), key=instants_us.__getitem__)):
        sent[after] = max(sent[after], sent[before] + (instants_us[after] > instants_us[before]))
    scaled = [{name: round(getattr(row, name) * speed) for name in _TIMES} for row in trace.rows]
    rows = [
        replace(row, **{**times, "send_time_us": sent_us})
        for row, times, sent_us in zip(trace.rows, scaled, sent, strict=True)
    ]
    return trace._replace(header=header, rows=rows)


def chunks_in_server_time(chunks: Mapping[int, Sequence[int]], trace: Trace) -> Mapping[int, Sequence[int]]:
    """Return the chunk times of a recording in the time of its server. Raises TraceError."""
    speed = speed_of(trace.header_path)
    if speed == 1:
        return chunks
    return {request_id: [round(each * speed) for each in times] for request_id, times in chunks.items()}
