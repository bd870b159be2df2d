"""From requests that have ended to the rows of a trace, written as they end."""

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from tempfile import mkdtemp

from observe.clock import Clock
from observe.dispatch import Sent
from observe.exchange import CANCELLED
from observe.options import OutputPaths
from observe.resume import Earlier
from observe.stats import RunStats
from traces import ItlWriter, TraceError, TraceRow, TraceWriter

COLUMNS = frozenset({"x_request_id"})
SESSION_COLUMNS = COLUMNS | {"think_time_us", "context_tokens"}


def row_of(sent: Sent, clock: Clock) -> TraceRow:
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
        # Of a given prompt the length is an estimate until the server has counted.
        input_tokens=(planned.prompt and outcome.reply.prompt_tokens) or planned.input_tokens,
        output_tokens=outcome.output_tokens,
        server_input_tokens=outcome.reply.prompt_tokens or 0,
        arrival_time_us=planned.at_us,
        send_time_us=clock.epoch_us(outcome.sent),
        first_chunk_time_us=clock.epoch_us(outcome.first_chunk),
        last_chunk_time_us=clock.epoch_us(outcome.last_chunk),
        num_chunks=outcome.num_chunks,
        status=outcome.status,
        error_message=outcome.error_message,
        finish_reason=outcome.reply.finish_reason,
        x_request_id=prepared.x_request_id,
    )


class Recorder:
    """Writes each request that has ended and counts it; the first `num_warm_up` are left out altogether.

    The files begin with the rows of the `earlier` part of the recording. A file that cannot be written any more is
    kept in `failure` and told through `failed`, once. What ends after that is written elsewhere; `rescued` says where.
    With `joins` the files are there, and other processes write to them, too.
    """

    def __init__(
        self,
        clock: Clock,
        paths: OutputPaths,
        earlier: Earlier | None,
        num_warm_up: int,
        *,
        has_sessions: bool = False,
        keeps_token_times: bool = False,
        joins: bool = False,
        failed: Callable[[], None],
    ) -> None:
        self.stats = RunStats(keeps_token_times=keeps_token_times)
        self.failure = ""
        self.rescued = ""
        self.num_earlier = 0 if earlier is None else len(earlier.rows)
        self._clock = clock
        self._num_warm_up = num_warm_up
        self._failed = failed
        self._paths = paths
        self._columns = SESSION_COLUMNS if has_sessions else COLUMNS
        self._unwritten: list[Sent] = []
        chunks = earlier.chunks if earlier else None
        self._itl = ItlWriter(paths.itl, chunks, joins=joins) if paths.itl else None
        try:
            self._rows = TraceWriter(paths.data, self._columns, earlier.rows if earlier else None, joins=joins)
        except BaseException:
            if self._itl is not None:
                self._itl.close()
            raise

    def record(self, sent: Sent) -> None:
        """Write and count one request."""
        if sent.prepared.request_id < self._num_warm_up:
            return
        self.stats.add(sent)
        if self.failure:
            self._unwritten.append(sent)
            return
        try:
            self._write(sent, self._rows, self._itl)
        except OSError as error:
            self._unwritten.append(sent)
            self._note(error)
            self._failed()

    def close(self) -> None:
        """Close the files; what there was no room for goes to the folder for temporary files."""
        self._rescue()
        for writer in (self._rows, self._itl):
            try:
                if writer is not None:
                    writer.close()
            except OSError as error:
                self._note(error)

    def _write(self, sent: Sent, rows: TraceWriter, itl: ItlWriter | None) -> None:
        # A row is there only when all that belongs to it is.
        if itl is not None and sent.outcome.reply.chunk_times:
            times = [self._clock.epoch_us(at) for at in sent.outcome.reply.chunk_times]
            itl.write(sent.prepared.request_id, times)
        rows.write(row_of(sent, self._clock))

    def _rescue(self) -> None:
        finished = [sent for sent in self._unwritten if sent.outcome.kind != CANCELLED]
        if not finished:
            return
        try:
            folder = Path(mkdtemp(prefix="blis-observe-"))
            with ExitStack() as files:
                rows = files.enter_context(TraceWriter(folder / "rest.csv", self._columns))
                itl = files.enter_context(ItlWriter(folder / "rest.itl.csv")) if self._itl else None
                for sent in finished:
                    self._write(sent, rows, itl)
            self.rescued = f"{len(finished)} finished requests did not fit there and are in {folder / 'rest.csv'}"
        except (OSError, TraceError) as error:
            self.rescued = f"{len(finished)} finished requests did not fit there and are lost ({error})"

    def _note(self, error: OSError) -> None:
        if not self.failure:
            names = " or ".join(str(path) for path in (self._paths.data, self._paths.itl) if path)
            self.failure = f"cannot write {names}: {(error.strerror or str(error)).lower()}"
