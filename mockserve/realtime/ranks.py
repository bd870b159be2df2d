"""Several engines behind one endpoint: data-parallel ranks, each with a clock or all with one."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from blis_sim.engine.core import Engine
from blis_sim.engine.dp_balance import LoadReports, RankBalancer, load_of
from blis_sim.engine.ranks import RankGroup
from blis_sim.engine.request import Request
from blis_sim.engine.units import Micros
from mockserve.in_flight_request import InFlightRequest, Reply, Siblings
from mockserve.realtime.deliveries import EngineOutput, WriteCoalescer
from mockserve.realtime.driver import RealtimeDriver

T = TypeVar("T")


class RankGroupDriver(RealtimeDriver):
    """Runs `group` against the clock. `outputs` are those of its ranks, by number."""

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

    def call_engine(self, act: Callable[[Engine, Micros], T]) -> T:
        """Let `act` do something to every rank now. Returns the first result that is not true, or else the last."""
        return self.interfere_with(list(self._outputs), act)

    def interfere_with(self, ranks: Collection[int], act: Callable[[Engine, Micros], T]) -> T:
        """Let `act` do something to the ranks of those numbers now. Returns what `call_engine` returns."""

        def act_on_each(at: Micros) -> T:
            results = [act(self._outputs[rank].engine, at) for rank in ranks]
            return next((result for result in results if not result), results[-1])

        return self._act(act_on_each)

    async def until(self, is_so: Callable[[Engine], bool]) -> None:
        """Return when something holds of every rank."""
        await self._until(lambda: all(is_so(engine) for engine in self.group.instances))

    def _enter(self, request: Request, at: Micros, rank: int | None) -> None:
        self.group.submit(request, at, rank)

    def _output_of(self, request_id: str) -> EngineOutput:
        """Return the output of a request's rank; a request that has come to none counts for the first one."""
        return self._outputs.get(self.group.rank_of(request_id), self.output)

    def _run_engine(self, until: Micros, now: Micros) -> None:
        for rank, event in self.group.advance_each(until):
            self._happened(self._outputs[rank], event, now)


@dataclass(frozen=True, slots=True, eq=False)
class RankDriver:
    """Rank `number` of what `whole` drives."""

    whole: RankGroupDriver
    number: int
    engine: Engine

    @property
    def failure(self) -> BaseException | None:
        """The error that broke the ranks: vLLM gives up on all of them when one breaks."""
        return self.whole.failure

    def seconds_at(self, at: Micros) -> float:
        """Return the reading of the monotonic clock at a simulated instant."""
        return self.whole.seconds_at(at)

    def call_engine(self, act: Callable[[Engine, Micros], T]) -> T:
        """Let `act` do something to the rank now, after all that is due, at the instant it is given."""
        return self.whole.interfere_with([self.number], act)

    def fail(self, error: BaseException) -> None:
        """Fail every request of all ranks, for one of them is broken."""
        self.whole.fail(error)


@dataclass(slots=True)
class RankedReply:
    """A reply that also reports its end, when its rank has one request less."""

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
    """The drivers of all ranks as one. Their clocks must read the same."""

    def __init__(self, drivers: Sequence[RealtimeDriver]) -> None:
        self.drivers = drivers
        self._balancer = RankBalancer(len(drivers))
        self._reports = LoadReports(len(drivers))
        self._rank_of: dict[str, int] = {}
        self.on_failure: Callable[[BaseException], None] = _ignore_failure
        """A callback for a broken engine."""
        self._has_failed = False
        for rank, driver in enumerate(drivers):
            driver.report_step = self._listener(rank)
            driver.on_failure = self.fail

    @property
    def engine(self) -> Engine:
        """The engine of rank 0; all are configured alike."""
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

    def submit(
        self,
        request: Request,
        reply: Reply,
        arrived_at: Micros | None = None,
        siblings: Siblings | None = None,
        rank: int | None = None,
    ) -> InFlightRequest:
        """Submit `request` to the rank it names, or to that with the least load.

        Raises EngineFailedError when an engine has failed.
        """
        if rank is None:
            self._update_loads(self.clock())
            rank = self._balancer.choose()
        else:
            self._balancer.send_to(rank)
        self._rank_of[request.id] = rank
        try:
            ranked = RankedReply(reply, lambda: self._ended(request.id))
            return self.drivers[rank].submit(request, ranked, arrived_at, siblings)
        except BaseException:
            self._ended(request.id)
            raise

    def abort(self, request_id: str) -> None:
        """Abort `request_id`, whose client has left, and free its blocks now. Its reply gets no more calls."""
        rank = self._rank_of.get(request_id)
        if rank is not None:
            self._ended(request_id)
            self.drivers[rank].abort(request_id)

    def call_engine(self, act: Callable[[Engine, Micros], T]) -> T:
        """Let `act` do something to every engine now. Returns the first result that is not true, or else the last."""
        results = [driver.call_engine(act) for driver in self.drivers]
        return next((result for result in results if not result), results[-1])

    @property
    def request_ids(self) -> Collection[str]:
        """Requests that have not ended."""
        return [each for driver in self.drivers for each in driver.request_ids]

    def end_early(self, request_ids: Collection[str] | None = None) -> int:
        """End requests, all or those named, with the tokens they have. Returns how many did."""
        return sum(driver.end_early(request_ids) for driver in self.drivers)

    async def until(self, is_so: Callable[[Engine], bool]) -> None:
        """Return when something holds of every engine."""
        for driver in self.drivers:
            await driver.until(is_so)

    def fail(self, error: BaseException) -> None:
        """Fail everything that waits: after one engine breaks, vLLM gives up on all of them."""
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
