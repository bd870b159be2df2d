"""The real-time driver of data-parallel ranks that share experts: one clock for all of them, a recorder for each."""

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
