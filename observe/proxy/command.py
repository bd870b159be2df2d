"""`blis observe --proxy`: from the first connection to the last row."""

import asyncio
import socket
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import cycle
from pathlib import Path
from typing import Any, TextIO

from observe.client import Client
from observe.clock import Clock, start_clock
from observe.errors import ObserveError, RunError, print_message, warn
from observe.event_loop import Interrupt, command_of
from observe.options import ObserveOptions
from observe.output_paths import OutputPaths
from observe.processes import packed, receive
from observe.proxy.forwarding import Forwarding, Upstream
from observe.proxy.rows import part_numbers, part_paths
from observe.proxy.tap import Job, RecordingReport, Tap
from observe.recording import reserved_paths
from observe.server import ServerQueries
from traces import TraceHeader, dump_json, read_header
from traces.backup import back_up
from traces.redaction import Redactor

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
            model, rtt_ms = await _query_server(options, clock)
            with _reserve_paths(options):
                recorder = await _Recorder.begun(_job(options, clock, model, rtt_ms))
                try:
                    listeners, forwarding = await _listening(options, recorder.tap)
                    recorder.when_failed(lambda failure: warn(f"{failure}; requests are passed on all the same"))
                    await _until_interrupted(interrupt)
                    await interrupt.run_to_completion(_stop(listeners, forwarding))
                finally:
                    report = await interrupt.run_to_completion(recorder.end())
        except asyncio.CancelledError:
            if not interrupt.consume_cancellation():
                raise
            return 0
    return _report(report or RecordingReport(failure="the recording process has ended"), recorder.tap, result)


async def _query_server(options: ObserveOptions, clock: Clock) -> tuple[str, float | None]:
    """The first model and the round trip of the first server, as far as it answers by now."""
    client = Client(options.servers[0], timeout_s=_QUERY_TIMEOUT_S, num_spare=0, tls=options.tls, clock=clock)
    model, rtt_ms = options.model or "", options.rtt_ms
    try:
        async with asyncio.timeout(_QUERY_TIMEOUT_S):
            await client.open()
            preparation = ServerQueries(client, options.headers)
            if rtt_ms is None:
                rtt_ms = await preparation.round_trip_ms()
            model = model or await preparation.first_model()
    except (RunError, OSError, TimeoutError):
        print_message(f"note: {client.server.url} does not list its models now; the recording names none")
    finally:
        await client.close()
    return model, rtt_ms


def _job(options: ObserveOptions, clock: Clock, model: str, rtt_ms: float | None) -> Job:
    proxying = options.proxying
    model = Redactor(proxying.redact).text(model)
    header = TraceHeader(
        time_unit="us",
        created_at=datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        mode="real",
        server={"type": "vllm", **({"model": model} if model else {})},
        measured_rtt_ms=rtt_ms,
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


def _report(report: RecordingReport, tap: Tap, result: TextIO) -> int:
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
    }
    result.write(dump_json(summary) + "\n")
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
    return 0
