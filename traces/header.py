"""The header of a trace: where it comes from and what of that matters later. YAML, read strictly."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from blis_sim.options.yaml_text import Dumper, dump_yaml
from traces.slo import SloTargets
from traces.table import INT64_MAX
from traces.text_file import TraceError, naming_write_errors, open_for_writing, read_yaml, write_text


class Key(NamedTuple):
    """The type of a key's value: a `kind` (str, int, float, bool) with its limits, or a table of further keys.

    With `each` the value is a mapping from free names (dict) or a list (list) of such values.
    """

    kind: type = str
    at_least: int | None = None
    at_most: int = INT64_MAX
    choices: tuple[str, ...] = ()
    keys: Mapping[str, "Key"] | None = None
    each: type | None = None


_COUNT = Key(int, at_least=0)
_AMOUNT = Key(float, at_least=0)
_FLAG = Key(bool)
_TEXT = Key(str)

_TIER = {
    "type": _TEXT,
    "root_dir": _TEXT,
    "n_read_threads": _COUNT,
    "n_write_threads": _COUNT,
    "locality": _TEXT,
    "enable_kv_events": _FLAG,
    "direct_io": _FLAG,
    "device_class": _TEXT,
    "read_bandwidth": _AMOUNT,
    "write_bandwidth": _AMOUNT,
    "base_latency": _AMOUNT,
    "saturation_queue_depth": _AMOUNT,
    "single_transfer_fraction": _AMOUNT,
    "latency_jitter_stddev": _AMOUNT,
}
_KV_OFFLOAD = {
    "cpu_bytes_to_use": _COUNT,
    "per_block_bytes": _COUNT,
    "block_size": _COUNT,
    "blocks_per_chunk": _COUNT,
    "tokens_per_hash": _COUNT,
    "eviction_policy": _TEXT,
    "offload_prompt_only": _FLAG,
    "self_describing_kv_events": _FLAG,
    "secondary_tiers": Key(keys=_TIER, each=list),
}
_SERVER = {
    "type": _TEXT,
    "model": _TEXT,
    "tensor_parallel": _COUNT,
    "max_num_seqs": _COUNT,
    "block_size": _COUNT,
    "gpu_memory_utilization": _AMOUNT,
    "max_model_len": _COUNT,
}
_OBSERVED_KV_METRICS = {
    "source": _TEXT,
    "hit_rate": _AMOUNT,
    "block_hits": _AMOUNT,
    "block_queries": _AMOUNT,
    "read_time_total": _AMOUNT,
    "write_time_total": _AMOUNT,
    "vllm_commit": _TEXT,
}
_SLO_TARGETS = {"ttft_ms": _AMOUNT, "itl_ms": _AMOUNT, "e2e_ms": _AMOUNT}

HEADER: Mapping[str, Key] = {
    "trace_version": Key(int, at_least=1, at_most=3),
    "time_unit": Key(str, choices=("us", "microseconds", "")),
    "created_at": _TEXT,
    "mode": Key(str, choices=("real", "generated", "replayed", "")),
    "warm_up_requests": _COUNT,
    "workload_seed": Key(int),
    "workload_spec": _TEXT,
    "session_context_growth": Key(str, choices=("", "accumulate")),
    "server": Key(keys=_SERVER),
    "network": Key(keys={"measured_rtt_ms": _AMOUNT}),
    "goodput_slo_targets": Key(keys=_SLO_TARGETS, each=dict),
    "kv_offload": Key(keys=_KV_OFFLOAD),
    "observed_kv_metrics": Key(keys=_OBSERVED_KV_METRICS),
}


def checked(path: Path, where: str, values: Any, keys: Mapping[str, Key]) -> dict[str, Any]:
    """The mapping `values` of a file with every value of its kind; keys without a value are left out.

    `where` is the path of keys that leads here, for the errors. Raises TraceError.
    """
    if not isinstance(values, Mapping):
        raise _value_error(path, where, "keys and values", values)
    result: dict[str, Any] = {}
    for name, value in values.items():
        if name not in keys:
            inside = f" of {where}" if where else ""
            raise TraceError(f"{path}: unknown key {name!r}{inside}, known are {', '.join(keys)}")
        if value is not None:
            result[name] = _value(path, f"{where}.{name}" if where else name, value, keys[name])
    return result


def _value(path: Path, where: str, value: Any, key: Key) -> Any:
    if key.each is dict:
        if not isinstance(value, Mapping):
            raise _value_error(path, where, "names with keys and values", value)
        inner = Key(keys=key.keys)
        return {str(name): _value(path, f"{where}.{name}", each, inner) for name, each in value.items()}
    if key.each is list:
        if not isinstance(value, list):
            raise _value_error(path, where, "a list", value)
        inner = Key(keys=key.keys)
        return [_value(path, f"{where}[{place}]", each, inner) for place, each in enumerate(value)]
    if key.keys is not None:
        return checked(path, where, {} if value is None else value, key.keys)
    return _scalar(path, where, value, key)


def _scalar(path: Path, where: str, value: Any, key: Key) -> Any:
    if key.kind is int and isinstance(value, float) and value.is_integer():
        value = int(value)
    if key.kind is float and isinstance(value, int) and not isinstance(value, bool):
        value = float(value)
    if type(value) is not key.kind:
        plain = _NOUNS[key.kind] if key.at_most < INT64_MAX else _expected(key._replace(choices=()))
        raise _value_error(path, where, plain, value)
    if key.choices and value not in key.choices:
        raise _value_error(path, where, _expected(key), value)
    low = -INT64_MAX if key.at_least is None else key.at_least
    if isinstance(value, int | float) and not low <= value <= key.at_most:
        raise _value_error(path, where, _expected(key), value)
    return value


_NOUNS: Mapping[type, str] = {str: "text", bool: "true or false", int: "a whole number", float: "a number"}


def _expected(key: Key) -> str:
    if key.choices:
        return " or ".join(repr(choice) for choice in key.choices)
    noun = _NOUNS[key.kind]
    if key.at_least is not None and key.at_most < INT64_MAX:
        return f"{noun} between {key.at_least} and {key.at_most}"
    return noun if key.at_least is None else f"{noun} of at least {key.at_least}"


def _value_error(path: Path, where: str, expected: str, value: Any) -> TraceError:
    shown = repr(value)
    return TraceError(
        f"{path} key {where}: expected {expected}, got {shown if len(shown) <= 60 else shown[:57] + '...'}"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceHeader:
    """Facts about a trace as a whole. `measured_rtt_ms` is `network.measured_rtt_ms` of the file.

    `mode` is real (recorded), generated or replayed. `server`, `kv_offload` and `observed_kv_metrics` are as
    written.
    """

    trace_version: int = 3
    time_unit: str = "microseconds"
    created_at: str = ""
    mode: str = "generated"
    warm_up_requests: int = 0
    workload_seed: int | None = None
    workload_spec: str = ""
    session_context_growth: str = ""
    server: Mapping[str, Any] = field(default_factory=dict)
    measured_rtt_ms: float | None = None
    goodput_slo_targets: Mapping[str, SloTargets] = field(default_factory=dict)
    kv_offload: Mapping[str, Any] | None = None
    observed_kv_metrics: Mapping[str, Any] | None = None


def read_header(path: Path | str) -> TraceHeader:
    """Read a header. Raises TraceError for what is not YAML, an unknown key or a value of the wrong kind.

    A file needs only one key; a missing mode or version stays empty (`""`, 0).
    """
    path = Path(path)
    loaded = read_yaml(path)
    if loaded is None:
        raise TraceError(f"{path}: the file is empty, expected a trace header such as `trace_version: 3`")
    if not isinstance(loaded, dict):
        raise TraceError(f"{path}: expected a trace header (YAML keys and values), got {_start_of(loaded)}")
    values = checked(path, "", loaded, HEADER)
    network = values.pop("network", {})
    targets = values.pop("goodput_slo_targets", {})
    given: dict[str, Any] = {"trace_version": 0, "time_unit": "", "mode": ""} | values
    return TraceHeader(
        measured_rtt_ms=network.get("measured_rtt_ms"),
        goodput_slo_targets={name: SloTargets(**limits) for name, limits in targets.items()},
        **given,
    )


def write_header(path: Path | str, header: TraceHeader, *, in_place: bool = False) -> None:
    """Write a header, keys in the order of the format, what is empty left out. Raises TraceError.

    With `in_place` the file stays the one that is there, which may be locked.
    """
    path = Path(path)
    text = dump_yaml(_plain(_content(header)), _Dumper, indent=4, width=1 << 20)
    if not in_place:
        write_text(path, text)
        return
    with naming_write_errors(path), open_for_writing(path) as file:
        file.write(text)


def _start_of(loaded: Any) -> str:
    text = repr(loaded)
    shown = text if len(text) <= 60 else text[:57] + "..."
    return f"{shown}; a trace is named by its .yaml file, the rows are in the .csv beside it"


def _content(header: TraceHeader) -> dict[str, Any]:
    """The header as the mapping a file holds. A recording always has `network`, if empty."""
    network = {"measured_rtt_ms": header.measured_rtt_ms} if header.measured_rtt_ms else {}
    targets = {
        name: {key: getattr(limits, key) for key in ("ttft_ms", "itl_ms", "e2e_ms") if getattr(limits, key)}
        for name, limits in sorted(header.goodput_slo_targets.items())
    }
    content: dict[str, Any] = {
        "trace_version": header.trace_version,
        "time_unit": header.time_unit,
        "created_at": _Quoted(header.created_at),
        "mode": header.mode,
        "warm_up_requests": header.warm_up_requests,
        "workload_seed": header.workload_seed,
        "workload_spec": header.workload_spec,
        "session_context_growth": header.session_context_growth,
        "server": header.server,
        "network": network,
        "goodput_slo_targets": targets,
        "kv_offload": header.kv_offload,
        "observed_kv_metrics": header.observed_kv_metrics,
    }
    always = {"trace_version", "time_unit", "mode", "warm_up_requests", "workload_seed"}
    always |= {"network"} if header.mode == "real" else set()
    return {key: value for key, value in content.items() if value is not None and (value or key in always)}


def _plain(value: Any) -> Any:
    """Mappings as dicts, and floats that are whole as integers, which is how the format writes them."""
    if isinstance(value, Mapping):
        return {key: _plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value


class _Quoted(str):
    """Text that is written in double quotes, so that a date stays text."""

    __slots__ = ()


class _Dumper(Dumper):
    """YAML in which `_Quoted` text is quoted."""


_Dumper.add_representer(
    _Quoted, lambda dumper, text: dumper.represent_scalar("tag:yaml.org,2002:str", str(text), style='"')
)
