"""The simulation of a recording that `blis calibrate` makes itself, as `blis replay` would."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from blis_sim.options import OptionError, options_from, options_of
from blis_sim.options.command_line import check_required, parse_command_line, split_command_line
from traces.steps import StepTotals

if TYPE_CHECKING:
    from blis_sim.engine.core import Engine
    from traces import ResultRow

PROGRAM = "blis calibrate"
_ITL_ENDINGS = (".itl.csv", ".itl.csv.gz")


def split_arguments(options_class: type, arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """Split a command line into the words of a command, and the flags that only `blis replay` has.

    Flags of reports stay unknown: a comparison writes reports of its own. Raises OptionError for unknown flags.
    """
    from replay.replay_options import ReplayOptions
    from replay.report_options import ReportOptions

    reports = {setting.name for setting in options_of(ReportOptions)}
    others = [setting for setting in options_of(ReplayOptions) if setting.name not in reports]
    return split_command_line(options_of(options_class), others, arguments)


def newest_recording(folder: Path) -> Path:
    """Return the header of the recording of a server in a folder that was changed last. Raises OptionError."""
    headers = [path for path in folder.glob("*.yaml") if path.is_file() and _is_recording(path)]
    if not headers:
        raise OptionError(
            "no recording is in this folder: give its header file, as in `blis calibrate trace.yaml`, "
            "or record one with `blis observe`"
        )
    return max(headers, key=lambda path: (path.stat().st_mtime_ns, path.name))


def token_times_beside(header: Path) -> Path | None:
    """Return the file of token times beside a recording's header; None without one."""
    beside = [header.with_name(header.stem + ending) for ending in _ITL_ENDINGS]
    return next((path for path in beside if path.is_file()), None)


class OwnReplay(NamedTuple):
    """The latencies of a replay, and its engines."""

    results: "list[ResultRow]"
    engines: "Sequence[Engine]"

    @property
    def step_totals(self) -> "StepTotals":
        """Steps of all engines, and the tokens in them: those of prompts that were not cached, and of replies."""
        num_tokens = sum(each.input_tokens + each.output_tokens for each in self.results)
        num_cached = sum(engine.stats.prefix_hit_tokens for engine in self.engines)
        return StepTotals(sum(len(engine.steps) for engine in self.engines), num_tokens - num_cached)


def replayed(header: Path, data: str | None, flags: Sequence[str], on_note: Callable[[str], None]) -> OwnReplay:
    """Replay a recording with the settings of its server, which `flags` win over. Raises BlisError."""
    from blis_sim.engine.cluster.settings import SeededTieBreaker
    from blis_sim.options.progress import progress_bar
    from replay.command import simulate_replay
    from replay.output.metrics import result_rows
    from replay.replay_options import ReplayOptions, with_server_settings

    named = [*flags, *([] if data is None else ["--trace-data", data]), str(header)]
    found = parse_command_line(ReplayOptions, with_server_settings(PROGRAM, ReplayOptions, named))
    try:
        check_required(ReplayOptions, found.values)
    except OptionError as error:
        raise OptionError(
            f"{error}: {header} does not say what its server was; give --model and --hardware, "
            "or --sim-results of a replay"
        ) from error
    options = options_from(ReplayOptions, **found.values)
    outcome = simulate_replay(options, SeededTieBreaker(options.seed), on_note, progress_bar)
    results = list(result_rows(outcome.simulated.requests, outcome.sending.is_chosen_by_run))
    return OwnReplay(results, outcome.simulated.simulation.instances)


def _is_recording(header: Path) -> bool:
    """Return whether a YAML file is the header of a real server's recording, with its rows beside."""
    from traces.text_file import TraceError
    from traces.trace_v2 import read_header

    if not any(header.with_suffix(ending).is_file() for ending in (".csv", ".csv.gz")):
        return False
    try:
        return read_header(header).mode == "real"
    except TraceError:
        return False
