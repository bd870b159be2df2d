"""The settings of the analysis of a simulation, and the files of its results."""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from blis_sim.installation import check_page, check_plot
from blis_sim.options import OptionError, check_options, check_outputs, option, section, written_file
from blis_sim.options.custom_metrics import CustomMetric, custom_metrics, metric_option
from blis_sim.options.latency_targets import LatencyTargets
from blis_sim.options.printing import BLIS, CSV, HTML, JSON, MARKDOWN, TABLE, format_option, printed_format
from traces import SloTargets, slo_targets
from traces.saturation_options import QUEUE, SaturationOptions

if TYPE_CHECKING:
    from blis_sim.engine.cluster.cluster import DecisionLog


METRICS = (
    "throughput", "tokens_per_sec", "mean_ttft", "p50_ttft", "p99_ttft", "mean_e2e", "p50_e2e", "p99_e2e",
)  # fmt: skip


def parse_weights(text: str) -> dict[str, float]:
    """Weights by metric of `metric:weight[,metric:weight]`, metrics ascending; empty of no text. Raises OptionError."""
    weights: dict[str, float] = {}
    for pair in text.split(",") if text.strip() else []:
        metric, _, number = (part.strip() for part in pair.partition(":"))
        try:
            weight = float(number)
        except ValueError:
            weight = math.nan
        if not math.isfinite(weight) or weight < 0:
            raise OptionError(f"--fitness-weights must be metric:weight[,metric:weight], weights from 0, got {pair!r}")
        if metric not in METRICS:
            raise OptionError(f"--fitness-weights has the metrics {', '.join(METRICS)}, got {metric!r}")
        if metric in weights:
            raise OptionError(f"--fitness-weights names {metric} twice")
        weights[metric] = weight
    return dict(sorted(weights.items()))


TRACE_LEVELS = ("none", "decisions")
FORMATS = (TABLE, JSON, "report", CSV, MARKDOWN, HTML, BLIS)
LOG_LEVELS = ("trace", "debug", "info", "warn", "warning", "error", "fatal", "panic")
LEAST_ATTAINMENT = 0.99
METRICS_CONFIG = "config.json"
"""The file in a folder of metrics that has the settings of the run; a folder with it may be written again."""


def ignore_note(_line: str) -> None:
    """Leave a note out."""


def goodput_option() -> Any:
    """Return the option for targets of single requests."""
    return option(
        (),
        "Latencies within which a request is good, such as ttft:500ms,itl:40ms,e2e:5s. itl is its mean time between "
        "tokens, and batch/e2e:30s holds for one class. They replace all of the workload or trace. Adds goodput.",
        metavar="[CLASS/]NAME:DURATION,...",
        heading="Judging the run",
    )


def min_attainment_option() -> Any:
    """Return the option for the share of requests that must meet the targets of single requests."""
    text = "Share of requests within their targets from which the table calls them met."
    return option(LEAST_ATTAINMENT, text, above=0, at_most=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportOptions:
    """The settings that all commands with a simulation to report on share."""

    targets: LatencyTargets = section(LatencyTargets)
    goodput: tuple[str, ...] = goodput_option()
    slo_ttft: str = option("", "BLIS's spelling of --goodput CLASS/ttft:DURATION.", hidden=True)
    slo_itl: str = option("", "BLIS's spelling of --goodput CLASS/itl:DURATION.", hidden=True)
    slo_e2e: str = option("", "BLIS's spelling of --goodput CLASS/e2e:DURATION.", hidden=True)
    saturation: SaturationOptions = section(SaturationOptions)
    fail_on: tuple[str, ...] = option(
        (), "End with exit code 1 where the verdict on the run is one of these.", choices=("overload",)
    )
    fitness_weights: str = option(
        "",
        f"Adds one weighted figure of merit for the run. Metrics: {', '.join(METRICS)}.",
        metavar="METRIC:WEIGHT,...",
    )
    metric: tuple[str, ...] = metric_option("a finished run")
    results_path: str | None = written_file(
        "latencies", "Write latencies per request here (JSON).", heading="What is written"
    )
    metrics_path: str | None = written_file(
        "run metrics", "Write aggregate metrics with a row per request here (JSON)."
    )
    trace_level: str = option("none", "The decisions of the cluster that are recorded.", choices=TRACE_LEVELS)
    counterfactual_k: int = option(
        0,
        "With --trace-level decisions, how many of the best instances are kept for each request. They are compared "
        "with the chosen one for its regret; 0 compares none.",
        at_least=0,
    )
    summarize_trace: bool = option(False, "Print a summary of the decisions; needs --trace-level decisions.")
    decisions_path: str | None = written_file(
        "decisions",
        "Write where each request was sent and what the best instances looked like here (JSON); needs --trace-level "
        "decisions.",
    )
    trace_output: str | None = option(
        None,
        "Write what was simulated as a trace, to PREFIX.yaml and PREFIX.csv.",
        metavar="PREFIX",
        writes={".yaml": "header", ".csv": "rows"},
    )
    record_itl: bool = option(False, "Write when each token of each completed request came.")
    itl_output: str | None = written_file(
        "token times", "Write token times here (CSV). Default: beside the rows of --trace-output, as .itl.csv."
    )
    metrics_dir: str | None = option(
        None,
        "Write tables of requests, batches and operations, and the use of each instance to this folder while the run "
        "goes on. A timeline for Perfetto and pictures are added.",
        metavar="DIR",
    )
    graph_output: str | None = written_file(
        "request graphs",
        "Write the tasks of each request here when it ends, as graphs in node-link JSON. Tasks are prompt, transfer "
        "of its KV cache and tokens, with states and durations.",
    )
    plot: str | None = written_file(
        "picture",
        "Draw the run here: load, throughput, latencies over time and as distributions, KV cache, instances (.png, "
        ".svg or .pdf; needs matplotlib).",
    )
    html: str | None = written_file(
        "run page", "Write the run here as one page with tables, pictures and origin (HTML; needs matplotlib)."
    )
    provenance: str | None = written_file(
        "provenance",
        "Write the origin of the results here (JSON): version, command, model, GPU, engine, latency model and its "
        "expected error, seed, hashes of the files read. The formats of BLIS have no place for it.",
    )
    json: bool = option(False, "Print one JSON object with the breakdowns in it: --format json.")
    format: str = format_option(
        "What standard output gets: a table for people, or one JSON object with the breakdowns in it. report is that "
        "object with the table's figures and their origin. CSV, Markdown and an HTML page have these figures. blis is "
        "the text that BLIS prints: metrics as JSON, then sections. BLIS_FORMAT in the environment is the default, "
        "and its value blis also sets --engine blis.",
        FORMATS,
    )
    log: str = option(
        "warn",
        "Least severe messages that standard error gets: from error on there are no notes and warnings, only errors. "
        "No message is less severe than warn.",
        choices=LOG_LEVELS,
        metavar="LEVEL",
    )
    min_attainment: float = min_attainment_option()

    def __post_init__(self) -> None:
        check_options(self)
        if self.trace_level == "none":
            for flag, value in (
                ("--counterfactual-k", self.counterfactual_k),
                ("--summarize-trace", self.summarize_trace),
                ("--decisions-path", self.decisions_path),
            ):
                if value:
                    raise OptionError(f"{flag} needs --trace-level decisions")
        check_plot("--plot", self.plot)
        check_page("--html", self.html)
        if self.metrics_dir is not None:
            _check_folder(self.metrics_dir)
        # Making these checks them.
        _ = self.slo_targets, self.targets.targets_ms, self.weights, self.itl_path, self.printed_format
        _ = self.custom_metrics

    @property
    def needs_events(self) -> bool:
        """Whether a requested output needs the events of every batch."""
        return self.metrics_dir is not None or self.graph_output is not None

    @property
    def records_a_run(self) -> bool:
        """Whether an output is written while a run goes on."""
        return self.needs_events or self.itl_path is not None or self.trace_level == "decisions"

    @property
    def printed_format(self) -> str:
        """The format of standard output. Raises OptionError."""
        return printed_format(self)

    @property
    def shows_notes(self) -> bool:
        """Whether standard error gets notes and warnings."""
        return LOG_LEVELS.index(self.log) < LOG_LEVELS.index("error")

    @property
    def decision_log(self) -> "DecisionLog | None":
        """The log that keeps the decisions of a run; None keeps none."""
        if self.trace_level != "decisions":
            return None
        from blis_sim.engine.cluster.cluster import DecisionLog  # few runs keep any

        return DecisionLog(self.counterfactual_k)

    @property
    def slo_targets(self) -> dict[str, SloTargets]:
        """The targets given by flags, per class. Raises OptionError."""
        return slo_targets(self.goodput, self.slo_ttft, self.slo_itl, self.slo_e2e)

    @property
    def custom_metrics(self) -> tuple[CustomMetric, ...]:
        """The metrics of other packages. Raises OptionError."""
        return custom_metrics(self.metric)

    @property
    def weights(self) -> dict[str, float]:
        """Weights of the fitness by metric. Raises OptionError."""
        return parse_weights(self.fitness_weights)

    @property
    def judges_queue(self) -> bool:
        """Whether the run is labelled by the number of requests in the system. What BLIS prints has no such label."""
        return QUEUE in self.saturation.detectors or (self.saturation.names_all and self.printed_format != "blis")

    @property
    def itl_path(self) -> Path | None:
        """The file of token times; None for no file. Raises OptionError."""
        if not self.record_itl:
            if self.itl_output is not None:
                raise OptionError("--itl-output needs --record-itl")
            return None
        if self.itl_output is None and self.trace_output is None:
            raise OptionError("--record-itl needs --trace-output or --itl-output, the file to write to")
        return Path(self.itl_output or f"{self.trace_output}.itl.csv")

    def check_files(self, options: Any, *also_read: Path) -> None:
        """Raise OptionError when a file would be written over another that is written, or read.

        `options` are those of the whole command, whose other settings name files, too.
        """
        beside_rows = self.record_itl and self.itl_output is None
        also_written = [(str(self.itl_path), "--trace-output", "token times")] if beside_rows else []
        check_outputs(options, *also_read, also_written=also_written)


def _check_folder(path: str) -> None:
    """Raise OptionError for a folder that holds anything but the metrics of an earlier run."""
    folder = Path(path)
    if folder.exists() and not folder.is_dir():
        raise OptionError(f"--metrics-dir must be a folder, got the file {path}")
    if folder.is_dir() and any(folder.iterdir()) and not _is_run_config(folder / METRICS_CONFIG):
        raise OptionError(
            f"--metrics-dir must be a new or an empty folder, or one that an earlier run has written, got {path}"
        )


def _is_run_config(config: Path) -> bool:
    """Return whether a file has the settings of a run, as a model's config.json has not."""
    try:
        with config.open("rb") as file:
            return file.read(64).split(b":")[0].strip(b"{\r\n ") == b'"command"'
    except OSError:
        return False
