"""The settings of `blis calibrate --watch`."""

from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from blis_sim.engine.deployment_options import MODEL_NAMES, DeploymentOptions
from blis_sim.installation import check_answer
from blis_sim.options import OptionError, check_outputs, option, section, written_file
from blis_sim.options.printing import CSV, JSON, TABLE, format_option, json_option


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchedDeploymentOptions(DeploymentOptions):
    """The settings with which the watched server is predicted."""

    model: str = option(
        "",
        "Model of the server, a name of the catalogue or a local folder (default: the name on its metrics page).",
        suggested=MODEL_NAMES,
        heading="Model and GPU",
    )
    engine: str = option("vllm", "Engine of the server.", choices=("vllm",))

    def __post_init__(self) -> None:
        DeploymentOptions.__post_init__(self)
        if self.speculation is not None:
            raise OptionError("blis calibrate --watch does not support speculative decoding")
        if self.dp > 1:
            raise OptionError(f"blis calibrate --watch does not support dp; --dp must be 1, got {self.dp}")


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchOptions:
    """The settings of `blis calibrate --watch`: the server, the interval of comparisons, and the end of watching.

    Raises OptionError for settings that do not fit together.
    """

    deployment: WatchedDeploymentOptions = section(WatchedDeploymentOptions)
    url: str = option(
        help="Metrics page of the server, such as http://localhost:8000/metrics, or a Prometheus that scrapes it, such "
        "as http://localhost:9090/api/v1/query.",
        heading="Watching",
    )
    selector: str = option(
        "", "With the URL of a Prometheus: labels of the server there, such as 'instance=\"a:8000\"'.", metavar="LABELS"
    )
    api_key: str | None = option(None, "Bearer token for the metrics page or Prometheus.")
    watch_interval: float = option(60.0, "Seconds between two comparisons.", at_least=0.2, at_most=86_400)
    watch_window: float = option(
        300.0, "Seconds before each comparison that are compared.", at_least=0.2, at_most=86_400
    )
    scrape_interval: float = option(
        5.0, "Seconds between two readings of a metrics page; those of a Prometheus are as far apart as it reads.",
        at_least=0.05, at_most=3600,
    )  # fmt: skip
    comparisons: int = option(
        0, "Stop after so many comparisons. 0: go on until a figure leaves its interval.", at_least=0
    )
    traffic: str | None = option(
        None,
        "Contents that `blis observe --proxy --record-content` records (PREFIX.content.jsonl). What these requests "
        "must find in the prefix cache stands beside what the server reports. One that finds less is an alarm. The "
        "server tokenizes each prompt once more.",
        metavar="FILE",
    )
    keep_watching: bool = option(False, "Continue after a figure has left its interval.")
    draws: int = option(
        40, "Simulate each window so often, with coefficients and arrivals drawn anew.", at_least=10, at_most=1000
    )
    tolerance: float = option(
        0.01, "Share of a predicted figure by which its interval is wider on both sides.", at_least=0, at_most=1
    )
    drift_metrics: str | None = written_file(
        "drift metrics",
        "Write each comparison here as metrics in Prometheus' text format, for the textfile collector of its node "
        "exporter.",
    )
    html: str | None = written_file(
        "page",
        "Write all comparisons here as one page (HTML), anew after each; a browser that shows the page loads it again.",
    )
    format: str = format_option(
        "What standard output gets of each comparison: lines for people, a line of JSON, or a row of CSV.",
        (TABLE, JSON, CSV),
    )
    json: bool = json_option()

    def __post_init__(self) -> None:
        check_answer(self)
        check_outputs(self, *([] if self.traffic is None else [Path(self.traffic)]))
        url = self.url
        if "@" in url.partition("?")[0]:
            raise OptionError("--url must not carry a user name or password, give --api-key")
        try:
            parts = urlsplit(url)
            is_good = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
        except ValueError:
            is_good = False
        if not is_good:
            shown = url.partition("?")[0]
            raise OptionError(
                f"--url must be an http or https URL such as http://localhost:8000/metrics, got {shown!r}"
            )
        if self.selector and not self.reads_prometheus:
            raise OptionError("--selector needs the URL of a Prometheus, such as http://localhost:9090/api/v1/query")
        if self.traffic is not None and self.reads_prometheus:
            raise OptionError("--traffic needs the metrics page of the server in --url, which a Prometheus is not")
        if not self.reads_prometheus and 2 * self.scrape_interval > self.watch_window:
            raise OptionError(
                f"--scrape-interval must be at most half of --watch-window, {self.watch_window:g} s, "
                f"got {self.scrape_interval:g}"
            )

    @property
    def reads_prometheus(self) -> bool:
        """Whether the URL is that of a Prometheus."""
        return "/api/v1" in urlsplit(self.url).path
