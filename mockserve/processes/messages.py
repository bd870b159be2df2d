"""Messages between the engine's process and the answering ones, and the figures that they carry."""

import asyncio
import itertools
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

from blis_sim.engine.request import Request
from blis_sim.engine.stats import EngineStats
from blis_sim.engine.units import Micros
from mockserve.connections.slow_readers import SlowReaders
from mockserve.metrics.histogram import Histogram
from mockserve.metrics.http import HttpMetrics
from mockserve.metrics.lateness import Lateness
from mockserve.metrics.operations import Operations
from mockserve.metrics.page import REJECTION_REASONS, MetricsSource, sum_of_parts
from mockserve.metrics.tool_parsing import ToolParsing

# --- from those who answer ---


class Listening(NamedTuple):
    """It takes connections on this port."""

    host: str
    port: int


class Refused(NamedTuple):
    """Its settings cannot be served."""

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


class Figures(NamedTuple):
    """What a process has counted by itself, in answer to `WantFigures`."""

    question: int
    http: HttpMetrics
    rejections: Mapping[str, int]
    lag_s: Histogram
    num_streams_cut: int
    tool_parsing: ToolParsing


class DeathTold(NamedTuple):
    """A client has been told that the engine is dead."""


class UsesBackend(NamedTuple):
    """The engine's backend of structured outputs is this one; both sides send it."""

    name: str


class Stopping(NamedTuple):
    """It takes no new requests any more, and has so many replies open."""

    num_open: int


# --- from the engines ---


class Tokens(NamedTuple):
    """Each of the requests has so many tokens, counted from 1, all due at the same instant."""

    due_s: float
    numbers: list[int]
    counts: list[int]


class Facts(NamedTuple):
    """What a reply tells of its request besides the text."""

    arrived_at: Micros
    queued_at: Micros
    first_scheduled_at: Micros | None
    first_token_at: Micros | None
    last_token_at: Micros
    num_preemptions: int
    num_cached_tokens: int
    num_external_tokens: int


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
    """How the engines are by now."""

    stats: EngineStats
    num_flights: int
    num_waiting_tokens: int


class WantFigures(NamedTuple):
    """The engines' process is asked for metrics, and asks all."""

    question: int


class MetricsPage(NamedTuple):
    """The answer to `WantMetrics`."""

    question: int
    page: bytes


class Stop(NamedTuple):
    """End when open replies have, or their time is up, or `at_once`."""

    at_once: bool = False


FromAnswering: TypeAlias = (
    Listening | Refused | Submit | Abort | WantMetrics | Figures | DeathTold | UsesBackend | Stopping
)
FromEngines: TypeAlias = Tokens | Finish | Fail | Broken | State | UsesBackend | WantFigures | MetricsPage | Stop


WAIT_S = 2.0
"""A process that does not answer for so long is counted as it was."""


@dataclass(slots=True)
class RemoteMetrics:
    """What a process that answers counts by itself; the page it has from the engines."""

    lateness: Lateness
    slow_readers: SlowReaders
    tell: Callable[[FromAnswering], None]
    http: HttpMetrics = field(default_factory=HttpMetrics)
    tool_parsing: ToolParsing = field(default_factory=ToolParsing)
    rejections: dict[str, int] = field(default_factory=lambda: dict.fromkeys(REJECTION_REASONS, 0))
    operations: Operations = field(default_factory=Operations)
    """Never on the page: routes that time operations need development mode, which needs one process."""
    _questions: "itertools.count[int]" = field(default_factory=itertools.count)
    _asked: dict[int, asyncio.Future[bytes]] = field(default_factory=dict)

    async def page(self, names: Collection[str] = (), accept: str = "") -> bytes:
        """Return the metrics page of all processes, or only the samples named, as `accept` asks for it."""
        question = next(self._questions)
        answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._asked[question] = answer
        self.tell(WantMetrics(question, tuple(names), accept))
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
        """Tell what this process has counted."""
        lag_s, num_cut = self.lateness.histogram, self.slow_readers.num_cut
        self.tell(Figures(message.question, self.http, self.rejections, lag_s, num_cut, self.tool_parsing))


class Gathering:
    """Asks all processes what they have counted. Those that have ended count as they were last."""

    def __init__(self, source: MetricsSource) -> None:
        self._source = source
        self._questions = itertools.count()
        self._known: dict[int, Figures] = {}
        """By the place of the process."""
        self._missing: dict[int, set[int]] = {}
        """Who has not answered a question."""
        self._complete: dict[int, asyncio.Event] = {}

    async def page(
        self, asked: Mapping[int, Callable[[WantFigures], None]], names: Collection[str], accept: str = ""
    ) -> bytes:
        """The metrics page; `asked` says how to reach those who are there."""
        question = next(self._questions)
        self._missing[question] = set(asked)
        complete = self._complete[question] = asyncio.Event()
        for ask in asked.values():
            ask(WantFigures(question))
        with suppress(TimeoutError):
            await asyncio.wait_for(complete.wait(), WAIT_S)
        del self._missing[question], self._complete[question]
        return sum_of_parts(self._source, list(self._known.values())).exposition(names, accept)

    def heard(self, place: int, figures: Figures) -> None:
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
