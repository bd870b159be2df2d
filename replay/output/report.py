"""From a finished run to requested files and a summary on standard output."""

import os
import stat
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, replace
from functools import cache
from typing import TYPE_CHECKING, TextIO

from blis_sim.options.printing import TABLE
from replay.report_options import ReportOptions

if TYPE_CHECKING:
    from blis_sim.report.report import Report
    from replay.analysis.result import RunResult
    from replay.output.findings import AnalysisConfig, Findings, FinishedRun
    from replay.simulation.record import OnTokens
    from traces import SloTargets


def analysis_config_of(options: ReportOptions, targets: "Mapping[str, SloTargets]") -> "AnalysisConfig":
    """Return the analysis settings of options; `targets` of the workload replace missing flags. Raises TraceError."""
    from replay.output.findings import AnalysisConfig

    return AnalysisConfig(
        targets=options.slo_targets or targets,
        limits_ms=options.targets.targets_ms,
        weights=options.weights,
        metrics=options.custom_metrics,
        detectors=options.saturation.names,
        judges_queue=options.judges_queue,
        saturation=options.saturation.settings,
    )


@contextmanager
def recording_tokens(options: ReportOptions) -> "Iterator[OnTokens | None]":
    """Yield the writer of token times of completed requests, None unless a flag requests it. Raises TraceError."""
    from traces import ItlWriter
    from traces.text_file import naming_write_errors, replacing

    path = options.itl_path
    if path is None:
        yield None
        return
    with naming_write_errors(path), replacing(path) as place, ItlWriter(place) as writer:
        yield lambda number, times_us: writer.write(number, times_us.tolist())


def report(options: ReportOptions, outcome: "FinishedRun") -> int:
    """Write requested files, print the summary and return the exit code. Raises TraceError.

    The exit code is 1 where a target for a percentile is missed, or where the verdict is one of --fail-on.
    """
    found = outcome.findings()
    write_files(options, outcome, found)
    if options.printed_format == TABLE and options.shows_notes and _is_pipe(sys.stdout):
        with suppress(OSError):
            sys.stderr.write(
                "blis: standard output is a pipe and gets a table for people: --json gives JSON, --format blis or "
                "BLIS_FORMAT=blis what BLIS prints\n"
            )
    answer_of(options, outcome, found).print(options.printed_format)
    fails = "overload" in options.fail_on and found.steadiness.overload is not None
    return int(fails or not all(each.is_met for each in found.checks))


def _is_pipe(stream: TextIO) -> bool:
    """Whether a stream leads to another program."""
    try:
        return stat.S_ISFIFO(os.fstat(stream.fileno()).st_mode)
    except (OSError, ValueError):  # it has no descriptor
        return False


def run_result(options: ReportOptions, outcome: "FinishedRun", found: "Findings") -> "RunResult":
    """Return the figures of a run, means over its runs where it has several."""
    from replay.analysis.result import mean_result, result_of

    runs, targets = outcome.runs or (outcome.simulated,), outcome.analysis_config.targets
    known = [result_of(run, targets, found.goodput, options.min_attainment, outcome.judged) for run in runs]
    return replace(mean_result(known), custom_metrics=found.custom_metrics)


def answer_of(options: ReportOptions, outcome: "FinishedRun", found: "Findings") -> "Report":
    """Return the answer of a run."""
    from replay.output.table import run_report

    result = cache(lambda: run_result(options, outcome, found))
    return run_report(outcome, found, result, options.summarize_trace)


def write_files(options: ReportOptions, outcome: "FinishedRun", found: "Findings") -> None:
    """Write requested files. Raises TraceError."""
    from replay.output.findings import judgements
    from replay.output.metrics import metrics_file, result_rows
    from traces import write_json, write_results

    simulated, analysis_config, sending = outcome.simulated, outcome.analysis_config, outcome.sending
    if options.results_path is not None:
        write_results(options.results_path, result_rows(simulated.requests, sending.is_chosen_by_run))
    if options.metrics_path is not None:
        judged = judgements(found)
        write_json(options.metrics_path, metrics_file(simulated, found.metrics, judged))
    if options.saturation.saturation_report is not None:
        from replay.output.findings import events_of
        from traces.saturation import write_report

        events = events_of(simulated.requests)
        write_report(
            options.saturation.saturation_report,
            events,
            analysis_config.detectors,
            analysis_config.saturation,
            found.labels,
        )
    if options.decisions_path is not None:
        from replay.analysis.clusters import decision_rows

        write_json(options.decisions_path, decision_rows(simulated.simulation))
    if options.trace_output is not None:
        from replay.output.trace import write_simulated

        write_simulated(f"{options.trace_output}.yaml", outcome.header, simulated, sending.keeps_schedule)
    if options.provenance is not None:
        write_json(options.provenance, asdict(outcome.describe()), end="\n")
    if options.plot is not None or options.html is not None:
        answer_of(options, outcome, found).write(options.html, options.plot)
