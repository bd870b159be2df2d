"""Output about each run of a benchmark and about all runs: tables, and the result file of `vllm bench serve`."""

import json
import os
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import datetime
from itertools import chain, count
from math import inf
from pathlib import Path
from typing import Any

from blis_sim.bench import BenchError
from blis_sim.bench.rate_search import Verdict
from blis_sim.bench.serve.figures import BenchmarkMetrics, MetricSelection, as_result, calculate_metrics
from blis_sim.bench.serve.load import RunOutput
from blis_sim.bench.serve.options import BenchServeOptions
from blis_sim.pictures.panels import Curve, frontier_panels
from blis_sim.pictures.style import Panel, draw_panels
from observe.errors import print_message, warn
from observe.figures import RequestLog
from observe.timeline import panels_of, timeline_of, write_load_page
from traces import TraceError
from traces.append_file import AppendFile
from traces.backup import back_up
from traces.text_file import write_text

_DETAILS = ("input_lens", "output_lens", "start_times", "ttfts", "itls", "generated_texts", "errors")


def content(
    options: BenchServeOptions, model: str, rate: float, result: Mapping[str, Any], date: str
) -> dict[str, Any]:
    """The object of the file: the settings of the run, then its results."""
    head: dict[str, Any] = {
        "date": date,
        "endpoint_type": options.backend,
        "backend": options.backend,
        "label": options.label,
        "model_id": options.model or model,
        "tokenizer_id": options.dataset.tokenizer or options.model or model,
        "num_prompts": options.dataset.num_prompts,
        **options.extra_results,
        "request_rate": "inf" if rate == inf else rate,
        "burstiness": options.burstiness,
        "max_concurrency": options.max_concurrency,
    }
    if options.ramp_up_strategy is not None:
        head["ramp_up_strategy"] = options.ramp_up_strategy
        head["ramp_up_start_rps"] = options.ramp_up_start_rps
        head["ramp_up_end_rps"] = options.ramp_up_end_rps
    details = () if options.save_detailed else _DETAILS
    return {**head, **{name: value for name, value in result.items() if name not in details}}


def save(options: BenchServeOptions, found: Mapping[str, Any], rate: float) -> Path:
    """Write the result file and return its path. Raises BlisError when writing fails."""
    path = options.result_path or Path(options.result_dir or ".") / _name(options, found, rate)
    text = json.dumps(found)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if options.append_result:
            _append(path, text)
        elif options.result_path is None:
            path = _write_beside(path, text)
        elif options.overwrite or (path.exists() and not path.is_file()):
            write_text(path, text)
        else:
            path = _overwrite(path, text)
    except OSError as error:
        raise BenchError(f"cannot write {path}: {(error.strerror or str(error)).lower()}") from error
    return path


def _write_beside(path: Path, text: str) -> Path:
    """Write to this path, or to a numbered one where the file exists: two short runs at one rate end in the same
    second."""
    others = (path.with_name(f"{path.stem}-{number}{path.suffix}") for number in count(2))
    return next(each for each in chain([path], others) if _write_new(each, text))


def _overwrite(path: Path, text: str) -> Path:
    """Write to this path after moving earlier results away; where moving fails, write beside them."""
    while not _write_new(path.resolve(), text):
        try:
            folder = back_up(path.with_suffix(""), [], [path])
        except TraceError as error:
            warn(str(error))
            return _write_beside(path, text)
        if folder is not None:
            print_message(f"note: the earlier results at {path} are now in {folder}")
    return path


def _write_new(path: Path, text: str) -> bool:
    """Write a file, unless there is one. A file that could not be written whole is removed."""
    try:
        file = path.open("x", encoding="utf-8")
    except FileExistsError:
        return False
    try:
        with file:
            file.write(text)
    except OSError:
        path.unlink(missing_ok=True)
        raise
    return True


def _append(path: Path, text: str) -> None:
    """Append a line, or nothing where the whole line does not fit."""
    path.touch()
    with closing(AppendFile(path, is_shared=True)) as file:
        file.write(f"\n{text}" if path.stat().st_size else text)


def check_result_folder(options: BenchServeOptions) -> None:
    """Make the folder of the results before anything is sent. Raises BenchError when they could not be written."""
    path = Path(options.result_dir or ".") / (options.result_filename or ".")
    folder = path.parent if options.result_filename else path
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BenchError(f"cannot write to {folder}: {(error.strerror or str(error)).lower()}") from error
    if options.result_filename and path.is_dir():
        raise BenchError(f"--result-filename must be a file, got the folder {path}")
    stays = path.exists() and (options.append_result or options.overwrite or not path.is_file())
    if not os.access(path if stays else path.resolve().parent, os.W_OK):
        raise BenchError(f"cannot write to {path}: permission denied")


def _name(options: BenchServeOptions, found: Mapping[str, Any], rate: float) -> str:
    """The file name, made of label, rate, limit of concurrency if there is one, model and time."""
    traffic = f"{rate}qps"
    if options.ramp_up_strategy is not None:
        start, end = options.ramp_up_start_rps, options.ramp_up_end_rps
        traffic = f"ramp-up-{options.ramp_up_strategy}-{start:g}qps-{end:g}qps"
    concurrency = "" if options.max_concurrency is None else f"-concurrency{options.max_concurrency}"
    model = str(found["model_id"]).rpartition("/")[2]
    return f"{options.label or options.backend}-{traffic}{concurrency}-{model}-{found['date']}.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One run: its requested rate and its figures."""

    label: str
    figures: BenchmarkMetrics
    p99_ttft_ms: float
    p99_itl_ms: float


def runs_table(runs: Sequence[Run]) -> str:
    """A line per rate, with a newline at the end."""
    has_goodput = runs[0].figures.request_goodput is not None
    titles = ["rate", "req/s", *(["good req/s"] if has_goodput else []), "tok/s", "p99 TTFT ms", "p99 ITL ms", "failed"]
    lines = ["".join(f"{title:>13}" for title in titles)]
    for run in runs:
        figures = run.figures
        goodput = [] if figures.request_goodput is None else [figures.request_goodput]
        numbers = [figures.request_throughput, *goodput, figures.output_throughput, run.p99_ttft_ms, run.p99_itl_ms]
        lines.append(f"{run.label:>13}" + "".join(f"{each:>13.2f}" for each in numbers) + f"{figures.failed:>13}")
    return "\n".join([*lines, ""])


def panels_of_runs(runs: Sequence[Run]) -> list[Panel]:
    """Return throughput against latency, with a point for each rate."""
    curve = Curve(
        name="",
        throughput=[run.figures.output_throughput for run in runs],
        ttft_ms=[run.p99_ttft_ms for run in runs],
        itl_ms=[run.p99_itl_ms for run in runs],
        labels=[f"{run.label}/s" for run in runs],
    )
    return frontier_panels([curve])


_WIDTH = 50
_METRICS: Mapping[str, tuple[str, str]] = {
    "ttft": ("TTFT", "Time to First Token"),
    "tpot": ("TPOT", "Time per Output Token (excl. 1st token)"),
    "itl": ("ITL", "Inter-token Latency"),
    "e2el": ("E2EL", "End-to-end Latency"),
    "client_queue_time": ("Client Queue Time", "Client-side Queueing"),
    "e2el_including_client_queue": ("E2EL incl. Client Queue", "Queue-inclusive End-to-end Latency"),
}
"""Metric to its short name and its heading, in the order of the table."""


def table(figures: BenchmarkMetrics, selection: MetricSelection) -> str:
    """The whole table, with a newline at the end."""
    return "\n".join([" Serving Benchmark Result ".center(_WIDTH, "="), *_lines(figures, selection), "=" * _WIDTH, ""])


def _lines(figures: BenchmarkMetrics, selection: MetricSelection) -> Iterator[str]:
    yield _count("Successful requests:", figures.completed)
    yield _count("Failed requests:", figures.failed)
    if selection.max_concurrency is not None:
        yield _count("Maximum request concurrency:", selection.max_concurrency)
    if selection.request_rate != inf:
        yield _number("Request rate configured (RPS):", selection.request_rate)
    yield _number("Benchmark duration (s):", figures.duration)
    yield _count("Total input tokens:", figures.total_input_tokens)
    yield _count("Total generated tokens:", figures.total_output_tokens)
    yield _number("Request throughput (req/s):", figures.request_throughput)
    if figures.request_goodput is not None:
        yield _number("Request goodput (req/s):", figures.request_goodput)
    yield _number("Output token throughput (tok/s):", figures.output_throughput)
    yield _number("Peak output token throughput (tok/s):", figures.max_output_tokens_per_s)
    yield _number("Peak concurrent requests:", figures.max_concurrent_requests)
    yield _number("Total token throughput (tok/s):", figures.total_token_throughput)
    for metric, (name, heading) in _METRICS.items():
        each = figures.latencies.get(metric)
        if each is not None:
            yield heading.center(_WIDTH, "-")
            yield _number(f"Mean {name} (ms):", each.mean_ms)
            yield _number(f"Median {name} (ms):", each.median_ms)
            for word, value in each.percentiles_ms.items():
                yield _number(f"P{word} {name} (ms):", value)


def _count(label: str, value: int) -> str:
    return f"{label:<40} {value:<10}"


def _number(label: str, value: float) -> str:
    return f"{label:<40} {value:<10.2f}"


_MOST_ERRORS = 10


class Reporter:
    """Prints the table of each run when it ends, and keeps figures for the final comparison."""

    def __init__(self, options: BenchServeOptions) -> None:
        self._options = options
        self._runs: list[Run] = []
        self._log: RequestLog | None = None
        self._table = ""
        self._model = ""

    def measured(self, measured: RunOutput) -> Verdict:
        """Save and print one run, and return whether it met its limits. Raises BenchError when it cannot be saved."""
        options = self._options
        selection = MetricSelection(
            metrics=options.percentile_metrics,
            percentiles=options.metric_percentiles,
            limits_ms=options.limits_ms,
            max_concurrency=options.max_concurrency,
            request_rate=measured.rate,
        )
        figures = calculate_metrics(measured.answers, measured.duration_s, selection)
        try:
            self._save(figures, measured)
        finally:
            self._table, self._model = table(figures, selection), measured.model
            sys.stdout.write(self._table)
            sys.stdout.flush()
        errors = Counter(" ".join(each.error.split())[:300] for each in measured.answers if not each.is_success)
        for error, num_failed in errors.most_common(_MOST_ERRORS):
            warn(f"{num_failed} requests failed: {error}")
        self._keep(figures, measured)
        return Verdict(self._is_good(figures), figures.request_throughput)

    def end(self) -> int:
        """Compare the runs, draw requested pictures, and return the exit code."""
        options = self._options
        if len(self._runs) > 1:
            sys.stdout.write("\n" + runs_table(self._runs))
        if options.find_rate:
            good = [run for run in self._runs if self._is_good(run.figures)]
            best = max(good, key=lambda run: run.figures.request_throughput, default=None)
            found = "none" if best is None else f"{best.label} ({best.figures.request_throughput:.2f} req/s)"
            sys.stdout.write(f"\nHighest rate within the limits: {found}\n")
        self._draw()
        if not any(run.figures.completed for run in self._runs):
            print_message("blis bench serve: error: all requests failed")
            return 1
        return 0

    def _draw(self) -> None:
        """Draw the picture and write the page that are requested."""
        options = self._options
        if options.plot is None and options.html is None:
            return
        several = len(self._runs) > 1
        panels = panels_of_runs(self._runs) if several else panels_of(timeline_of(self._log)) if self._log else []
        try:
            if options.plot is not None and panels:
                draw_panels(panels, options.plot)
            if options.html is not None:
                summary = runs_table(self._runs) if several else self._table
                model = self._model
                write_load_page(options.html, "blis bench serve", options, summary, panels, model, options.dataset.seed)
        except TraceError as error:
            warn(str(error))

    def _save(self, figures: BenchmarkMetrics, measured: RunOutput) -> None:
        """Write the files first: the reader of standard output may have gone."""
        options = self._options
        if options.save_result or options.append_result:
            date = datetime.now().strftime("%Y%m%d-%H%M%S")
            result = as_result(figures, measured.answers)
            path = save(options, content(options, measured.model, measured.rate, result, date), measured.rate)
            print_message(f"the results are in {path}")
        elif options.save_detailed:
            warn("--save-detailed writes nothing without --save-result")

    def _is_good(self, figures: BenchmarkMetrics) -> bool:
        """Whether the share of good requests is high enough."""
        num_good = (figures.request_goodput or 0) * figures.duration
        return round(num_good) >= self._options.min_attainment * (figures.completed + figures.failed)

    def _keep(self, figures: BenchmarkMetrics, measured: RunOutput) -> None:
        self._log = measured.log
        quick = MetricSelection(metrics=("ttft", "itl"), percentiles=(99.0,), limits_ms={})
        tails = calculate_metrics(measured.answers, measured.duration_s, quick).latencies
        ttft_ms, itl_ms = (tails[name].percentiles_ms["99"] for name in ("ttft", "itl"))
        label = "inf" if measured.rate == inf else f"{measured.rate:.6g}"
        self._runs.append(Run(label=label, figures=figures, p99_ttft_ms=ttft_ms, p99_itl_ms=itl_ms))
