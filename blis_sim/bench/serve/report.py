"""What is said and written of each run of a benchmark, and of all of them together."""

import sys
from collections import Counter
from datetime import datetime
from math import inf

from blis_sim.bench.rate_search import Verdict
from blis_sim.bench.serve.figures import Asked, Figures, as_result, figures_of
from blis_sim.bench.serve.load import Measured
from blis_sim.bench.serve.options import BenchServeOptions
from blis_sim.bench.serve.printed import table
from blis_sim.bench.serve.rates import Run, draw_runs, runs_table
from blis_sim.bench.serve.result_file import content, save
from observe.figures.plot import draw
from observe.figures.request_log import RequestLog
from observe.figures.timeline import timeline_of
from observe.messages import say, warn
from traces import TraceError

_MOST_ERRORS = 10


class Reporter:
    """Prints the table of each run as soon as it is over, and keeps what the last words need."""

    def __init__(self, options: BenchServeOptions) -> None:
        self._options = options
        self._runs: list[Run] = []
        self._log: RequestLog | None = None

    def measured(self, measured: Measured) -> Verdict:
        """Save and print one run, and say whether it was good enough. Raises BenchError when it cannot be saved."""
        options = self._options
        asked = Asked(
            metrics=options.percentile_metrics,
            percentiles=options.metric_percentiles,
            limits_ms=options.limits_ms,
            max_concurrency=options.max_concurrency,
            request_rate=measured.rate,
        )
        figures = figures_of(measured.answers, measured.duration_s, asked)
        try:
            self._save(figures, measured)
        finally:
            sys.stdout.write(table(figures, asked))
            sys.stdout.flush()
        errors = Counter(" ".join(each.error.split())[:300] for each in measured.answers if not each.is_success)
        for error, num_failed in errors.most_common(_MOST_ERRORS):
            warn(f"{num_failed} requests failed: {error}")
        self._keep(figures, measured)
        return Verdict(self._is_good(figures), figures.request_throughput)

    def end(self) -> int:
        """Compare the runs, draw what is asked for, and return the exit code."""
        options = self._options
        if len(self._runs) > 1:
            sys.stdout.write("\n" + runs_table(self._runs))
        if options.find_rate:
            good = [run for run in self._runs if self._is_good(run.figures)]
            best = max(good, key=lambda run: run.figures.request_throughput, default=None)
            found = "none" if best is None else f"{best.label} ({best.figures.request_throughput:.2f} req/s)"
            sys.stdout.write(f"\nHighest rate within the limits: {found}\n")
        if options.plot is not None:
            try:
                if len(self._runs) > 1:
                    draw_runs(self._runs, options.plot)
                elif self._log is not None:
                    draw(timeline_of(self._log), options.plot)
            except TraceError as error:
                warn(str(error))
        if not any(run.figures.completed for run in self._runs):
            say("blis bench serve: error: all requests failed")
            return 1
        return 0

    def _save(self, figures: Figures, measured: Measured) -> None:
        """Before anything is printed, for who reads that may have gone."""
        options = self._options
        if options.save_result or options.append_result:
            date = datetime.now().strftime("%Y%m%d-%H%M%S")
            result = as_result(figures, measured.answers)
            path = save(options, content(options, measured.model, measured.rate, result, date), measured.rate)
            say(f"the results are in {path}")
        elif options.save_detailed:
            warn("--save-detailed writes nothing without --save-result")

    def _is_good(self, figures: Figures) -> bool:
        """Whether enough of all requests were good ones."""
        num_good = (figures.request_goodput or 0) * figures.duration
        return round(num_good) >= self._options.min_attainment * (figures.completed + figures.failed)

    def _keep(self, figures: Figures, measured: Measured) -> None:
        self._log = measured.log
        quick = Asked(metrics=("ttft", "itl"), percentiles=(99.0,), limits_ms={})
        tails = figures_of(measured.answers, measured.duration_s, quick).latencies
        ttft_ms, itl_ms = (tails[name].percentiles_ms["99"] for name in ("ttft", "itl"))
        label = "inf" if measured.rate == inf else f"{measured.rate:.6g}"
        self._runs.append(Run(label=label, figures=figures, p99_ttft_ms=ttft_ms, p99_itl_ms=itl_ms))
