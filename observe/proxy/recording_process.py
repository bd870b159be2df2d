"""The process that makes a recording of the messages that the forwarding process hands on."""

import os
import signal
import socket
import struct
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import lru_cache
from time import monotonic, perf_counter_ns
from typing import Any, NamedTuple

from observe.client import redacted_row
from observe.event_loop import Nanos
from observe.http import HeadCache, parse_server, tls_context
from observe.processes import packed, read_packed
from observe.proxy.cache_canary import CacheBound, Canary, CheckedRequest
from observe.proxy.exchanges import Conversation, Exchange, MemoryBudget
from observe.proxy.rows import (
    PartWriter,
    RowMaker,
    content_of,
    part_numbers,
    part_paths,
    read_part,
    secrets_of,
)
from observe.proxy.tap import CacheSettings, EventKind, Job, Message, MessageReader, RecordingReport
from traces import TraceError, TraceRow
from traces.content import line_of
from traces.redaction import Redactor

_READ_BYTES = 1 << 20
_MOST_CONTENT_BYTES = 4 << 20
"""Content that waits to be written with what ended beside it."""
_POLL_S = 0.5
_WAIT_S = 60.0
"""How long rows wait at most for a prompt of their model whose tokens are counted."""
_MOST_WAITING, _MOST_PARTS_WAITING, _MOST_TIMES_WAITING = 200, 16, 2000
"""Requests whose rows wait, and rows and token times of each. Clients that hang up could take any memory otherwise."""
_NICENESS = 15


def _canary(url: str, cache: CacheSettings) -> Canary:
    server = parse_server(url)
    tls = tls_context(cache.ca_file, insecure=cache.insecure) if server.tls else None
    return Canary(server, tls, CacheBound(cache.block_tokens, cache.num_blocks))


class _WaitingRows(NamedTuple):
    """Rows of a request whose client hung up before any prompt of its model was counted."""

    model: str
    rows: list[TraceRow]
    chunks: list[tuple[int, Sequence[int]]]
    since_s: float


class Recording:
    """Turns messages into rows, token times and contents. Raises TraceError where the files cannot be made."""

    def __init__(self, job: Job) -> None:
        self.report = RecordingReport()
        self._job = job
        self._redactor = Redactor(job.redact)
        self._hiding = lru_cache(maxsize=256)(self._redactor.hiding)
        self._memory = MemoryBudget()
        self._heads = HeadCache()
        self._conversations: dict[int, Conversation] = {}
        self._rows: list[TraceRow] = []
        self._chunks: list[tuple[int, Sequence[int]]] = []
        self._content: list[list[bytes]] = []
        self._waiting: list[_WaitingRows] = []
        self._num_content_bytes = 0
        self._next = 0
        self._maker: RowMaker | None = None
        self._earlier_origin_us: int | None = None
        self._num_sessions = 0
        self._writer = self._opened()
        self._canaries = [] if job.cache is None else [_canary(url, job.cache) for url in job.upstreams]
        for canary in self._canaries:
            canary.start()
        self.report.cache = [canary.figures for canary in self._canaries]

    def take(self, message: Message) -> None:
        """Take in what happened on a connection."""
        number = message.connection
        if message.kind is EventKind.OPENED:
            self._conversations[number] = Conversation(
                int(message.payload),
                self._heads,
                keeps_content=self._job.paths.content is not None,
                keeps_requests=self._job.cache is not None,
                memory=self._memory,
                facts=self._facts,
                ended=self._ended,
            )
            return
        conversation = self._conversations.get(number)
        if conversation is None:
            return
        if message.kind is EventKind.REQUEST and self._maker is None:
            self._begin(message.at)
        conversation.take(message)
        if message.kind is EventKind.DROPPED:
            for canary in self._canaries:
                canary.forget()
        if message.kind is EventKind.SERVER_GONE:
            del self._conversations[number]

    def write(self) -> None:
        """Write what has ended since the last call."""
        if self.report.failure:
            return
        if self._waiting and monotonic() - self._waiting[0].since_s >= _WAIT_S:
            self._write_waiting(lambda each: monotonic() - each.since_s >= _WAIT_S)
        try:
            if self._rows or self._content:
                rows, chunks, content = self._rows, self._chunks, self._content
                self._rows, self._chunks, self._content, self._num_content_bytes = [], [], [], 0
                part = self._writer.number
                self._writer.write(rows, chunks, content)
                if self._writer.number != part and self._maker is not None:
                    self._maker.starts.clear()  # rows name no rows of another part
                report = self.report
                report.num_requests += sum(not row.is_part for row in rows)
                report.by_status.update(row.status for row in rows if not row.is_part)
                report.num_sessions += sum(bool(row.session_id) and not row.round_index for row in rows)
                report.prompt_tokens += sum(row.prefix_length + row.input_tokens for row in rows)
                report.output_tokens += sum(row.output_tokens for row in rows)
        except (OSError, TraceError) as error:
            text = (error.strerror or str(error)) if isinstance(error, OSError) else str(error)
            self.report.failure = f"the recording has ended: {text.lower()}"

    def close(self) -> None:
        """End what is under way, and close the files."""
        for conversation in self._conversations.values():
            conversation.close(perf_counter_ns())
        self._write_waiting(lambda each: True)
        self.write()
        for canary in self._canaries:
            canary.close()
        with suppress(OSError):
            self._writer.close()
        self.report.num_parts = self._writer.num_parts

    def _facts(self, exchange: Exchange) -> Any:
        assert self._maker is not None
        return self._maker.facts(exchange)

    def _begin(self, at: Nanos) -> None:
        job = self._job
        origin = at
        if self._earlier_origin_us is not None:
            origin = self._earlier_origin_us * 1000 - job.clock.epoch_ns + job.clock.counter_ns
        self._maker = RowMaker(job.clock, origin, job.tenant_header, job.tenant_salt, job.compares_vectors)
        self._maker.sessions.num_sessions = self._num_sessions

    def _ended(self, exchange: Exchange) -> None:
        maker, report = self._maker, self.report
        assert maker is not None
        facts = exchange.facts or maker.facts(exchange)
        number = None
        redactor = self._hiding(tuple(secrets_of(exchange)))
        if facts is None:
            report.num_other_exchanges += 1
        else:
            number = self._next + facts.num_parts - 1  # its other prompts and choices have those before
            self._next = number + 1
        if self._canaries and exchange.head.method == "POST":
            self._check(exchange, -1 if number is None else number)
        if (exchange.unread or exchange.unkept) and facts is not None:
            report.num_unread += 1
            report.unread = report.unread or exchange.unread or exchange.unkept
        if exchange.keeps_content:
            upstream = self._job.upstreams[exchange.upstream]
            content, redactor = content_of(exchange, number, self._job.clock, redactor, upstream)
            self._content.append(line_of(content))
            self._num_content_bytes += sum(map(len, self._content[-1]))
        if facts is not None and number is not None:
            made = maker.parts(maker.row(number, exchange, facts), facts, exchange.reply)
            rows = [redacted_row(each, redactor, ("x_request_id",)) for each in made]
            times = maker.chunk_times_us(exchange, facts) if self._job.paths.itl is not None else ()
            chunks = [(number, times)] if times else []
            if self._waiting and maker.scales.has_model(facts.model):
                self._write_waiting(lambda each: each.model == facts.model)
            is_small = len(rows) <= _MOST_PARTS_WAITING and len(times) <= _MOST_TIMES_WAITING
            if maker.is_guess(made[-1], facts) and is_small and len(self._waiting) < _MOST_WAITING:
                self._waiting.append(_WaitingRows(facts.model, rows, chunks, monotonic()))
            else:
                self._rows += rows
                self._chunks += chunks
        if self._num_content_bytes > _MOST_CONTENT_BYTES:
            self.write()

    def _write_waiting(self, is_due: Callable[[_WaitingRows], bool]) -> None:
        """Have rows written that waited, by what has shown since how many tokens their prompts had."""
        waiting, self._waiting = self._waiting, []
        for each in waiting:
            if self._maker is None or not is_due(each):
                self._waiting.append(each)
                continue
            self._rows += self._maker.learned_since(each.rows, each.model)
            self._chunks += each.chunks
        self._rows.sort(key=lambda row: row.request_id)  # as they ended

    def _check(self, exchange: Exchange, number: int) -> None:
        """Have the canary of its server look at a request."""
        reply = exchange.reply
        self._canaries[exchange.upstream].check(
            CheckedRequest(
                number=number,
                path=exchange.head.target,
                body=b"" if number < 0 else exchange.request_body,
                authorization=exchange.head.header("authorization"),
                sent=exchange.sent,
                ready=0 if reply is None else reply.first_token,
                ended=exchange.ended,
                is_ok=exchange.status == "ok",
                prompt_tokens=(reply.prompt_tokens if reply is not None else None) or 0,
                output_tokens=0 if reply is None else len(reply.chunk_times) + (reply.completion_tokens or 0),
                cached_tokens=None if reply is None else reply.cached_tokens,
                in_flight_tokens=sum(each.in_flight_tokens for each in self._conversations.values()),
            )
        )

    def _opened(self) -> PartWriter:
        job = self._job
        number, earlier = 1, None
        rotates = bool(job.rotate_bytes or job.rotate_s)
        numbers = part_numbers(job.paths) if rotates and job.resumes else []
        if job.resumes and (numbers or (not rotates and job.paths.header.is_file())):
            number = numbers[-1] if numbers else 1
            earlier = read_part(part_paths(job.paths, number) if rotates else job.paths)
            before = [read_part(part_paths(job.paths, each)).rows for each in numbers[-2:-1] if not earlier.rows]
            self._resume_from(earlier.rows or [row for rows in before for row in rows])
        return PartWriter(
            job.paths, job.header, self._redactor, job.rotate_bytes, job.rotate_s, number=number, earlier=earlier
        )

    def _resume_from(self, rows: list[TraceRow]) -> None:
        self._next = max((row.request_id for row in rows), default=-1) + 1
        self.report.num_earlier = len(rows)
        sent = next((row for row in rows if row.send_time_us), None)
        self._earlier_origin_us = None if sent is None else sent.send_time_us - sent.arrival_time_us
        names = (row.session_id.removeprefix("session-") for row in rows)
        self._num_sessions = max((int(name) for name in names if name.isdecimal()), default=0)


def main() -> None:
    """Read the job and then messages from the socket that is standard input, until its end; then report."""
    reports = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # nothing else gets among the reports
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with suppress(OSError):
        os.nice(_NICENESS)  # passing on comes first
    link = socket.socket(fileno=os.dup(sys.stdin.fileno()))
    link.setblocking(True)
    job: Job = read_packed(link.makefile("rb"))  # messages come only after the first report
    try:
        recording = Recording(job)
    except (TraceError, OSError) as error:
        _send(reports, RecordingReport(problem=str(error)))
        return
    _send(reports, RecordingReport())
    _record(link, recording, reports)
    recording.close()
    _send(reports, recording.report)


def _record(link: socket.socket, recording: Recording, reports: Any) -> None:
    link.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", 0, int(_POLL_S * 1e6)))
    reader = MessageReader()
    has_failed = False
    while True:
        try:
            data = link.recv(_READ_BYTES)
        except BlockingIOError:
            data = None
        if data == b"":
            return
        for message in reader.feed(data or b""):
            recording.take(message)
        recording.write()
        if recording.report.failure and not has_failed:
            has_failed = True
            _send(reports, recording.report)


def _send(reports: Any, report: RecordingReport) -> None:
    with suppress(BrokenPipeError):
        reports.write(packed(report))
        reports.flush()


if __name__ == "__main__":
    main()
