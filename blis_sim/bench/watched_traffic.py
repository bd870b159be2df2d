"""The requests of a watched server as a proxy records them, checked against what its prefix cache must hold."""

import math
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self

import orjson

from blis_sim.bench import BenchError
from observe.http import parse_server, tls_context
from observe.proxy.cache_canary import CacheBound, CacheFigures, Canary, CheckedRequest
from traces import TraceError
from traces.content import RecordedExchange, exchange_of_line
from traces.server_settings import blocks_of_one_engine

_PIECE_BYTES = 1 << 20
_LONGEST_LINE = 256 << 20


class CacheReading(Protocol):
    """A reading of the server's metrics."""

    @property
    def values(self) -> Mapping[str, float]: ...


def cache_bound(cache: Mapping[str, str], num_engines: int) -> CacheBound:
    """Return what is known to be in the cache of a server, at first nothing.

    `cache` has the labels of `vllm:cache_config_info`. Raises BenchError for a server of several engines, or without a
    prefix cache.
    """
    if num_engines > 1:
        raise BenchError(f"--traffic needs one engine behind --url, it has {num_engines}")
    if cache.get("enable_prefix_caching") != "True":
        raise BenchError("--traffic needs a prefix cache, the server has none")
    num_blocks, block_tokens = blocks_of_one_engine(cache, num_engines), cache.get("block_size", "")
    if num_blocks is None or not block_tokens.isdecimal() or not int(block_tokens):
        raise BenchError("--traffic needs the size and the number of KV blocks, which the metrics page does not state")
    return CacheBound(int(block_tokens), num_blocks)


class WatchedTraffic:
    """Follows a growing file of contents from its present end on, and has each request in it checked.

    Raises TraceError where the file cannot be read, and BenchError where its prompts are redacted.
    """

    def __init__(self, path: Path, url: str, api_key: str | None, bound: CacheBound) -> None:
        server = parse_server(url.rstrip("/").removesuffix("/metrics"))
        self._path = path
        self._authorization = f"Bearer {api_key}" if api_key else ""
        self._bound = bound
        self._canary = Canary(server, tls_context(None, insecure=False) if server.tls else None, bound)
        self._begun = b""
        """The last line so far, which has not ended."""
        self._number = 1
        self._seen_tokens = 0
        """Prompt tokens of the requests in the file."""
        self._foreign_tokens = 0.0
        """Most prompt tokens of other requests that the server had."""
        self._first_queries: float | None = None
        if path.exists() and not path.is_file():
            raise TraceError(f"{path}: expected a file, got a folder, a pipe or a device")
        try:
            with path.open("rb") as file:
                _check_first_line(path, file.readline(_PIECE_BYTES))
            self._file = path.open("rb")
        except OSError as error:
            raise TraceError(f"{path}: {(error.strerror or str(error)).lower()}") from error
        self._file.seek(0, 2)
        self._last_ended = time.perf_counter_ns()
        self._ahead_ns = time.time_ns() - time.perf_counter_ns()

    def __enter__(self) -> Self:
        self._canary.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._canary.close()
        self._file.close()

    @property
    def figures(self) -> CacheFigures:
        """The figures so far."""
        return self._canary.figures

    def take(self, readings: Sequence[CacheReading]) -> None:
        """Have the requests checked that were recorded since the last call. `readings` are the latest of the server."""
        usage = max((each.values["vllm:kv_cache_usage_perc"] for each in readings), default=0.0)
        in_flight_tokens = math.ceil(usage * self._bound.capacity_tokens)
        while piece := self._file.read(_PIECE_BYTES):
            *lines, self._begun = (self._begun + piece).split(b"\n")
            if len(self._begun) > _LONGEST_LINE:
                raise TraceError(f"{self._path}: a line is longer than {_LONGEST_LINE >> 20} MiB")
            for line in lines:
                self._number += 1
                exchange = exchange_of_line(self._path, self._number, line.decode("utf-8", "replace"))
                self._canary.check(self._checked(exchange, in_flight_tokens))
        self._note_others(readings)

    def _note_others(self, readings: Sequence[CacheReading]) -> None:
        """Count prompts that passed by the proxy as a request of unknown tokens: they take blocks, too."""
        if not readings:
            return
        queries = readings[-1].values["vllm:prefix_cache_queries_total"]
        if self._first_queries is None or queries < self._first_queries:
            self._first_queries, self._seen_tokens, self._foreign_tokens = queries, 0, 0.0
        foreign = queries - self._first_queries - self._seen_tokens
        if foreign > self._foreign_tokens:
            others = round(foreign - self._foreign_tokens)
            self._foreign_tokens = foreign
            self._last_ended = max(self._last_ended, time.perf_counter_ns())
            self._canary.check(_unknown(others, self._last_ended))

    def _checked(self, exchange: RecordedExchange, in_flight_tokens: int) -> CheckedRequest:
        usage = _usage(exchange)
        prompt_tokens = _count(usage, "prompt_tokens")
        self._seen_tokens += prompt_tokens
        sent = exchange.sent_at_us * 1000 - self._ahead_ns
        after_ns = [after_us * 1000 for after_us, _ in exchange.pieces]
        replied = sent + (after_ns[-1] if after_ns else 0)
        # The first event of a stream may come before its first token.
        ready = replied if len(after_ns) < 3 else sent + after_ns[1]
        self._last_ended = max(self._last_ended, replied)  # what is counted ascends
        details = usage.get("prompt_tokens_details")
        is_ok = exchange.status == 200 and exchange.is_complete
        return CheckedRequest(
            number=-1 if exchange.request_id is None else exchange.request_id,
            path=exchange.path,
            body=b"" if exchange.request_id is None else exchange.body,
            authorization=self._authorization,
            sent=sent,
            ready=ready if is_ok else 0,
            ended=self._last_ended,
            is_ok=is_ok,
            prompt_tokens=prompt_tokens,
            output_tokens=_count(usage, "completion_tokens") or len(after_ns),
            cached_tokens=_count(details, "cached_tokens") if isinstance(details, dict) else None,
            in_flight_tokens=in_flight_tokens,
        )


def _check_first_line(path: Path, line: bytes) -> None:
    """Raise BenchError where prompts were changed: equal texts may have been different ones."""
    try:
        redacted = orjson.loads(line)["redact"]
    except (orjson.JSONDecodeError, KeyError, TypeError) as error:
        raise TraceError(f"{path} line 1: expected the start of contents that blis observe --proxy records") from error
    if redacted:
        raise BenchError(f"--traffic needs prompts as they were sent, those of {path} are redacted")


def _unknown(num_tokens: int, at: int) -> CheckedRequest:
    return CheckedRequest(
        number=-1,
        path="",
        body=b"",
        authorization="",
        sent=at,
        ready=0,
        ended=at,
        is_ok=False,
        prompt_tokens=num_tokens,
        output_tokens=0,
        cached_tokens=None,
        in_flight_tokens=0,
    )


def _usage(exchange: RecordedExchange) -> dict[str, Any]:
    """Return the usage that a reply states; empty without one."""
    bodies = [exchange.reply_body]
    if exchange.is_event_stream:
        lines = (line for _, piece in exchange.pieces for line in piece.split(b"\n"))
        bodies = [line[5:] for line in lines if line.startswith(b"data:") and b'"usage"' in line]
    for body in reversed(bodies):
        try:
            found = orjson.loads(body)
        except orjson.JSONDecodeError:
            continue
        if isinstance(found, dict) and isinstance(found.get("usage"), dict):
            usage: dict[str, Any] = found["usage"]
            return usage
    return {}


def _count(members: Any, name: str) -> int:
    value = members.get(name) if isinstance(members, dict) else None
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else 0
