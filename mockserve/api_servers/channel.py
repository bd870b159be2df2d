"""Messages between the engine's process and those that answer, over a socket."""

import asyncio
import itertools
import pickle
import socket
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias, cast

from blis_sim.engine.request import Request
from blis_sim.engine.stats import EngineStats
from blis_sim.engine.units import Micros
from mockserve.faults.engine import Changes
from mockserve.metrics.engine import Histogram, Lateness
from mockserve.metrics.page import REJECTION_REASONS, MetricsSource, sum_of_parts
from mockserve.metrics.server import HttpMetrics, Operations, ToolParsing
from mockserve.options.faults import FaultSettings
from mockserve.transport.clients import SlowReaders

LENGTH_BYTES = 4


class Channel(asyncio.Protocol):
    """One end of a connection between two processes. `on_message` is called with each message in
    order, and `ended` when the other end has gone.

    The socket must be one that only processes of this server have: what comes is unpickled.
    """

    def __init__(self, on_message: Callable[[Any], None], ended: Callable[[], None]) -> None:
        self._on_message = on_message
        self._ended = ended
        self._transport: asyncio.Transport | None = None
        self.sent: Callable[[], None] = _nothing
        """Called when queued messages leave, so that none of them can be extended any more."""
        self._waiting: list[Any] = []
        self._received = bytearray()
        self._gone = asyncio.Event()

    def send(self, message: object) -> None:
        """Send together with other messages of this turn. Does nothing when the other end has gone."""
        if not self._waiting:
            asyncio.get_running_loop().call_soon(self._send)
        self._waiting.append(message)

    def close(self) -> None:
        """Send queued messages and end without a callback."""
        self._ended = _nothing
        if self._waiting:
            self._send()
        if self._transport is not None:
            self._transport.close()

    async def leave(self) -> None:
        """Close, and return when all has been sent."""
        self.close()
        await self._gone.wait()

    def _send(self) -> None:
        messages, self._waiting = self._waiting, []
        self.sent()
        if messages and self._transport is not None and not self._transport.is_closing():
            data = pickle.dumps(messages, pickle.HIGHEST_PROTOCOL)
            self._transport.write(len(data).to_bytes(LENGTH_BYTES, "little") + data)

    # --- what the event loop calls ---

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


def _nothing() -> None:
    """No-op default."""


async def open_channel(end: socket.socket, on_message: Callable[[Any], None], ended: Callable[[], None]) -> Channel:
    """A channel over one end of a socket pair."""
    _, channel = await asyncio.get_running_loop().create_unix_connection(lambda: Channel(on_message, ended), sock=end)
    return channel


# --- from processes that answer ---


class Listening(NamedTuple):
    """A process takes connections on this port."""

    host: str
    port: int


class Refused(NamedTuple):
    """A process cannot serve with its settings."""

    message: str


class Submit(NamedTuple):
    """A request arrives. Choices of one prompt, of which there are `num_siblings`, have the same `prompt_number`."""

    number: int
    request: Request
    arrived_at: Micros
    finish_reason: str
    prompt_number: int
    num_siblings: int
    rank: int | None


class Abort(NamedTuple):
    """The client of a request has gone."""

    number: int


class WantMetrics(NamedTuple):
    """A request for the metrics page, or for the samples named, in the format that an `Accept` header asks for."""

    question: int
    names: tuple[str, ...]
    accept: str
    is_live: bool = False
    """Whether the figures over time are requested instead, as JSON."""


class Figures(NamedTuple):
    """The counts of one process, in reply to `WantFigures`."""

    question: int
    http: HttpMetrics
    rejections: Mapping[str, int]
    lag_s: Histogram
    num_streams_cut: int
    tool_parsing: ToolParsing


class DeathReported(NamedTuple):
    """The status of a reply has reported the death of the engine."""


class UsesBackend(NamedTuple):
    """The engine's backend of structured outputs is this one; both sides send it."""

    name: str


class ChangeFaults(NamedTuple):
    """A client changes the figures of faults, and starts and ends faults of the engines."""

    question: int
    settings: FaultSettings
    changes: Changes


class Stopping(NamedTuple):
    """The process takes no new requests, and has this many open replies."""

    num_open: int


# --- from the engines ---


class Tokens(NamedTuple):
    """Each of the requests has so many tokens, counted from 1, all due at the same instant."""

    due_s: float
    numbers: list[int]
    counts: list[int]


class Facts(NamedTuple):
    """Facts about a request that its reply has beside the text."""

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
    """A request has had its last token."""

    due_s: float
    number: int
    num_tokens: int
    facts: Facts


class Fail(NamedTuple):
    """A request gets no more tokens."""

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


class FaultsAre(NamedTuple):
    """The figures of faults have changed in all processes."""

    settings: FaultSettings


class FaultsChanged(NamedTuple):
    """The answer to `ChangeFaults`: why nothing was changed, or no text."""

    question: int
    problem: str


class WantFigures(NamedTuple):
    """The engines' process collects the counts of all processes for a metrics page."""

    question: int


class MetricsPage(NamedTuple):
    """The answer to `WantMetrics`."""

    question: int
    page: bytes


class Stop(NamedTuple):
    """End when open replies have, or their time is up, or `at_once`."""

    at_once: bool = False


FromAnswering: TypeAlias = (
    Listening | Refused | Submit | Abort | WantMetrics | Figures | DeathReported | UsesBackend | ChangeFaults | Stopping
)
FromEngines: TypeAlias = (
    Tokens | Finish | Fail | Broken | State | UsesBackend | WantFigures | MetricsPage | FaultsAre | FaultsChanged | Stop
)


WAIT_S = 2.0
"""A process that does not answer for so long is counted as it was."""


@dataclass(slots=True)
class RemoteMetrics:
    """The counts of a process that answers; the page comes from the engines' process."""

    lateness: Lateness
    slow_readers: SlowReaders
    send: Callable[[FromAnswering], None]
    http: HttpMetrics = field(default_factory=HttpMetrics)
    tool_parsing: ToolParsing = field(default_factory=ToolParsing)
    rejections: dict[str, int] = field(default_factory=lambda: dict.fromkeys(REJECTION_REASONS, 0))
    operations: Operations = field(default_factory=Operations)
    """Operations, which are never on the page: routes that time them need development mode, which needs one process."""
    _questions: "itertools.count[int]" = field(default_factory=itertools.count)
    _asked: dict[int, asyncio.Future[bytes]] = field(default_factory=dict)

    async def page(self, names: Collection[str] = (), accept: str = "") -> bytes:
        """Return the metrics page of all processes, or only the samples named, as `accept` asks for it."""
        return await self._answer_to(tuple(names), accept, is_live=False)

    async def live(self) -> bytes:
        """Return the figures of all processes over time as JSON."""
        return await self._answer_to((), "", is_live=True)

    def watch(self, is_watched: bool) -> None:
        """The engines' process notes the figures."""

    async def _answer_to(self, names: tuple[str, ...], accept: str, *, is_live: bool) -> bytes:
        question = next(self._questions)
        answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._asked[question] = answer
        self.send(WantMetrics(question, names, accept, is_live))
        try:
            return await answer
        finally:
            del self._asked[question]

    def answered(self, message: MetricsPage) -> None:
        """The page has come."""
        answer = self._asked.get(message.question)
        if answer is not None and not answer.done():
            answer.set_result(message.page)

    def figures(self, message: WantFigures) -> None:
        """Send the counts of this process."""
        lag_s, num_cut = self.lateness.histogram, self.slow_readers.num_cut
        self.send(Figures(message.question, self.http, self.rejections, lag_s, num_cut, self.tool_parsing))


class Gathering:
    """Collects the counts of all processes. A process that has ended counts with its last figures."""

    def __init__(self, source: MetricsSource) -> None:
        self._source = source
        self._questions = itertools.count()
        self._known: dict[int, Figures] = {}
        """Figures by the place of the process."""
        self._missing: dict[int, set[int]] = {}
        """Processes whose reply to a question is missing."""
        self._complete: dict[int, asyncio.Event] = {}

    async def page(self, asked: Mapping[int, Callable[[WantFigures], None]], message: WantMetrics) -> bytes:
        """The metrics page or the figures over time; `asked` has a channel for each running process."""
        question = next(self._questions)
        self._missing[question] = set(asked)
        complete = self._complete[question] = asyncio.Event()
        for ask in asked.values():
            ask(WantFigures(question))
        with suppress(TimeoutError):
            await asyncio.wait_for(complete.wait(), WAIT_S)
        del self._missing[question], self._complete[question]
        found = sum_of_parts(self._source, list(self._known.values()))
        return await found.live() if message.is_live else found.exposition(message.names, message.accept)

    def on_message(self, place: int, figures: Figures) -> None:
        """The answer of one process."""
        self._known[place] = figures
        self._no_longer_missing(place, figures.question)

    def gone(self, place: int) -> None:
        """A process has ended."""
        for question in list(self._missing):
            self._no_longer_missing(place, question)

    def _no_longer_missing(self, place: int, question: int) -> None:
        missing = self._missing.get(question)
        if missing is not None:
            missing.discard(place)
            if not missing:
                self._complete[question].set()
