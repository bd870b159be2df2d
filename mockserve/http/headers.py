"""Headers: callers in those of requests, their text and order, those of all replies, and the heads of streams."""

import re
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from email.utils import formatdate

from aiohttp import HttpVersion11, hdrs, web
from multidict import CIMultiDict, istr

from blis_sim.engine.request import Request
from blis_sim.engine.units import Micros
from mockserve.http.aiohttp_internals import AbstractStreamWriter
from mockserve.options.serve import ServeOptions

_PLACES = {"date": 0, "server": 1, "content-length": 3, "location": 4, "content-type": 4, "vary": 5, "connection": 6}
_PLACES["transfer-encoding"] = 7
_OTHER = 2


def write_as_uvicorn(headers: CIMultiDict[str]) -> None:
    """Change header names to lower case and to uvicorn's order, in place."""
    given = [(name.lower(), value) for name, value in headers.items()]
    given.sort(key=lambda header: _PLACES.get(header[0], _OTHER))
    headers.clear()
    headers.extend(given)


def header_text(request: web.Request, name: istr) -> str | None:
    """The value of a header field; None if it is missing."""
    value = request.headers.get(name)
    if value is None or value.isascii():
        return value
    return value.encode("utf-8", "surrogateescape").decode("latin-1")  # reverses aiohttp's decoding


RANK_HEADER = istr("X-data-parallel-rank")
CLASS_HEADER = istr("X-Gateway-Inference-Objective")
TENANT_HEADER = istr("X-Gateway-Inference-Fairness-Id")
TARGET_HEADER = istr("X-Slo-Ttft-Ms")
E2E_TARGET_HEADER = istr("X-Slo-E2e-Ms")
"""Headers that inference gateways read and `blis observe` sends."""
TRACE_PARENT_HEADER = istr("traceparent")
TRACE_STATE_HEADER = istr("tracestate")
"""Headers of W3C trace context."""


@dataclass(frozen=True, slots=True)
class Caller:
    """Caller metadata from headers; defaults mean absent."""

    rank: int | None = None
    """Requested data-parallel rank or instance; None leaves the choice to the server."""
    slo_class: str = ""
    tenant: str = ""
    slo_target_us: Micros = 0
    slo_e2e_us: Micros = 0
    traceparent: str = ""
    """The W3C trace context of the client's span."""
    tracestate: str = ""

    def applied_to(self, request: Request) -> Request:
        """Return the request with the caller's metadata for admission and scheduling."""
        if not (self.slo_class or self.tenant or self.slo_target_us or self.slo_e2e_us):
            return request
        # Requests without a priority have a priority of 0.
        priority = None if self.slo_class and not request.priority else request.priority
        return request._replace(
            slo_class=self.slo_class,
            tenant=self.tenant,
            slo_target_us=self.slo_target_us,
            slo_e2e_us=self.slo_e2e_us or request.slo_e2e_us,
            priority=priority,
        )


UNKNOWN_CALLER = Caller()


def caller_of(request: web.Request) -> Caller:
    """Return the caller of a request. An SLO target that is no number counts as absent."""
    headers = request.headers
    rank, target_ms = requested_rank(request), headers.get(TARGET_HEADER, "")
    slo_class, tenant = headers.get(CLASS_HEADER, ""), headers.get(TENANT_HEADER, "")
    e2e_ms, traceparent = headers.get(E2E_TARGET_HEADER, ""), headers.get(TRACE_PARENT_HEADER, "")
    if rank is None and not (target_ms or slo_class or tenant or e2e_ms or traceparent):
        return UNKNOWN_CALLER
    return Caller(
        rank=rank,
        slo_class=slo_class,
        tenant=tenant,
        slo_target_us=_target_us(target_ms),
        slo_e2e_us=_target_us(e2e_ms),
        traceparent=traceparent,
        tracestate=headers.get(TRACE_STATE_HEADER, ""),
    )


def _target_us(milliseconds: str) -> Micros:
    """Return an SLO target from a header; 0 for text that is no number of milliseconds up to 11 days."""
    found = _MILLISECONDS.fullmatch(milliseconds)
    return 0 if found is None else int(found[1]) * 1000 + int((found[2] or "").ljust(3, "0"))


_MILLISECONDS = re.compile(r"([0-9]{1,9})(?:\.([0-9]{1,3}))?")


def requested_rank(request: web.Request) -> int | None:
    """The data-parallel rank in a header; None without the header or with a value that is no number."""
    if RANK_HEADER not in request.headers:
        return None
    try:
        return int(header_text(request, RANK_HEADER) or "")
    except ValueError:
        return None


ALL_METHODS = ("DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT", "QUERY")
ALWAYS_ALLOWED_HEADERS = frozenset({"Accept", "Accept-Language", "Content-Language", "Content-Type"})
PREFLIGHT_VARY = (
    "Origin, Access-Control-Request-Method, Access-Control-Request-Headers, Access-Control-Request-Private-Network"
)
MAX_AGE_S = 600


@dataclass(frozen=True, slots=True)
class Cors:
    """The CORS policy of a server; `*` allows all."""

    origins: frozenset[str]
    methods: tuple[str, ...]
    headers: frozenset[str]
    credentials: bool

    def reply_headers(self, origin: str | None) -> dict[str, str]:
        """Return the CORS headers of a reply to a request from `origin`, None without an Origin header."""
        return {"Vary": "Origin"} | ({} if origin is None else self._origin_headers(origin))

    def preflight(self, request: Mapping[str, str]) -> tuple[int, str, dict[str, str]] | None:
        """Return status, text and headers of the reply to a CORS preflight; None for any other request."""
        origin, method = request.get("Origin"), request.get("Access-Control-Request-Method")
        if origin is None or method is None:
            return None
        requested = request.get("Access-Control-Request-Headers")
        refused = [
            what
            for what, is_refused in (
                ("origin", not self._allows_origin(origin)),
                ("method", method not in self.methods),
                ("headers", requested is not None and not self._allows_headers(requested.split(","))),
                ("private-network", "Access-Control-Request-Private-Network" in request),
            )
            if is_refused
        ]
        found = {
            "Vary": PREFLIGHT_VARY,
            "Access-Control-Allow-Methods": ", ".join(self.methods),
            "Access-Control-Max-Age": str(MAX_AGE_S),
        }
        if "*" not in self.headers:
            found["Access-Control-Allow-Headers"] = ", ".join(sorted(ALWAYS_ALLOWED_HEADERS | self.headers))
        elif requested is not None:
            found["Access-Control-Allow-Headers"] = requested
        headers = found | self._origin_headers(origin)
        if refused:
            return 400, f"Disallowed CORS {', '.join(refused)}", headers
        return 200, "OK", headers

    @property
    def _allows_all_origins(self) -> bool:
        return "*" in self.origins

    def _allows_origin(self, origin: str) -> bool:
        return self._allows_all_origins or origin in self.origins

    def _allows_headers(self, requested: Iterable[str]) -> bool:
        allowed = {name.lower() for name in ALWAYS_ALLOWED_HEADERS | self.headers}
        return "*" in self.headers or all(name.strip().lower() in allowed for name in requested)

    def _origin_headers(self, origin: str) -> dict[str, str]:
        found: dict[str, str] = {}
        if self.credentials:
            found["Access-Control-Allow-Credentials"] = "true"
        if self._allows_all_origins and not self.credentials:
            found["Access-Control-Allow-Origin"] = "*"
        elif self._allows_origin(origin):
            found["Access-Control-Allow-Origin"] = origin
        return found


def new_cors(origins: Iterable[str], methods: Iterable[str], headers: Iterable[str], credentials: bool) -> Cors:
    """Return the policy for lists of origins, methods and headers."""
    listed = tuple(methods)
    return Cors(frozenset(origins), ALL_METHODS if "*" in listed else listed, frozenset(headers), credentials)


SERVER_NAME = "uvicorn"
"""The `server` header of vLLM's server."""


@dataclass(frozen=True, slots=True)
class Network:
    """Connection settings that every reply depends on."""

    root_path: str
    cors: Cors
    adds_request_ids: bool
    further_headers: Mapping[str, str]

    def route_path(self, path: str) -> str:
        """Return `path` without the root path, if it begins with the root path and a slash.

        vLLM strips the root path without checking for the slash, so that `--root-path /v` admits requests to
        `/v1/models` without a key. This server does not copy that behaviour.
        """
        root = self.root_path
        is_below = root and (path == root or path.startswith(root + "/"))
        return path[len(root) :] if is_below else path

    def paths_of(self, route_path: str) -> tuple[str, ...]:
        """Return the paths of a route: with the root path, and without it unless the bare path is below it too."""
        if not self.root_path:
            return (route_path,)
        below = self.root_path + route_path
        return (below,) if self.route_path(route_path) != route_path else (route_path, below)


def network_of(options: ServeOptions) -> Network:
    """The settings that the options describe."""
    return Network(
        root_path=options.network.root_path.rstrip("/"),
        cors=new_cors(
            options.network.cors.allowed_origins,
            options.network.cors.allowed_methods,
            options.network.cors.allowed_headers,
            options.network.cors.allow_credentials,
        ),
        adds_request_ids=options.network.enable_request_id_headers,
        further_headers=dict(header.split("=", 1) for header in options.process.pod_headers),
    )


EVENT_STREAM = "text/event-stream; charset=utf-8"


class StreamHeads:
    """The response head of streams, byte for byte as aiohttp writes it."""

    def __init__(self, network: Network) -> None:
        self._network = network
        self.response = EventResponse()
        """Response that handlers return for a stream with a prepared head."""
        self._second = -1
        self._head = b""

    def head_for(self, request: web.Request) -> bytes | None:
        """Return the prepared head for a stream that answers `request`; None if the request needs a different head."""
        is_usual = request.version == HttpVersion11 and request.keep_alive and hdrs.ORIGIN not in request.headers
        if not is_usual or self._network.adds_request_ids:
            return None
        second = int(time.time())
        if second != self._second:
            self._second, self._head = second, self._written(second)
        return self._head

    def _written(self, second: int) -> bytes:
        network = self._network
        headers: CIMultiDict[str] = CIMultiDict(
            {
                "Content-Type": EVENT_STREAM,
                "Transfer-Encoding": "chunked",
                "Date": formatdate(second, usegmt=True),
                "Server": SERVER_NAME,
                **network.cors.reply_headers(None),
            }
        )
        headers.update(network.further_headers)
        write_as_uvicorn(headers)
        lines = ["HTTP/1.1 200 OK", *(f"{name}: {value}" for name, value in headers.items())]
        return "\r\n".join([*lines, "", ""]).encode()


class EventResponse(web.StreamResponse):
    """A response whose bytes all bypass aiohttp."""

    @property
    def keep_alive(self) -> bool:
        return True

    async def prepare(self, request: web.BaseRequest) -> AbstractStreamWriter | None:
        return None

    async def write_eof(self, data: bytes = b"") -> None:
        return
