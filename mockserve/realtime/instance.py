"""One instance of a cluster, driven as if it were alone: what goes to it passes no router."""

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import TypeVar

from blis_sim.engine.cluster.member import Life
from blis_sim.engine.core import Engine
from blis_sim.engine.request import Request
from blis_sim.engine.units import Micros
from mockserve.flight import Flight, Reply, Siblings
from mockserve.realtime.cluster import ClusterDriver
from mockserve.realtime.interface import EngineFailedError

T = TypeVar("T")


@dataclass(frozen=True, slots=True, eq=False)
class InstanceDriver:
    """Instance `number` of what `whole` drives, with the methods of a driver."""

    whole: ClusterDriver
    number: int
    engine: Engine

    @property
    def failure(self) -> BaseException | None:
        """Why no request is answered here any more."""
        if self.whole.failure is None and self.whole.life_of(self.number) in (Life.KILLED, None):
            return EngineFailedError("the instance was killed")
        return self.whole.failure

    @property
    def takes_requests(self) -> bool:
        """Whether the router may send any."""
        return self.whole.life_of(self.number) is Life.READY

    @property
    def request_ids(self) -> Collection[str]:
        """Requests here that have not ended."""
        return {flight.request.id for flight in self.whole.flights_at(self.number)}

    @property
    def num_flights(self) -> int:
        """How many that are."""
        return len(self.whole.flights_at(self.number))

    @property
    def num_waiting_tokens(self) -> int:
        """Prompt tokens of those that have no token yet."""
        flights = self.whole.flights_at(self.number)
        return sum(flight.request.input_tokens for flight in flights if not flight.num_tokens)

    def clock(self) -> Micros:
        """The present instant in simulated microseconds."""
        return self.whole.clock()

    def instant_at(self, reading_s: float) -> Micros:
        """The simulated instant at which the monotonic clock reads `reading_s`."""
        return self.whole.instant_at(reading_s)

    def seconds_at(self, at: Micros) -> float:
        """The reading of the monotonic clock at a simulated instant."""
        return self.whole.seconds_at(at)

    def submit(
        self,
        request: Request,
        reply: Reply,
        arrived_at: Micros | None = None,
        siblings: Siblings | None = None,
        rank: int | None = None,
    ) -> Flight:
        """Let `request` arrive here. Raises EngineFailedError when the instance is gone."""
        if (failure := self.failure) is not None:
            raise EngineFailedError("the engine has failed") from failure
        return self.whole.submit(request, reply, arrived_at, siblings, self.number)

    def abort(self, request_id: str) -> None:
        """The client of `request_id` is gone: free what it holds now."""
        self.whole.abort(request_id)

    def end_early(self, request_ids: Collection[str] | None = None) -> int:
        """Let requests here, all or those named, end with the tokens they have. Returns how many did."""
        mine = self.request_ids
        return self.whole.end_early([each for each in mine if request_ids is None or each in request_ids])

    def interfere(self, act: Callable[[Engine, Micros], T]) -> T:
        """Let `act` do something to the engine now, after all that is due, at the instant it is given."""
        return self.whole.interfere_with([self.number], act)

    async def until(self, is_so: Callable[[Engine], bool]) -> None:
        """Return when something holds of the engine."""
        await self.whole.until_at(self.number, is_so)

    def fail(self, _error: BaseException) -> None:
        """The engine is broken; the others of the cluster are not."""
        if self.failure is None:
            self.whole.kill(self.number)

    def close(self) -> None:
        """Nothing: the clock is that of all."""
