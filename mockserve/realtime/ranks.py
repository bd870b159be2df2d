"""Drivers of data-parallel ranks behind one endpoint, with one clock per rank or one for all."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TypeVar

from blis_sim.engine.core import Engine
from blis_sim.engine.dp_balance import LoadReports, RankBalancer, load_of
from blis_sim.engine.ranks import RankGroup
from blis_sim.engine.request import Request
from blis_sim.engine.units import Micros
from mockserve.in_flight_request import InFlightRequest, ParentRequest, Reply
from mockserve.realtime.deliveries import EngineOutput, WriteCoalescer
from mockserve.realtime.driver import RealtimeDriver

T = TypeVar("T")


class RankGroupDriver(RealtimeDriver):
    """Runs `group` against the clock. `outputs` has the output of each rank, by number."""

    def __init__(
        self,
        group: RankGroup,
        outputs: Mapping[int, EngineOutput],
        wire: WriteCoalescer,
        speed: float = 1.0,
        origin_s: float | None = None,
    ) -> None:
        first = outputs[0]
        super().__init__(first.engine, first.recorder, wire, speed, origin_s=origin_s, simulation=group)
        self.group = group
        self._outputs = outputs

    def call_engine(self, function: Callable[[Engine, Micros], T]) -> T:
        """Call `function(engine, now)` on every rank. Returns the first falsy result, else the last."""
        return self.call_engines(list(self._outputs), function)

    def call_engines(self, ranks: Collection[int], function: Callable[[Engine, Micros], T]) -> T:
        """Call `function(engine, now)` on the numbered ranks. Returns the first falsy result, else the last."""

        def act_on_each(at: Micros) -> T:
            results = [function(self._outputs[rank].engine, at) for rank in ranks]
            return next((result for result in results if not result), results[-1])

        return self._call_engine(act_on_each)

    async def until(self, condition: Callable[[Engine], bool]) -> None:
        """Return when a condition holds for every rank."""
        await self._until(lambda: all(condition(engine) for engine in self.group.instances))

    def _enter(self, request: Request, at: Micros, rank: int | None) -> None:
        self.group.submit(request, at, rank)

    def _output_of(self, request_id: str) -> EngineOutput:
        """Return the output of a request's rank; a request without a rank counts for the first rank."""
        return self._outputs.get(self.group.rank_of(request_id), self.output)

    def _run_engine(self, until: Micros, now: Micros) -> None:
        for rank, event in self.group.advance_each(until):
            self._happened(self._outputs[rank], event, now)


@dataclass(frozen=True, slots=True, eq=False)
class RankDriver:
    """The driver of rank `number` in the group of `shared_driver`."""

    shared_driver: RankGroupDriver
    number: int
    engine: Engine

    @property
    def failure(self) -> BaseException | None:
        """The error of the ranks: as in vLLM, all ranks fail when one fails."""
        return self.shared_driver.failure

    def seconds_at(self, at: Micros) -> float:
        """Return the reading of the monotonic clock at a simulated instant."""
        return self.shared_driver.seconds_at(at)

    def call_engine(self, function: Callable[[Engine, Micros], T]) -> T:
        """Call `function(engine, now)` on the rank after processing all due events."""
        return self.shared_driver.call_engines([self.number], function)

    def fail(self, error: BaseException) -> None:
        """Fail the requests of all ranks after an error of one rank."""
        self.shared_driver.fail(error)


@dataclass(slots=True)
class RankedReply:
    """A reply that also reports its end, so that the load of its rank is updated."""

    reply: Reply
    ended: Callable[[], None]

    @property
    def is_streamed(self) -> bool:
        return self.reply.is_streamed

    @property
    def finish_reason(self) -> str:
        return self.reply.finish_reason

    def token(self, number: int) -> None:
        self.reply.token(number)

    def tokens(self, first: int, last: int) -> None:
        self.reply.tokens(first, last)

    def finish(self, num_tokens: int) -> None:
        self.ended()
        self.reply.finish(num_tokens)

    def abort(self, num_tokens: int) -> None:
        self.ended()
        self.reply.abort(num_tokens)

    def fail(self, message: str, status: int) -> None:
        self.ended()
        self.reply.fail(message, status)


class RankedDriver:
    """Combines the drivers of all ranks. Their clocks must agree."""

    def __init__(self, drivers: Sequence[RealtimeDriver]) -> None:
        self.drivers = drivers
        self._balancer = RankBalancer(len(drivers))
        self._reports = LoadReports(len(drivers))
        self._rank_of: dict[str, int] = {}
        self.on_failure: Callable[[BaseException], None] = _ignore_failure
        """Called with the error when an engine fails."""
        self._has_failed = False
        for rank, driver in enumerate(drivers):
            driver.report_step = self._listener(rank)
            driver.on_failure = self.fail

    @property
    def engine(self) -> Engine:
        """The engine of rank 0; all engines have equal configurations."""
        return self.drivers[0].engine

    @property
    def num_unfinished_requests(self) -> int:
        """Requests whose last token no engine has produced yet."""
        return sum(driver.num_unfinished_requests for driver in self.drivers)

    @property
    def num_waiting_tokens(self) -> int:
        """Prompt tokens of the requests that have no token yet."""
        return sum(driver.num_waiting_tokens for driver in self.drivers)

    @property
    def failure(self) -> BaseException | None:
        """The error that broke one of the engines."""
        return next((driver.failure for driver in self.drivers if driver.failure is not None), None)

    def clock(self) -> Micros:
        """The present instant in simulated microseconds."""
        return self.drivers[0].clock()

    def instant_at(self, reading_s: float) -> Micros:
        """The simulated instant at which the monotonic clock reads `reading_s`."""
        return self.drivers[0].instant_at(reading_s)

    @contextmanager
    def pending_arrival(self, at: Micros) -> Iterator[None]:
        """Keep all engines before `at` within a `with` block that prepares a request which arrived at `at`."""
        with ExitStack() as stack:
            for driver in self.drivers:
                stack.enter_context(driver.pending_arrival(at))
            yield

    def submit(
        self,
        request: Request,
        reply: Reply,
        arrived_at: Micros | None = None,
        parent: ParentRequest | None = None,
        rank: int | None = None,
    ) -> InFlightRequest:
        """Submit `request` to its requested rank, or else to the rank with the least load.

        Raises EngineFailedError if an engine has failed.
        """
        if rank is None:
            self._update_loads(self.clock())
            rank = self._balancer.choose()
        else:
            self._balancer.send_to(rank)
        self._rank_of[request.id] = rank
        try:
            ranked = RankedReply(reply, lambda: self._ended(request.id))
            return self.drivers[rank].submit(request, ranked, arrived_at, parent)
        except BaseException:
            self._ended(request.id)
            raise

    def abort(self, request_id: str) -> None:
        """Abort `request_id`, whose client has left, and free its blocks now. Its reply gets no more calls."""
        rank = self._rank_of.get(request_id)
        if rank is not None:
            self._ended(request_id)
            self.drivers[rank].abort(request_id)

    def call_engine(self, function: Callable[[Engine, Micros], T]) -> T:
        """Call `function(engine, now)` on every engine. Returns the first falsy result, else the last."""
        results = [driver.call_engine(function) for driver in self.drivers]
        return next((result for result in results if not result), results[-1])

    @property
    def request_ids(self) -> Collection[str]:
        """Requests that have not ended."""
        return [each for driver in self.drivers for each in driver.request_ids]

    def end_early(self, request_ids: Collection[str] | None = None) -> int:
        """End all or the named requests early, with their present tokens. Returns the number ended."""
        return sum(driver.end_early(request_ids) for driver in self.drivers)

    async def until(self, condition: Callable[[Engine], bool]) -> None:
        """Return when a condition holds for every engine."""
        for driver in self.drivers:
            await driver.until(condition)

    def fail(self, error: BaseException) -> None:
        """Fail all requests and waits: as in vLLM, all engines fail when one fails."""
        if self._has_failed:
            return
        self._has_failed = True
        for driver in self.drivers:
            driver.fail(error)
        self.on_failure(error)

    def close(self) -> None:
        """Stop waking up. Open replies get no more calls."""
        for driver in self.drivers:
            driver.close()

    def _ended(self, request_id: str) -> None:
        rank = self._rank_of.pop(request_id, None)
        if rank is not None:
            self._balancer.finished(rank)

    def _listener(self, rank: int) -> Callable[[Micros], None]:
        def step_ended(at: Micros) -> None:
            self._update_loads(at)
            self._reports.report(rank, load_of(self.drivers[rank].engine.stats), at)

        return step_ended

    def _update_loads(self, at: Micros) -> None:
        """Apply all reports up to `at`."""
        while (due_at := self._reports.due_at()) is not None and due_at <= at:
            self._balancer.update_loads(self._reports.loads_due(due_at))


def _ignore_failure(_error: BaseException) -> None:
    """No-op default."""
