"""The settings of `blis observe` and of its proxy, and the files of a recording."""

import ssl
from collections.abc import Iterator
from dataclasses import dataclass
from os.path import isfile  # which takes any text for a path
from pathlib import Path

from blis_sim.installation import check_answer, check_ray
from blis_sim.options import (
    ExclusionError,
    OptionError,
    check_options,
    check_written,
    ineffective_flags,
    option,
    options_of,
    section,
    written_file,
)
from blis_sim.options.latency_targets import LatencyTargets
from blis_sim.options.option import LATEST_US, MOST_PROCESSES, MOST_REQUESTS
from blis_sim.options.printing import BLIS, FORMATS, JSON, format_option, json_option
from blis_sim.options.without_effect import BlisOptions
from observe.body import APIS
from observe.http import Server, check_header, parse_server, tls_context, without_value
from observe.spans import TracingOptions
from traces import SloTargets, beside, parse_duration_ms, slo_targets
from traces.load import (
    CLOSED_LOOP,
    FIXED,
    FORMS,
    SESSION_MODES,
    SESSION_POOL_HELP,
    SpeedOptions,
    ThinkTime,
    parse_think_time,
)
from traces.redaction import Redactor
from traces.saturation_options import SaturationOptions
from traces.workload.presets import DEFAULT_SEED, SyntheticOptions

# The files of a recording.

_ROWS = (".csv", ".csv.gz")
_BESIDE_ROWS = {
    ".itl.csv": "token times",
    ".itl.csv.gz": "token times",
    ".metrics.jsonl": "server metrics",
    ".steps.csv": "steps",
    ".steps.csv.gz": "steps",
    ".content.jsonl": "content",
    ".server.yaml": "server settings",
}


@dataclass(frozen=True, slots=True)
class OutputPaths:
    """Paths of the files of a recording; None for what is not recorded.

    `itl` has token times, `metrics` those of the server, `content` requests and replies, `steps` steps of the engine.
    """

    header: Path
    data: Path
    itl: Path | None
    metrics: Path | None = None
    content: Path | None = None
    steps: Path | None = None

    @property
    def rows(self) -> list[Path]:
        """Paths at which an earlier recording of this name may have its rows."""
        return list(dict.fromkeys([self.data, *(Path(stem_of(self.data) + each) for each in _ROWS)]))

    @property
    def companion_files(self) -> list[Path]:
        """Paths at which an earlier recording of this name may have files beside its rows."""
        return [path for path, kind in self.kinds.items() if kind != "rows"]

    @property
    def rows_and_companions(self) -> list[Path]:
        """Paths of the files of this recording that are written piece by piece."""
        written = (self.data, self.itl, self.metrics, self.content, self.steps)
        return [path for path in written if path is not None]

    @property
    def kinds(self) -> dict[Path, str]:
        """All files that may belong to an earlier recording of this name, each with its kind."""
        known = {
            self.header: "header",
            self.itl: "token times",
            self.metrics: "server metrics",
            self.content: "content",
            self.steps: "steps",
        }
        found = {path: kind for path, kind in known.items() if path is not None}
        beside = {Path(stem_of(self.data) + ending): kind for ending, kind in _BESIDE_ROWS.items()}
        return {
            **found,
            **{path: kind for path, kind in beside.items() if path not in found},
            **dict.fromkeys(self.rows, "rows"),
        }


def stem_of(data: Path) -> str:
    """The common beginning of the names of files beside these rows."""
    return f"{data}".removesuffix(".gz").removesuffix(".csv")


# The settings of `blis observe --proxy`.


@dataclass(frozen=True, slots=True, kw_only=True)
class ProxyOptions:
    """A recording reverse proxy."""

    proxy: tuple[int, ...] = option(
        (),
        "Send nothing: listen on this port, pass all bytes on to --url, and record what clients send and get. With"
        " --url URL,... and as many ports each port leads to one of the servers; one port shares connections out among"
        " them in turn. 0 takes a free port.",
        metavar="PORT,...",
        at_least=0,
        at_most=65535,
        heading="Recording proxy",
    )
    proxy_host: str = option("0.0.0.0", "Address that --proxy listens on.")
    record_content: bool = option(
        False,
        "Record requests and replies of --proxy, too, in PREFIX.content.jsonl, without keys and authorisation."
        " Default: lengths and times only.",
    )
    redact: tuple[str, ...] = option(
        (),
        "Replace what matches this regular expression (RE2) in all that is recorded, printed and exported; may be given"
        " several times.",
        metavar="PATTERN",
        repeatable=True,
    )
    cache_canary: bool = option(
        False,
        "Compare what requests of --proxy find in the server's prefix cache with what a healthy vLLM must find. Where "
        "one finds less, the exit code is 3, and a line names the first request. The server tokenizes each prompt "
        "once more.",
    )
    tenant_header: str = option(
        "", "Header of requests that names the tenant. Default: the key of the client. Tenants are recorded as hashes."
    )
    tenant_salt: str = option(
        "", "Secret that takes part in the hashes of tenants, so that guessed names cannot be compared with them."
    )
    rotate_mb: float = option(
        0.0, "Begin another part of the recording, PREFIX-0002, -0003, ..., after so many MB. 0: never.", at_least=0
    )
    rotate_s: float = option(0.0, "Begin another part of the recording after so many seconds. 0: never.", at_least=0)

    def __post_init__(self) -> None:
        check_options(self)
        for flag, is_given in (
            ("--record-content", self.record_content),
            ("--cache-canary", self.cache_canary),
            ("--tenant-header", bool(self.tenant_header)),
            ("--tenant-salt", bool(self.tenant_salt)),
            ("--rotate-mb", bool(self.rotate_mb)),
            ("--rotate-s", bool(self.rotate_s)),
        ):
            if is_given and not self.proxy:
                raise OptionError(f"{flag} needs --proxy")
        if self.tenant_header:
            check_header("--tenant-header", self.tenant_header, "")
        if self.redact:
            Redactor(self.redact)

    @property
    def is_rotated(self) -> bool:
        """Whether the recording is written in parts."""
        return bool(self.rotate_mb or self.rotate_s)


# The settings of `blis observe`, and what follows from them.

ROUND_ROBIN, RANDOM, LEAST_OUTSTANDING = "round-robin", "random", "least-outstanding"
ROUTERS = {ROUND_ROBIN: "round-robin", RANDOM: "random", LEAST_OUTSTANDING: "least-loaded"}
"""Strategies for several servers, and for each the router of a simulated cluster that does the same."""
TEXT, FILES = "text", "files"
LEAST_RUNS = 3
"""Runs that a spread is taken from."""

_OF_PROXY = frozenset(
    (
        *(setting.name for kind in (ProxyOptions, BlisOptions) for setting in options_of(kind)),
        *("url", "model", "output", "trace_header", "trace_data", "itl_output", "record_itl", "resume", "overwrite"),
        *("timeout", "insecure", "ca_file", "rtt_ms", "server_config", "scrape_interval", "format", "json"),
        *("knee_share", "most_runs"),
    )
)
"""Settings that a proxy takes; all others are about the requests that are sent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ObserveOptions(SyntheticOptions):
    """One run of `blis observe`. Raises OptionError or ObserveError for settings that do not fit together."""

    url: str = option(
        help="Base URL of the server, such as http://localhost:8000, or of several with commas between them.",
        flags=("--url", "--server-url"),
        metavar="URL,...",
        heading="Server and recording",
    )
    url_strategy: str = option(
        ROUND_ROBIN,
        "Which of several servers of --url gets a request: each in turn, any, or the one with the fewest in flight.",
        choices=tuple(ROUTERS),
    )
    model: str | None = option(None, "Model to request. Default: the first that the server lists.")
    output: str | None = option(
        None,
        "Write the recording to PREFIX.yaml, PREFIX.csv and PREFIX.itl.csv. Default: blis-trace.",
        flags=("--output", "-o"),
        metavar="PREFIX",
    )
    trace_header: str | None = option(None, "Write the header of the recording here instead of to PREFIX.yaml.")
    trace_data: str | None = option(None, "Write the rows of the recording here instead of to PREFIX.csv.")
    concurrency: int = option(
        0,
        "Send by this many users instead of at a rate; each waits for the reply before it sends again.",
        at_least=0,
        at_most=MOST_REQUESTS,
    )
    num_requests: int | None = option(
        None,
        "How many requests to send; with --trace or --workload-spec, its first ones. Default: 30 seconds of --rate, or "
        "what is due within --duration.",
        heading="What is sent",
        at_least=1,
        at_most=MOST_REQUESTS,
    )
    horizon: int | None = option(
        None,
        "Send nothing that is due later, in microseconds from the start (default: the spec's, else no limit).",
        above=0,
        at_most=LATEST_US,
        metavar="US",
    )
    duration: str | None = option(
        None,
        "Send for so long, such as 90s or 5m: nothing that is due later; replies are waited for.",
        metavar="DURATION",
    )
    trace: str | None = option(
        None, "Send the workload of this recording (its .yaml file) again, at its own times.", metavar="HEADER"
    )
    session_mode: str = option(
        "fixed",
        "With --trace: when rounds of conversations and agents are sent. fixed: at their own times. closed-loop: when "
        "the replies that they wait for have come and the recorded pause is over. fixed-accumulate: at their own "
        "times, or when these replies have come if that is later, behind all that was said before.",
        choices=SESSION_MODES,
    )
    session_pool: int = option(0, SESSION_POOL_HELP, at_least=0, at_most=MOST_REQUESTS)
    think_time_ms: int | None = option(
        None,
        "With --session-mode closed-loop: the pause before each request that waits (default: as recorded). With "
        "--concurrency: the pause of a user between a reply and the next request (default: 0).",
        at_least=0,
        at_most=LATEST_US // 1000,
    )
    think_time_dist: str | None = option(
        None, f"In place of --think-time-ms: pauses drawn from a distribution, such as {FORMS}.", metavar="DISTRIBUTION"
    )
    speed: SpeedOptions = section(SpeedOptions)
    prompts: str | None = option(
        None,
        "Send the prompts of this file in turn at --rate: text with a prompt per line, or .jsonl with prompt and"
        " perhaps output_tokens.",
        metavar="FILE",
    )
    workload_spec: str | None = option(
        None,
        "Send what this workload spec (YAML) generates, as blis run does, at --rate if given; users and conversations"
        " wait for replies.",
        metavar="FILE",
    )
    seed: int | None = option(
        None,
        f"Seed of prompts, arrivals and lengths (default: the spec's, else 0; {DEFAULT_SEED} without a spec).",
    )
    api_format: str = option("completions", "Which API to send to.", choices=APIS, heading="Requests")
    streaming: bool | None = option(
        None,
        "Request streamed replies for all requests, or for none. Default: as each request of the workload spec or the"
        " trace says; those that say nothing are streamed.",
    )
    media: str = option(
        TEXT,
        "Images and sounds of a workload. They are text of as many tokens, or with --api-format chat PNG and WAV "
        "files. Models of Qwen count the files as the same number of tokens.",
        choices=(TEXT, FILES),
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
    prewarm_duration: str = option(
        "0s",
        "Before the first recorded request, keep four requests of 256 words in flight for so long; nothing of them is "
        "recorded.",
        metavar="DURATION",
    )
    cancel_rate: float = option(
        0.0, "Fraction of the requests whose clients hang up before the reply is over.", at_least=0, at_most=1
    )
    cancel_delay: str = option("1s", "How long after sending these clients hang up.", metavar="DURATION")
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
        "Read the server's /metrics before, during and after the run into PREFIX.metrics.jsonl. The recording notes "
        "its settings and the hit rate of its prefix cache.",
        flags=("--scrape-metrics", "--scrape-kv-metrics"),
    )
    engine_log: str | None = option(
        None,
        "Log of the server, or a pipe of it. The steps that `vllm serve --enable-logging-iteration-details` logs during"
        " the load go to PREFIX.steps.csv, for fit and calibrate.",
        metavar="FILE",
    )
    server_config: str | None = option(
        None,
        "Settings of the server that it does not publish, such as hardware: H100 (YAML). They are kept with the "
        "recording, and replay and fit take them.",
        metavar="FILE",
    )
    kv_metrics_url: str | None = option(
        None, "Page that --scrape-metrics reads (default: /metrics of --url).", metavar="URL"
    )
    server_type: str = option("vllm", "Kind of the server, for the header of the recording.")
    vllm_commit: str | None = option(
        None, "Commit of vLLM that the server runs, which --scrape-metrics notes beside the hit rate."
    )
    scrape_interval: float = option(5.0, "Seconds between readings of --scrape-metrics.", above=0)
    itl_output: str | None = option(None, "Write chunk times here. Default: beside the rows, as .itl.csv.")
    targets: LatencyTargets = section(LatencyTargets)
    goodput: tuple[str, ...] = option(
        (),
        "Latencies within which a request is good, such as ttft:500ms,itl:40ms,e2e:5s; itl is its mean time between "
        "tokens, and batch/e2e:30s holds for one class. They replace all of the workload or trace.",
        metavar="[CLASS/]NAME:DURATION,...",
        heading="Judging the run",
    )
    slo_ttft: str = option("", "BLIS's spelling of --goodput CLASS/ttft:DURATION.", hidden=True)
    slo_itl: str = option("", "BLIS's spelling of --goodput CLASS/itl:DURATION.", hidden=True)
    slo_e2e: str = option("", "BLIS's spelling of --goodput CLASS/e2e:DURATION.", hidden=True)
    find_knee: bool = option(
        False,
        "Search the highest rate at which the targets are met: --rate is the first, and each rate gets a recording "
        "PREFIX-1, PREFIX-2, ....",
    )
    knee_share: float = option(
        0.95, "Fraction of the requests that must meet the targets of --find-knee.", above=0, at_most=1
    )
    until_within: float | None = option(
        None,
        "Repeat the run until the 95 % intervals of mean TTFT, E2E and ITL are within this fraction of the means, "
        "such as 0.05. Each run has a seed of its own and a recording PREFIX-1, PREFIX-2, ....",
        above=0,
        at_most=10,
        metavar="X",
    )
    most_runs: int = option(
        10, "Most runs of --until-within.", at_least=LEAST_RUNS, at_most=MOST_PROCESSES, metavar="N"
    )
    saturation: SaturationOptions = section(SaturationOptions)
    html: str | None = written_file(
        "load page", "Write the run as one page with summary, pictures and origin (HTML); needs matplotlib."
    )
    live_html: int | None = option(
        None,
        "Show the run as it goes on this page beside the table: http://127.0.0.1:PORT/, for this machine alone. 0 "
        "takes a free port.",
        metavar="PORT",
        at_least=0,
        at_most=65535,
    )
    plot: str | None = written_file(
        "picture", "Draw TTFT, ITL and throughput over time to this picture (.png, .svg or .pdf); needs matplotlib."
    )
    format: str = format_option(
        "What standard output gets of a run: its figures as JSON, a table, rows of CSV, Markdown, or an HTML page. "
        "blis has metrics under the names that BLIS prints. BLIS_FORMAT in the environment is the default.",
        (*FORMATS, BLIS),
        default=JSON,
    )
    json: bool = json_option()

    blis: BlisOptions = section(BlisOptions)
    tracing: TracingOptions = section(TracingOptions)
    proxying: ProxyOptions = section(ProxyOptions)

    def __post_init__(self) -> None:
        check_answer(self)
        self._take_duration()
        _ = self.servers
        if self.proxying.proxy:
            self._check_proxy()
        else:
            if self.trace is not None and self.rate is not None:
                raise ExclusionError("--rate", "--trace", ": --speedup sends a recording faster")
            if self.stages and (self.trace or self.workload_spec):
                raise OptionError("--stages needs a load by flags: traces and specs have their own rates")
            if self.workload_spec is not None and self.trace is not None:
                raise ExclusionError("--workload-spec", "--trace", ": both say what to send, and when")
            self._check_users()
            if not (self.trace or self.rate or self.stages or self.workload_spec or self.concurrency):
                raise OptionError(
                    "--rate or --concurrency with --num-requests, or --trace, or --workload-spec, is required"
                )
            self._check_pauses()
            if self.prompts is not None and (not (self.rate or self.stages) or self.workload_spec is not None):
                raise OptionError("--prompts needs --rate with --num-requests, or --stages")
            if self.prompts is not None and self.prefix_tokens:
                raise ExclusionError("--prompts", "--prefix-tokens", ": prompts of a file are sent as they are")
            if self.media == FILES and self.api_format != "chat":
                raise OptionError("--media files needs --api-format chat")
            self._check_number()
            self._check_several_runs()
        self._check_outputs()
        self._check_processes()
        self.check_load()
        # Making these checks them.
        _ = self.headers, self.tls, self.slo_targets, self.prewarm_s, self.think_time, self.metrics_server
        _ = self.cancel_delay_us, self.targets.targets_ms

    @property
    def headers(self) -> dict[str, str]:
        """The headers that all requests carry."""
        headers = {}
        for pair in self.header:
            name, is_there, value = pair.partition("=")
            if not is_there:
                raise OptionError(f"--header must be NAME=VALUE,..., got {without_value(pair)!r}")
            check_header("--header", name, value)
            headers[name.lower()] = value
        if self.api_key is not None:
            check_header("--api-key", "authorization", self.api_key)
            headers["authorization"] = f"Bearer {self.api_key}"
        return headers

    @property
    def prompt_seed(self) -> int:
        """The seed of the words of prompts."""
        return DEFAULT_SEED if self.seed is None else self.seed

    @property
    def source(self) -> str:
        """The file of the requests to send; empty for a synthetic workload."""
        return self.trace or self.workload_spec or self.prompts or ""

    @property
    def servers(self) -> list[Server]:
        """The servers, in the order of --url. Raises ObserveError."""
        return [parse_server(each) for each in self.url.split(",")]

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
        return slo_targets(self.goodput, self.slo_ttft, self.slo_itl, self.slo_e2e)

    @property
    def flags_without_effect(self) -> list[str]:
        """A line for each flag that is taken and has no effect."""
        needed = {} if self.scrape_metrics else dict.fromkeys(("kv_metrics_url", "vllm_commit"), "--scrape-metrics")
        if not self.cancel_rate:
            needed["cancel_delay"] = "--cancel-rate"
        if not self.find_knee:
            needed["knee_share"] = "--find-knee"
        if self.until_within is None:
            needed["most_runs"] = "--until-within"
        if len(self.servers) == 1:
            needed["url_strategy"] = "several servers in --url"
        file = "--trace" if self.trace else "--workload-spec" if self.workload_spec else ""
        given = self.unused_flags(bool(file), bool(self.concurrency))
        said = [f"{flag} has no effect, {file or '--workload or --concurrency'} says it already" for flag in given]
        return [*self.blis.flags_without_effect, *ineffective_flags(self, needed), *said]

    @property
    def prewarm_s(self) -> float:
        """Seconds of --prewarm-duration. Raises OptionError."""
        return _milliseconds("--prewarm-duration", self.prewarm_duration) / 1000

    @property
    def cancel_delay_us(self) -> int:
        """Microseconds of --cancel-delay, at least one. Raises OptionError."""
        return max(1, round(_milliseconds("--cancel-delay", self.cancel_delay) * 1000))

    @property
    def think_time(self) -> ThinkTime | None:
        """The distribution of --think-time-dist; None without one. Raises OptionError."""
        return None if self.think_time_dist is None else parse_think_time(self.think_time_dist)

    @property
    def metrics_server(self) -> Server | None:
        """The server of --kv-metrics-url, whose path is that of the page; None for the one of --url."""
        return None if self.kv_metrics_url is None else parse_server(self.kv_metrics_url, "--kv-metrics-url")

    @property
    def paths(self) -> OutputPaths:
        """Return the paths of the recording."""
        header = Path(self.trace_header or f"{self.output}.yaml")
        data = Path(self.trace_data or f"{self.output}.csv")
        itl = Path(self.itl_output or f"{stem_of(data)}.itl.csv") if self.record_itl else None
        metrics = Path(f"{stem_of(data)}.metrics.jsonl") if self.scrape_metrics else None
        content = Path(f"{stem_of(data)}.content.jsonl") if self.proxying.record_content else None
        steps = Path(f"{stem_of(data)}.steps.csv") if self.engine_log is not None else None
        return OutputPaths(header, data, itl, metrics, content, steps)

    @property
    def shared_by(self) -> str:
        """The flag by which several processes send; empty when this one does it alone."""
        if self.ray:
            return "--ray"
        return "--processes" if self.processes is not None and self.processes > 1 else ""

    @property
    def end(self) -> str:
        """The flag after whose time nothing is sent, as it was given, with its value."""
        return f"--horizon {self.horizon}" if self.duration is None else f"--duration {self.duration}"

    def _check_proxy(self) -> None:
        ports, urls = self.proxying.proxy, self.servers
        if len(ports) > 1 and len(ports) != len(urls):
            raise OptionError(f"--proxy must have one port, or one for each of the {len(urls)} URLs, got {len(ports)}")
        if len({port for port in ports if port}) < len([port for port in ports if port]):
            raise OptionError(f"--proxy must have different ports, got {', '.join(map(str, ports))}")
        for setting in options_of(type(self)):
            if setting.name not in _OF_PROXY and setting.of(self) != setting.default:
                raise ExclusionError("--proxy", setting.label, ": the proxy sends nothing by itself")
        if self.trace_header is not None or self.trace_data is not None or self.itl_output is not None:
            raise OptionError("--proxy needs --output, which names all of its files")

    def _take_duration(self) -> None:
        """Use --duration as --horizon. Raises OptionError if it is none, or both are given."""
        if self.duration is None:
            return
        horizon_us = round(_milliseconds("--duration", self.duration) * 1000)
        if not 0 < horizon_us <= LATEST_US:
            raise OptionError(f"--duration must be above 0 and at most {LATEST_US // 10**6}s, got {self.duration!r}")
        if self.horizon not in (None, horizon_us):
            raise ExclusionError("--duration", "--horizon")
        object.__setattr__(self, "horizon", horizon_us)

    def _check_several_runs(self) -> None:
        """Raise OptionError for a search without targets or a rate, and for runs that share a file."""
        if self.find_knee and self.until_within is not None:
            raise ExclusionError("--find-knee", "--until-within")
        if self.until_within is not None and self.targets.targets_ms:
            first = next(iter(self.targets.targets_ms)).removesuffix("_ms").replace("_", "-")
            raise ExclusionError("--until-within", f"--{first}", ": a target judges one run")
        if self.find_knee:
            if not (self.slo_targets or self.targets.targets_ms):
                raise OptionError("--find-knee needs the targets to meet: --goodput, or percentiles such as --ttft-p99")
            if self.rate is None:
                raise OptionError("--find-knee needs --rate, the first rate to try")
        if not (self.find_knee or self.until_within is not None):
            return
        flag, each = ("--find-knee", "rate") if self.find_knee else ("--until-within", "run")
        if self.format == BLIS:
            raise OptionError(f"{flag} has no result in the form of BLIS, leave out --format blis")
        others = {
            "--resume": self.resume,
            "--html": self.html,
            "--plot": self.plot,
            "--trace-header": self.trace_header,
            "--trace-data": self.trace_data,
            "--itl-output": self.itl_output,
            "--saturation-report": self.saturation.saturation_report,
        }
        for other, given in others.items():
            if given:
                raise ExclusionError(flag, other, f": each {each} has files of its own")

    def _check_pauses(self) -> None:
        if self.session_mode != FIXED and self.trace is None:
            raise OptionError(
                f"--session-mode {self.session_mode} needs --trace, whose conversations and agents it sends"
            )
        if self.session_pool and self.session_mode != CLOSED_LOOP:
            raise OptionError("--session-pool needs --session-mode closed-loop")
        for flag, given in (("--think-time-ms", self.think_time_ms), ("--think-time-dist", self.think_time_dist)):
            if given is not None and self.session_mode != CLOSED_LOOP and not self.concurrency:
                raise OptionError(f"{flag} needs --session-mode closed-loop or --concurrency")
        if self.think_time_ms is not None and self.think_time_dist is not None:
            raise ExclusionError("--think-time-ms", "--think-time-dist")

        if self.speed.speedup != 1 and self.trace is None:
            raise OptionError("--speedup needs --trace; with --workload-spec --rate is the rate to send at")
        self.speed.check_mode(self.session_mode)

    def _check_number(self) -> None:
        if self.num_requests is None and self.horizon is None and self.workload_spec is None:
            for flag, given in (("--rate", self.rate), ("--concurrency", self.concurrency)):
                if given:
                    raise OptionError(f"--num-requests or --duration is required with {flag}")
        is_by_horizon = self.rate is not None and self.num_requests is None and self.workload_spec is None
        if is_by_horizon and self.max_requests_at_rate > MOST_REQUESTS:
            raise OptionError(f"--rate {self.rate:g} until {self.end} is more than {MOST_REQUESTS} requests")
        if self.num_requests is not None and self.warmup_requests >= self.num_requests:
            raise OptionError(
                f"--warmup-requests must be below --num-requests ({self.num_requests}), got {self.warmup_requests}"
            )

    @property
    def max_requests_at_rate(self) -> int:
        """Requests that --rate may send: --num-requests, or as many as may be due by --horizon; 0 with --stages."""
        if self.num_requests is not None:
            return self.num_requests
        if self.rate is None:
            return 0
        assert self.horizon is not None
        mean = self.rate * self.horizon / 1e6
        spread = 0.0 if self.arrival == "constant" else 10 * (self.arrival_cv or 1.0) * (mean**0.5 + 1)
        return max(1, int(mean + spread))

    def _check_users(self) -> None:
        if not self.concurrency:
            if self.workload is not None and self.rate is None and not self.stages:
                raise OptionError("--workload needs --rate or --concurrency")
            return
        others = {
            "--rate": self.rate,
            "--stages": self.stages or None,
            "--trace": self.trace,
            "--workload-spec": self.workload_spec,
        }
        for flag, value in (others | {"--prompts": self.prompts}).items():
            if value is not None:
                raise ExclusionError("--concurrency", flag)

    def _check_processes(self) -> None:
        if self.ray:
            check_ray()
        elif self.ray_address is not None:
            raise OptionError("--ray-address needs --ray")
        flag = self.shared_by
        if not flag:
            return
        if self.max_concurrency:
            raise ExclusionError(flag, "--max-concurrency", ": the line has one head")
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
            raise ExclusionError("--overwrite", "--resume", ": one deletes what the other goes on with")
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
        if paths.steps is not None:
            yield str(paths.steps), data, "steps"
        if self.saturation.saturation_report is not None:
            yield self.saturation.saturation_report, "--saturation-report", "saturation"
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
            ("--engine-log", self.engine_log),
            ("--saturation-config", self.saturation.saturation_config),
            ("--ca-file", self.ca_file),
        ):
            if path is not None:
                yield path, f"{flag} reads"
        yield from ((str(path), "belongs to the recording that --trace reads") for path in beside(self.trace))


def _milliseconds(flag: str, text: str) -> float:
    """Return the milliseconds of a duration. Raises OptionError."""
    try:
        return parse_duration_ms(text)
    except ValueError:
        raise OptionError(f"{flag} must be a duration such as 500ms or 30s, got {text!r}") from None
