"""Messages between the engine process and the API server processes, over a socket."""

import asyncio
import itertools
import pickle
import socket
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Generic, NamedTuple, TypeAlias, TypeVar, cast

from blis_sim.engine.request import Request
from blis_sim.engine.stats import EngineStats
from blis_sim.engine.units import Micros
from mockserve.faults import Changes
from mockserve.http.connection import SlowReaders
from mockserve.metrics.counters import HttpMetrics, Lateness, Operations, ToolParsing
from mockserve.metrics.page import REJECTION_REASONS, InThread, MetricsSource, ProcessCounts, sum_of_parts
from mockserve.options.faults import FaultSettings
from mockserve.realtime.driver import ignore

LENGTH_BYTES = 4
T = TypeVar("T")


class Channel(asyncio.Protocol):
    """One end of a connection between two processes. `on_message` is called with each message in order, and `ended`
    when the connection is lost.

    Only processes of this server may have access to the socket, because received bytes are unpickled.
    """

    def __init__(self, on_message: Callable[[Any], None], ended: Callable[[], None]) -> None:
        self._on_message = on_message
        self._ended = ended
        self._transport: asyncio.Transport | None = None
        self.on_sent: Callable[[], None] = ignore
        """Called before queued messages are sent, after which they must not be extended."""
        self._waiting: list[Any] = []
        self._received = bytearray()
        self._gone = asyncio.Event()

    def send(self, message: object) -> None:
        """Queue a message, sent together with other messages of this turn. Does nothing if the connection is lost."""
        if not self._waiting:
            asyncio.get_running_loop().call_soon(self._send)
        self._waiting.append(message)

    def close(self) -> None:
        """Send queued messages and close without a callback."""
        self._ended = ignore
        if self._waiting:
            self._send()
        if self._transport is not None:
            self._transport.close()

    async def close_when_sent(self) -> None:
        """Close, and return after all messages have been sent."""
        self.close()
        await self._gone.wait()

    def _send(self) -> None:
        messages, self._waiting = self._waiting, []
        self.on_sent()
        if messages and self._transport is not None and not self._transport.is_closing():
            data = pickle.dumps(messages, pickle.HIGHEST_PROTOCOL)
            self._transport.write(len(data).to_bytes(LENGTH_BYTES, "little") + data)

    # --- the interface of a protocol ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self._gone.set()
        self._ended()

    def data_received(self, data: bytes) -> None:
        received = self._received
        received += data
        start = 0
        while len(received) - start >= LENGTH_BYTES:
            begin = start + LENGTH_BYTES
            end = begin + int.from_bytes(received[start:begin], "little")
            if len(received) < end:
                break
            start = end
            for message in pickle.loads(received[begin:end]):
                self._on_message(message)
        del received[:start]


async def open_channel(end: socket.socket, on_message: Callable[[Any], None], ended: Callable[[], None]) -> Channel:
    """Open a channel over one end of a socket pair."""
    _, channel = await asyncio.get_running_loop().create_unix_connection(lambda: Channel(on_message, ended), sock=end)
    return channel


# --- from API server processes ---


class Listening(NamedTuple):
    """The process accepts connections on this port."""

    host: str
    port: int


class Refused(NamedTuple):
    """The process cannot serve with its settings."""

    message: str


class Submit(NamedTuple):
    """Submits a request. The `num_choices` choices of one prompt have equal `prompt_number`."""

    number: int
    request: Request
    arrived_at: Micros
    finish_reason: str
    prompt_number: int
    num_choices: int
    rank: int | None


class Abort(NamedTuple):
    """Aborts a request whose client has disconnected."""

    number: int


class GetMetricsPage(NamedTuple):
    """Requests the metrics page, or only the named samples, in the format selected by an `Accept` header."""

    query_id: int
    names: tuple[str, ...]
    accept: str
    is_history: bool = False
    """Whether the metrics over time are requested instead, as JSON."""


class DeathReported(NamedTuple):
    """A client has received the status that reports the engine's failure."""


class UsesBackend(NamedTuple):
    """Names the engine's structured-output backend; sent in both directions."""

    name: str


class ChangeFaults(NamedTuple):
    """Changes the fault settings, and starts and ends engine faults."""

    query_id: int
    settings: FaultSettings
    changes: Changes


class Stopping(NamedTuple):
    """The process has stopped accepting requests; `num_open` replies are open."""

    num_open: int


# --- from the engine process ---


class Tokens(NamedTuple):
    """New token counts of several requests, all due at one instant."""

    due_s: float
    numbers: list[int]
    counts: list[int]


class RequestStateStats(NamedTuple):
    """Timings and counts of a complete request, copied to fields of `InFlightRequest` with equal names."""

    arrived_at: Micros
    queued_at: Micros
    first_scheduled_at: Micros | None
    first_token_at: Micros | None
    last_token_at: Micros
    num_preemptions: int
    num_cached_tokens: int
    num_external_tokens: int
    first_token_latency_us: Micros
    e2e_latency_us: Micros


class Finish(NamedTuple):
    """Delivers the last token of a request."""

    due_s: float
    number: int
    num_tokens: int
    stats: RequestStateStats


class Fail(NamedTuple):
    """Fails a request."""

    number: int
    message: str
    status: int


class Broken(NamedTuple):
    """The engines have failed."""

    message: str


class State(NamedTuple):
    """The state of the engines."""

    stats: EngineStats
    num_unfinished_requests: int
    num_waiting_tokens: int
    engine_faults: tuple[str, ...] = ()


class FaultSettingsChanged(NamedTuple):
    """The fault settings of all processes have changed."""

    settings: FaultSettings


class FaultsResult(NamedTuple):
    """The reply to `ChangeFaults`: an error message if nothing was changed, else an empty text."""

    query_id: int
    problem: str


class GetCounts(NamedTuple):
    """Requests the counts of a process for a metrics page."""

    query_id: int


class MetricsPage(NamedTuple):
    """The reply to `GetMetricsPage`."""

    query_id: int
    page: bytes


class Stop(NamedTuple):
    """Stops a process after its open replies or the shutdown timeout, or `at_once`."""

    at_once: bool = False


FromApiServer: TypeAlias = (
    Listening
    | Refused
    | Submit
    | Abort
    | GetMetricsPage
    | ProcessCounts
    | DeathReported
    | UsesBackend
    | ChangeFaults
    | Stopping
)
FromEngines: TypeAlias = (
    Tokens
    | Finish
    | Fail
    | Broken
    | State
    | UsesBackend
    | GetCounts
    | MetricsPage
    | FaultSettingsChanged
    | FaultsResult
    | Stop
)


class Queries(Generic[T]):
    """Messages to the engine process that are answered, by their numbers."""

    def __init__(self, send: Callable[[FromApiServer], None]) -> None:
        self._send = send
        self._numbers = itertools.count()
        self._pending: dict[int, asyncio.Future[T]] = {}

    async def ask(self, message: Callable[[int], FromApiServer]) -> T:
        """Send the message of a number, and return its answer."""
        number = next(self._numbers)
        answer: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._pending[number] = answer
        self._send(message(number))
        try:
            return await answer
        finally:
            del self._pending[number]

    def answered(self, number: int, answer: T) -> None:
        """Resolve the wait for an answer."""
        waiting = self._pending.get(number)
        if waiting is not None and not waiting.done():
            waiting.set_result(answer)


WAIT_S = 2.0
"""Timeout for the counts of a process, after which its previous counts are used."""


@dataclass(slots=True)
class RemoteMetrics:
    """The counts of an API server process; the metrics page comes from the engine process."""

    lateness: Lateness
    slow_readers: SlowReaders
    send: Callable[[FromApiServer], None]
    http: HttpMetrics = field(default_factory=HttpMetrics)
    tool_parsing: ToolParsing = field(default_factory=ToolParsing)
    rejections: dict[str, int] = field(default_factory=lambda: dict.fromkeys(REJECTION_REASONS, 0))
    operations: Operations = field(default_factory=Operations)
    """Never on the page: operations are timed in development mode only, which requires a single process."""
    queries: Queries[bytes] = field(init=False)

    def __post_init__(self) -> None:
        self.queries = Queries(self.send)

    async def page(self, names: Collection[str] = (), accept: str = "", in_thread: InThread | None = None) -> bytes:
        """Return the metrics page of all processes, or only the named samples, in the format selected by `accept`.

        The process with the engines writes the page.
        """
        return await self.queries.ask(lambda query: GetMetricsPage(query, tuple(names), accept))

    async def history_json(self) -> bytes:
        """Return the metrics of all processes over time as JSON."""
        return await self.queries.ask(lambda query: GetMetricsPage(query, (), "", is_history=True))

    def record_history(self, is_recording: bool) -> None:
        """Do nothing: the engine process records the metrics."""

    def counts(self, message: GetCounts) -> None:
        """Send the counts of this process."""
        lag_s, num_cut = self.lateness.histogram, self.slow_readers.num_cut
        self.send(ProcessCounts(message.query_id, self.http, self.rejections, lag_s, num_cut, self.tool_parsing))


class MetricsGatherer:
    """Collects the counts of all processes. An ended process contributes its last counts."""

    def __init__(self, source: MetricsSource, in_thread: InThread) -> None:
        """A page of many engines is written by `in_thread`, one page after the other."""
        self._source = source
        self._in_thread = in_thread
        self._writing = asyncio.Lock()
        self._query_ids = itertools.count()
        self._known: dict[int, ProcessCounts] = {}
        """Latest counts by process."""
        self._missing: dict[int, set[int]] = {}
        """Processes whose reply to a query is missing."""
        self._complete: dict[int, asyncio.Event] = {}

    async def page(self, senders: Mapping[int, Callable[[GetCounts], None]], message: GetMetricsPage) -> bytes:
        """Return the metrics page or the metrics over time; `senders` has a send function for each running process."""
        query_id = next(self._query_ids)
        self._missing[query_id] = set(senders)
        complete = self._complete[query_id] = asyncio.Event()
        for send in senders.values():
            send(GetCounts(query_id))
        with suppress(TimeoutError):
            await asyncio.wait_for(complete.wait(), WAIT_S)
        del self._missing[query_id], self._complete[query_id]
        async with self._writing:
            found = sum_of_parts(self._source, list(self._known.values()))
            if message.is_history:
                return await found.history_json()
            return await found.page(message.names, message.accept, self._in_thread)

    def on_message(self, process_index: int, counts: ProcessCounts) -> None:
        """Store the counts of one process."""
        self._known[process_index] = counts
        self._no_longer_missing(process_index, counts.query_id)

    def on_closed(self, process_index: int) -> None:
        """Stop waiting for a process that has ended."""
        for query_id in list(self._missing):
            self._no_longer_missing(process_index, query_id)

    def _no_longer_missing(self, process_index: int, query_id: int) -> None:
        missing = self._missing.get(query_id)
        if missing is not None:
            missing.discard(process_index)
            if not missing:
                self._complete[query_id].set()
