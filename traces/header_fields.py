"""Which keys a trace header has and what each may hold: one table, checked before any value is used."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from traces.errors import TraceError
from traces.table import INT64_MAX


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
        raise _wrong(path, where, "keys and values", values)
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
            raise _wrong(path, where, "names with keys and values", value)
        inner = Key(keys=key.keys)
        return {str(name): _value(path, f"{where}.{name}", each, inner) for name, each in value.items()}
    if key.each is list:
        if not isinstance(value, list):
            raise _wrong(path, where, "a list", value)
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
        raise _wrong(path, where, plain, value)
    if key.choices and value not in key.choices:
        raise _wrong(path, where, _expected(key), value)
    low = -INT64_MAX if key.at_least is None else key.at_least
    if isinstance(value, int | float) and not low <= value <= key.at_most:
        raise _wrong(path, where, _expected(key), value)
    return value


_NOUNS: Mapping[type, str] = {str: "text", bool: "true or false", int: "a whole number", float: "a number"}


def _expected(key: Key) -> str:
    if key.choices:
        return " or ".join(repr(choice) for choice in key.choices)
    noun = _NOUNS[key.kind]
    if key.at_least is not None and key.at_most < INT64_MAX:
        return f"{noun} between {key.at_least} and {key.at_most}"
    return noun if key.at_least is None else f"{noun} of at least {key.at_least}"


def _wrong(path: Path, where: str, expected: str, value: Any) -> TraceError:
    shown = repr(value)
    return TraceError(
        f"{path} key {where}: expected {expected}, got {shown if len(shown) <= 60 else shown[:57] + '...'}"
    )
