"""From a finished run to requested files and a summary on standard output."""

import os
import stat
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict
from typing import TYPE_CHECKING, TextIO

from replay.report_options import TABLE, ReportOptions

if TYPE_CHECKING:
    from replay.analysis.result import RunResult
    from replay.output.findings import AnalysisConfig, Findings, Outcome
    from replay.simulation.record import OnTokens
    from traces import SloTargets


def analysis_config_of(options: ReportOptions, targets: "Mapping[str, SloTargets]") -> "AnalysisConfig":
    """Return the analysis settings of options; `targets` of the workload replace missing flags. Raises TraceError."""
    from replay.output.findings import AnalysisConfig
    from traces.saturation.settings import SaturationSettings, read_settings

    path = options.saturation_config
    settings = SaturationSettings() if path is None else read_settings(path)
    if options.final_window_us is not None:
        settings = settings._replace(final_window_us=options.final_window_us)
    return AnalysisConfig(
        targets=options.slo_targets or targets,
        weights=options.weights,
        detectors=options.detector_names,
        saturation=settings,
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


def report(options: ReportOptions, outcome: "Outcome") -> None:
    """Write requested files and print the summary. Raises TraceError."""
    found = outcome.findings()
    write_files(options, outcome, found)
    if options.printed_format == TABLE and options.shows_notes and _is_pipe(sys.stdout):
        with suppress(OSError):
            sys.stderr.write(
                "blis: standard output is a pipe and gets a table for people: --json gives JSON, --format blis or "
                "BLIS_FORMAT=blis what BLIS prints\n"
            )
    sys.stdout.write(_printed(options, outcome, found))


def _is_pipe(stream: TextIO) -> bool:
    """Whether a stream leads to another program."""
    try:
        return stat.S_ISFIFO(os.fstat(stream.fileno()).st_mode)
    except (OSError, ValueError):  # it has no descriptor
        return False


def _printed(options: ReportOptions, outcome: "Outcome", found: "Findings") -> str:
    """The result in the format of standard output."""
    form = options.printed_format
    if form == "json":
        from replay.output.findings import as_json
        from traces import dump_json

        return dump_json(as_json(found)) + "\n"
    if form == "blis":
        from replay.output.summary import summary

        return summary(found, options.summarize_trace)
    from replay.output.table import as_csv, as_markdown, as_report, as_text

    result = _result(options, outcome, found)
    if form == TABLE:
        return as_text(result, found, outcome.title, options.summarize_trace)
    origin = outcome.describe()
    if form == "report":
        return as_report(result, found, origin)
    if form == "csv":
        return as_csv(result, origin)
    return as_markdown(result, found, origin, options.summarize_trace)


def _result(options: ReportOptions, outcome: "Outcome", found: "Findings") -> "RunResult":
    from replay.analysis.result import mean_result, result_of

    runs, targets = outcome.runs or (outcome.simulated,), outcome.analysis_config.targets
    return mean_result([result_of(run, targets, found.goodput, options.min_attainment) for run in runs])


def _draw(options: ReportOptions, outcome: "Outcome", found: "Findings") -> None:
    """Draw the picture and write the page that are requested, of the first run if it is one of several."""
    from blis_sim.pictures.page import write_page
    from blis_sim.pictures.style import draw_panels
    from replay.output.page import panels_of, run_page

    origin = outcome.describe()
    panels = panels_of((outcome.runs or (outcome.simulated,))[0], outcome.analysis_config.targets)
    if options.plot is not None and panels:
        draw_panels(panels, options.plot, origin.title)
    if options.html is not None:
        result = _result(options, outcome, found)
        write_page(
            options.html, run_page(f"Run of {origin.model}", result, found, origin, panels, options.summarize_trace)
        )


def write_files(options: ReportOptions, outcome: "Outcome", found: "Findings") -> None:
    """Write requested files. Raises TraceError."""
    from replay.output.metrics import judgements, metrics_file, result_rows
    from traces import write_json, write_results

    simulated, analysis_config, sending = outcome.simulated, outcome.analysis_config, outcome.sending
    if options.results_path is not None:
        write_results(options.results_path, result_rows(simulated.requests, sending.is_chosen_by_run))
    if options.metrics_path is not None:
        judged = judgements(found.labels, found.goodput)
        write_json(options.metrics_path, metrics_file(simulated, found.metrics, judged))
    if options.saturation_report is not None:
        from replay.output.findings import events_of
        from traces.saturation.report import write_report

        events = events_of(simulated.requests)
        write_report(
            options.saturation_report, events, analysis_config.detectors, analysis_config.saturation, found.labels
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
        _draw(options, outcome, found)
