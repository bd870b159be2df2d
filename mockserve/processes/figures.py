"""The metrics of all processes together: whichever is asked gives the same answer."""

import asyncio
import itertools
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field

from mockserve.connections.slow_readers import SlowReaders
from mockserve.metrics.http import HttpMetrics
from mockserve.metrics.lateness import Lateness
from mockserve.metrics.operations import Operations
from mockserve.metrics.page import REJECTION_REASONS, MetricsSource, sum_of_parts
from mockserve.metrics.tool_parsing import ToolParsing
from mockserve.processes.messages import Figures, FromAnswering, MetricsPage, WantFigures, WantMetrics

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
