"""Settings of the server that a recording was made on: in its header, and in a file beside it.

BLIS refuses headers with keys of its own making, so what the header has no key for is in `PREFIX.server.yaml`.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from blis_sim.options.yaml_text import Dumper, dump_yaml
from traces.header import read_header
from traces.text_file import TraceError, read_yaml, write_text

SUFFIX = ".server.yaml"
_TOP = "server_settings"

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
    """Write settings in the order of `SETTINGS`. Raises TraceError."""
    ordered = {name: settings[name] for name in SETTINGS if name in settings}
    write_text(path, dump_yaml({_TOP: ordered}, Dumper))


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
    return {SETTINGS[name][1]: each for name, each in found.items() if SETTINGS[name][1]}
