"""The header of a trace: where it comes from and what of that matters later. YAML, read strictly."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from blis_sim.options.yaml_text import Dumper, dump_yaml
from traces.errors import TraceError
from traces.header_fields import HEADER, checked
from traces.slo import SloTargets
from traces.text_file import naming_write_errors, open_for_writing, read_yaml, write_text


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
