"""The sending half of HTTP/1.1: a server's address, trust in its certificate, and the bytes of requests."""

import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

from observe.errors import ObserveError


def tls_context(ca_file: str | None, *, insecure: bool) -> ssl.SSLContext:
    """The settings of TLS: those of the system, those of a PEM file, or none at all. Raises ObserveError."""
    if insecure and ca_file is not None:
        raise ObserveError("--insecure and --ca-file exclude each other")
    try:
        context = ssl.create_default_context(cafile=ca_file)
    except OSError as error:
        reason = "no certificates in PEM form" if isinstance(error, ssl.SSLError) else (error.strerror or error)
        raise ObserveError(f"--ca-file {ca_file}: {reason}") from error
    if insecure:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


SEND_TIME_HEADER = {"x-request-start": "t=0000000000000000"}
"""Header with the instant of sending, as proxies set it. `stamped` fills in the value at the last moment."""
_NO_STAMP = b"t=0000000000000000"

_DEFAULT_PORTS = {"http": 80, "https": 443}


@dataclass(frozen=True, slots=True)
class Server:
    """Where the API lives. `prefix` is the path before `/v1/...`, without a slash at its end."""

    host: str
    port: int
    tls: bool
    prefix: str

    @property
    def url(self) -> str:
        """The address as messages show it."""
        return f"{'https' if self.tls else 'http'}://{self.authority}{self.prefix}"

    @property
    def authority(self) -> str:
        """The host header: the port only where it is not the usual one."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        usual = self.port == _DEFAULT_PORTS["https" if self.tls else "http"]
        return host if usual else f"{host}:{self.port}"


def parse_server(url: str, label: str = "--url") -> Server:
    """The server behind a base URL, with or without `/v1` at its end. Raises ObserveError, naming it by `label`."""
    expected = f"{label} must be like http://host:port, got {url!r}"
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise ObserveError(f"{expected} ({error})") from error
    printable = url.isascii() and url.isprintable() and " " not in url
    if parts.scheme not in _DEFAULT_PORTS or not parts.hostname or parts.query or parts.fragment or not printable:
        raise ObserveError(expected)
    if parts.username is not None:
        raise ObserveError(f"{label} must not carry a user name or password, give --api-key")
    prefix = parts.path.rstrip("/").removesuffix("/v1").rstrip("/")
    return Server(parts.hostname, port or _DEFAULT_PORTS[parts.scheme], parts.scheme == "https", prefix)


def get_bytes(server: Server, path: str, headers: Mapping[str, str]) -> bytes:
    """A GET request, complete."""
    return _head(server, "GET", path, headers) + b"\r\n"


def post_bytes(server: Server, path: str, headers: Mapping[str, str], body: bytes) -> bytes:
    """A POST request of a JSON body, complete."""
    return b"%scontent-type: application/json\r\ncontent-length: %d\r\n\r\n%s" % (
        post_head(server, path, headers),
        len(body),
        body,
    )


def post_head(server: Server, path: str, headers: Mapping[str, str]) -> bytes:
    """Return the first bytes of POST requests with these headers, for `post_bytes_of`."""
    return _head(server, "POST", path, headers)


def post_bytes_of(head: bytes, x_request_id: str, body: bytes, traceparent: str = "") -> bytes:
    """The request of `post_bytes` that begins like this and has this identity, and perhaps this trace context, as its
    last headers."""
    if traceparent:
        head = b"%straceparent: %s\r\n" % (head, traceparent.encode("latin-1"))
    return b"%sx-request-id: %s\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%s" % (
        head,
        x_request_id.encode("latin-1"),
        len(body),
        body,
    )


def stamped(request: bytes, sent_at_us: int) -> bytes:
    """`request` with the instant at which it is sent, in Unix microseconds, in its header for that, if it has one."""
    return request.replace(_NO_STAMP, b"t=%016d" % sent_at_us, 1)


def check_header(label: str, name: str, value: str) -> None:
    """Raise ObserveError unless this can be sent as a header; `label` is the flag it came from."""
    if not name or not all(each.isascii() and (each.isalnum() or each in "!#$%&'*+-.^_`|~") for each in name):
        raise ObserveError(f"{label} must be NAME=VALUE with a header name, got the name {name!r}")
    if not all(each == "\t" or " " <= each <= "~" for each in value):
        raise ObserveError(f"{label} must have a value of printable ASCII characters")


def _head(server: Server, method: str, path: str, headers: Mapping[str, str]) -> bytes:
    lines = [f"{method} {server.prefix}{path} HTTP/1.1", f"host: {server.authority}"]
    lines += ["user-agent: blis-observe", "accept: */*"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    return "\r\n".join([*lines, ""]).encode("latin-1")
