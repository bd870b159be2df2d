"""The messages at the end of a run, and the exit code."""

from typing import TextIO

from observe.event_loop import Interrupt
from observe.figures.summary import RunStats, summarize, summary_text
from observe.messages import say, warn
from observe.recording import Recorder
from observe.workloads.workload import Workload
from traces import TraceError, dump_json

_LATE_P99_MS = 5.0


def report(recorder: Recorder, workload: Workload, interrupt: Interrupt, result: TextIO, *, num_not_sent: int) -> int:
    """Write the summary as JSON to `result`, print its main figures as messages, and return the exit code."""
    # First of all: standard output may lead to the disk that is full.
    if recorder.rescued:
        warn(recorder.rescued)
    if recorder.failure:
        say(f"blis observe: error: {recorder.failure}; {num_not_sent} requests not sent")
    stats = recorder.stats
    summary = summarize(
        stats,
        asked_per_s=workload.asked_per_s,
        num_not_sent=num_not_sent,
        rtt_ms=workload.rtt_ms,
        num_earlier=recorder.num_earlier,
        slo_targets=workload.slo_targets,
    )
    result.write(dump_json(summary) + "\n")
    result.flush()
    say(summary_text(summary))
    if recorder.num_earlier:
        say(f"{recorder.num_earlier} requests were recorded earlier and are not in these figures")
    for warning in warnings_of(stats, summary["send_lag_ms"], exact_output=workload.style.exact_output):
        warn(warning)
    if interrupt.signal is not None:
        cut = stats.kinds["cancelled"]
        say(f"interrupted by {interrupt.signal.name}: {num_not_sent} requests not sent, {cut} cut while under way")
    if len(stats.log):
        _draw(stats, workload, summary_text(summary))
    if recorder.failure:
        return 1
    if interrupt.exit_code is not None:
        return interrupt.exit_code
    if not stats.num_ok:
        say(f"blis observe: error: all requests failed, the first with: {' '.join(stats.first_error.split())}")
        return 1
    return 0


def _draw(stats: RunStats, workload: Workload, summary: str) -> None:
    """Draw the picture and write the page that are requested."""
    options, model = workload.options, workload.style.model
    if options.plot is None and options.html is None:
        return
    from observe.figures.page import write_load_page
    from observe.figures.timeline import draw, panels_of, timeline_of

    timeline = timeline_of(stats.log)
    try:
        if options.plot is not None:
            draw(timeline, options.plot, f"{model} at {options.url}")
        if options.html is not None:
            write_load_page(options.html, "blis observe", options, summary, panels_of(timeline), model, options.seed)
    except TraceError as error:
        warn(str(error))


def warnings_of(stats: RunStats, lag_ms: dict[str, float] | None, *, exact_output: bool) -> list[str]:
    """Yield warnings about figures that are less reliable than they look."""
    warnings = []
    if lag_ms is not None and lag_ms["p99"] > _LATE_P99_MS:
        warnings.append(
            f"requests were sent late (p99 {lag_ms['p99']:.1f} ms, longest {lag_ms['max']:.1f} ms): this machine"
            " cannot keep up, and its latencies are in doubt"
        )
    waits = stats.log.line_wait
    if len(waits):
        warnings.append(
            f"{len(waits)} requests waited for their turn under --max-concurrency (longest"
            f" {waits.max() / 1e9:.3f} s); latencies count from the actual sending"
        )
    if stats.num_uncounted:
        warnings.append(f"{stats.num_uncounted} answers had no usage; their output tokens are the chunks that came")
    if stats.num_other_length and exact_output:
        warnings.append(
            f"{stats.num_other_length} outputs had another length than asked for;"
            " the server may not support min_tokens and ignore_eos"
        )
    if stats.num_ok and stats.first_error:
        warnings.append(f"the first failure: {' '.join(stats.first_error.split())[:300]}")
    return warnings
