"""The instances behind the router as servers of their own, and the operator's hand on them."""

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import replace
from typing import Any

from blis_options import OptionError
from engine.cluster.member import Life
from mockserve.engines.cluster import LiveCluster
from mockserve.faults.draw import FaultSource
from mockserve.faults.engine import EngineFaults
from mockserve.metrics.page import MeasuredEngine, MetricsSource, new_source
from mockserve.protocol.errors import ApiError
from mockserve.serving.gates import Gate
from mockserve.serving.open_replies import OpenReplies
from mockserve.serving.response_store import ResponseStore
from mockserve.serving.service import Service, queue_limits
from mockserve.serving.suspension import Suspension
from mockserve.serving.suspension_of_all import SuspensionOfAll


class InstanceControl:
    """Sees each instance of `live` as a server of its own; `front` is the one with the router."""

    def __init__(self, front: Service, live: LiveCluster) -> None:
        self.services: list[Service] = []
        """By number."""
        self.ports: dict[int, int] = {}
        """Where instances listen by themselves, by number."""
        self.listen: Callable[[int], Coroutine[None, None, None]] | None = None
        """Lets an instance listen by itself; None when none does."""
        self.hang_up: Callable[[int], Coroutine[None, None, None]] | None = None
        """Ends that."""
        self._front = front
        self._live = live
        self._pending: set[asyncio.Task[None]] = set()
        """Ports that are being opened or closed."""
        self._opening: dict[int, asyncio.Task[None]] = {}
        """Those that somebody who added an instance waits for."""
        for number in range(len(live.engines)):
            self.services.append(_service_of(front, live, number))
        front.suspension = SuspensionOfAll(self._suspensions)
        live.tell_joined = self._joined

    def service(self, number: int) -> Service:
        """One instance. Raises ApiError for a number that there is not."""
        if not 0 <= number < len(self.services):
            raise ApiError(f"instance must be from 0 to {len(self.services) - 1}, got {number}", status=404)
        return self.services[number]

    async def add(self, after_s: float) -> int:
        """One more instance, which takes requests after so many simulated seconds. Returns its number.

        Raises OptionError where there can be no more; one that cannot listen is killed.
        """
        number = await self._live.add(round(after_s * 1e6))
        opening = self._opening.pop(number, None)
        if opening is not None:
            try:
                await opening
            except OptionError:
                self._live.driver.kill(number)
                await self._live.driver.until_killed(number)
                raise
        return number

    async def drain(self, number: int) -> None:
        """Send an instance no more requests. Raises ApiError when it is gone."""
        self._check_alive(number)
        await self._live.driver.drain(number)

    async def kill(self, number: int) -> None:
        """End an instance and fail what it has. Raises ApiError when it is gone."""
        self._check_alive(number)
        self._live.driver.kill(number)
        await self._live.driver.until_killed(number)
        if self.hang_up is not None:
            _ = self._begin(self.hang_up(number))  # which takes as long as its replies

    def described(self, number: int) -> Mapping[str, Any]:
        """How an instance is by now."""
        member = self._live.driver.cluster.members[number]
        stats = member.engine.stats
        return {
            "instance": number,
            "life": member.life.name.lower(),
            "num_running": stats.num_running,
            "num_waiting": stats.num_waiting,
            "num_in_flight": len(member.engine.live),
            "kv_cache_usage": stats.kv_usage_fraction,
            "num_completed": sum(self._live.engines[number].metrics.request_success.values()),
            "port": self.ports.get(number),
        }

    def door(self) -> Mapping[str, int]:
        """What became of requests before any instance."""
        cluster = self._live.driver.cluster
        counters, gateway = cluster.counters, cluster.gateway
        return {
            "num_waiting": gateway.num_waiting if gateway is not None else 0,
            "num_rejected_at_admission": counters.num_rejected_at_admission,
            "num_rejected_at_routing": counters.num_rejected_at_routing,
        }

    def close(self) -> None:
        """Let nothing more happen to single instances."""
        for service in self.services:
            service.engine_faults.close()

    def _joined(self, number: int) -> None:
        """There is one more instance, which somebody or the autoscaler wanted."""
        source, engine = self._front.metrics_source, self._live.engines[number]
        assert isinstance(source, MetricsSource)
        source.engines.append(MeasuredEngine(engine.driver, engine.metrics))
        self.services.append(_service_of(self._front, self._live, number))
        if self.listen is not None:
            self._opening[number] = self._begin(self.listen(number))

    def _begin(self, change: Coroutine[None, None, None]) -> asyncio.Task[None]:
        task = asyncio.ensure_future(change)
        self._pending.add(task)
        task.add_done_callback(self._pending.discard)
        return task

    def _check_alive(self, number: int) -> None:
        if self.service(number).driver.failure is not None:
            raise ApiError(f"instance {number} is gone", status=409, kind="ConflictError")

    def _suspensions(self) -> list[Suspension]:
        """Of those that are not gone; of all when all are."""
        members = self._live.driver.cluster.members
        alive = [number for number, member in enumerate(members) if member.life is not Life.KILLED]
        found = [self.services[number].suspension for number in alive or range(len(members))]
        return [each for each in found if isinstance(each, Suspension)]


def _service_of(front: Service, live: LiveCluster, number: int) -> Service:
    """Everything of the front but what concerns the engine and what is counted."""
    engine, source = live.engines[number], front.metrics_source
    assert isinstance(source, MetricsSource)
    alone = [replace(engine, kv_events=None)]  # whose sockets are the front's to close
    faults = FaultSource(front.options.faults, front.options.fault_seed)

    def tell_sleep(state: str) -> None:
        engine.metrics.sleep_state = state

    return replace(
        front,
        driver=engine.driver,
        engines=alone,
        metrics_source=new_source(
            source.model_name,
            [MeasuredEngine(engine.driver, engine.metrics)],
            source.cache_config,
            source.lateness,
            source.fakes,
            source.slow_readers,
            source.tool_parsing,
        ),
        queue_limits=queue_limits(front.options, num_instances=1),
        suspension=Suspension(engine.driver, tell_sleep),
        faults=faults,
        engine_faults=EngineFaults(alone, faults),
        responses=ResponseStore(front.environment.stores_responses),
        is_stopping=False,
        answering=OpenReplies(),
        death_told=asyncio.Event(),
        cluster=None,
        gates=front.gates - {Gate.CLUSTER, Gate.INSTANCE_CONTROL},
    )
