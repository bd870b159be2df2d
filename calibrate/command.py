"""`blis calibrate`: a recording against its simulation."""

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from blis_sim.options import OptionError, check_options, check_outputs, option
from blis_sim.options.extras import check_page

if TYPE_CHECKING:
    from blis_sim.options.provenance import Provenance
    from calibrate.calibration import Calibration
    from calibrate.compare import Comparison
    from calibrate.metrics_file import HitRate
    from calibrate.pair import Network
    from traces import ResultRow, SloTargets, Trace

MIN_BANDWIDTH_MBPS = 1e-6
"""A token takes half a minute over a network as slow as that."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CalibrateOptions:
    """The settings of `blis calibrate`. Raises OptionError for settings that do not fit together."""

    trace: str | None = option(None, "Header file (YAML) of the recording.", positional=True, metavar="TRACE.yaml")
    trace_header: str | None = option(None, "Header file of the recording, in place of the argument.", hidden=True)
    trace_data: str | None = option(
        None,
        "Data file (CSV) of the recording. Default: beside the header, with its name.",
        metavar="FILE",
        heading="Recordings and simulation",
    )
    sim_results: str | None = option(
        None, "Latencies per request of the simulation (JSON), from `blis replay --results-path`.", metavar="FILE"
    )
    second_recording: str | None = option(
        None,
        "Header file (YAML) of a second recording of the same workload. The second recording shows how well one run "
        "predicts another; without --sim-results it takes the simulation's place.",
        metavar="TRACE.yaml",
    )
    second_itl_data: str | None = option(None, "Token times of the second recording (CSV).", metavar="FILE")
    itl_data: str | None = option(
        None,
        "Token times of the recording (CSV). Default: ITL is computed from the first and the last chunk of each "
        "request.",
        metavar="FILE",
    )
    report: str | None = option(
        None, "Write the comparison here (JSON).", metavar="FILE", writes={"": "calibration"}, heading="What is written"
    )
    html: str | None = option(
        None, "Write the comparison here as one page with pictures (HTML).", metavar="FILE", writes={"": "page"}
    )
    plots: str | None = option(None, "Write the pictures to this folder (PNG).", metavar="DIR")
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
    slo_ttft: str = option("", "TTFT limits, such as default=100ms,batch=2s. Limits given replace those of the header.")
    slo_itl: str = option("", "ITL limits per class.")
    slo_e2e: str = option("", "E2E limits per class.")
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

        check_options(self)
        mbps = self.network_bandwidth_mbps
        if 0 < mbps < MIN_BANDWIDTH_MBPS:
            raise OptionError(f"--network-bandwidth-mbps must be 0 or at least {MIN_BANDWIDTH_MBPS:g}, got {mbps}")
        _ = self.limits
        check_page("--html", self.html)
        check_page("--plots", self.plots)
        check_outputs(self, *beside(self.trace, self.trace_header, self.trace_data, self.second_recording))
        if self.adapter_reference is not None:
            if self.sim_metrics is None:
                raise OptionError("--adapter-reference needs --sim-metrics, the metrics to compare with it")
            return
        if self.sim_metrics_blind is not None:
            raise OptionError("--sim-metrics-blind needs --adapter-reference, the figures to compare with")
        _ = self.header_path
        if self.sim_results is None and self.second_recording is None:
            raise OptionError(
                "--sim-results is required, the file `blis replay --results-path` has written; or a --second-recording"
            )
        if self.second_itl_data is not None and self.second_recording is None:
            raise OptionError("--second-itl-data needs --second-recording, the recording they belong to")

    @property
    def limits(self) -> dict[str, float]:
        """The limits of --fail-over as fractions. Raises OptionError."""
        from calibrate.compare import parse_limits

        return parse_limits(self.fail_over)

    @property
    def header_path(self) -> Path:
        """The recording's header, however it was given. Raises OptionError when it was not, or twice."""
        given = [path for path in (self.trace, self.trace_header) if path is not None]
        if len(given) != 1:
            raise OptionError("give the recording's header file once, as in `blis calibrate trace.yaml`")
        return Path(given[0])


def run(options: CalibrateOptions) -> int:
    """Compare, write the reports, print tables on stdout and all else on stderr.

    A poor grade is no error, but an error above a limit of --fail-over is.
    """
    from calibrate.compare import EXIT_CODE, exceeded_limits
    from calibrate.table import print_calibration

    if options.adapter_reference is not None:
        return _run_adapter(options, options.adapter_reference)
    found, floor = compare_runs(options, None, _print_note)
    print_calibration(found, sys.stdout, floor)
    for note in _notes(found, options):
        _print_note(note)
    over = exceeded_limits(found.metrics, options.limits)
    for line in over:
        _print_note(line)
    return EXIT_CODE if over else 0


def compare_runs(
    options: CalibrateOptions, results: "list[ResultRow] | None", on_note: Callable[[str], None]
) -> "tuple[Calibration, dict[str, Comparison] | None]":
    """Compare, and write the reports; also how well a second recording predicts the first, None without one.

    `results` take the place of the file of --sim-results. `on_note` is called with each note. Raises BlisError.
    """
    from calibrate.report import write_all

    inputs = _inputs(options, results)
    found = _calibration(options, inputs, inputs.results, on_note)
    floor = None
    if options.sim_results is not None and inputs.second_results:
        floor = _calibration(options, inputs, inputs.second_results, on_note, is_recording=True).metrics
    write_all(
        found,
        floor,
        report=options.report,
        html=options.html,
        plots=options.plots,
        compat=options.compat,
        origin=_origin(options, inputs),
    )
    return found, floor


def _origin(options: CalibrateOptions, inputs: "_Inputs") -> "Provenance":
    from blis_sim.options.provenance import Provenance, command_line, input_hashes

    model = str(inputs.trace.header.server.get("model") or "")
    return Provenance(command=command_line("blis calibrate", options), model=model, inputs=input_hashes(options))


@dataclass(frozen=True, slots=True)
class _Inputs:
    """The files that were named. `results` are those of the simulation, or of the second recording in its place."""

    trace: "Trace"
    chunks: "Mapping[int, Sequence[int]]"
    results: "list[ResultRow]"
    second_results: "list[ResultRow]"


def _inputs(options: CalibrateOptions, simulated: "list[ResultRow] | None") -> _Inputs:
    from calibrate.pair import CalibrateError
    from calibrate.second_recording import results_of_recording
    from traces import read_itl, read_results, read_trace

    trace = read_trace(options.header_path, options.trace_data)
    second: list[ResultRow] = []
    if options.second_recording is not None:
        chunks = {} if options.second_itl_data is None else read_itl(options.second_itl_data)
        second = results_of_recording(trace, read_trace(options.second_recording), chunks)
    results = second
    if options.sim_results is not None:
        results = read_results(options.sim_results) if simulated is None else simulated
    if not results:
        raise CalibrateError(f"{options.sim_results} holds no results, so there is nothing to compare")
    return _Inputs(trace, {} if options.itl_data is None else read_itl(options.itl_data), results, second)


def _calibration(
    options: CalibrateOptions,
    inputs: _Inputs,
    results: "list[ResultRow]",
    on_note: Callable[[str], None],
    is_recording: bool = False,
) -> "Calibration":
    from calibrate.calibration import COMPAT, PLAIN, calibrate
    from calibrate.pair import Network, check_same_tokens

    trace = inputs.trace
    from_header = options.warmup_requests < 0
    is_recording = is_recording or options.sim_results is None
    found = calibrate(
        trace,
        results,
        inputs.chunks,
        COMPAT if options.compat else PLAIN,
        warm_up_requests=trace.header.warm_up_requests if from_header else options.warmup_requests,
        # A recording has a network in it already.
        network=Network() if is_recording else _network(options, trace, on_note),
        targets=_targets(options, trace),
        hit_rate=None if is_recording else _hit_rate(options, trace, on_note),
        ttft_threshold=options.ttft_mape_threshold,
        is_recording=is_recording,
    )
    if not is_recording and not options.compat:
        check_same_tokens(found.pairing, trace, str(options.sim_results))
    return found


def _run_adapter(options: CalibrateOptions, reference: str) -> int:
    from calibrate.metrics_file import compare_adapter, read_metrics
    from calibrate.report import adapter_report
    from calibrate.table import print_adapter

    blind = None if options.sim_metrics_blind is None else read_metrics(Path(options.sim_metrics_blind))
    found = compare_adapter(
        read_metrics(Path(reference)),
        read_metrics(Path(options.sim_metrics or "")),
        blind,
        options.adapter_mape_threshold,
    )
    _write_report(options, adapter_report(found))
    print_adapter(found, sys.stdout)
    return 0


def _network(options: CalibrateOptions, trace: "Trace", on_note: Callable[[str], None]) -> "Network":
    from calibrate.pair import Network, rtt_us_of

    if options.network_rtt_us >= 0:
        return Network(options.network_rtt_us, options.network_bandwidth_mbps)
    rtt_us = rtt_us_of(trace.header)
    if rtt_us:
        on_note(f"adding the round trip in the trace header, {rtt_us} us, to simulated latencies")
    return Network(rtt_us, options.network_bandwidth_mbps)


def _targets(options: CalibrateOptions, trace: "Trace") -> "Mapping[str, SloTargets]":
    from traces import slo_targets_from_flags

    return slo_targets_from_flags(options.slo_ttft, options.slo_itl, options.slo_e2e) or (
        trace.header.goodput_slo_targets
    )


def _hit_rate(options: CalibrateOptions, trace: "Trace", on_note: Callable[[str], None]) -> "HitRate | None":
    from calibrate.metrics_file import hit_rate, read_metrics

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


def _write_report(options: CalibrateOptions, content: dict[str, object]) -> None:
    from traces import dump_json
    from traces.text_file import write_text

    if options.report is not None:
        write_text(Path(options.report), dump_json(content))


def _print_note(line: str) -> None:
    sys.stderr.write(f"blis calibrate: {line}\n")
