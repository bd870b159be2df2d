"""The rows of a trace, written as requests end, and the place of a new recording beside an earlier one."""

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from os.path import isfile  # which takes any text for a path
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

from blis_sim.options.memo import Memo
from observe.client import CANCELLED, HUNG_UP, redacted_row
from observe.errors import print_message, warn
from observe.event_loop import Clock
from observe.figures import RunStats
from observe.options import ObserveOptions, OutputPaths
from observe.requests import SentRequest
from observe.workload import COLUMNS, EarlierRecording
from traces import ItlWriter, TraceError, TraceRow, TraceWriter
from traces.append_file import back_up, exclusive_writer, has_rows
from traces.graph import ids_text
from traces.redaction import Redactor
from traces.server_settings import HEADER_NAMES, settings_path, write_settings
from traces.text_file import naming_write_errors


@contextmanager
def reserved_paths(options: ObserveOptions, resumed: EarlierRecording | None) -> Iterator[None]:
    """Reserve these paths for the run, within a `with` block; their header must be locked already.

    An earlier recording that has rows is moved away, or with `--overwrite` deleted, unless it is the one to resume.
    Raises TraceError, with everything as it was.
    """
    paths = options.paths
    if resumed is None and any(map(has_rows, paths.rows)):
        if options.overwrite:
            # Delete files of an earlier recording; others are replaced when they are opened.
            replaced = (paths.header, *paths.rows_and_companions)
            for path in (*paths.companion_files, *paths.rows):
                if path not in replaced and isfile(path):
                    with naming_write_errors(path):
                        path.unlink(missing_ok=True)
        else:
            companion_files = [path for path in paths.companion_files if isfile(path) and path.stat().st_size]
            folder = back_up(paths.header.with_suffix(""), companion_files, paths.rows)
            print_message(f"note: the earlier recording at {paths.data} is now in {folder}")
    # A header that has moved has taken its lock along.
    with nullcontext() if paths.header.exists() else exclusive_writer(paths.header):
        yield


_NUMBERS = (
    "request_id",
    "input_tokens",
    "output_tokens",
    "server_input_tokens",
    "arrival_time_us",
    "send_time_us",
    "first_chunk_time_us",
    "last_chunk_time_us",
    "num_chunks",
    "first_event_time_us",
)
_MAX_FORMS = 256


def row_of(sent: SentRequest, clock: Clock) -> TraceRow:
    """The row of one request. Send and chunk times are Unix microseconds, the arrival counts from the start."""
    prepared, planned, outcome = sent.prepared, sent.prepared.planned, sent.outcome
    return TraceRow(
        request_id=prepared.request_id,
        client_id=planned.client_id,
        tenant_id=planned.tenant_id,
        slo_class=planned.slo_class,
        session_id=planned.session_id,
        round_index=planned.round_index,
        prefix_group=planned.prefix_group,
        prefix_length=planned.prefix_tokens,
        streaming=prepared.streaming,
        model=planned.model,
        think_time_us=planned.think_time_us,
        context_tokens=planned.context_tokens,
        input_tokens=_input_tokens(sent),
        output_tokens=outcome.output_tokens,
        server_input_tokens=outcome.reply.prompt_tokens or 0,
        arrival_time_us=planned.at_us,
        send_time_us=clock.epoch_us(outcome.sent),
        first_chunk_time_us=clock.epoch_us(outcome.reply.first_token),
        last_chunk_time_us=clock.epoch_us(outcome.last_chunk),
        num_chunks=outcome.num_chunks,
        status=outcome.status,
        error_message=outcome.error_message,
        finish_reason="abort" if outcome.kind == HUNG_UP else outcome.reply.finish_reason,
        deadline_us=planned.at_us + (outcome.ended - outcome.sent) // 1000 if outcome.kind == HUNG_UP else 0,
        x_request_id=prepared.x_request_id,
        vllm_priority=planned.priority,
        parents=ids_text(planned.parents),
        context_of="" if planned.context_of is None else str(planned.context_of),
        slo_e2e_us=planned.slo_e2e_us,
        first_event_time_us=clock.epoch_us(outcome.reply.first_event),
    )


class RowFormatter:
    """The line of each row for one writer.

    Requests of one kind, answered in the same way, share a form: a line with places for the numbers and the id.
    Rounds of sessions, requests of graphs and those that failed have too much of their own for that.
    """

    def __init__(self, writer: TraceWriter, clock: Clock, redactor: Redactor | None = None) -> None:
        self._writer = writer
        self._redactor = redactor
        self._clock = clock
        self._ahead_ns = clock.epoch_ns - clock.counter_ns
        self._forms = Memo[tuple[Any, ...], str](_MAX_FORMS)

    def line(self, sent: SentRequest) -> str:
        """Return the line that the writer would write for the row of this request."""
        planned, reply = sent.prepared.planned, sent.outcome.reply
        if planned.session_id or planned.number is not None or sent.outcome.status != "ok":
            return self._writer.line(self._row(sent))
        key = (
            sent.prepared.streaming,
            reply.finish_reason,
            planned.client_id,
            planned.tenant_id,
            planned.slo_class,
            planned.prefix_group,
            planned.prefix_tokens,
            planned.model,
            planned.round_index,
            planned.think_time_us,
            planned.context_tokens,
            planned.priority,
            planned.slo_e2e_us,
        )
        form = self._forms.get(key)
        if form is None:
            form = self._writer.form(self._row(sent), _NUMBERS, ("x_request_id",))
            self._forms.keep(key, form)
        return form % self._values(sent)

    def _row(self, sent: SentRequest) -> TraceRow:
        row = row_of(sent, self._clock)
        return row if self._redactor is None else redacted_row(row, self._redactor)

    def _values(self, sent: SentRequest) -> tuple[Any, ...]:
        prepared, outcome, clock_offset_ns = sent.prepared, sent.outcome, self._ahead_ns
        reply = outcome.reply
        first, last = reply.first_token, outcome.last_chunk
        return (
            prepared.request_id,
            _input_tokens(sent),
            outcome.output_tokens,
            reply.prompt_tokens or 0,
            prepared.planned.at_us,
            (clock_offset_ns + outcome.sent) // 1000 if outcome.sent else 0,
            (clock_offset_ns + first) // 1000 if first else 0,
            (clock_offset_ns + last) // 1000 if last else 0,
            outcome.num_chunks,
            prepared.x_request_id,
            (clock_offset_ns + reply.first_event) // 1000 if reply.first_event else 0,
        )


def _input_tokens(sent: SentRequest) -> int:
    # The length of a given prompt is an estimate until the server has counted.
    planned = sent.prepared.planned
    return (planned.prompt and sent.outcome.reply.prompt_tokens) or planned.input_tokens


_DELAY_S = 0.005
_MAX_WAITING = 64


class Recorder:
    """Writes each request that has ended and counts it; the first `num_warm_up` are left out altogether.

    Requests that end within a few milliseconds are written together. Must be used inside a running event loop.

    The files begin with the rows of the `earlier` part of the recording. The error of a file that cannot be written any
    more is kept in `failure`, and `failed` is called, once. Later rows go to `rescued` instead.

    With `is_shared` the files exist, and other processes write to them, too.
    """

    def __init__(
        self,
        clock: Clock,
        paths: OutputPaths,
        earlier: EarlierRecording | None,
        num_warm_up: int,
        *,
        columns: frozenset[str] = COLUMNS,
        is_shared: bool = False,
        redact: Sequence[str] = (),
        failed: Callable[[], None],
    ) -> None:
        self.stats = RunStats()
        self.failure = ""
        self.rescued = ""
        self.num_earlier = 0 if earlier is None else len(earlier.rows)
        self._clock = clock
        self._num_warm_up = num_warm_up
        self._failed = failed
        self._paths = paths
        self._columns = columns
        self._unwritten: list[SentRequest] = []
        self._waiting: list[SentRequest] = []
        self._timer: asyncio.TimerHandle | None = None
        chunks = earlier.chunks if earlier else None
        self._itl = ItlWriter(paths.itl, chunks, is_shared=is_shared) if paths.itl else None
        try:
            self._rows = TraceWriter(paths.data, self._columns, earlier.rows if earlier else None, is_shared=is_shared)
        except BaseException:
            if self._itl is not None:
                self._itl.close()
            raise
        self._lines = RowFormatter(self._rows, clock, Redactor(redact) if redact else None)

    def record(self, sent: SentRequest) -> None:
        """Write and count one request."""
        if sent.prepared.request_id < self._num_warm_up:
            return
        self.stats.add(sent)
        if self.failure:
            self._unwritten.append(sent)
            return
        self._waiting.append(sent)
        if len(self._waiting) >= _MAX_WAITING:
            self._write_in_time()
        elif self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(_DELAY_S, self._write_in_time)

    def close(self) -> None:
        """Close the files; rows that did not fit go to the folder for temporary files."""
        self._write_waiting()
        self._rescue()
        for writer in (self._rows, self._itl):
            try:
                if writer is not None:
                    writer.close()
            except OSError as error:
                self._note(error)

    def _write_in_time(self) -> None:
        self._write_waiting()
        if self.failure:
            self._failed()

    def _write_waiting(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        waiting, self._waiting = self._waiting, []
        if not waiting:
            return
        try:
            self._write(waiting, self._rows, self._itl)
        except OSError as error:
            self._unwritten += waiting
            self._note(error)

    def _write(self, ended: list[SentRequest], rows: TraceWriter, itl: ItlWriter | None) -> None:
        # A row is there only when all that belongs to it is.
        if itl is not None:
            itl.write_all((sent.prepared.request_id, self._chunk_times_us(sent)) for sent in ended)
        rows.write_lines(map(self._lines.line, ended))

    def _chunk_times_us(self, sent: SentRequest) -> list[int]:
        if not sent.prepared.streaming:  # a reply in one piece shows the times of no tokens
            return []
        clock_offset_ns = self._clock.epoch_ns - self._clock.counter_ns
        return [(clock_offset_ns + at) // 1000 for at in sent.outcome.reply.chunk_times]

    def _rescue(self) -> None:
        finished = [sent for sent in self._unwritten if sent.outcome.kind != CANCELLED]
        if not finished:
            return
        try:
            folder = Path(mkdtemp(prefix="blis-observe-"))
            with ExitStack() as files:
                rows = files.enter_context(TraceWriter(folder / "rest.csv", self._columns))
                itl = files.enter_context(ItlWriter(folder / "rest.itl.csv")) if self._itl else None
                self._write(finished, rows, itl)
            self.rescued = f"{len(finished)} finished requests did not fit there and are in {folder / 'rest.csv'}"
        except (OSError, TraceError) as error:
            self.rescued = f"{len(finished)} finished requests did not fit there and are lost ({error})"

    def _note(self, error: OSError) -> None:
        if not self.failure:
            names = " or ".join(str(path) for path in (self._paths.data, self._paths.itl) if path)
            self.failure = f"cannot write {names}: {(error.strerror or str(error)).lower()}"


def note_settings(path: Path, settings: Mapping[str, Any]) -> None:
    """Write settings beside the header that it has no keys for, if there are such."""
    if not path.is_file() or settings.keys() <= {*HEADER_NAMES, "model", "version"}:
        return
    try:
        write_settings(settings_path(path), settings)
    except TraceError as error:
        warn(f"the settings of the server are not kept: {error}")
