"""Settings of the server's connections, routes, process and instances."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from blis_sim.options import OptionError, check_options, option, section
from blis_sim.options.limits import MOST_PROCESSES
from blis_sim.options.text import load_json
from mockserve.options.observability import FORMATS


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsOptions:
    """HTTPS settings, with uvicorn's names."""

    ssl_certfile: str = option("", "Certificate to serve HTTPS with.", metavar="FILE")
    ssl_keyfile: str = option("", "Key of the certificate, if that has it not inside.", metavar="FILE")
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
            if value and not self.ssl_certfile:
                raise OptionError(f"{flag} needs --ssl-certfile")
        if self.ssl_cert_reqs and not self.ssl_ca_certs:
            raise OptionError("--ssl-cert-reqs needs --ssl-ca-certs")


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
        "Processes that read requests and write replies, all on the same port; with several the engines have one of "
        "their own (default: 1, with the metrics page of several where data-parallel ranks would have one each).",
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
        "Import path of ASGI middleware around the server, may be given several times, the last one outermost: a class,"
        " or a coroutine function of a Starlette request and call_next; needs the extra middleware.",
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
        "Seconds that a client may take to send the body of a request, which is then answered with 408, and to begin "
        "with its first request.",
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
        "After SIGTERM or SIGINT end as vLLM does by default: the port is closed and tokens stop at once, and the "
        "process exits when the clients have hung up. --shutdown-timeout has no effect.",
    )
    disable_fastapi_docs: bool = option(False, "Do not offer /docs, /redoc and /openapi.json.")

    def __post_init__(self) -> None:
        check_options(self)
        if self.grpc:
            refused = {"--api-server-count": self.num_api_servers > 1, "--uds": self.uds, "--api-key": self.api_key}
            refused |= {"--ssl-certfile": self.tls.ssl_certfile, "--middleware": self.middleware}
            refused |= {"--abrupt-shutdown": self.abrupt_shutdown}
            for flag, is_given in refused.items():
                if is_given:
                    raise OptionError(f"--grpc and {flag} exclude each other")
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
        "JSON object over the model's config.json. Members read for a pooling model: hidden_size, num_labels, "
        "id2label, is_matryoshka, matryoshka_dimensions.",
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


def pooling_task_of(options: RouteOptions) -> str | None:
    """Return the pooling task of the server; None for a model that does not pool."""
    tasks = tasks_of(options)
    return next((task for task in POOLING_TASKS if task in tasks), None)


def config_overrides(options: RouteOptions) -> Mapping[str, Any]:
    """Return the JSON object of --hf-overrides. Raises OptionError for any other value."""
    if not options.hf_overrides:
        return {}
    try:
        found = load_json(options.hf_overrides)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise OptionError(f"--hf-overrides must be a JSON object, got {options.hf_overrides!r}")
    return found


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
            from mockserve.options.fake_metrics import read_fake_metrics  # few servers need it

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
            raise OptionError("--ports and --count exclude each other: both give the number of servers")
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
