"""Drivers of data-parallel ranks behind one endpoint, with one clock per rank or one for all."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import TypeVar

from blis_sim.engine.core import Engine
from blis_sim.engine.ranks import RankGroup
from blis_sim.engine.request import Request
from blis_sim.engine.units import Micros
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
