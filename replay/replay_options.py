"""The settings of `blis replay`, and settings inherited from the recorded server."""

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from blis_sim.engine.cluster.options import DEFAULT_MAX_CONCURRENCY, ClusterOptions, GatewayOptions, path_in
from blis_sim.engine.cluster.settings import DEFAULT_SEED
from blis_sim.engine.deployment_options import DeploymentOptions
from blis_sim.engine.lora import LoraOptions
from blis_sim.engine.offload_file import OffloadFileOptions
from blis_sim.engine.units import LONGEST_DELAY_US
from blis_sim.options import ExclusionError, OptionError, check_options, option, options_of, section
from blis_sim.options.command_line import parse_command_line, words_of
from blis_sim.options.option import MOST_REQUESTS, Setting
from blis_sim.options.printing import printable
from blis_sim.options.without_effect import BlisOptions
from replay.engine_options import AdapterOptions
from replay.report_options import ReportOptions
from traces import beside
from traces.load import (
    CLOSED_LOOP,
    FIXED,
    FORMS,
    SESSION_MODES,
    SESSION_POOL_HELP,
    SpeedOptions,
    parse_think_time,
)
from traces.server_settings import engine_settings, located_settings, other_settings
from traces.steps import STEP_ENDINGS, header_of_steps
from traces.text_file import TraceError
from traces.trace_v2 import read_header


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
    offload: OffloadFileOptions = section(OffloadFileOptions)
    adapters: AdapterOptions = section(AdapterOptions)
    blis: BlisOptions = section(BlisOptions)
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
        "When rounds of conversations and agents are sent. fixed: at their recorded times. closed-loop: when the "
        "simulated replies that they wait for have come and the recorded pause is over. fixed-accumulate: at their "
        "recorded times, or when these replies have come if that is later, behind all that was said before.",
        choices=SESSION_MODES,
    )
    session_pool: int = option(0, SESSION_POOL_HELP, at_least=0, at_most=MOST_REQUESTS)
    think_time_ms: int | None = option(
        None,
        "With --session-mode closed-loop: the pause before each request that waits. Default: as recorded.",
        at_least=0,
        at_most=LONGEST_DELAY_US // 1000,
    )
    speed: SpeedOptions = section(SpeedOptions)
    think_time_dist: str | None = option(
        None,
        "With --session-mode closed-loop, in place of --think-time-ms: pauses drawn from a distribution, such as "
        f"{FORMS}.",
        metavar="DISTRIBUTION",
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
        "Print between which values figures lie in nine cases of ten, by the errors on servers like it. Where "
        "coefficients were learned from the server itself, further replays of this number decide. They have "
        "coefficients drawn within their spread, servers of other speed and other phases of the steps.",
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
        if self.session_mode != FIXED and self.reissue:
            raise ExclusionError(
                "--reissue", f"--session-mode {self.session_mode}", ": both decide when rounds are sent"
            )
        if self.session_pool and self.session_mode != CLOSED_LOOP:
            raise OptionError("--session-pool needs --session-mode closed-loop")
        self._check_pauses()
        self.speed.check_mode(self.session_mode)
        if self.phase_average > 1 and self.report.itl_path is not None:
            raise OptionError("--phase-average cannot be used with --record-itl: tokens have no average times")
        if self.phase_average > 1 and self.report.metrics_dir is not None:
            raise OptionError("--phase-average cannot be used with --metrics-dir: batches have no average times")
        if self.phase_average > 1 and self.report.graph_output is not None:
            raise OptionError("--phase-average cannot be used with --graph-output: tasks have no average times")
        self.report.check_files(self, *beside(self.trace, self.trace_header, self.trace_data))

    def _check_pauses(self) -> None:
        for flag, given in (("--think-time-ms", self.think_time_ms), ("--think-time-dist", self.think_time_dist)):
            if given is not None and self.session_mode != CLOSED_LOOP:
                raise OptionError(f"{flag} needs --session-mode closed-loop")
        if self.think_time_ms is not None and self.think_time_dist is not None:
            raise ExclusionError("--think-time-ms", "--think-time-dist")
        if self.think_time_dist is not None:
            parse_think_time(self.think_time_dist)

    @property
    def think_times_us(self) -> int | Iterator[int] | None:
        """The pause before each request that waits, or one after the other; None leaves pauses to the recording."""
        if self.think_time_dist is not None:
            return parse_think_time(self.think_time_dist).draws(Random(f"{self.seed}/think times"))
        return None if self.think_time_ms is None else self.think_time_ms * 1000

    @property
    def decides_sending(self) -> bool:
        """Whether the simulation chose the send times, so that results hold them."""
        return self.reissue or self.session_mode != FIXED

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
    "coefficients": ("latency_model",),
    "alpha_coeffs": ("latency_model", "coefficients"),
    "beta_coeffs": ("latency_model", "coefficients"),
}
"""Settings of a recording that other flags make pointless: blocks that were counted hold for that memory alone."""


def inherited_settings(options_class: type, given: Mapping[str, Any], header_path: Path) -> dict[str, Any]:
    """Return the settings that a recording adds to the given settings, by name. Raises TraceError.

    BLIS's engine takes none: BLIS does not read them. Another model or GPU than that of the recording takes none of the
    settings that follow from these.
    """
    if _takes_none(given):
        return {}
    found = {
        name: value for name, value in engine_settings(header_path).items() if name in _recorded_settings(options_class)
    }
    found = {name: value for name, value in found.items() if not _is_of_one_machine(options_class, name, value)}
    is_other_model = "model" in given and _short_name(given["model"]) != _short_name(
        str(found.get("model", given["model"]))
    )
    return {
        name: value
        for name, value in found.items()
        if name not in given
        and not any(each in given for each in _ALSO_SET_BY.get(name, ()) if each != "model")
        and not (is_other_model and name in ("max_model_len", "total_kv_blocks", "tp"))
    }


def _takes_none(given: Mapping[str, Any]) -> bool:
    """Return whether a command line asks for no settings of a recorded server."""
    return given.get("engine") == "blis" or bool(given.get("ignore_server_settings"))


def _recorded_settings(options_class: type) -> Mapping[str, Setting]:
    """Return the settings of a command that a recording may decide: those of the engine, and no file to write."""
    of_engine = {setting.name for kind in (ClusterOptions, LoraOptions) for setting in options_of(kind)}
    return {
        setting.name: setting
        for setting in options_of(options_class)
        if setting.name in of_engine and not setting.option.hidden
    }


def _is_of_one_machine(options_class: type, name: str, value: Any) -> bool:
    """Return whether a value is a class of another package, or a file: a recording never decides what is loaded."""
    known = _recorded_settings(options_class)[name].option
    is_class = known.open_to is not None and value not in known.choices
    return is_class or (name != "model" and path_in(name, value) is not None)


def settings_not_taken(options_class: type, given: Mapping[str, Any], header_path: Path) -> str:
    """Return the flags of a recorded server that a recording cannot supply, for a message; empty without any.

    Raises TraceError.
    """
    if _takes_none(given):
        return ""
    known = _recorded_settings(options_class)
    of_machine = {
        name: str(value)
        for name, value in engine_settings(header_path).items()
        if name in known and _is_of_one_machine(options_class, name, value)
    }
    missing = {**other_settings(header_path), **of_machine}
    flags = {each.name: each.flags[0] for each in options_of(options_class) if not each.option.hidden}
    words = [
        f"{flags[name]} {value}".rstrip() if name in flags else f"--{name.replace('_', '-')} (no flag of a replay)"
        for name, value in missing.items()
        if name not in given
    ]
    return ", ".join(words)


def _short_name(model: str) -> str:
    """Return the name of a model without its organisation and case."""
    return model.rstrip("/").rpartition("/")[2].lower()


def with_server_settings(program: str, options_class: type, arguments: Sequence[str]) -> list[str]:
    """Return a command line with flags for the settings of a recording that it names; one line says which."""
    header, taken = _inherited_by(options_class, arguments)
    if header is None:
        return list(arguments)
    given = parse_command_line(options_class, arguments).values
    if missing := settings_not_taken(options_class, given, header):
        note = f"a recording brings no files or code, give what the server of {header} had: {missing}"
        with suppress(OSError):
            sys.stderr.write(f"{program}: {printable(note)}\n")
    if not taken:
        return list(arguments)
    if options_class is ReplayOptions and "model" in taken:
        taken |= _assumed(program, given, taken)
    flags = {setting.name: setting for setting in options_of(options_class)}
    added, said = [], []
    for name, value in taken.items():
        words = words_of(flags[name], value)
        added += words
        said.append(" ".join(words))
    with suppress(OSError):
        taken_over = printable(" ".join(" ".join(said).split()))
        sys.stderr.write(f"{program}: from the server of {header}: {taken_over} (flags win over these)\n")
    return [*added, *arguments]


def _assumed(program: str, given: Mapping[str, Any], taken: Mapping[str, Any]) -> dict[str, Any]:
    """Return what stands in for a model that the catalogue lacks, and for GPUs that a server did not publish.

    Lines say what is assumed, so that a command without flags works with the recording of any server.
    """
    from blis_sim.engine.deployment import with_stand_ins
    from blis_sim.engine.latency.catalogue_reader import default_deployment

    if default_deployment(taken["model"]):
        return {}
    known = {**taken, **given}
    found, notes = with_stand_ins(DeploymentOptions(**{name: known[name] for name in _PLACEMENT if name in known}))
    assumed = {name: getattr(found, name) for name in ("hardware", "tp") if name not in known}
    said = [note for note in notes if found.model != taken["model"]][:1]
    if assumed:
        words = " ".join(f"--{name} {value}" for name, value in assumed.items())
        said.append(f"the server did not publish its GPUs, assumed: {words}; give those that it had")
    for line in said:
        with suppress(OSError):
            sys.stderr.write(f"{program}: {printable(line)}\n")
    return {"model": found.model, **assumed}


_PLACEMENT = ("model", "model_config_folder", "hardware", "tp")


def locate_invalid_setting(options_class: type, arguments: Sequence[str], message: str) -> str | None:
    """The file and key of the setting taken from a recording that an error message is about, or None."""
    from blis_sim.options.settings_file import is_about  # few command lines have errors

    header, taken = _inherited_by(options_class, arguments)
    flags = {setting.name: setting.spellings for setting in options_of(options_class)}
    for name, value in taken.items():
        if header is not None and is_about(message, flags[name], value):
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
    if first.endswith(STEP_ENDINGS):
        header = header_of_steps(header)
        if not header.is_file():
            return None, {}
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
