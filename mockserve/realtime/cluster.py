"""Real-time drivers of several engines: a cluster with one clock, and data-parallel ranks behind one endpoint."""

import asyncio
from collections.abc import Callable, Collection, Mapping, MutableMapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from http import HTTPStatus
from typing import TypeVar

from blis_sim.engine.cluster.cluster import NO_INSTANCE_PREFILLS, Cluster
from blis_sim.engine.cluster.instance import InstanceState
from blis_sim.engine.core import Engine
from blis_sim.engine.data_parallel import RankGroup
from blis_sim.engine.events import Event, Finished, Scheduled
from blis_sim.engine.request import Request
from blis_sim.engine.sequence import NOWHERE, Outcome
from blis_sim.engine.sequence import Sequence as EngineSequence
from blis_sim.engine.units import Micros
from mockserve.realtime.driver import EngineFailedError, EngineOutput, RealtimeDriver, WriteCoalescer, ignore
from mockserve.realtime.in_flight import InFlightRequest

# The real-time driver of a cluster, with one clock for all instances, and the driver of one instance in it.

T = TypeVar("T")


class ClusterDriver(RealtimeDriver):
    """Runs `cluster` against the clock. `outputs` has the output of each present engine, by number.

    A request with a rank bypasses the router and goes to the engine of that number. A drained or killed instance is
    removed when its requests have ended.
    """

    def __init__(
        self,
        cluster: Cluster,
        outputs: MutableMapping[int, EngineOutput],
        wire: WriteCoalescer,
        speed: float = 1.0,
        origin_s: float | None = None,
    ) -> None:
        first = outputs[0]
        super().__init__(first.engine, first.recorder, wire, speed, origin_s=origin_s, simulation=cluster)
        self.cluster = cluster
        self.on_removed: Callable[[int, InstanceState], None] = ignore
        """Called with the number of each removed instance, and its state: drained or killed."""
        self._outputs = outputs
        self._unrouted: dict[str, asyncio.Future[None]] = {}
        """Futures of requests that wait to be routed."""
        self._asked: dict[str, int] = {}
        """Instances of requests that came to the port of one, until they enter the cluster."""
        self._instance_of = cluster.place
        cluster.place = self._on_routed

    @property
    def takes_requests(self) -> bool:
        """Whether any instance that generates output accepts requests."""
        return bool(self.cluster.state.candidates)

    def flights_at(self, number: int) -> list[InFlightRequest]:
        """Unfinished requests on one instance. Cost: O(requests)."""
        instance_of = self.cluster.instance_of
        return [flight for flight in self._flights.values() if instance_of(flight.request.id) == number]

    async def until_routed(self, request_ids: Collection[str]) -> None:
        """Return when each request has been routed to an instance or has ended."""
        for request_id in tuple(request_ids):
            if request_id not in self._flights or self.cluster.instance_of(request_id) != NOWHERE:
                continue
            self._unrouted[request_id] = routed = asyncio.get_running_loop().create_future()
            try:
                await routed
            finally:
                self._unrouted.pop(request_id, None)

    def submit_to(
        self, number: int, flight: InFlightRequest, arrived_at: Micros | None = None, rank: int | None = None
    ) -> None:
        """Submit a request to an instance without the router; with a `rank`, to that one of the instance."""
        if rank is not None and (numbers := self.engines_of(number)):
            self.submit(flight, arrived_at, numbers[min(rank, len(numbers) - 1)])
            return
        self._asked[flight.request.id] = number
        try:
            self.submit(flight, arrived_at)
        finally:
            self._asked.pop(flight.request.id, None)

    def engines_of(self, number: int) -> Sequence[int]:
        """Return the numbers of an instance's engines; none if it was removed."""
        member = self.cluster.members.get(number)
        if member is None:
            return ()
        return range(member.engine.first_number, member.engine.first_number + len(member.engine.instances))

    def call_engine(self, function: Callable[[Engine, Micros], T]) -> T:
        """Call `function(engine, now)` on every engine. Returns the first falsy result, else the last."""
        return self.call_engines(list(self._outputs), function)

    def call_engines(self, numbers: Collection[int], function: Callable[[Engine, Micros], T]) -> T:
        """Call `function(engine, now)` on the numbered engines. Returns the first falsy result, else the last.

        Raises EngineFailedError if all of these engines have been removed.
        """
        present = [number for number in numbers if number in self._outputs]
        if not present:
            raise EngineFailedError("the instance was killed")

        def act_on_each(at: Micros) -> T:
            results, members = [], self.cluster.members
            for number in present:
                results.append(function(self._outputs[number].engine, at))
                members.update_next_event(members.number_of(number))
            return next((result for result in results if not result), results[-1])

        return self._call_engine(act_on_each)

    async def until(self, condition: Callable[[Engine], bool]) -> None:
        """Return when a condition holds for every instance."""
        await self._until(lambda: all(condition(engine) for engine in self.cluster.instances))

    async def until_at(self, number: int, condition: Callable[[Engine], bool]) -> None:
        """Return when a condition holds for one instance, or when it was removed."""

        def holds() -> bool:
            member = self.cluster.members.get(number)
            return member is None or all(condition(engine) for engine in member.engine.instances)

        await self._until(holds)

    async def add(self, engine: Engine | RankGroup, after_us: Micros) -> None:
        """Add an instance that accepts requests `after_us` later. Without delay, return when it accepts requests."""
        number = self._call_engine(lambda at: self.cluster.add_instance(engine, at + after_us))
        if not after_us:
            await self._until(lambda: self.instance_state(number) is not InstanceState.LOADING)

    async def drain(self, number: int) -> None:
        """Stop routing requests to an instance, which finishes its present ones. Return when it is draining."""
        self._call_engine(lambda at: self.cluster.drain(number, at))
        await self._until(lambda: self.instance_state(number) not in (InstanceState.LOADING, InstanceState.READY))

    def kill(self, number: int) -> None:
        """Stop an instance at once and fail its requests."""
        self._call_engine(lambda at: self.cluster.kill(number, at))

    async def until_killed(self, number: int) -> None:
        """Return when an instance was killed or removed."""
        await self._until(lambda: self.instance_state(number) in (InstanceState.KILLED, None))

    def instance_state(self, number: int) -> InstanceState | None:
        """Return the state of an instance; None if it was removed."""
        member = self.cluster.members.get(number)
        return None if member is None else member.state

    def fail(self, error: BaseException) -> None:
        """Fail all requests and waits after an error of the simulation."""
        super().fail(error)
        for routed in self._unrouted.values():
            _set_done(routed)

    def _enter(self, request: Request, at: Micros, rank: int | None) -> None:
        self.cluster.submit(request, at, self._asked.get(request.id), rank)

    def _output_of(self, request_id: str) -> EngineOutput:
        """Return the output of a request's engine; an unrouted request counts for the first engine."""
        return self._outputs.get(self.cluster.engine_of(request_id), self.output)

    def _on_routed(self, sequence: EngineSequence, number: int, at: Micros) -> None:
        self._instance_of(sequence, number, at)
        _set_done(self._unrouted.get(sequence.request.id))

    def _set_lag(self) -> None:
        """Do nothing: requests wait to be routed, which must not be late."""

    def _run_engine(self, until: Micros, now: Micros) -> None:
        for number, event in self.cluster.advance_each(until):
            self._happened(self._outputs.get(number, self.output), event, now)
        if self.cluster.leaving:
            self._remove_idle()

    def _remove_idle(self) -> None:
        """Remove idle instances that were drained or killed."""
        for number in sorted(self.cluster.leaving):
            state, engines = self.cluster.members[number].state, self.engines_of(number)
            if self.cluster.remove(number):
                self.on_removed(number, state)
                for engine in engines:
                    del self._outputs[engine]
        self.output = next(iter(self._outputs.values()), self.output)
        self.engine = self.output.engine

    def _happened(self, output: EngineOutput, event: Event, now: Micros) -> None:
        super()._happened(output, event, now)
        if isinstance(event, Finished):
            _set_done(self._unrouted.get(event.sequence.request.id))

    def _scheduled(self, output: EngineOutput, event: Scheduled) -> None:
        flight = self._flights.get(event.sequence.request.id)
        if flight is not None and flight.first_scheduled_at is None and event.sequence.queued_at is not None:
            flight.queued_at = event.sequence.queued_at
        super()._scheduled(output, event)

    def _status_of(self, event: Finished) -> HTTPStatus:
        is_out_of_capacity = not self.takes_requests or event.detail == NO_INSTANCE_PREFILLS
        if event.outcome is Outcome.REJECTED and is_out_of_capacity:
            return HTTPStatus.SERVICE_UNAVAILABLE
        return super()._status_of(event)


def _set_done(future: asyncio.Future[None] | None) -> None:
    if future is not None and not future.done():
        future.set_result(None)


@dataclass(frozen=True, slots=True, eq=False)
class InstanceDriver:
    """The driver of instance `number` in the cluster of `shared_driver`.

    `engine` is its engine, or one of its ranks: the first for all of them, or that of `rank`.
    """

    shared_driver: ClusterDriver
    number: int
    engine: Engine
    rank: int | None = None
    """The data-parallel rank that calls of the engine concern; None for all engines of the instance."""

    @property
    def failure(self) -> BaseException | None:
        """The error for new requests: the cluster's failure, or that this instance was killed; else None."""
        if self.shared_driver.failure is None and self.shared_driver.instance_state(self.number) in (
            InstanceState.KILLED,
            None,
        ):
            return EngineFailedError("the instance was killed")
        return self.shared_driver.failure

    @property
    def takes_requests(self) -> bool:
        """Whether the router may send requests to this instance."""
        return self.shared_driver.instance_state(self.number) is InstanceState.READY

    @property
    def request_ids(self) -> Collection[str]:
        """Ids of unfinished requests at this instance."""
        return {flight.request.id for flight in self.shared_driver.flights_at(self.number)}

    @property
    def num_unfinished_requests(self) -> int:
        """Return the number of requests in flight at this instance."""
        return len(self.shared_driver.flights_at(self.number))

    @property
    def num_waiting_tokens(self) -> int:
        """Prompt tokens of requests without a first token at this instance."""
        flights = self.shared_driver.flights_at(self.number)
        return sum(flight.request.input_tokens for flight in flights if not flight.num_tokens)

    def clock(self) -> Micros:
        """The present instant in simulated microseconds."""
        return self.shared_driver.clock()

    def instant_at(self, reading_s: float) -> Micros:
        """The simulated instant at which the monotonic clock reads `reading_s`."""
        return self.shared_driver.instant_at(reading_s)

    def pending_arrival(self, at: Micros) -> AbstractContextManager[None]:
        """Keep all engines before `at` within a `with` block that prepares a request which arrived at `at`."""
        return self.shared_driver.pending_arrival(at)

    def seconds_at(self, at: Micros) -> float:
        """The reading of the monotonic clock at a simulated instant."""
        return self.shared_driver.seconds_at(at)

    def submit(self, flight: InFlightRequest, arrived_at: Micros | None = None, rank: int | None = None) -> None:
        """Submit a request to this instance. Raises EngineFailedError if it was killed or removed."""
        if (failure := self.failure) is not None:
            raise EngineFailedError("the engine has failed") from failure
        self.shared_driver.submit_to(self.number, flight, arrived_at, rank)

    def abort(self, request_id: str) -> None:
        """Abort `request_id`, whose client has disconnected, and free its blocks now."""
        self.shared_driver.abort(request_id)

    async def until_routed(self, request_ids: Collection[str]) -> None:
        """Return at once: the instance is chosen."""

    def end_early(self, request_ids: Collection[str] | None = None) -> int:
        """End all or the named requests of this instance early, with their present tokens. Returns the number ended."""
        mine = self.request_ids
        return self.shared_driver.end_early([each for each in mine if request_ids is None or each in request_ids])

    def call_engine(self, function: Callable[[Engine, Micros], T]) -> T:
        """Call `function(engine, now)` after processing all due events."""
        numbers = self.shared_driver.engines_of(self.number)
        own = numbers if self.rank is None else numbers[self.rank : self.rank + 1]
        return self.shared_driver.call_engines(own, function)

    async def until(self, condition: Callable[[Engine], bool]) -> None:
        """Return when a condition holds for each engine of the instance."""
        await self.shared_driver.until_at(self.number, condition)

    def fail(self, _error: BaseException) -> None:
        """Kill this instance after an error of its engine; other instances continue."""
        if self.failure is None:
            self.shared_driver.kill(self.number)

    def close(self) -> None:
        """Do nothing: the clock is shared by all instances."""


# Drivers of data-parallel ranks behind one endpoint, with one clock per rank or one for all.


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

    @property
    def outputs(self) -> Mapping[int, EngineOutput]:
        """The output of each rank, by number."""
        return self._outputs

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
