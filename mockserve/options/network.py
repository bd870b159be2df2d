"""The settings of `blis serve` that concern connections: where to listen, who may connect, what every reply carries."""

from dataclasses import dataclass

from blis_sim.options import OptionError, check_options, option, section
from blis_sim.options.room import MOST_PROCESSES


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsOptions:
    """HTTPS, with the names of uvicorn's settings."""

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
    """Requests of browsers across origins."""

    allowed_origins: tuple[str, ...] = option((), "Origins that browsers may call from; * is all.")
    allowed_methods: tuple[str, ...] = option(("*",), "Methods that browsers may use across origins.")
    allowed_headers: tuple[str, ...] = option(("*",), "Headers that browsers may send across origins.")
    allow_credentials: bool = option(False, "Let browsers send cookies across origins.")

    def __post_init__(self) -> None:
        check_options(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkOptions:
    """How clients reach the server."""

    host: str = option("0.0.0.0", "Address to listen on.", heading="Network")
    port: int = option(8000, "Port to listen on; 0 takes a free one.", at_least=0, at_most=65535)
    api_server_count: int = option(
        1,
        "Processes that read requests and write replies, all on the same port; with several the engines have one of "
        "their own.",
        flags=("--api-server-count", "--api-processes"),
        at_least=1,
        at_most=MOST_PROCESSES,
    )
    uds: str = option("", "Unix socket to listen on instead of address and port.", metavar="PATH")
    tls: TlsOptions = section(TlsOptions)
    root_path: str = option("", "Path under which a proxy shows the server; routes answer with and without it.")
    api_key: tuple[str, ...] = option((), "Keys of which clients must present one as a bearer token.")
    cors: CorsOptions = section(CorsOptions)
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
        3, "Seconds that open replies may go on after SIGTERM or SIGINT; /health says 503 meanwhile.", at_least=0
    )
    disable_fastapi_docs: bool = option(False, "Do not offer /docs, /redoc and /openapi.json.")

    def __post_init__(self) -> None:
        check_options(self)
        if self.root_path and not self.root_path.startswith("/"):
            raise OptionError(f"--root-path must start with /, got {self.root_path!r}")
