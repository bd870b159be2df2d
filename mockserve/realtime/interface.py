"""The interface of drivers: of one engine, of several, of one of several, or of engines in another process."""

from collections.abc import Callable, Collection
from typing import Protocol, TypeVar

from blis_sim.engine.config import EngineConfig
from blis_sim.engine.core import Engine
from blis_sim.engine.request import Request
from blis_sim.engine.stats import EngineStats
from blis_sim.engine.units import Micros
from mockserve.in_flight_request import InFlightRequest, Reply, Siblings

T = TypeVar("T")


class EngineFailedError(RuntimeError):
    """The engine takes no more requests."""


class EngineInfo(Protocol):
    """An engine in this process or another; of several engines one stands for all."""

    @property
    def config(self) -> EngineConfig: ...

    @property
    def stats(self) -> EngineStats: ...


class Driver(Protocol):
    """Takes requests and brings their tokens when it is time. Use it from one event loop only."""

    @property
    def engine(self) -> EngineInfo: ...

    @property
    def failure(self) -> BaseException | None:
        """The error that broke an engine; from then on every request fails."""
        ...

    @property
    def num_unfinished_requests(self) -> int:
        """Requests whose last token has not been produced yet."""
        ...

    @property
    def num_waiting_tokens(self) -> int:
        """Prompt tokens of the requests that have no token yet."""
        ...

    @property
    def request_ids(self) -> Collection[str]:
        """Requests that have not ended."""
        ...

    def clock(self) -> Micros:
        """The present instant in simulated microseconds."""
        ...

    def instant_at(self, reading_s: float) -> Micros:
        """The simulated instant at which the monotonic clock reads `reading_s`."""
        ...

    def submit(
        self,
        request: Request,
        reply: Reply,
        arrived_at: Micros | None = None,
        siblings: Siblings | None = None,
        rank: int | None = None,
    ) -> InFlightRequest:
        """Let `request` arrive, now or at an instant just past; its tokens go to `reply`.

        `siblings` are the choices of the same prompt, if it is not the only one. `rank` names the engine for the
        request, where there are several. Raises EngineFailedError when the engine has failed.
        """
        ...

    def abort(self, request_id: str) -> None:
        """Abort `request_id`, whose client has left, and free its blocks now. Its reply gets no more calls."""
        ...

    def end_early(self, request_ids: Collection[str] | None = None) -> int:
        """End requests, all or those named, with the tokens they have. Returns how many did."""
        ...

    def call_engine(self, act: Callable[[Engine, Micros], T]) -> T:
        """Let `act` do something to every engine now. Returns the first result that is not true, or else the last."""
        ...

    async def until(self, is_so: Callable[[Engine], bool]) -> None:
        """Return when something holds of every engine."""
        ...

    def close(self) -> None:
        """Stop waking up. Open replies get no more calls."""
        ...
