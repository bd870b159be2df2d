"""Settings of the server's connections, routes, process, logs and instances, and fake values for its metrics page."""

import logging
import math
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, TypeAlias, TypeGuard

import orjson

from blis_sim.engine.hf_config import ROPE_KEYS
from blis_sim.options import ExclusionError, OptionError, StartError, check_options, option, section
from blis_sim.options.custom_metrics import custom_metrics, metric_option
from blis_sim.options.durations import parse_duration_ms
from blis_sim.options.option import MOST_PROCESSES, json_object, load_json
from blis_sim.options.registry import Registry

# Log lines on standard error, and the settings of request logs and of OpenTelemetry traces.

FORMATS = ("text", "json")
_PREFIXES = {logging.INFO: "", logging.WARNING: "warning: "}
_UVICORN = "uvicorn"
_UVICORN_WIDTH = 10
"""Width of the level and the space before a message of uvicorn."""


class PlainLines(logging.Formatter):
    """Formats a message after a prefix for its severity; lines that vLLM or uvicorn writes have the head they have."""

    def format(self, record: logging.LogRecord) -> str:
        """Return one line, or several where there is a traceback."""
        origin = getattr(record, "origin", None)
        if origin is None:
            return _PREFIXES.get(record.levelno, f"{record.levelname.lower()}: ") + super().format(record)
        if origin == _UVICORN:
            return f"{record.levelname}:".ljust(_UVICORN_WIDTH) + super().format(record)
        at = time.strftime("%m-%d %H:%M:%S", time.localtime(record.created))
        head = f"(APIServer pid={record.process}) {record.levelname} {at} [{origin}] "
        return head + super().format(record).replace("\n", f"\r\n{head}")


class JsonLines(logging.Formatter):
    """Formats time, level, logger, message, the values of `fields` and a traceback as one line of JSON."""

    def format(self, record: logging.LogRecord) -> str:
        """Return one line of JSON."""
        entry: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            entry["exception"] = self.formatException(record.exc_info)
        return orjson.dumps(entry, default=str).decode()


def fields(**values: Any) -> Mapping[str, Any]:
    """Return the `extra` of a log call: values for separate keys of a JSON line."""
    return {"fields": values}


def in_vllm_form(place: str, **values: Any) -> Mapping[str, Any]:
    """Return the `extra` of a line that vLLM writes at `place`, a file with a line number; `values` as in `fields`."""
    return {**fields(**values), "origin": place}


def in_uvicorn_form(**values: Any) -> Mapping[str, Any]:
    """Return the `extra` of a line that vLLM's web server writes; `values` as in `fields`."""
    return {**fields(**values), "origin": _UVICORN}


def set_up_logging(log_format: str) -> None:
    """Log to standard error: our messages from level INFO on, and warnings of libraries."""
    handler = logging.StreamHandler()
    handler.setFormatter(JsonLines() if log_format == "json" else PlainLines())
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)
    logging.getLogger("mockserve").setLevel(logging.INFO)


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservabilityOptions:
    """Settings of request logs, of the access log and of traces, with vLLM's names where vLLM has them."""

    otlp_traces_endpoint: str = option(
        "",
        "OpenTelemetry collector that gets a span for each request, such as http://localhost:4317; needs the extra "
        "otel. OTEL_EXPORTER_OTLP_TRACES_PROTOCOL chooses grpc (the default) or http/protobuf.",
        metavar="URL",
        heading="Request logs and traces",
    )
    enable_log_requests: bool = option(
        False,
        "Log each request's id, sampling parameters and adapter; with VLLM_LOGGING_LEVEL=DEBUG its prompt, too.",
    )
    enable_log_outputs: bool = option(
        False, "Log the text and the finish reason of each choice when it is complete; needs --enable-log-requests."
    )
    max_log_len: int | None = option(
        None, "Characters of a prompt or an output that are logged, and ids of a prompt; all by default.", at_least=0
    )
    disable_log_stats: bool = option(
        False,
        "Log no throughput every ten seconds (VLLM_LOG_STATS_INTERVAL), and leave vLLM's figures off the metrics page.",
    )
    enable_logging_iteration_details: bool = option(
        False,
        "Log each step of an engine: its requests, its tokens and how long it took. `blis observe --engine-log` "
        "records these lines.",
    )
    metric: tuple[str, ...] = metric_option("the state of an engine at each scrape of /metrics")
    log_http: bool = option(
        False,
        "Log each HTTP request and its reply with their bodies, without keys, up to 64 KiB of each; of a stream the "
        "status alone.",
    )
    access_log: bool = option(False, "Log each HTTP request in the form of uvicorn's access log.")

    def __post_init__(self) -> None:
        check_options(self)
        if self.otlp_traces_endpoint:
            from traces.redaction import check_url_without_keys  # which few servers need

            instead = "give OTEL_EXPORTER_OTLP_TRACES_HEADERS"
            check_url_without_keys(self.otlp_traces_endpoint, "--otlp-traces-endpoint", instead)
        if self.enable_log_outputs and not self.enable_log_requests:
            raise StartError("Error: --enable-log-outputs requires --enable-log-requests")
        _ = custom_metrics(self.metric)


# Fake values for the metrics page, constant or as functions of time, and durations with units.
#
# The keys are those of llm-d-inference-sim.


def milliseconds(flag: str, text: str) -> float:
    """Parse a duration such as 100, 100ms or 1m30s to milliseconds. Raises OptionError for other text and below 0."""
    try:
        bare = float(text)
    except ValueError:
        try:
            return parse_duration_ms(text)
        except ValueError:
            raise OptionError(f"{flag} must be a duration, such as 100, 100ms or 1.5s, got {text!r}") from None
    if not 0 <= bare < float("inf"):
        raise OptionError(f"{flag} must be at least 0, got {text!r}")
    return bare


def go_duration(microseconds: float) -> str:
    """Return a duration as Go writes it: 250µs, 1.5ms, 2m3s."""
    if microseconds < 1000:
        return f"{microseconds:.10g}µs" if microseconds else "0s"
    if microseconds < 1e6:
        return f"{microseconds / 1000:.10g}ms"
    seconds = microseconds / 1e6
    hours, minutes = int(seconds // 3600), int(seconds // 60 % 60)
    shown = f"{hours}h" if hours else ""
    shown += f"{minutes}m" if hours or minutes else ""
    return f"{shown}{round(seconds - 3600 * hours - 60 * minutes, 9):.12g}s"


MOST_STD_DEV_FRACTION = 0.3
"""Largest standard deviation as a fraction of the mean, a limit of llm-d-inference-sim."""


def check_deviation(label: str, mean_ms: float, deviation_ms: float) -> None:
    """Raise OptionError for a standard deviation above llm-d-inference-sim's limit."""
    if deviation_ms > MOST_STD_DEV_FRACTION * mean_ms:
        raise OptionError(f"{label}-std-dev must be at most 30 % of {label}, {mean_ms:g} ms, got {deviation_ms:g} ms")


FLAG = "--fake-metrics"
MOST_LORAS = 1000
"""Fake states of adapters, each a line of every metrics page."""

ValueFunction: TypeAlias = Callable[[float], float]
"""A function from seconds since the start to a value."""

GAUGES: Mapping[str, str] = {
    "running-requests": "num_requests_running",
    "waiting-requests": "num_requests_waiting",
    "kv-cache-usage": "kv_cache_usage_perc",
}
COUNTERS: Mapping[str, str] = {
    "total-prompt-tokens": "prompt_tokens",
    "total-generation-tokens": "generation_tokens",
    "prefix-cache-hits": "prefix_cache_hits",
    "prefix-cache-queries": "prefix_cache_queries",
}
HISTOGRAMS: Mapping[str, str] = {
    "ttft-buckets-values": "time_to_first_token_seconds",
    "tpot-buckets-values": "inter_token_latency_seconds",
    "request-tpot-buckets-values": "request_time_per_output_token_seconds",
    "e2erl-buckets-values": "e2e_request_latency_seconds",
    "queue-time-buckets-values": "request_queue_time_seconds",
    "inf-time-buckets-values": "request_inference_time_seconds",
    "prefill-time-buckets-values": "request_prefill_time_seconds",
    "decode-time-buckets-values": "request_decode_time_seconds",
    "request-prompt-tokens": "request_prompt_tokens",
    "request-generation-tokens": "request_generation_tokens",
    "request-max-generation-tokens": "request_max_num_generation_tokens",
    "request-params-max-tokens": "request_params_max_tokens",
}
"""Metric names by key; the fake values are counts per bucket."""


@dataclass(frozen=True, slots=True)
class FakeLora:
    """A fake state of adapters for lora_requests_info."""

    running: str
    waiting: str
    unix_time_s: float


@dataclass(frozen=True, slots=True)
class FakeMetrics:
    """Values that replace measured ones on the metrics page, by metric names without `vllm:`."""

    value_functions: Mapping[str, ValueFunction] = field(default_factory=dict)
    buckets: Mapping[str, Sequence[int]] = field(default_factory=dict)
    success: Mapping[str, float] | None = None
    """Finished requests by reason."""
    loras: Sequence[FakeLora] | None = None


def read_fake_metrics(text: str) -> FakeMetrics:
    """Parse the JSON object; an empty text gives no fake values. Raises OptionError for invalid values."""
    if not text:
        return FakeMetrics()
    given = json_object(FLAG, text)
    known = (*GAUGES, *COUNTERS, *HISTOGRAMS, "request-success-total", "loras")
    for key in given:
        if key not in known:
            raise OptionError(f"{FLAG}: unknown key {key!r}, known are {', '.join(known)}")
    names = {**GAUGES, **COUNTERS}
    return FakeMetrics(
        value_functions={names[key]: _value_function(key, value) for key, value in given.items() if key in names},
        buckets={HISTOGRAMS[key]: _counts(key, value) for key, value in given.items() if key in HISTOGRAMS},
        success=_success(given.get("request-success-total")),
        loras=_loras(given.get("loras")),
    )


def _value_function(key: str, value: object) -> ValueFunction:
    if is_number(value):
        number = float(value)
        return lambda _seconds: number
    kind, *parts = str(value).split(":")
    if kind not in _COURSES or len(parts) != 3:
        shapes = ", ".join(f"{name}:start:end:period" for name in _COURSES)
        raise OptionError(f"{FLAG}: {key} must be a number or one of {shapes}, got {value!r}")
    try:
        start, end = float(parts[0]), float(parts[1])
    except ValueError as error:
        raise OptionError(f"{FLAG}: {key} must go from a number to a number, got {value!r}") from error
    period_s = milliseconds(f"{FLAG}: {key}", parts[2]) / 1000
    if period_s <= 0:
        raise OptionError(f"{FLAG}: {key} must have a period above 0, got {value!r}")
    shape = _COURSES[kind]
    return lambda seconds: start + (end - start) * shape(seconds / period_s)


_COURSES: Mapping[str, ValueFunction] = {
    "oscillate": lambda periods: (1 - math.cos(2 * math.pi * periods)) / 2,
    "ramp": lambda periods: min(1.0, periods),
    "rampreset": lambda periods: periods % 1,
    "squarewave": lambda periods: float(periods % 1 >= 0.5),
}
"""Shapes by name: functions from elapsed periods to the fraction between start and end value."""


def _counts(key: str, value: object) -> Sequence[int]:
    if not isinstance(value, list) or not all(type(each) is int and 0 <= each < 2**63 for each in value):
        raise OptionError(f"{FLAG}: {key} must be a list of counts per bucket, got {value!r}")
    return value


def _success(value: object) -> Mapping[str, float] | None:
    if value is not None and not (isinstance(value, dict) and all(map(is_number, value.values()))):
        raise OptionError(f"{FLAG}: request-success-total must map reasons to numbers, got {value!r}")
    return value


def _loras(value: object) -> Sequence[FakeLora] | None:
    if value is None:
        return None
    if not isinstance(value, list):
        raise OptionError(f"{FLAG}: loras must be a list of objects, got {value!r}")
    if len(value) > MOST_LORAS:
        raise OptionError(f"{FLAG}: there may be at most {MOST_LORAS} loras, got {len(value)}")
    states = [_lora_state(each) for each in value]
    for each in states:
        if not is_number(timestamp := each.get("timestamp", 0)):
            raise OptionError(f"{FLAG}: the timestamp of loras must be a number, got {timestamp!r}")
    return [
        FakeLora(str(each.get("running", "")), str(each.get("waiting", "")), float(each.get("timestamp", 0)))
        for each in states
    ]


def _lora_state(value: object) -> Mapping[str, Any]:
    """Return an object, or that of a JSON text, the form that llm-d-inference-sim reads in YAML."""
    try:
        found = load_json(value) if isinstance(value, str) else value
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise OptionError(f"{FLAG}: loras must be a list of objects, got one that is {value!r:.80}")
    return found


def is_number(value: object) -> TypeGuard[int | float]:
    """Whether a value of JSON is a number that a float can be."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e300


# Settings of the server's connections, routes, process and instances.


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsOptions:
    """HTTPS settings, with uvicorn's names."""

    ssl_certfile: str = option("", "Certificate to serve HTTPS with.", metavar="FILE")
    ssl_keyfile: str = option("", "Key of the certificate, if that has it not inside.", metavar="FILE")
    self_signed_certs: bool = option(
        False, "Serve HTTPS with a certificate that is made at the start, which no client trusts; needs openssl."
    )
    ssl_ca_certs: str = option("", "Certificates that those of clients are checked against.", metavar="FILE")
    ssl_cert_reqs: int = option(
        0, "Whether clients need a certificate: 0 no, 1 it is checked if given, 2 yes.", at_least=0, at_most=2
    )
    ssl_ciphers: str = option("", "Ciphers to offer up to TLS 1.2, in OpenSSL's notation.")

    def __post_init__(self) -> None:
        check_options(self)
        if self.ssl_keyfile and not self.ssl_certfile:
            raise OptionError("--ssl-keyfile needs --ssl-certfile")
        for flag, value in (
            ("--ssl-ca-certs", self.ssl_ca_certs),
            ("--ssl-ciphers", self.ssl_ciphers),
            ("--ssl-cert-reqs", self.ssl_cert_reqs),
        ):
            if value and not self.serves_https:
                raise OptionError(f"{flag} needs --ssl-certfile")
        if self.self_signed_certs and self.ssl_certfile:
            raise ExclusionError("--self-signed-certs", "--ssl-certfile")
        if self.ssl_cert_reqs and not self.ssl_ca_certs:
            raise OptionError("--ssl-cert-reqs needs --ssl-ca-certs")

    @property
    def serves_https(self) -> bool:
        """Whether connections are encrypted."""
        return bool(self.ssl_certfile) or self.self_signed_certs


@dataclass(frozen=True, slots=True, kw_only=True)
class CorsOptions:
    """CORS settings."""

    allowed_origins: tuple[str, ...] = option((), "Origins that browsers may call from; * is all.")
    allowed_methods: tuple[str, ...] = option(("*",), "Methods that browsers may use across origins.")
    allowed_headers: tuple[str, ...] = option(("*",), "Headers that browsers may send across origins.")
    allow_credentials: bool = option(False, "Let browsers send cookies across origins.")

    def __post_init__(self) -> None:
        check_options(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkOptions:
    """Network settings."""

    host: str = option("0.0.0.0", "Address to listen on.", heading="Network")
    port: int = option(8000, "Port to listen on; 0 takes a free one.", at_least=0, at_most=65535)
    api_server_count: int | None = option(
        None,
        "Processes that read requests and write replies, all on the same port. With several the engines have one of "
        "their own. The default is 1, with the metrics page of several where data-parallel ranks would have one each.",
        flags=("--api-server-count", "--api-processes"),
        at_least=1,
        at_most=MOST_PROCESSES,
    )
    uds: str = option("", "Unix socket to listen on instead of address and port.", metavar="PATH")
    grpc: bool = option(
        False, "Serve vLLM's gRPC interface at the port in place of HTTP; needs the extra grpc, takes no key, no TLS."
    )
    tls: TlsOptions = section(TlsOptions)
    root_path: str = option("", "Path under which a proxy shows the server; routes answer with and without it.")
    api_key: tuple[str, ...] = option((), "Keys of which clients must present one as a bearer token.")
    cors: CorsOptions = section(CorsOptions)
    middleware: tuple[str, ...] = option(
        (),
        "Import path of ASGI middleware around the server, may be given several times, the last one outermost. It is "
        "a class, or a coroutine function of a Starlette request and call_next. Needs the extra middleware.",
        metavar="PACKAGE.NAME",
    )
    enable_request_id_headers: bool = option(
        False, "Give every reply an X-Request-Id: the request's own, or a new one."
    )
    h11_max_incomplete_event_size: int = option(
        65_536, "Bytes that the request line and each header may have; a longer one is answered with 400.", at_least=256
    )
    h11_max_header_count: int = option(
        256, "Headers that a request may have; one with more is answered with 400.", at_least=1
    )
    request_receive_timeout: int = option(
        60,
        "Seconds that a client may take to send the body of a request, and to begin with its first request. A request "
        "that takes longer is answered with 408.",
        at_least=1,
    )
    max_unsent_kib: int = option(
        1024, "KiB of a stream that its client may leave unread before the stream is cut.", at_least=1
    )
    shutdown_timeout: int = option(
        3, "Seconds that open replies may go on after SIGTERM or SIGINT; /health returns 503 meanwhile.", at_least=0
    )
    abrupt_shutdown: bool = option(
        False,
        "After SIGTERM or SIGINT end as vLLM does by default. The port is closed and tokens stop at once, and the "
        "process exits when the clients have hung up. --shutdown-timeout has no effect.",
    )
    disable_fastapi_docs: bool = option(False, "Do not offer /docs, /redoc and /openapi.json.")

    def __post_init__(self) -> None:
        check_options(self)
        if self.grpc:
            refused = {"--api-server-count": self.num_api_servers > 1, "--uds": self.uds, "--api-key": self.api_key}
            refused |= {
                "--ssl-certfile": self.tls.ssl_certfile,
                "--self-signed-certs": self.tls.self_signed_certs,
                "--middleware": self.middleware,
            }
            refused |= {"--abrupt-shutdown": self.abrupt_shutdown}
            for flag, is_given in refused.items():
                if is_given:
                    raise ExclusionError("--grpc", flag, "")
        if self.root_path and not self.root_path.startswith("/"):
            raise OptionError(f"--root-path must start with /, got {self.root_path!r}")

    @property
    def num_api_servers(self) -> int:
        """Processes that read requests and write replies."""
        return self.api_server_count or 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplyOptions:
    """Settings of replies, with vLLM's names and meanings, and one additional setting for media."""

    enable_prompt_tokens_details: bool = option(
        False, "Report how many tokens of a prompt were cached.", heading="Replies"
    )
    enable_force_include_usage: bool = option(False, "Put token counts into every chunk of every stream.")
    enable_per_request_metrics: bool = option(False, "Report each request's own latencies in its reply.")
    return_tokens_as_token_ids: bool = option(False, "Name tokens by their ids wherever log-probabilities are shown.")
    response_role: str = option("assistant", "Role of chat answers that begin a new message.")
    max_logprobs: int = option(20, "Most log-probabilities per token a request may ask for; -1 is all.", at_least=-1)
    stream_interval: int = option(1, "Tokens that a chunk of a stream waits for, after the first.", at_least=1)
    sse_keep_alive_interval: int = option(
        0, "Seconds after which a quiet stream of chat or completions gets a comment; 0 for never.", at_least=0
    )
    tokens_per_medium: int = option(
        0, "Prompt tokens that each picture or recording counts; with 0 the model takes text only.", at_least=0
    )
    global_cache_hit_threshold: float | None = option(
        None, "Fraction of a prompt that the KV cache must hold.", at_least=0, at_most=1, hidden=True
    )

    def __post_init__(self) -> None:
        check_options(self)


POOLING_TASKS = ("embed", "classify", "token_embed", "token_classify")
"""Pooling tasks in vLLM's order of preference."""
TASKS = ("generate", "transcription", "realtime", *POOLING_TASKS)
GENERATING_TASKS = frozenset({"generate", "transcription", "realtime"})


@dataclass(frozen=True, slots=True, kw_only=True)
class RouteOptions:
    """Settings of the served model's tasks, and of optional interfaces."""

    runner: str = option(
        "auto",
        "What the model is run for; pooling replaces the generating routes by those of embeddings and the like. "
        "auto goes by the class that the config.json of a model folder names.",
        choices=("auto", "generate", "pooling", "draft"),
        heading="Tasks and routes",
    )
    convert: str = option(
        "auto", "What a pooling model gives: vectors (embed) or classes (classify).",
        choices=("auto", "none", "embed", "classify"),
    )  # fmt: skip
    task: tuple[str, ...] = option(
        (), "What the model can do, if not what --runner and --convert imply; a model may have several.", choices=TASKS
    )
    hf_overrides: str = option(
        "",
        "JSON object over the model's config.json. Members read: max_position_embeddings, rope_scaling, "
        "rope_parameters, and for a pooling model hidden_size, num_labels, id2label, is_matryoshka, "
        "matryoshka_dimensions.",
    )
    enable_scale_out: bool = option(False, "Answer the token-in, token-out routes and those that render prompts.")
    tokens_only: bool = option(False, "Serve token ids only: --enable-scale-out, and POST /abort_requests.")
    enable_state_control: bool = option(
        False, "Offer /blis/metrics, which pins series of the metrics page, and /blis/load, which adds synthetic load."
    )
    enable_tokenizer_info_endpoint: bool = option(False, "Answer GET /tokenizer_info.")
    lora_modules: tuple[str, ...] = option(
        (), 'Adapters to serve from the start: name=path, or a JSON object with "name", "path", "base_model_name".'
    )

    def __post_init__(self) -> None:
        check_options(self)
        config_overrides(self)  # validates the value

    @property
    def scales_out(self) -> bool:
        """Whether the routes for token ids are enabled."""
        return self.enable_scale_out or self.tokens_only


def tasks_of(options: RouteOptions) -> frozenset[str]:
    """Return the tasks of the served model."""
    if options.task:
        return frozenset(options.task)
    if options.runner == "pooling" or (options.runner == "auto" and options.convert in ("embed", "classify")):
        return frozenset({"classify" if options.convert == "classify" else "embed"})
    return frozenset({"generate"})


ROUTE_FAMILIES: Registry[Any] = Registry("blis.routes")
"""Modules with the `ROUTES` of a kind of model; `pooling` also has `body_models`, `invocation_uses` and `new_state`."""
POOLING_FAMILY = "pooling"
"""Name of the routes of pooling models."""


def labels_of(overrides: Mapping[str, Any]) -> Mapping[int, str]:
    """Return the names of the classes from `id2label`, else `num_labels` numbered names (1 by default)."""
    named = overrides.get("id2label")
    if named is None:
        return {number: f"LABEL_{number}" for number in range(positive_override(overrides, "num_labels", 1))}
    try:
        labels = {int(number): str(label) for number, label in named.items()}
    except (AttributeError, ValueError):
        labels = {}
    if sorted(labels) != list(range(len(labels))) or not labels:
        raise OptionError(f"--hf-overrides: id2label must map 0, 1, ... to names, got {named!r}")
    return labels


def positive_override(overrides: Mapping[str, Any], name: str, default: int) -> int:
    """Return a number of a pooling model. Raises OptionError for one below 1."""
    value = overrides.get(name, default)
    if not isinstance(value, int) or value < 1:
        raise OptionError(f"--hf-overrides: {name} must be a number of at least 1, got {value!r}")
    return value


def pooling_task_of(options: RouteOptions) -> str | None:
    """Return the pooling task of the server; None for a model that does not pool."""
    tasks = tasks_of(options)
    return next((task for task in POOLING_TASKS if task in tasks), None)


OVERRIDES_READ = frozenset(
    {"hidden_size", "num_labels", "id2label", "is_matryoshka", "matryoshka_dimensions"}
    | {"max_position_embeddings", *ROPE_KEYS, "text_config"}
)
"""Members of --hf-overrides that act."""


def config_overrides(options: RouteOptions) -> Mapping[str, Any]:
    """Return the JSON object of --hf-overrides. Raises OptionError for any other value."""
    return json_object("--hf-overrides", options.hf_overrides) if options.hf_overrides else {}


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessOptions:
    """Settings of the server process and its metrics page that vLLM does not have."""

    startup_s: float = option(
        0.0,
        "Seconds until the server listens, as if it were loading weights.",
        flags=("--startup-s", "--startup-delay"),
        at_least=0,
        heading="Process",
    )
    log_format: str = option("text", "What lines on standard error are.", choices=FORMATS)
    max_waiting_requests: int | None = option(
        None, "Requests that may wait for a place in the batch; more are refused with status 429.", at_least=0
    )
    max_body_mb: int = option(32, "Largest body of a request, in MiB.", at_least=1)
    fake_metrics: str = option(
        "",
        "Figures for the metrics page instead of the true ones: a JSON object such as "
        '{"running-requests": 3, "kv-cache-usage": "ramp:0:1:60s"}.',
        metavar="JSON",
    )
    shares_port_with_grpc: bool = option(False, "Serve gRPC at the port of HTTP, too.", hidden=True)
    offers_ready_route: bool = option(False, "Offer GET /health/ready as well.", hidden=True)
    pod_headers: tuple[str, ...] = option((), "Headers of every reply, as name=value.", hidden=True)

    def __post_init__(self) -> None:
        check_options(self)
        if self.fake_metrics:
            read_fake_metrics(self.fake_metrics)  # validates the value
        for header in self.pod_headers:
            if "=" not in header:
                raise OptionError(f"--pod-headers must be name=value, got {header!r}")


LARGEST_PORT = 65_535


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceOptions:
    """Settings of the ports and the control of instances."""

    instance_ports: int | None = option(
        None,
        "Port on which instance 0 listens as a server of its own, past the router; the others follow. 0 takes free "
        "ones.",
        at_least=0,
        at_most=LARGEST_PORT,
        heading="Instances of a server",
    )
    ports: str = option(
        "",
        "Serve at each of these ports, such as 8000-8499, as if a server of its own ran there, all in one process.",
        metavar="FIRST-LAST",
    )
    count: int | None = option(
        None, "Serve at so many ports from --port on, as with --ports.", at_least=1, at_most=LARGEST_PORT
    )
    is_endpoint: bool = option(False, "One of the servers of --ports or --count.", hidden=True)
    enable_instance_control: bool = option(
        False, "Offer to add, drain and kill instances while running, below /blis/instances."
    )

    def __post_init__(self) -> None:
        check_options(self)
        if self.ports and self.count is not None:
            raise ExclusionError("--ports", "--count", ": both give the number of servers")
        if self.ports:
            _ = self.endpoint_ports(0)

    def endpoint_ports(self, port: int) -> Sequence[int]:
        """Return the ports of all servers of the process; `port` is the port of a single server. Raises OptionError."""
        first, last = port, port
        if self.ports:
            found = re.fullmatch(r"([0-9]{1,5})(?:-([0-9]{1,5}))?", self.ports)
            if found is None:
                raise OptionError(f"--ports must be like 8000-8499, got {self.ports!r}")
            first, last = int(found[1]), int(found[2] or found[1])
            if not 1 <= first <= last <= LARGEST_PORT:
                raise OptionError(f"--ports must ascend between 1 and {LARGEST_PORT}, got {self.ports}")
        elif self.count is not None:
            if not port:
                return [0] * self.count
            last = port + self.count - 1
            if last > LARGEST_PORT:
                raise OptionError(
                    f"--count must be at most {LARGEST_PORT + 1 - port} with port {port}, got {self.count}"
                )
        return range(first, last + 1)

    def check_ports(self, num_instances: int) -> None:
        """Raise OptionError if the port of the last instance would exceed the largest port."""
        last_port = (self.instance_ports or 0) + num_instances - 1
        if last_port > LARGEST_PORT:
            raise OptionError(
                f"--instance-ports must be at most {LARGEST_PORT + 1 - num_instances} with {num_instances} "
                f"instances, got {self.instance_ports}"
            )
