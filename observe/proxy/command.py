"""`blis observe --proxy`: bytes passed between clients and servers, from the first connection to the last row."""

import asyncio
import socket
import ssl
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from itertools import count, cycle
from pathlib import Path
from time import perf_counter_ns
from typing import Any, NamedTuple, TextIO, cast

import orjson

from blis_sim.options.printing import BLIS, JSON, printed_format
from blis_sim.options.provenance import Provenance, command_line
from blis_sim.report.report import Report, Section
from blis_sim.report.tables import facts_table, flat
from observe.client import Address, Client, addresses_of
from observe.errors import ObserveError, RunError, print_message, warn
from observe.event_loop import Clock, Interrupt, Nanos, command_of, start_clock
from observe.http import Server
from observe.options import ObserveOptions, OutputPaths
from observe.processes import packed, receive
from observe.proxy.exchanges import RequestReader, UnreadableError, with_host
from observe.proxy.rows import part_numbers, part_paths
from observe.proxy.tap import CacheSettings, EventKind, Job, RecordingReport, Tap
from observe.recording import note_settings, reserved_paths
from observe.server import ServerQueries, interruptions_of_server, settings_of_server
from traces import TraceHeader, read_header
from traces.append_file import back_up
from traces.redaction import Redactor
from traces.server_settings import ENGINE, HEADER_NAMES, INTERRUPTIONS

# Passes bytes between clients and servers: each connection of a client has one to a server for itself.

_CONNECT_S = 10.0
_MAX_BEFORE_CONNECTED = 1 << 20
_SILENCE_NS = 500_000_000


@dataclass(slots=True)
class Upstream:
    """A server behind the proxy, by its number, and the addresses of its host, the one that worked last first."""

    number: int
    server: Server
    tls: ssl.SSLContext | None
    addresses: Sequence[Address] = ()

    async def connect(self, factory: Callable[[], asyncio.Protocol]) -> None:
        """Open a connection to the first address that takes one. Raises OSError and TimeoutError."""
        loop = asyncio.get_running_loop()
        if not self.addresses:
            self.addresses = await addresses_of(self.server.host, self.server.port)
        failure: OSError = OSError("no address")
        for host, port in self.addresses:
            try:
                async with asyncio.timeout(_CONNECT_S):
                    await loop.create_connection(
                        factory, host, port, ssl=self.tls, server_hostname=self.server.host if self.tls else None
                    )
            except OSError as error:  # a TimeoutError is one
                failure = error
            else:
                if (host, port) != self.addresses[0]:
                    self.addresses = sorted(self.addresses, key=lambda each: each != (host, port))
                return
        self.addresses = ()
        raise failure


class Forwarding:
    """All connections of a proxy."""

    def __init__(self, tap: Tap) -> None:
        self.tap = tap
        self.open: set[ClientSide] = set()
        self._numbers = count(1)

    def client_side(self, choose: Callable[[], Upstream]) -> "ClientSide":
        """The protocol of a new connection of a client, which leads to the server that `choose` gives."""
        return ClientSide(self, next(self._numbers), choose())

    @property
    def num_under_way(self) -> int:
        """Connections on which a request waits for its reply, or bytes of one have just come."""
        recently = perf_counter_ns() - _SILENCE_NS
        return sum(side.is_waiting or side.last_reply > recently for side in self.open)


class ClientSide(asyncio.Protocol):
    """The connection of a client. The way to the server is opened before the client sends anything."""

    transport: asyncio.Transport

    def __init__(self, forwarding: Forwarding, number: int, upstream: Upstream) -> None:
        self.is_waiting = False
        """Whether the client sent something after the latest bytes of the server."""
        self.last_reply: Nanos = 0
        """Arrival time of the latest bytes of the server."""
        self.number = number
        self.upstream = upstream
        self.server: ServerSide | None = None
        self.tap = forwarding.tap
        self._forwarding = forwarding
        self._reader: RequestReader | None = RequestReader()
        self._early: list[bytes] = []
        self._num_early_bytes = 0
        self._has_ended = False
        self._failure = ""
        self._connecting: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self._forwarding.open.add(self)
        self.tap.put(EventKind.OPENED, self.number, perf_counter_ns(), b"%d" % self.upstream.number)
        self._connecting = asyncio.get_running_loop().create_task(self._connect())

    def data_received(self, data: bytes) -> None:
        at = perf_counter_ns()
        self.is_waiting = True
        if self._failure:
            self._refuse(at, data)
            return
        piece = self._for_server(data)
        if self.server is not None:
            self.server.transport.write(piece)
        else:
            self._early.append(piece)
            self._num_early_bytes += len(piece)
            if self._num_early_bytes > _MAX_BEFORE_CONNECTED:
                self.transport.pause_reading()
        self.tap.put(EventKind.REQUEST, self.number, at, data)

    def eof_received(self) -> bool:
        """The client sends no more; replies may still come."""
        self._has_ended = True
        self.tap.put(EventKind.CLIENT_ENDED, self.number, perf_counter_ns())
        if self.server is not None:
            self.server.end()
        return self.upstream.tls is None

    def connection_lost(self, error: Exception | None) -> None:
        """The client is gone: the server sees the same."""
        self._forwarding.open.discard(self)
        self.tap.put(EventKind.CLIENT_GONE, self.number, perf_counter_ns())
        if self.server is not None:
            self.server.disconnect(error)
        elif self._connecting is not None:
            self._connecting.cancel()
            self.tap.put(EventKind.SERVER_GONE, self.number, perf_counter_ns())

    @property
    def has_gone(self) -> bool:
        """Whether the client has closed its connection as a whole, of which the loop may not have heard yet."""
        if not self._has_ended:
            return False
        connected = self.transport.get_extra_info("socket")
        return self.transport.is_closing() or connected.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) != 0

    def stop(self) -> None:
        """Hang up because the proxy ends."""
        self.tap.put(EventKind.STOPPED, self.number, perf_counter_ns())
        self.transport.abort()

    def pause_writing(self) -> None:
        if self.server is not None:
            self.server.transport.pause_reading()

    def resume_writing(self) -> None:
        if self.server is not None:
            self.server.transport.resume_reading()

    def connected(self, server: "ServerSide") -> None:
        """The way to the server is open."""
        self.server = server
        if self.transport.is_closing():
            server.disconnect(None)
            return
        for piece in self._early:
            server.transport.write(piece)
        self._early.clear()
        if self._has_ended:
            server.end()
        if self._num_early_bytes > _MAX_BEFORE_CONNECTED:
            self.transport.resume_reading()

    async def _connect(self) -> None:
        try:
            await self.upstream.connect(lambda: ServerSide(self))
        except OSError as error:
            reason = "timed out" if isinstance(error, TimeoutError) else (error.strerror or str(error)).lower()
            self._failure = f"cannot connect to {self.upstream.server.url}: {reason}"
            if self._early:
                self._refuse(perf_counter_ns(), b"")

    def _refuse(self, at: int, data: bytes) -> None:
        """Answer for a server that cannot be reached."""
        if self.transport.is_closing():
            return
        if data:
            self.tap.put(EventKind.REQUEST, self.number, at, data)
        reply = refusal(self._failure)
        self.transport.write(reply)
        self.tap.put(EventKind.REPLY, self.number, perf_counter_ns(), reply)
        self.tap.put(EventKind.SERVER_GONE, self.number, perf_counter_ns())
        self.transport.close()

    def _for_server(self, data: bytes) -> bytes:
        """The bytes with the server's own host in each head; as they are once they are no requests that can be read."""
        reader = self._reader
        if reader is None:
            return data
        server = self.upstream.server
        pieces = []
        try:
            for part in reader.feed(data):
                is_head = part.head is not None
                pieces.append(with_host(part.raw, server.authority, server.prefix) if is_head else part.raw)
        except UnreadableError:
            self._reader = None
            pieces.append(reader.rest)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)


class ServerSide(asyncio.Protocol):
    """The connection to a server that belongs to one connection of a client."""

    transport: asyncio.Transport

    def __init__(self, client: ClientSide) -> None:
        self._client = client

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self._client.connected(self)

    def data_received(self, data: bytes) -> None:
        client = self._client
        client.transport.write(data)  # before anything else is done
        client.is_waiting = False
        client.last_reply = at = perf_counter_ns()
        client.tap.put(EventKind.REPLY, client.number, at, data)

    def connection_lost(self, error: Exception | None) -> None:
        """The server is gone: the client sees the same."""
        client = self._client
        if client.has_gone:
            client.tap.put(EventKind.CLIENT_GONE, client.number, perf_counter_ns())
        client.tap.put(EventKind.SERVER_GONE, client.number, perf_counter_ns())
        client.transport.close() if error is None else client.transport.abort()

    def pause_writing(self) -> None:
        self._client.transport.pause_reading()

    def resume_writing(self) -> None:
        self._client.transport.resume_reading()

    def end(self) -> None:
        """Send no more; the reply may still come."""
        if self.transport.can_write_eof():
            with suppress(OSError):
                self.transport.write_eof()
        else:
            self.transport.close()

    def disconnect(self, error: Exception | None) -> None:
        """Hang up as the client has."""
        self.transport.close() if error is None else self.transport.abort()


def refusal(reason: str) -> bytes:
    """The reply of a proxy whose server cannot be reached."""
    error = {"message": reason, "type": "Bad Gateway", "param": None, "code": 502}
    body = orjson.dumps({"error": error})
    head = b"HTTP/1.1 502 Bad Gateway\r\ncontent-type: application/json\r\nconnection: close\r\n"
    return b"%scontent-length: %d\r\n\r\n%s" % (head, len(body), body)


# `blis observe --proxy`: from the first connection to the last row.

_QUERY_TIMEOUT_S = 3.0
_MAX_DRAIN_S = 10.0
_POLL_S = 0.05
_MAX_END_S = 60.0
_BACKLOG = 2048


async def record_through_proxy(options: ObserveOptions, result: TextIO) -> int:
    """Pass requests on until a signal, write the summary to `result` and return the exit code.

    Raises RunError and BlisError.
    """
    clock = start_clock()
    with Interrupt() as interrupt:
        try:
            facts = await _query_server(options, clock)
            with _reserve_paths(options):
                recorder = await _Recorder.begun(_job(options, clock, facts))
                _note_settings(options, facts)
                try:
                    listeners, forwarding = await _listening(options, recorder.tap)
                    recorder.when_failed(lambda failure: warn(f"{failure}; requests are passed on all the same"))
                    await _until_interrupted(interrupt)
                    await interrupt.run_to_completion(_stop(listeners, forwarding))
                    await interrupt.run_to_completion(_note_interruptions(options, clock, facts))
                finally:
                    report = await interrupt.run_to_completion(recorder.end())
        except asyncio.CancelledError:
            if not interrupt.consume_cancellation():
                raise
            return 0
    found = report or RecordingReport(failure="the recording process has ended")
    return _report(options, found, recorder.tap, result)


class _ServerFacts(NamedTuple):
    """Facts that the first server states, as far as it answers by now."""

    model: str
    rtt_ms: float | None
    settings: Mapping[str, Any]
    compares_vectors: bool = False
    """Whether the model scores texts by their vectors."""


async def _query_server(options: ObserveOptions, clock: Clock) -> _ServerFacts:
    """Ask the first server for its first model, its settings and the round trip. Raises TraceError."""
    client = Client(options.servers[0], timeout_s=_QUERY_TIMEOUT_S, num_spare=0, tls=options.tls, clock=clock)
    model, rtt_ms = options.model or "", options.rtt_ms
    settings: Mapping[str, Any] = {}
    compares_vectors = False
    try:
        async with asyncio.timeout(_QUERY_TIMEOUT_S):
            await client.open()
            preparation = ServerQueries(client, options.headers)
            if rtt_ms is None:
                rtt_ms = await preparation.round_trip_ms()
            model = model or await preparation.first_model()
            settings = await settings_of_server(client, options.headers, options.server_config)
            compares_vectors = await preparation.compares_vectors()
    except (RunError, OSError, TimeoutError):
        print_message(f"note: {client.server.url} does not list its models now; the recording names none")
    finally:
        await client.close()
    if options.proxying.redact:
        settings = Redactor(options.proxying.redact).value(settings)
    return _ServerFacts(model, rtt_ms, settings, compares_vectors)


def _note_settings(options: ObserveOptions, facts: _ServerFacts) -> None:
    """Write the settings beside a recording of one part."""
    if not options.proxying.is_rotated and not options.resume:
        note_settings(options.paths.header, facts.settings)


async def _note_interruptions(options: ObserveOptions, clock: Clock, facts: _ServerFacts) -> None:
    """Write when the engines of a simulated server were paused, where that happened."""
    if ENGINE not in facts.settings:
        return
    client = Client(options.servers[0], timeout_s=_QUERY_TIMEOUT_S, num_spare=0, tls=options.tls, clock=clock)
    try:
        await client.open()
        found = await interruptions_of_server(client, options.headers)
    except (RunError, OSError):
        return
    finally:
        await client.close()
    if found:
        _note_settings(options, facts._replace(settings={**facts.settings, INTERRUPTIONS: found}))


def _job(options: ObserveOptions, clock: Clock, facts: _ServerFacts) -> Job:
    proxying = options.proxying
    model = Redactor(proxying.redact).text(facts.model)
    in_header = {name: facts.settings[name] for name in HEADER_NAMES if name in facts.settings}
    header = TraceHeader(
        time_unit="us",
        created_at=datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        mode="real",
        server={"type": "vllm", **({"model": model} if model else {}), **in_header},
        measured_rtt_ms=facts.rtt_ms,
    )
    return Job(
        paths=options.paths,
        header=header,
        clock=clock,
        upstreams=tuple(server.url for server in options.servers),
        redact=proxying.redact,
        tenant_header=proxying.tenant_header,
        tenant_salt=proxying.tenant_salt,
        rotate_bytes=proxying.rotate_mb * 1e6,
        rotate_s=proxying.rotate_s,
        resumes=options.resume,
        compares_vectors=facts.compares_vectors,
        cache=_cache_settings(options, facts.settings) if proxying.cache_canary else None,
    )


def _cache_settings(options: ObserveOptions, settings: Mapping[str, Any]) -> CacheSettings:
    """The cache to check. Raises ObserveError where it is not one of a single engine, or is not known."""
    engine = settings.get(ENGINE, {})
    num_engines = max(settings.get("data_parallel", 1), engine.get("num_instances", 1), engine.get("dp", 1))
    if num_engines > 1:
        raise ObserveError(f"--cache-canary needs one engine behind each URL, {options.url} has {num_engines}")
    if settings.get("enable_prefix_caching") is False:
        raise ObserveError(f"--cache-canary needs a prefix cache, {options.url} has it switched off")
    for name in ("block_size", "num_gpu_blocks"):
        if name not in settings:
            raise ObserveError(
                f"--cache-canary needs {name}, which {options.url} does not publish: name it in --server-config"
            )
    return CacheSettings(
        block_tokens=settings["block_size"],
        num_blocks=settings["num_gpu_blocks"],
        ca_file=options.ca_file,
        insecure=options.insecure,
    )


def _reserve_paths(options: ObserveOptions) -> Any:
    """Make room for the recording, as for one of load."""
    paths = options.paths
    if options.proxying.is_rotated:
        _back_up_earlier_parts(options, paths)
    elif options.resume and paths.header.is_file():
        read_header(paths.header)
    resumed: Any = object() if options.resume else None
    return reserved_paths(options, resumed)


def _back_up_earlier_parts(options: ObserveOptions, paths: OutputPaths) -> None:
    if options.resume:
        return
    there = [path for number in part_numbers(paths) for path in part_paths(paths, number).kinds]
    if options.overwrite:
        for path in there:
            path.unlink(missing_ok=True)
    elif there:
        folder = back_up(Path(paths.header.with_suffix("")), there, [])
        print_message(f"note: the earlier parts of {paths.data} are now in {folder}")


async def _listening(options: ObserveOptions, tap: Tap) -> tuple[list[asyncio.Server], Forwarding]:
    loop = asyncio.get_running_loop()
    tls = options.tls
    upstreams = [Upstream(number, server, tls if server.tls else None) for number, server in enumerate(options.servers)]
    forwarding = Forwarding(tap)
    listeners: list[asyncio.Server] = []
    ports, host = options.proxying.proxy, options.proxying.proxy_host
    for place, port in enumerate(ports):
        mine = upstreams if len(ports) == 1 else [upstreams[place]]
        choose = cycle(mine).__next__
        try:
            listener = await loop.create_server(_factory(forwarding, choose), host, port, backlog=_BACKLOG)
        except OSError as error:
            raise ObserveError(f"cannot listen on {host}:{port}: {error.strerror or error}") from error
        listeners.append(listener)
        bound = listener.sockets[0].getsockname()[1]
        print_message(
            f"recording what passes through http://{host}:{bound} to {', '.join(each.server.url for each in mine)}"
        )
    return listeners, forwarding


def _factory(forwarding: Forwarding, choose: Callable[[], Upstream]) -> Callable[[], asyncio.Protocol]:
    return lambda: forwarding.client_side(choose)


async def _until_interrupted(interrupt: Interrupt) -> None:
    with suppress(asyncio.CancelledError):
        await asyncio.Event().wait()
    interrupt.consume_cancellation()


async def _stop(listeners: Sequence[asyncio.Server], forwarding: Forwarding) -> None:
    """Take no more connections, let replies under way end, then hang up."""
    for listener in listeners:
        listener.close()
    for _ in range(int(_MAX_DRAIN_S / _POLL_S)):
        if not forwarding.num_under_way:
            break
        await asyncio.sleep(_POLL_S)
    for side in list(forwarding.open):
        side.stop()
    await asyncio.sleep(0)


@dataclass(slots=True)
class _Recorder:
    """The process that records."""

    tap: Tap
    process: asyncio.subprocess.Process
    reading: "asyncio.Task[RecordingReport | None] | None" = None
    failed: Callable[[str], None] | None = None

    @classmethod
    async def begun(cls, job: Job) -> "_Recorder":
        """A process that is ready. Raises ObserveError when its files cannot be made."""
        mine, its = socket.socketpair()
        with its:
            # A session of its own: Ctrl-C reaches this process alone, and kill -9 of this one lets the other finish.
            process = await asyncio.create_subprocess_exec(
                *command_of("observe.proxy.recording_process"),
                stdin=its.fileno(),
                stdout=asyncio.subprocess.PIPE,
                start_new_session=True,
            )
        try:
            return await cls._briefed(job, process, mine)
        except BaseException:
            mine.close()
            process.kill()
            raise

    @classmethod
    async def _briefed(cls, job: Job, process: asyncio.subprocess.Process, mine: socket.socket) -> "_Recorder":
        loop = asyncio.get_running_loop()
        mine.setblocking(False)
        for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
            mine.setsockopt(socket.SOL_SOCKET, option, 1 << 20)
        await loop.sock_sendall(mine, packed(job))
        assert process.stdout is not None
        ready: RecordingReport | None = await receive(process.stdout)
        if ready is None or ready.problem:
            raise ObserveError(ready.problem if ready is not None else "the recording process could not begin")
        tap = Tap(loop)
        await loop.create_unix_connection(lambda: tap, sock=mine)
        recorder = cls(tap, process)
        recorder.reading = asyncio.create_task(recorder._read())
        return recorder

    def when_failed(self, failed: Callable[[str], None]) -> None:
        """Have this called once when nothing can be recorded any more."""
        self.failed = failed

    async def end(self) -> RecordingReport | None:
        """Let the process write the rest. Returns its report, None if it ended without one."""
        self.tap.close()
        assert self.reading is not None
        try:
            return await asyncio.wait_for(self.reading, _MAX_END_S)
        except TimeoutError:
            self.process.kill()
            return None

    async def _read(self) -> RecordingReport | None:
        assert self.process.stdout is not None
        latest: RecordingReport | None = None
        has_failed = False
        while True:
            report: RecordingReport | None = await receive(self.process.stdout)
            failure = "" if report is None else report.failure
            if report is None and latest is None and not self.tap.is_closing:
                failure = "the recording process has ended"
            if failure and not has_failed and self.failed is not None:
                has_failed = True
                self.failed(failure)
            if report is None:
                await self.process.wait()
                return latest
            latest = report


_CACHE_CODE = 3
"""Exit code of a recording in which a prefix cache held less than it must."""


def _report(options: ObserveOptions, report: RecordingReport, tap: Tap, result: TextIO) -> int:
    summary = {
        "recorded": report.num_requests,
        "recorded_earlier": report.num_earlier,
        "by_status": dict(sorted(report.by_status.items())),
        "sessions": report.num_sessions,
        "input_tokens": report.prompt_tokens,
        "output_tokens": report.output_tokens,
        "other_exchanges": report.num_other_exchanges,
        "replies_not_read": report.num_unread,
        "connections_not_recorded": tap.num_dropped,
        "parts": report.num_parts,
        **({"cache": [asdict(each) for each in report.cache]} if report.cache else {}),
    }
    form = printed_format(options)
    answer = Report(
        title="Recording of",
        origin=lambda: Provenance(command=command_line("blis observe", options), model=options.model or ""),
        data=lambda: summary,
        sections=lambda: [Section(table=facts_table((name, str(value)) for name, value in flat(summary).items()))],
    )
    result.write(answer.text(JSON if form == BLIS else form))
    result.flush()
    shown = ", ".join(f"{count} {status}" for status, count in sorted(report.by_status.items()))
    print_message(f"{report.num_requests} requests recorded" + (f" ({shown})" if shown else ""))
    if tap.num_dropped:
        warn(f"{tap.num_dropped} connections are not recorded to their end: the recording process did not keep up")
    if report.num_unread:
        warn(f"{report.num_unread} replies were not read to their end and are not kept: of the first, {report.unread}")
    if report.failure:
        print_message(f"blis observe: error: {report.failure}")
        return 1
    return _CACHE_CODE if any(each.missed for each in report.cache) else 0
