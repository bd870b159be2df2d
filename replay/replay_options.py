"""The settings of `blis replay`, and settings inherited from the recorded server."""

import re
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from blis_sim.engine.cluster.options import DEFAULT_MAX_CONCURRENCY, ClusterOptions, GatewayOptions
from blis_sim.engine.cluster.settings import DEFAULT_SEED
from blis_sim.engine.units import LONGEST_DELAY_US
from blis_sim.options import OptionError, check_options, option, options_of, section
from blis_sim.options.text import parse_command_line
from replay.report_options import ReportOptions
from traces import beside
from traces.header import read_header
from traces.server_settings import engine_settings, located_settings
from traces.text_file import TraceError


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayGatewayOptions(GatewayOptions):
    """The settings of a gateway in `blis replay`, where one flag limits the client or the gateway."""

    max_concurrency: int | None = option(
        None,
        "With --reissue: most requests in flight; others wait in line (default: 0, which is no limit). With "
        "--saturation-detector concurrency: requests in flight for each instance at which it says saturated (default: "
        f"{DEFAULT_MAX_CONCURRENCY}).",
        at_least=0,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayClusterOptions(ClusterOptions):
    """The settings of a cluster in `blis replay`."""

    gateway: ReplayGatewayOptions = section(ReplayGatewayOptions)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayOptions:
    """The settings of `blis replay`: the trace, the engine and the output files."""

    cluster: ReplayClusterOptions = section(ReplayClusterOptions)
    report: ReportOptions = section(ReportOptions)
    trace: str | None = option(
        None, "Header file (YAML) of the trace to replay.", positional=True, metavar="TRACE.yaml"
    )
    trace_header: str | None = option(
        None, "Header file of the trace, in place of the argument.", hidden=True, heading="Replay"
    )
    trace_data: str | None = option(
        None, "Data file (CSV) of the trace. Default: beside the header, with its name.", metavar="FILE"
    )
    horizon: int | None = option(
        None, "Stop the simulated clock here, in microseconds. Default: run until drained.", above=0, metavar="US"
    )
    reissue: bool = option(
        False,
        "Send by the recorded schedule and --max-concurrency, as the recording client did, "
        "instead of at the recorded send times.",
    )
    session_mode: str = option(
        "fixed",
        "When rounds of conversations and agents are sent: at their recorded times, or when the simulated replies that "
        "they wait for have come and the recorded pause is over.",
        choices=("fixed", "closed-loop"),
    )
    think_time_ms: int | None = option(
        None,
        "With --session-mode closed-loop: the pause before each request that waits. Default: as recorded.",
        at_least=0,
        at_most=LONGEST_DELAY_US // 1000,
    )
    phase_average: int = option(
        1,
        "Average over so many runs that differ in the phase of the engine's steps, which is chance in a real server.",
        at_least=1,
        at_most=10_000,
        metavar="K",
    )
    intervals: int = option(
        0,
        "With --latency-model fitted: print between which values figures lie in nine cases of ten, by so many further "
        "replays with coefficients drawn within their spread, servers of other speed and other phases of the steps.",
        at_least=0,
        at_most=10_000,
        metavar="DRAWS",
    )
    seed: int = option(DEFAULT_SEED, "Seed of the draws by which a router breaks ties, and of --intervals.")
    ignore_server_settings: bool = option(
        False, "Take no settings of the engine from the recording; without it flags that are not given are."
    )
    include_failed: bool = option(False, "Also replay rows of a real recording whose status is error or timeout.")

    def __post_init__(self) -> None:
        check_options(self)
        at_gateway = self.cluster.gateway.counts_requests_in_flight
        max_concurrency = self.cluster.gateway.max_concurrency
        if max_concurrency and not self.reissue and not at_gateway:
            raise OptionError(
                "--max-concurrency needs --reissue, for recorded send times are under their cap already, "
                "or --flow-control with --saturation-detector concurrency"
            )
        if max_concurrency is not None and self.reissue and at_gateway:
            raise OptionError("--max-concurrency could mean the client's with --reissue or the gateway's: use only one")
        if self.session_mode == "closed-loop" and self.reissue:
            raise OptionError(
                "--reissue and --session-mode closed-loop exclude each other: both decide when rounds are sent"
            )
        if self.think_time_ms is not None and self.session_mode != "closed-loop":
            raise OptionError("--think-time-ms needs --session-mode closed-loop")
        if self.phase_average > 1 and self.report.itl_path is not None:
            raise OptionError("--phase-average cannot be used with --record-itl: tokens have no average times")
        if self.phase_average > 1 and self.report.metrics_dir is not None:
            raise OptionError("--phase-average cannot be used with --metrics-dir: batches have no average times")
        if self.phase_average > 1 and self.report.graph_output is not None:
            raise OptionError("--phase-average cannot be used with --graph-output: tasks have no average times")
        self.report.check_files(self, *beside(self.trace, self.trace_header, self.trace_data))

    @property
    def decides_sending(self) -> bool:
        """Whether the simulation chose the send times, so that results hold them."""
        return self.reissue or self.session_mode != "fixed"

    @property
    def max_in_flight(self) -> int:
        """Requests that the client may have in flight with --reissue; 0 is no limit."""
        return self.cluster.gateway.max_concurrency or 0

    @property
    def header_path(self) -> Path:
        """The trace's header, from the argument or a flag. Raises OptionError when none or two are given."""
        given = [path for path in (self.trace, self.trace_header) if path is not None]
        if len(given) != 1:
            raise OptionError("give the trace's header file once, as in `blis replay trace.yaml`")
        return Path(given[0])


_ALSO_SET_BY = {
    "total_kv_blocks": ("kv_cache_memory_bytes", "gpu_memory_utilization", "tp", "hardware", "quantization"),
    "gpu_memory_utilization": ("total_kv_blocks", "kv_cache_memory_bytes"),
    "max_model_len": ("model",),
}
"""Settings of a recording that other flags make pointless: blocks that were counted hold for that memory alone."""


def inherited_settings(options_class: type, given: Mapping[str, Any], header_path: Path) -> dict[str, Any]:
    """Return the settings that a recording adds to the given settings, by name. Raises TraceError.

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
    header, taken = _inherited_by(options_class, arguments)
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


def locate_invalid_setting(options_class: type, arguments: Sequence[str], message: str) -> str | None:
    """The file and key of the setting taken from a recording that an error message is about, or None."""
    header, taken = _inherited_by(options_class, arguments)
    flags = {setting.name: setting.spellings for setting in options_of(options_class)}
    for name, value in taken.items():
        if header is not None and _is_about(message, flags[name], value):
            return located_settings(header)[name][1]
    return None


def _inherited_by(options_class: type, arguments: Sequence[str]) -> tuple[Path | None, dict[str, Any]]:
    """Return the header of the recording that a command line names, with the settings to take from it."""
    read = parse_command_line(options_class, arguments)
    given = read.values
    first = given.get("trace_header") or given.get("trace") or next(iter(given.get("traces", ())), None)
    if read.requests_help or not first:
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
    return header, inherited_settings(options_class, given, header)


def _is_about(message: str, spellings: Sequence[str], value: object) -> bool:
    if isinstance(value, str) and repr(value) in message:
        return True
    words = "|".join(re.escape(each.lstrip("-")) for each in spellings)
    if re.search(rf"(?<![\w-])(--?)?({words})(?![\w-])", message) is None:
        return False
    if isinstance(value, bool | str):
        return isinstance(value, bool) or value in message
    return any(float(each) == value for each in re.findall(r"(?<![\w.])\d+(?:\.\d+)?(?!\w)", message))
