"""The instances of a server for its routes, and the ports that address one of them."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import replace
from typing import Any, Protocol

from blis_sim.engine.cluster.instance import InstanceState
from blis_sim.options import OptionError, with_settings
from mockserve.engines import LiveCluster, RankEngine
from mockserve.faults import EngineFaults, FaultSource
from mockserve.metrics.page import MeasuredEngine, MetricsSource, new_source
from mockserve.protocol.errors import ApiError
from mockserve.realtime.cluster import InstanceDriver
from mockserve.realtime.suspension import ClusterSuspension, Suspension
from mockserve.serving.background import BackgroundLoad
from mockserve.serving.lifecycle import Lifecycle, RequestQueue
from mockserve.serving.model import RouteCondition
from mockserve.serving.response_store import ResponseStore
from mockserve.serving.service import Service, queue_limits, report_reset, report_sleep


class Server(Protocol):
    """A server that is listening."""

    @property
    def port(self) -> int: ...

    async def stop(self, at_once: asyncio.Event | None = None) -> None:
        """Stop after open replies have ended, at most the shutdown timeout later."""
        ...


MOST_REMOVED = 100
"""Number of removed instances that stay listed."""


class InstanceControl:
    """Makes a service for each instance of `live`; `router_service` is the service with the router."""

    def __init__(self, router_service: Service, live: LiveCluster) -> None:
        self.services: dict[int, Service] = {}
        """Services of the present instances, by number."""
        self._removed: dict[int, Mapping[str, Any]] = {}
        """Last states of the latest removed instances, by number."""
        self.ports: dict[int, int] = {}
        """Ports of single instances, by number."""
        self._listen: Callable[[Service], Awaitable[Server]] | None = None
        """None if single instances have no ports."""
        self._servers: dict[int, Server] = {}
        """The server of each instance that has a port."""
        self._router_service = router_service
        self._live_cluster = live
        self._pending: set[asyncio.Task[None]] = set()
        """Ports that are being opened or closed."""
        self._opening: dict[int, asyncio.Task[None]] = {}
        """Ports whose opening is awaited by a request that added an instance."""
        for number in live.instances:
            self.services[number] = _service_of(router_service, live, number)
        router_service.delivery.suspension = ClusterSuspension(self._suspensions)
        live.on_added = self._joined
        live.on_removed = self._left

    @property
    def num_created(self) -> int:
        """Number of instances created so far, removed ones included."""
        return self._live_cluster.num_created

    @property
    def num_engines_created(self) -> int:
        """Number of engines created so far: one for each instance, or one for each of its data-parallel ranks."""
        return self._live_cluster.num_engines_created

    def service(self, number: int) -> Service:
        """Return the service of one instance. Raises ApiError for an unknown number, or if the instance was removed."""
        if not 0 <= number < self._live_cluster.num_created:
            raise ApiError(f"instance must be from 0 to {self._live_cluster.num_created - 1}, got {number}", status=404)
        if number not in self.services:
            raise _gone_error(number)
        return self.services[number]

    async def add(self, after_s: float) -> int:
        """Add an instance that takes requests `after_s` simulated seconds later. Returns its number.

        Raises OptionError if no instance can be added. An instance that cannot listen is killed.
        """
        number = await self._live_cluster.add(round(after_s * 1e6))
        opening = self._opening.pop(number, None)
        if opening is not None:
            try:
                await opening
            except OptionError:
                self._live_cluster.driver.kill(number)
                await self._live_cluster.driver.until_killed(number)
                raise
        return number

    async def drain(self, number: int) -> None:
        """Stop routing requests to an instance. Raises ApiError if it was removed or killed."""
        self._check_alive(number)
        await self._live_cluster.driver.drain(number)

    async def kill(self, number: int) -> None:
        """Stop an instance and fail its requests. Raises ApiError if it was removed or killed."""
        self._check_alive(number)
        self._live_cluster.driver.kill(number)
        await self._live_cluster.driver.until_killed(number)
        _ = self._begin(self._close_port(number))  # ends when its replies have ended

    def describe(self, number: int) -> Mapping[str, Any]:
        """Return the state of an instance, or the last state of a removed one."""
        port = {"port": self.ports.get(number)}
        if number in self._removed:
            return {**self._removed[number], **port}
        member = self._live_cluster.driver.cluster.members[number]
        engines = self._live_cluster.engines_of(number)
        return {**_instance_figures(number, member.state.name.lower(), engines), **port}

    def describe_all(self) -> list[Mapping[str, Any]]:
        """Return the states of all present and the latest removed instances, ordered by number."""
        return [self.describe(number) for number in sorted({*self.services, *self._removed})]

    def unrouted_counts(self) -> Mapping[str, int]:
        """Counts of requests that reached no instance."""
        cluster = self._live_cluster.driver.cluster
        counters, gateway = cluster.counters, None
        if cluster.parts:
            from blis_sim.engine.cluster.gateway import FlowControl  # few clusters need it

            gateway = cluster.part(FlowControl)
        return {
            "num_waiting": gateway.num_waiting if gateway is not None else 0,
            "num_rejected_at_admission": counters.num_rejected_at_admission,
            "num_rejected_at_routing": counters.num_rejected_at_routing,
        }

    async def open_ports(self, listen: Callable[[Service], Awaitable[Server]]) -> None:
        """Listen for every instance, present and later ones. Raises OptionError if a port is unavailable."""
        self._listen = listen
        for number in list(self.services):
            await self._open_port(number)

    async def close_ports(self, at_once: asyncio.Event) -> None:
        servers, self._servers = self._servers, {}
        await asyncio.gather(*(server.stop(at_once) for server in servers.values()))

    async def _open_port(self, number: int) -> None:
        assert self._listen is not None
        service, first = self.services[number], self._router_service.options.instances.instance_ports
        service.options = with_settings(service.options, port=first + number if first else 0, uds="")
        self._servers[number] = server = await self._listen(service)
        self.ports[number] = server.port

    async def _close_port(self, number: int) -> None:
        """Close the port of an instance, if it has one, after its replies have ended."""
        server = self._servers.pop(number, None)
        if server is not None:
            await server.stop()
            self.ports.pop(number, None)

    def close(self) -> None:
        """Cancel the pending faults of single instances."""
        for service in self.services.values():
            service.engine_faults.close()

    def _joined(self, number: int) -> None:
        """Add an instance that the autoscaler or a request has started."""
        source = self._router_service.metrics_source
        assert isinstance(source, MetricsSource)
        for place, engine in self._live_cluster.engines_of(number).items():
            source.engines[place] = MeasuredEngine(engine.driver, engine.metrics)
        self.services[number] = _service_of(self._router_service, self._live_cluster, number)
        if self._listen is not None:
            self._opening[number] = self._begin(self._open_port(number))

    def _left(self, number: int, engines: Mapping[int, RankEngine], state: InstanceState) -> None:
        """Remove an idle instance that was drained or killed, and free its objects."""
        source = self._router_service.metrics_source
        assert isinstance(source, MetricsSource)
        for place in engines:
            del source.engines[place]
        service = self.services.pop(number)
        service.engine_faults.close()
        assert isinstance(service.metrics_source, MetricsSource)
        service.metrics_source.engines.clear()  # a source and its registry refer to each other
        life = "killed" if state is InstanceState.KILLED else "drained"
        self._removed[number] = _instance_figures(number, life, engines)
        if len(self._removed) > MOST_REMOVED:
            del self._removed[next(iter(self._removed))]
        _ = self._begin(self._close_port(number))

    def _begin(self, change: Coroutine[None, None, None]) -> asyncio.Task[None]:
        task = asyncio.ensure_future(change)
        self._pending.add(task)
        task.add_done_callback(self._pending.discard)
        return task

    def _check_alive(self, number: int) -> None:
        if self.service(number).delivery.driver.failure is not None:
            raise _gone_error(number)

    def _suspensions(self) -> list[Suspension]:
        """The suspensions of all instances that were not killed."""
        members = self._live_cluster.driver.cluster.members
        alive = [number for number, member in members.items() if member.state is not InstanceState.KILLED]
        found = [self.services[number].delivery.suspension for number in alive]
        return [each for each in found if isinstance(each, Suspension)]


def _gone_error(number: int) -> ApiError:
    return ApiError(f"instance {number} is gone", status=409, kind="ConflictError")


def _instance_figures(number: int, state: str, engines: Mapping[int, RankEngine]) -> Mapping[str, Any]:
    """Return the state and load of an instance, all ranks together, as JSON fields."""
    stats = [each.driver.engine.stats for each in engines.values()]
    return {
        "instance": number,
        "life": state,
        "num_running": sum(each.num_running for each in stats),
        "num_waiting": sum(each.num_waiting for each in stats),
        "num_in_flight": sum(len(each.driver.engine.live) for each in engines.values()),
        "kv_cache_usage": sum(each.kv_blocks_used for each in stats) / sum(each.kv_blocks_total for each in stats),
        "num_completed": sum(sum(each.metrics.request_success.values()) for each in engines.values()),
    }


def _service_of(router_service: Service, live: LiveCluster, number: int) -> Service:
    """Return a copy of the router's service with the engine and counters of one instance."""
    engines, source = list(live.engines_of(number).values()), router_service.metrics_source
    assert isinstance(source, MetricsSource)
    first = engines[0].driver
    assert isinstance(first, InstanceDriver)
    driver = replace(first, rank=None)
    # The router's service closes the sockets.
    alone = {rank: replace(engine, kv_events=None) for rank, engine in enumerate(engines)}
    faults = FaultSource(router_service.options.faults.settings, router_service.options.faults.fault_seed)

    metrics = new_source(
        source.model_name,
        {rank: MeasuredEngine(engine.driver, engine.metrics) for rank, engine in alone.items()},
        source.cache_config,
        source.lateness,
        source.fakes,
        source.slow_readers,
        source.tool_parsing,
        shows_engines=source.shows_engines,
    )
    limits = queue_limits(router_service.options, driver.engine.config, len(alone))
    lifecycle = Lifecycle(driver, router_service.lifecycle.shutdown_timeout_s)
    return replace(
        router_service,
        background=None if router_service.background is None else BackgroundLoad(driver, alone),
        model=replace(router_service.model, queue=RequestQueue(driver, limits, metrics.rejections)),
        delivery=replace(
            router_service.delivery,
            driver=driver,
            suspension=Suspension(
                driver, lambda state: report_sleep(alone, state), lambda engine: report_reset(alone, engine)
            ),
            open_replies=lifecycle.open_replies,
        ),
        lifecycle=lifecycle,
        engines=alone,
        metrics_source=metrics,
        faults=faults,
        engine_faults=EngineFaults(alone, faults),
        responses=ResponseStore(router_service.environment.stores_responses),
        cluster=None,
        conditions=router_service.conditions - {RouteCondition.CLUSTER, RouteCondition.INSTANCE_CONTROL},
    )
