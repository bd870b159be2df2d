"""`blis calibrate`: a recording against its simulation."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from blis_sim.installation import check_answer, check_page
from blis_sim.options import OptionError, check_outputs, option, written_file
from blis_sim.options.printing import BLIS, FORMATS, format_option, json_option, print_note, printed_format

if TYPE_CHECKING:
    from blis_sim.options.provenance import Provenance
    from blis_sim.report.report import Report
    from calibrate.calibration import Calibration, HitRate
    from calibrate.compare import Comparison, Network
    from calibrate.own_replay import OwnReplay
    from traces import ResultRow, Trace

_print_note = partial(print_note, "blis calibrate")

MIN_BANDWIDTH_MBPS = 1e-6
"""A token takes half a minute over a network as slow as that."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CalibrateOptions:
    """The settings of `blis calibrate`. Raises OptionError for settings that do not fit together."""

    trace: str | None = option(
        None,
        "Header file (YAML) of the recording. Default: the newest recording of a server in this folder.",
        positional=True,
        metavar="TRACE.yaml",
    )
    trace_header: str | None = option(None, "Header file of the recording, in place of the argument.", hidden=True)
    trace_data: str | None = option(
        None,
        "Data file (CSV) of the recording. Default: beside the header, with its name.",
        metavar="FILE",
        heading="Recordings and simulation",
    )
    sim_results: str | None = option(
        None,
        "Latencies per request of the simulation (JSON), from `blis replay --results-path`. Default: the recording is "
        "replayed here with the settings of its server; flags of `blis replay` such as --hardware H100 win over these.",
        metavar="FILE",
    )
    replay_flag: tuple[str, ...] = option((), "A word of the replay's command line.", hidden=True, repeatable=True)
    second_recording: str | None = option(
        None,
        "Header file (YAML) of a second recording of the same workload. The second recording shows how well one run "
        "predicts another; without --sim-results it takes the simulation's place.",
        metavar="TRACE.yaml",
    )
    second_itl_data: str | None = option(None, "Token times of the second recording (CSV).", metavar="FILE")
    itl_data: str | None = option(
        None,
        "Token times of the recording (CSV). Default: those beside a recording that is replayed here, else ITL is "
        "computed from the first and the last chunk of each request.",
        metavar="FILE",
    )
    report: str | None = written_file("calibration", "Write the comparison here (JSON).", heading="What is written")
    html: str | None = written_file(
        "page",
        "Write the comparison here as one page with pictures (HTML). Default: TRACE.calibration.html beside a "
        "recording that is replayed here, where matplotlib is installed.",
    )
    plots: str | None = option(None, "Write the pictures to this folder (PNG).", metavar="DIR")
    format: str = format_option(
        "What standard output gets: tables for people, one JSON object, rows of CSV, Markdown, an HTML page, or the "
        "report of BLIS as JSON (blis).",
        (*FORMATS, BLIS),
    )
    json: bool = json_option()
    fail_over: str = option(
        "",
        "Limits on MAPE in percent, such as ttft=15,e2e=5; the exit code is 3 when one is exceeded.",
        metavar="METRIC=PERCENT,...",
        heading="Judging",
    )
    warmup_requests: int = option(-1, "Leave out the first N requests sent.", at_least=-1)
    network_rtt_us: int = option(
        -1,
        "Network round trip to add to simulated latencies. -1: the value in the header.",
        at_least=-1,
        at_most=10**12,
    )
    network_bandwidth_mbps: float = option(
        0.0, "Bandwidth of that network in Mbit/s. 0: no transfer delay.", at_least=0
    )
    goodput: tuple[str, ...] = option(
        (),
        "Latencies within which a request is good, such as ttft:500ms,itl:40ms,e2e:5s; batch/e2e:30s holds for one "
        "class. They replace those of the header.",
        metavar="[CLASS/]NAME:DURATION,...",
    )
    slo_ttft: str = option("", "BLIS's spelling of --goodput CLASS/ttft:DURATION.", hidden=True)
    slo_itl: str = option("", "BLIS's spelling of --goodput CLASS/itl:DURATION.", hidden=True)
    slo_e2e: str = option("", "BLIS's spelling of --goodput CLASS/e2e:DURATION.", hidden=True)
    sim_metrics: str | None = option(
        None, "Aggregate metrics of the simulation (JSON), from `blis replay --metrics-path`.", metavar="FILE"
    )
    hit_rate_tolerance_pp: float = option(5.0, "Percentage points cache hit rates may be apart.", at_least=0)
    ttft_mape_threshold: float = option(0.15, "MAPE of TTFT that counts as accurate, as a fraction.", at_least=0)
    adapter_reference: str | None = option(
        None, "Compare --sim-metrics with the figures in this file (JSON) instead of two runs.", metavar="FILE"
    )
    sim_metrics_blind: str | None = option(
        None, "With --adapter-reference: metrics of a run without adapters (JSON).", metavar="FILE"
    )
    adapter_mape_threshold: float = option(0.2, "Error that --adapter-reference allows, as a fraction.", at_least=0)
    compat: bool = option(False, "Count and grade exactly as the original BLIS does, with its report.")

    def __post_init__(self) -> None:
        from traces import beside

        check_answer(self)
        mbps = self.network_bandwidth_mbps
        if 0 < mbps < MIN_BANDWIDTH_MBPS:
            raise OptionError(f"--network-bandwidth-mbps must be 0 or at least {MIN_BANDWIDTH_MBPS:g}, got {mbps}")
        _ = self.limits
        check_page("--plots", self.plots)
        check_outputs(self, *beside(self.trace, self.trace_header, self.trace_data, self.second_recording))
        if self.adapter_reference is not None:
            if self.sim_metrics is None:
                raise OptionError("--adapter-reference needs --sim-metrics, the metrics to compare with it")
            return
        if self.sim_metrics_blind is not None:
            raise OptionError("--sim-metrics-blind needs --adapter-reference, the figures to compare with")
        _ = self.header_path
        if self.replay_flag and not self.is_replayed_here:
            given = "--sim-results" if self.sim_results is not None else "--second-recording"
            raise OptionError(f"{self.replay_flag[0]} is for a replay, which {given} takes the place of")
        if self.second_itl_data is not None and self.second_recording is None:
            raise OptionError("--second-itl-data needs --second-recording, the recording they belong to")

    @property
    def limits(self) -> dict[str, float]:
        """The limits of --fail-over as fractions. Raises OptionError."""
        from calibrate.compare import parse_limits

        return parse_limits(self.fail_over)

    @property
    def is_replayed_here(self) -> bool:
        """Whether the recording is replayed by this command: no other result to compare with is given."""
        return self.sim_results is None and self.second_recording is None and self.adapter_reference is None

    @property
    def header_path(self) -> Path:
        """The recording's header; the newest of this folder if none was given. Raises OptionError."""
        given = [path for path in (self.trace, self.trace_header) if path is not None]
        if len(given) > 1:
            raise OptionError("give the recording's header file once, as in `blis calibrate trace.yaml`")
        if given:
            return Path(given[0])
        from calibrate.own_replay import newest_recording

        return newest_recording(Path())


def rewritten(arguments: list[str]) -> list[str]:
    """Return a command line in which the flags that only `blis replay` has are kept for the replay."""
    from calibrate.own_replay import split_arguments

    own, flags = split_arguments(CalibrateOptions, arguments)
    return [*(word for flag in flags for word in ("--replay-flag", flag)), *own]


def run(options: CalibrateOptions) -> int:
    """Compare, write the reports, print tables on stdout and all else on stderr.

    A poor grade is no error, but an error above a limit of --fail-over is.
    """
    from calibrate.compare import EXIT_CODE, exceeded_limits

    if options.adapter_reference is not None:
        return _run_adapter(options, options.adapter_reference)
    if options.trace is None and options.trace_header is None:
        options = replace(options, trace=str(options.header_path))
        _print_note(f"{options.trace}, the newest recording of a server in this folder")
    if options.is_replayed_here:
        options = _with_defaults_of_replay(options)
    found, _, report = compare_runs(options, None, _print_note)
    report.print(printed_format(options))
    for note in _notes(found, options):
        _print_note(note)
    over = exceeded_limits(found.metrics, options.limits)
    for line in over:
        _print_note(line)
    return EXIT_CODE if over else 0


def _with_defaults_of_replay(options: CalibrateOptions) -> CalibrateOptions:
    """Return the options with what a comparison with an own replay reads, and writes if no other report is named."""
    from importlib.util import find_spec

    from blis_sim.installation import install_command
    from calibrate.own_replay import token_times_beside

    beside = token_times_beside(options.header_path)
    if options.itl_data is None and beside is not None:
        options = replace(options, itl_data=str(beside))
    if (options.html, options.plots, options.report) != (None, None, None) or options.compat:
        return options
    if find_spec("matplotlib") is None:
        _print_note(f"no page is written, which needs matplotlib: {install_command('plots')}")
        return options
    page = options.header_path.with_suffix(".calibration.html")
    _print_note(f"the page is {page}")
    return replace(options, html=str(page))


def compare_runs(
    options: CalibrateOptions, results: "list[ResultRow] | None", on_note: Callable[[str], None]
) -> "tuple[Calibration, dict[str, Comparison] | None, Report]":
    """Compare, write the files, and return the comparison, how well a second recording predicts the first, the answer.

    `results` take the place of the file of --sim-results. `on_note` is called with each note. Raises BlisError.
    """
    from calibrate.report import calibration_report, write_pictures

    inputs = _inputs(options, results, on_note)
    found = _calibration(options, inputs, inputs.results, on_note)
    floor = None
    if options.sim_results is not None and inputs.second_results:
        floor = _calibration(options, inputs, inputs.second_results, on_note, is_recording=True).metrics
    model = str(inputs.trace.header.server.get("model") or "")
    report = calibration_report(found, floor, partial(_origin, options, model), options.compat)
    _write_data(options, report)
    report.write(options.html, None)
    if options.plots is not None:
        write_pictures(found, Path(options.plots))
    return found, floor, report


def _origin(options: CalibrateOptions, model: str) -> "Provenance":
    from blis_sim.options.provenance import Provenance, command_line, input_hashes

    return Provenance(command=command_line("blis calibrate", options), model=model, inputs=input_hashes(options))


def _write_data(options: CalibrateOptions, report: "Report") -> None:
    from traces import dump_json
    from traces.text_file import write_text

    if options.report is not None:
        write_text(Path(options.report), dump_json(report.data()))


@dataclass(frozen=True, slots=True)
class _Inputs:
    """The files that were named. `results` are those of the simulation, or of the second recording in its place."""

    trace: "Trace"
    chunks: "Mapping[int, Sequence[int]]"
    results: "list[ResultRow]"
    second_results: "list[ResultRow]"
    own: "OwnReplay | None"
    """The replay that was made here, if one was."""


def _inputs(options: CalibrateOptions, simulated: "list[ResultRow] | None", on_note: Callable[[str], None]) -> _Inputs:
    from calibrate.calibration import results_of_recording
    from calibrate.compare import CalibrateError
    from calibrate.own_replay import replayed, token_times_beside
    from traces import read_itl, read_results, read_trace
    from traces.server_settings import chunks_in_server_time, in_server_time

    trace = in_server_time(read_trace(options.header_path, options.trace_data))
    second: list[ResultRow] = []
    if options.second_recording is not None:
        chunks = {} if options.second_itl_data is None else read_itl(options.second_itl_data)
        other = in_server_time(read_trace(options.second_recording))
        second = results_of_recording(trace, other, chunks_in_server_time(chunks, other))
    results, own = second, None
    itl_path = None if options.itl_data is None else Path(options.itl_data)
    if simulated is not None:
        results = simulated
    elif options.sim_results is not None:
        results = read_results(options.sim_results)
    elif options.is_replayed_here:
        own = replayed(options.header_path, options.trace_data, options.replay_flag, on_note)
        results = own.results
        itl_path = itl_path or token_times_beside(options.header_path)
    if not results:
        origin = options.sim_results or "the replay"
        raise CalibrateError(f"{origin} holds no results, so there is nothing to compare")
    own_chunks = {} if itl_path is None else chunks_in_server_time(read_itl(itl_path), trace)
    return _Inputs(trace, own_chunks, results, second, own)


def _with_steps(
    found: "Calibration", options: CalibrateOptions, own: "OwnReplay", on_note: Callable[[str], None]
) -> "Calibration":
    """Compare what is recorded of steps.

    Steps beside the header meet the times of the replay's latency model, and totals of the server's metrics those of
    the replay.
    """
    from calibrate.steps import measured_steps, step_errors
    from traces.steps import read_steps, step_totals, steps_beside

    metrics = options.header_path.with_suffix(".metrics.jsonl")
    totals = step_totals(metrics) if metrics.is_file() else None
    if totals is not None:
        found = replace(found, step_totals=(totals, own.step_totals))
    path, engine = steps_beside(options.header_path), own.engines[0]
    if path is None:
        return found
    measured = measured_steps(read_steps(path), engine.config)
    if measured.num_left_out:
        on_note(f"{path}: {measured.num_left_out} steps are not compared: drafts, idle times, or nothing computed")
    if measured.num_estimated:
        on_note(f"{path}: contexts of {measured.num_estimated} steps are estimated from the KV cache in use")
    if len(measured) and not measured.has_starts:
        on_note(f"{path}: recorded steps lack what the engine does between two executions, simulated ones have it")
    return replace(found, steps=step_errors(measured, engine.latency))


def _calibration(
    options: CalibrateOptions,
    inputs: _Inputs,
    results: "list[ResultRow]",
    on_note: Callable[[str], None],
    is_recording: bool = False,
) -> "Calibration":
    from calibrate.calibration import COMPAT, PLAIN, calibrate
    from calibrate.compare import Network, check_same_tokens

    trace = inputs.trace
    from_header = options.warmup_requests < 0
    is_recording = is_recording or (options.second_recording is not None and options.sim_results is None)
    from traces import slo_targets

    found = calibrate(
        trace,
        results,
        inputs.chunks,
        COMPAT if options.compat else PLAIN,
        warm_up_requests=trace.header.warm_up_requests if from_header else options.warmup_requests,
        # A recording has a network in it already.
        network=Network() if is_recording else _network(options, trace, on_note),
        targets=(
            slo_targets(options.goodput, options.slo_ttft, options.slo_itl, options.slo_e2e)
            or (trace.header.goodput_slo_targets)
        ),
        hit_rate=None if is_recording else _hit_rate(options, trace, on_note),
        ttft_threshold=options.ttft_mape_threshold,
        is_recording=is_recording,
    )
    if inputs.own is not None and not options.compat:
        found = _with_steps(found, options, inputs.own, on_note)
    if not is_recording and not options.compat:
        check_same_tokens(found.pairing, trace, options.sim_results or "the replay")
    return found


def _run_adapter(options: CalibrateOptions, reference: str) -> int:
    from calibrate.calibration import compare_adapter, read_metrics
    from calibrate.report import adapter_report

    blind = None if options.sim_metrics_blind is None else read_metrics(Path(options.sim_metrics_blind))
    found = compare_adapter(
        read_metrics(Path(reference)),
        read_metrics(Path(options.sim_metrics or "")),
        blind,
        options.adapter_mape_threshold,
    )
    report = adapter_report(found, partial(_origin, options, ""))
    _write_data(options, report)
    report.print(printed_format(options))
    return 0


def _network(options: CalibrateOptions, trace: "Trace", on_note: Callable[[str], None]) -> "Network":
    from calibrate.compare import Network, rtt_us_of

    if options.network_rtt_us >= 0:
        return Network(options.network_rtt_us, options.network_bandwidth_mbps)
    rtt_us = rtt_us_of(trace.header)
    if rtt_us:
        on_note(f"adding the round trip in the trace header, {rtt_us} us, to simulated latencies")
    return Network(rtt_us, options.network_bandwidth_mbps)


def _hit_rate(options: CalibrateOptions, trace: "Trace", on_note: Callable[[str], None]) -> "HitRate | None":
    from calibrate.calibration import hit_rate, read_metrics

    if options.sim_metrics is None:
        return None
    found = hit_rate(trace.header, read_metrics(Path(options.sim_metrics)), options.hit_rate_tolerance_pp)
    if isinstance(found, str):
        on_note(found)
        return None
    return found


def _notes(found: "Calibration", options: CalibrateOptions) -> Iterator[str]:
    """Yield notes for readers of the figures on the rows behind them."""
    from calibrate.calibration import ignored_cap

    pairing = found.pairing
    lacking = "rows without a result of the simulation"
    if found.is_recording:
        lacking = "rows that the second recording lacks"
    counts = {
        "rows left out as warm-up": pairing.num_warm_up,
        "rows left out because they failed": pairing.num_failed,
        "rows left out for want of usable times": pairing.num_without_times,
        "rows left out because an earlier one has their request_id": pairing.num_repeated,
        lacking: pairing.num_unmatched_rows,
        "results without a row of the recording": pairing.num_unmatched_results,
        "results replaced by a later one of the same request_id": pairing.num_repeated_results,
        "pairs that differ in their number of tokens": pairing.num_token_mismatches,
        "pairs whose recorded TTFT is their E2E, for their tokens came in one piece": pairing.num_in_one_piece,
    }
    if options.itl_data is not None:
        counts["pairs without token times"] = found.num_without_token_times
        counts["pairs whose token times give no ITL"] = found.num_itl_dropped
    yield from (f"{what}: {count}" for what, count in counts.items() if count)
    if found.ignored_cap is not None:
        yield f"warning: {ignored_cap(found.ignored_cap)}"
    if found.goodput is not None and found.goodput.itl_skipped:
        yield "ITL limits could not be checked for all pairs, for want of times between tokens"
