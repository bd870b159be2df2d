"""The settings of `blis observe`, and what follows from them."""

import ssl
from collections.abc import Iterator
from dataclasses import dataclass
from os.path import isfile  # which takes any text for a path
from pathlib import Path

from blis_sim.options import OptionError, check_options, check_written, option, options_of, section
from blis_sim.options.extras import check_page, check_plot, check_ray
from blis_sim.options.limits import LATEST_US, LEAST_RATE, MOST_PROCESSES, MOST_REQUESTS, MOST_TOKENS
from observe.body import APIS, Lengths
from observe.http import Server, check_header, parse_server, tls_context
from observe.output_paths import OutputPaths, stem_of
from observe.proxy_options import ProxyOptions
from observe.spans import TracingOptions
from traces import SloTargets, beside, slo_targets_from_flags

_OF_LOAD = frozenset(
    (
        "rate",
        "num_requests",
        "arrival",
        "trace",
        "session_mode",
        "think_time_ms",
        "prompts",
        "workload_spec",
        "seed",
        "prompt_tokens",
        "prompt_tokens_stdev",
        "prompt_tokens_min",
        "prompt_tokens_max",
        "output_tokens",
        "output_tokens_stdev",
        "output_tokens_min",
        "output_tokens_max",
        "prefix_tokens",
        "api_format",
        "streaming",
        "unconstrained_output",
        "ignore_eos",
        "max_concurrency",
        "processes",
        "ray",
        "ray_address",
        "warmup_requests",
        "api_key",
        "header",
        "scrape_metrics",
        "server_config",
        "plot",
        "html",
        "slo_ttft",
        "slo_itl",
        "slo_e2e",
        "otlp_traces_endpoint",
    )
)
"""Settings of the requests that are sent, which a proxy does not have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ObserveOptions:
    """One run of `blis observe`. Raises OptionError or ObserveError for settings that do not fit together."""

    url: str = option(
        help="Base URL of the server, such as http://localhost:8000.",
        flags=("--url", "--server-url"),
        heading="Server and recording",
    )
    model: str | None = option(None, "Model to request. Default: the first that the server lists.")
    output: str | None = option(
        None,
        "Write the recording to PREFIX.yaml, PREFIX.csv and PREFIX.itl.csv.",
        flags=("--output", "-o"),
        metavar="PREFIX",
    )
    trace_header: str | None = option(None, "Write the header of the recording here instead of to PREFIX.yaml.")
    trace_data: str | None = option(None, "Write the rows of the recording here instead of to PREFIX.csv.")
    rate: float | None = option(
        None, "Requests per second of a synthetic workload.", above=0, at_least=LEAST_RATE, heading="Workload"
    )
    num_requests: int | None = option(
        None,
        "How many requests to send. Required with --rate; with --trace or --workload-spec, its first ones.",
        at_least=1,
        at_most=MOST_REQUESTS,
    )
    arrival: str = option("constant", "Gaps between requests at --rate.", choices=("constant", "poisson"))
    trace: str | None = option(
        None, "Send the workload of this recording (its .yaml file) again, at its own times.", metavar="HEADER"
    )
    session_mode: str = option(
        "fixed",
        "With --trace: when rounds of conversations and agents are sent, at their own times or when the replies that "
        "they wait for have come and the recorded pause is over.",
        choices=("fixed", "closed-loop"),
    )
    think_time_ms: int | None = option(
        None,
        "With --session-mode closed-loop: the pause before each request that waits. Default: as recorded.",
        at_least=0,
        at_most=LATEST_US // 1000,
    )
    prompts: str | None = option(
        None,
        "Send the prompts of this file in turn at --rate: text with a prompt per line, or .jsonl with prompt and"
        " perhaps output_tokens.",
        metavar="FILE",
    )
    workload_spec: str | None = option(
        None,
        "Send what this workload spec (YAML) generates with its own seed, as blis run does; users and conversations"
        " wait for replies.",
        metavar="FILE",
    )
    seed: int = option(42, "Seed of prompts, and of arrivals and lengths at --rate.")
    prompt_tokens: int = option(512, "Mean prompt length at --rate.", at_least=1, at_most=MOST_TOKENS)
    prompt_tokens_stdev: float = option(0.0, "Standard deviation of prompt lengths.", at_least=0, at_most=MOST_TOKENS)
    prompt_tokens_min: int = option(1, "Shortest prompt.", at_least=1, at_most=MOST_TOKENS)
    prompt_tokens_max: int | None = option(None, "Longest prompt. Default: no limit.", at_least=1)
    output_tokens: int = option(128, "Mean output length at --rate.", at_least=1, at_most=MOST_TOKENS)
    output_tokens_stdev: float = option(0.0, "Standard deviation of output lengths.", at_least=0, at_most=MOST_TOKENS)
    output_tokens_min: int = option(1, "Shortest output.", at_least=1, at_most=MOST_TOKENS)
    output_tokens_max: int | None = option(None, "Longest output. Default: no limit.", at_least=1)
    prefix_tokens: int = option(
        0, "Tokens of a prefix that all prompts share, beside --prompt-tokens.", at_least=0, at_most=MOST_TOKENS
    )
    api_format: str = option("completions", "Which API to send to.", choices=APIS, heading="Requests")
    streaming: bool | None = option(
        None,
        "Request streamed replies for all requests, or for none. Default: as each request of the workload spec or the"
        " trace says; those that say nothing are streamed.",
    )
    unconstrained_output: bool = option(False, "Let the model end its outputs instead of forcing their length.")
    ignore_eos: bool = option(True, "Send ignore_eos (vLLM) with outputs of forced length.")
    max_concurrency: int = option(
        0, "Most requests in flight; others wait in line. 0: no limit.", at_least=0, heading="Sending"
    )
    processes: int | None = option(
        None,
        "Share the sending out over so many processes, where one cannot keep up with the rate. Default: 1; with --ray"
        " one per machine.",
        at_least=1,
        at_most=MOST_PROCESSES,
    )
    ray: bool = option(
        False, "Send from the machines of a Ray cluster (needs ray): the one of --ray-address, else one here."
    )
    ray_address: str | None = option(None, "Address of the cluster, such as auto or ray://host:10001.")
    warmup_requests: int = option(0, "Leave the first N requests out of the recording.", at_least=0, metavar="N")
    timeout: float = option(300.0, "Seconds until a request is given up.", above=0, at_most=86400)
    api_key: str | None = option(None, "Send this as bearer token.", heading="Connection")
    insecure: bool = option(False, "Take any certificate of an https server.")
    ca_file: str | None = option(
        None, "Trust these certificates (PEM) of an https server instead of the system's.", metavar="FILE"
    )
    header: tuple[str, ...] = option((), "Further headers of every request.", metavar="NAME=VALUE,...")
    rtt_ms: float | None = option(
        None, "Network round trip to note in the recording. Default: measured before the run.", at_least=0
    )
    resume: bool = option(
        False,
        "Go on with the recording at --output where it was cut short; requests recorded there are not sent again.",
        heading="What is recorded",
    )
    overwrite: bool = option(
        False, "Delete an earlier recording at --output instead of moving it to the folder PREFIX.earlier-1, -2, ..."
    )
    record_itl: bool = option(False, "Record when each chunk came.")
    scrape_metrics: bool = option(
        False,
        "Read the server's /metrics before, during and after the run into PREFIX.metrics.jsonl, and note its settings"
        " and the hit rate of its prefix cache in the recording.",
        flags=("--scrape-metrics", "--scrape-kv-metrics"),
    )
    server_config: str | None = option(
        None,
        "Settings of the server that it does not publish, such as hardware: H100 (YAML); they are kept with the "
        "recording, and replay and fit take them.",
        metavar="FILE",
    )
    scrape_interval: float = option(5.0, "Seconds between readings of --scrape-metrics.", above=0)
    itl_output: str | None = option(None, "Write chunk times here. Default: beside the rows, as .itl.csv.")
    slo_ttft: str = option(
        "",
        "Targets for the time to first token, such as default=100ms,batch=2s; targets given replace all those of the"
        " workload or trace. Adds goodput to the summary.",
        metavar="CLASS=DURATION,...",
        heading="Judging the run",
    )
    slo_itl: str = option(
        "", "Targets for a request's mean time between tokens. Adds goodput.", metavar="CLASS=DURATION,..."
    )
    slo_e2e: str = option("", "Targets for the whole request. Adds goodput.", metavar="CLASS=DURATION,...")
    html: str | None = option(
        None, "Write the run as one page with summary, pictures and origin (HTML); needs matplotlib.", metavar="FILE"
    )
    plot: str | None = option(
        None,
        "Draw TTFT, ITL and throughput over time to this picture (.png, .svg or .pdf); needs matplotlib.",
        metavar="FILE",
    )
    format: str = option(
        "json",
        "What standard output gets of a run: its figures as JSON, or metrics under the names that BLIS prints (blis). "
        "BLIS_FORMAT in the environment is the default.",
        choices=("json", "blis"),
    )

    tracing: TracingOptions = section(TracingOptions)
    proxying: ProxyOptions = section(ProxyOptions)

    def __post_init__(self) -> None:
        check_options(self)
        _ = self.servers
        if self.proxying.proxy:
            self._check_proxy()
        else:
            self._check_workload()
        self._check_outputs()
        self._check_processes()
        # Making these checks them.
        _ = self.headers, self.prompt_lengths, self.output_lengths, self.tls, self.slo_targets
        check_plot("--plot", self.plot)
        check_page("--html", self.html)

    @property
    def headers(self) -> dict[str, str]:
        """The headers that all requests carry."""
        headers = {}
        for pair in self.header:
            name, is_there, value = pair.partition("=")
            if not is_there:
                raise OptionError(f"--header must be NAME=VALUE,..., got {pair!r}")
            check_header("--header", name, value)
            headers[name.lower()] = value
        if self.api_key is not None:
            check_header("--api-key", "authorization", self.api_key)
            headers["authorization"] = f"Bearer {self.api_key}"
        return headers

    @property
    def source(self) -> str:
        """The file of the requests to send; empty for a synthetic workload."""
        return self.trace or self.workload_spec or self.prompts or ""

    @property
    def servers(self) -> list[Server]:
        """The servers behind the proxy, in the order of --url; without a proxy the only one. Raises ObserveError."""
        urls = self.url.split(",") if self.proxying.proxy else [self.url]
        return [parse_server(each) for each in urls]

    @property
    def tls(self) -> ssl.SSLContext | None:
        """Return the TLS settings of an https server; None with http."""
        if not any(server.tls for server in self.servers):
            for flag, given in (("--insecure", self.insecure), ("--ca-file", self.ca_file)):
                if given:
                    raise OptionError(f"{flag} needs a --url that begins with https://, got {self.url}")
            return None
        return tls_context(self.ca_file, insecure=self.insecure)

    @property
    def slo_targets(self) -> dict[str, SloTargets]:
        """The targets given by flags, per class. Raises OptionError."""
        return slo_targets_from_flags(self.slo_ttft, self.slo_itl, self.slo_e2e)

    @property
    def prompt_lengths(self) -> Lengths:
        """Return the length distribution of prompts at --rate."""
        return Lengths(
            label="--prompt-tokens",
            mean=self.prompt_tokens,
            stdev=self.prompt_tokens_stdev,
            least=self.prompt_tokens_min,
            most=self.prompt_tokens_max,
        )

    @property
    def output_lengths(self) -> Lengths:
        """Return the length distribution of outputs at --rate."""
        return Lengths(
            label="--output-tokens",
            mean=self.output_tokens,
            stdev=self.output_tokens_stdev,
            least=self.output_tokens_min,
            most=self.output_tokens_max,
        )

    @property
    def paths(self) -> OutputPaths:
        """Return the paths of the recording."""
        header = Path(self.trace_header or f"{self.output}.yaml")
        data = Path(self.trace_data or f"{self.output}.csv")
        itl = Path(self.itl_output or f"{stem_of(data)}.itl.csv") if self.record_itl else None
        metrics = Path(f"{stem_of(data)}.metrics.jsonl") if self.scrape_metrics else None
        content = Path(f"{stem_of(data)}.content.jsonl") if self.proxying.record_content else None
        return OutputPaths(header, data, itl, metrics, content)

    @property
    def shared_by(self) -> str:
        """The flag by which several processes send; empty when this one does it alone."""
        if self.ray:
            return "--ray"
        return "--processes" if self.processes is not None and self.processes > 1 else ""

    def _check_proxy(self) -> None:
        ports, urls = self.proxying.proxy, self.servers
        if len(ports) > 1 and len(ports) != len(urls):
            raise OptionError(f"--proxy must have one port, or one for each of the {len(urls)} URLs, got {len(ports)}")
        if len({port for port in ports if port}) < len([port for port in ports if port]):
            raise OptionError(f"--proxy must have different ports, got {', '.join(map(str, ports))}")
        for setting in options_of(type(self)):
            if setting.name in _OF_LOAD and setting.of(self) != setting.default:
                raise OptionError(f"--proxy and {setting.label} exclude each other: the proxy sends nothing by itself")
        if self.trace_header is not None or self.trace_data is not None or self.itl_output is not None:
            raise OptionError("--proxy needs --output, which names all of its files")

    def _check_workload(self) -> None:
        if self.trace is not None and self.rate is not None:
            raise OptionError("--rate and --trace exclude each other: a recording is sent at its own times")
        if self.workload_spec is not None and (self.trace is not None or self.rate is not None):
            raise OptionError("--workload-spec excludes --rate and --trace: it sets the requests and their times")
        if self.trace is None and self.rate is None and self.workload_spec is None:
            raise OptionError("--rate with --num-requests, or --trace, or --workload-spec, is required")
        if self.session_mode != "fixed" and self.trace is None:
            raise OptionError("--session-mode closed-loop needs --trace, whose conversations and agents it sends")
        if self.think_time_ms is not None and self.session_mode == "fixed":
            raise OptionError("--think-time-ms needs --session-mode closed-loop")
        if self.prompts is not None and self.rate is None:
            raise OptionError("--prompts needs --rate with --num-requests")
        if self.prompts is not None and self.prefix_tokens:
            raise OptionError(
                "--prompts and --prefix-tokens exclude each other: prompts of a file are sent as they are"
            )
        if self.rate is not None and self.num_requests is None:
            raise OptionError("--num-requests is required with --rate")
        if self.num_requests is not None and self.warmup_requests >= self.num_requests:
            raise OptionError(
                f"--warmup-requests must be below --num-requests ({self.num_requests}), got {self.warmup_requests}"
            )

    def _check_processes(self) -> None:
        if self.ray:
            check_ray()
        elif self.ray_address is not None:
            raise OptionError("--ray-address needs --ray")
        flag = self.shared_by
        if not flag:
            return
        if self.max_concurrency:
            raise OptionError(f"{flag} and --max-concurrency exclude each other: the line has one head")
        for path in (self.paths.data, self.paths.itl):
            if path is not None and path.suffix == ".gz":
                raise OptionError(f"{flag} writes plain files, a recording of many cannot be gzipped, got {path}")

    def _check_outputs(self) -> None:
        if not (self.output or (self.trace_header and self.trace_data)):
            raise OptionError("--output, or --trace-header with --trace-data, is required")
        if self.record_itl and self.streaming is False:
            raise OptionError("--record-itl needs streamed answers, leave --no-streaming out")
        if self.itl_output is not None and not self.record_itl:
            raise OptionError("--itl-output needs --record-itl")
        if self.overwrite and self.resume:
            raise OptionError("--overwrite and --resume exclude each other: one deletes what the other goes on with")
        self.check_files()

    def check_files(self, *also_read: Path) -> None:
        """Raise OptionError when a file would be written over another that is written, or read."""
        read = [*self._read(), *((str(path), "belongs to what is read") for path in also_read)]
        written = list(self._written())
        known = {path for path, *_ in written}
        label = "--output" if self.trace_data is None else "--trace-data"
        earlier = [(str(path), label, kind) for path, kind in self.paths.kinds.items()]
        check_written([*written, *(each for each in earlier if each[0] not in known and isfile(each[0]))], read)

    def _written(self) -> Iterator[tuple[str, str, str]]:
        """The files that are written, each with the flag that names it and its kind."""
        paths = self.paths
        data = "--output" if self.trace_data is None else "--trace-data"
        yield str(paths.header), "--output" if self.trace_header is None else "--trace-header", "header"
        yield str(paths.data), data, "rows"
        if paths.itl is not None:
            yield str(paths.itl), data if self.itl_output is None else "--itl-output", "token times"
        if paths.metrics is not None:
            yield str(paths.metrics), data, "server metrics"
        if paths.content is not None:
            yield str(paths.content), data, "content"
        if self.plot is not None:
            yield self.plot, "--plot", "picture"
        if self.html is not None:
            yield self.html, "--html", "load page"

    def _read(self) -> Iterator[tuple[str, str]]:
        """The files that are read, and those that belong to a recording that is."""
        for flag, path in (
            ("--trace", self.trace),
            ("--workload-spec", self.workload_spec),
            ("--prompts", self.prompts),
            ("--server-config", self.server_config),
            ("--ca-file", self.ca_file),
        ):
            if path is not None:
                yield path, f"{flag} reads"
        yield from ((str(path), "belongs to the recording that --trace reads") for path in beside(self.trace))
