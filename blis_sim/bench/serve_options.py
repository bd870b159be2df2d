"""The settings of `blis bench serve`: those of `vllm bench serve`, a list of rates, and the JSON bodies it sends."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import inf, isnan
from pathlib import Path
from typing import Any

import orjson

from blis_sim.bench.datasets import DatasetOptions
from blis_sim.installation import check_answer
from blis_sim.options import ExclusionError, OptionError, check_outputs, option, section, written_file
from blis_sim.options.durations import parse_duration_ms
from blis_sim.options.option import MOST_REQUESTS, load_json
from blis_sim.options.printing import format_option, json_option
from observe.http import Server, check_header, parse_server, without_value

PATHS: Mapping[str, str] = {
    "openai": "/v1/completions",
    "vllm": "/v1/completions",
    "openai-chat": "/v1/chat/completions",
    "openai-responses": "/v1/responses",
}
"""Backend to the end that the path of its API must have."""

APIS: Mapping[str, str] = {
    "openai": "completions",
    "vllm": "completions",
    "openai-chat": "chat",
    "openai-responses": "responses",
}
"""Backend to its name in `observe`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BodyStyle:
    """Common fields of all bodies of a run; `extra` comes last and replaces fields of its names."""

    backend: str
    model: str
    logprobs: int | None = None
    ignore_eos: bool = False
    extra: Mapping[str, Any] = field(default_factory=dict)

    def body(self, prompt: str, output_tokens: int, model: str = "") -> bytes:
        """The body of one request, for another model if one is named."""
        common: dict[str, Any] = {"model": model or self.model, **self._prompt(prompt, output_tokens), "stream": True}
        if self.backend != "openai-responses":
            common["stream_options"] = {"include_usage": True}
        if self.ignore_eos:
            common["ignore_eos"] = True
        return orjson.dumps({**common, **self.extra})

    def _prompt(self, prompt: str, output_tokens: int) -> dict[str, Any]:
        if self.backend == "openai-chat":
            content = [{"type": "text", "text": prompt}]
            return {"messages": [{"role": "user", "content": content}], "max_completion_tokens": output_tokens}
        if self.backend == "openai-responses":
            return {"input": prompt, "max_output_tokens": output_tokens, "store": False}
        return {"prompt": prompt, "repetition_penalty": 1.0, "max_tokens": output_tokens, "logprobs": self.logprobs}


METRICS = ("ttft", "tpot", "itl", "e2el", "client_queue_time", "e2el_including_client_queue")
GOODPUT_METRICS = ("ttft", "tpot", "e2el")
_MIN_ATTAINMENT = 0.99
_TOLERANCE = 0.05
_SAMPLING = (
    "top_p",
    "top_k",
    "min_p",
    "temperature",
    "frequency_penalty",
    "presence_penalty",
    "repetition_penalty",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchServeOptions:
    """One run of `blis bench serve`. Raises OptionError or ObserveError for settings that do not fit together."""

    dataset: DatasetOptions = section(DatasetOptions)
    backend: str = option("openai", "API that requests use.", choices=PATHS, heading="Server")
    base_url: str | None = option(None, "Base URL of the server. Default: http with --host and --port.")
    host: str = option("127.0.0.1", "Host of the server.")
    port: int = option(8000, "Port of the server.", at_least=1, at_most=65535)
    endpoint: str | None = option(None, "Path of the API. Default: the path of --backend.")
    model: str | None = option(None, "Model that requests name. Default: the first model that the server lists.")
    served_model_name: str | None = option(
        None, "Model name in requests, in place of --model, which is noted in the results."
    )
    request_rate: tuple[str, ...] = option(
        ("inf",),
        "Requests per second, inf for all at once. Several, separated by commas, are run one after the other.",
        heading="Load",
    )
    burstiness: float = option(
        1.0, "Shape of the gamma distribution of gaps: 1 is Poisson, less is burstier, more is evener.", above=0
    )
    find_rate: bool = option(
        False,
        "Instead of --request-rate, find the highest rate at which --min-attainment of the requests are within"
        " --goodput. Each try sends --num-prompts.",
    )
    min_attainment: float = option(
        _MIN_ATTAINMENT, "With --find-rate: the least share of good requests.", above=0, at_most=1
    )
    tolerance: float = option(
        _TOLERANCE, "With --find-rate: tolerance of the rate, as a share of it.", at_least=0.001, at_most=0.5
    )
    ramp_up_strategy: str | None = option(
        None, "Raise the rate during the run instead of --request-rate.", choices=("linear", "exponential")
    )
    ramp_up_start_rps: float | None = option(None, "Rate at the start of a ramp.", at_least=0)
    ramp_up_end_rps: float | None = option(None, "Rate at the end of a ramp.", above=0)
    max_concurrency: int | None = option(
        None, "Most requests in flight; further requests wait in the client.", at_least=1
    )
    num_warmups: int = option(
        0, "Number of warm-up requests before the run, all with the first prompt.", at_least=0, at_most=MOST_REQUESTS
    )
    ready_check_timeout_sec: int = option(
        0, "Send the first prompt every 5 seconds, for so long, until it is answered. 0: no check.", at_least=0
    )
    goodput: tuple[str, ...] = option(
        (),
        f"Latencies within which a request is good, of {', '.join(GOODPUT_METRICS)}, such as ttft:500ms e2el:5s; "
        "a number alone is milliseconds.",
        metavar="NAME:DURATION ...",
        heading="Figures",
    )
    percentile_metrics: tuple[str, ...] = option(("ttft", "tpot", "itl"), "Latencies to report.", choices=METRICS)
    metric_percentiles: tuple[float, ...] = option((99.0,), "Percentiles to report.", at_least=0, at_most=100)
    ignore_eos: bool = option(
        False, "Request outputs of full length (ignore_eos); always on with --dataset-name random.", heading="Requests"
    )
    logprobs: int | None = option(None, "Log probabilities per token to request (completions).", at_least=0)
    top_p: float | None = option(None, "Sampling parameter of every request.")
    top_k: int | None = option(None, "Sampling parameter of every request.")
    min_p: float | None = option(None, "Sampling parameter of every request.")
    temperature: float | None = option(None, "Sampling parameter of every request.")
    frequency_penalty: float | None = option(None, "Sampling parameter of every request.")
    presence_penalty: float | None = option(None, "Sampling parameter of every request.")
    repetition_penalty: float | None = option(None, "Sampling parameter of every request.")
    extra_body: str = option("", "Further fields of every body.", metavar="JSON")
    lora_modules: tuple[str, ...] = option(
        (), "Models that requests name in place of --model, one per request.", metavar="NAME ..."
    )
    lora_assignment: str = option(
        "random", "Assignment of --lora-modules to requests.", choices=("random", "round-robin")
    )
    header: tuple[str, ...] = option((), "Further headers of every request.", metavar="NAME=VALUE ...")
    insecure: bool = option(False, "Take any certificate of an https server.")
    request_id_prefix: str = option(
        "bench-", "Beginning of the X-Request-Id headers; the number of the request follows."
    )
    label: str | None = option(None, "Label of the results. Default: --backend.", heading="Results")
    save_result: bool = option(False, "Write the results to a file (JSON), one per rate.")
    save_detailed: bool = option(False, "Include the figures of each request in the results.")
    append_result: bool = option(False, "Append the results to --result-filename, a line per run.")
    metadata: tuple[str, ...] = option((), "Further keys of the results.", metavar="KEY=VALUE ...")
    result_dir: str | None = option(None, "Folder of the results. Default: the current folder.")
    result_filename: str | None = option(
        None, "Name of the results. Default: LABEL-RATEqps-MODEL-TIME.json, with the concurrency if it is limited."
    )
    overwrite: bool = option(
        False, "Replace earlier results at --result-filename instead of moving them to a folder NAME.earlier-1, -2, ..."
    )
    format: str = format_option(
        "What standard output gets: the text that vLLM prints, or the content of its result files as JSON, CSV, "
        "Markdown or an HTML page."
    )
    json: bool = json_option()
    html: str | None = written_file(
        "load page", "Write a page with the table, the pictures of --plot and the origin (HTML; needs matplotlib)."
    )
    plot: str | None = written_file(
        "picture",
        "Draw a picture (.png, .svg or .pdf; needs matplotlib): over time, or with several rates throughput against"
        " latency.",
    )

    def __post_init__(self) -> None:
        check_answer(self)
        # Making these checks them.
        _ = self.rates, self.limits_ms, self.headers, self.extra_fields, self.extra_results, self.server, self.path
        # Folders of results are made when it is time.
        path, results = self.result_path, []
        if path is not None and path.parent.is_dir():
            results.append((str(path), "--result-filename", "benchmark results"))
        check_outputs(self, also_written=results)
        self._check_ramp()
        if self.find_rate and not self.goodput:
            raise OptionError("--find-rate needs --goodput NAME:DURATION, the limits of good requests")
        if self.find_rate and (self.request_rate != ("inf",) or self.ramp_up_strategy is not None):
            raise OptionError("--find-rate excludes --request-rate and --ramp-up-strategy")
        if not self.find_rate and (self.min_attainment, self.tolerance) != (_MIN_ATTAINMENT, _TOLERANCE):
            raise OptionError("--min-attainment and --tolerance need --find-rate")
        many = len(self.request_rate) > 1 or self.find_rate
        if self.overwrite and self.append_result:
            raise ExclusionError("--overwrite", "--append-result", ": one deletes what the other adds to")
        if many and self.result_filename is not None and not self.append_result:
            raise OptionError(
                "--result-filename with several rates needs --append-result, or each replaces the one before"
            )

    @property
    def rates(self) -> list[float]:
        """Requests per second of each run. Raises OptionError."""
        return [_rate(text) for text in self.request_rate]

    @property
    def limits_ms(self) -> dict[str, float]:
        """The limits of a good request, by metric. Raises OptionError."""
        limits = {}
        for pair in (part for each in self.goodput for part in each.split(",")):
            name, _, text = pair.partition(":")
            try:
                limit_ms = parse_duration_ms(text) if text[-1:].isalpha() else float(text)
            except ValueError:
                limit_ms = -1.0
            if name not in GOODPUT_METRICS or not 0 <= limit_ms < inf:
                raise OptionError(
                    f"--goodput must be NAME:DURATION with a name of {', '.join(GOODPUT_METRICS)}, got {pair!r}"
                )
            limits[name] = limit_ms
        return limits

    @property
    def headers(self) -> dict[str, str]:
        """The headers that all requests carry; OPENAI_API_KEY of the environment is sent as bearer token."""
        headers = {}
        key = os.environ.get("OPENAI_API_KEY")
        if key:
            check_header("OPENAI_API_KEY", "authorization", key)
            headers["authorization"] = f"Bearer {key}"
        for name, value in _pairs("--header", self.header).items():
            check_header("--header", name, value)
            headers[name.lower()] = value
        return headers

    @property
    def extra_fields(self) -> dict[str, Any]:
        """Further fields of every body, sampling parameters first. Raises OptionError."""
        sampling = {name: getattr(self, name) for name in _SAMPLING if getattr(self, name) is not None}
        if not self.extra_body:
            return sampling
        try:
            extra = load_json(self.extra_body)
        except ValueError:
            extra = None
        if not isinstance(extra, dict):
            raise OptionError(f"--extra-body must be a JSON object, got {self.extra_body!r}")
        return {**sampling, **extra}

    @property
    def extra_results(self) -> Mapping[str, str]:
        """Keys of the results that the user gave. Raises OptionError."""
        return _pairs("--metadata", self.metadata)

    @property
    def server(self) -> Server:
        """The server to send to. Raises ObserveError."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return parse_server(self.base_url or f"http://{host}:{self.port}", "--base-url")

    @property
    def path(self) -> str:
        """The path of the API. Raises OptionError for a path that the backend does not have."""
        usual = PATHS[self.backend]
        path = self.endpoint or usual
        if not path.startswith("/") or not path.endswith(usual.removeprefix("/v1")):
            raise OptionError(f"--endpoint must end with {usual} with --backend {self.backend}, got {path}")
        return path

    @property
    def result_path(self) -> Path | None:
        """Return the file for the results; None when its name depends on the results, or no file is requested."""
        if self.result_filename is None or not (self.save_result or self.append_result):
            return None
        return Path(self.result_dir or ".") / self.result_filename

    def _check_ramp(self) -> None:
        if self.ramp_up_strategy is None:
            if self.ramp_up_start_rps is not None or self.ramp_up_end_rps is not None:
                raise OptionError("--ramp-up-start-rps and --ramp-up-end-rps need --ramp-up-strategy")
            return
        start, end = self.ramp_up_start_rps, self.ramp_up_end_rps
        if self.request_rate != ("inf",):
            raise ExclusionError("--ramp-up-strategy", "--request-rate", "")
        if start is None or end is None:
            raise OptionError("--ramp-up-strategy needs --ramp-up-start-rps and --ramp-up-end-rps")
        if start > end:
            raise OptionError(f"--ramp-up-start-rps must be at most --ramp-up-end-rps ({end:g}), got {start:g}")
        if not start and (self.ramp_up_strategy == "exponential"):
            raise OptionError("--ramp-up-start-rps must be above 0 with an exponential ramp, got 0")


def _rate(text: str) -> float:
    try:
        rate = float(text)
    except ValueError:
        rate = 0.0
    if isnan(rate) or rate <= 0:
        raise OptionError(f"--request-rate must be above 0, or inf, got {text!r}")
    return rate


def _pairs(flag: str, given: tuple[str, ...]) -> dict[str, str]:
    pairs = {}
    for pair in given:
        name, equals, value = pair.partition("=")
        if not equals or not name:
            raise OptionError(f"{flag} must be KEY=VALUE, got {without_value(pair)!r}")
        pairs[name.strip()] = value.strip()
    return pairs
