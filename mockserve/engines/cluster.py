"""The instances that a server has behind its router: built at the start, and more of them later."""

from collections.abc import Callable

from blis_sim.engine.cluster.assembly import build_cluster
from blis_sim.engine.cluster.member import Life
from blis_sim.engine.cluster.policies import policies_of
from blis_sim.engine.core import Engine
from blis_sim.engine.deployment import Deployment
from blis_sim.engine.latency.wrapped import SlowedLatency
from blis_sim.engine.step_log import RecentSteps
from blis_sim.engine.units import Micros
from blis_sim.options import OptionError
from mockserve.engines.build import STEPS_KEPT, RankEngine
from mockserve.engines.deployment import with_features
from mockserve.kv_blocks.setup import open_publisher
from mockserve.metrics.engine import EngineMetrics
from mockserve.options.environment import ServerEnvironment
from mockserve.options.serve import ServeOptions
from mockserve.realtime.cluster import ClusterDriver
from mockserve.realtime.deliveries import EngineOutput
from mockserve.realtime.instance import InstanceDriver
from mockserve.realtime.wire import Wire


class LiveCluster:
    """All that is behind the router, whose clock starts now. Raises OptionError when KV events cannot be published."""

    def __init__(
        self, options: ServeOptions, deployment: Deployment, environment: ServerEnvironment, wire: Wire
    ) -> None:
        self.engines: dict[int, RankEngine] = {}
        """The instances that are there, by number."""
        self.num_made = 0
        """Number of the instance that comes next."""
        self.on_joined: Callable[[int], None] = _ignore
        """Called with the number of each instance that comes later."""
        self.on_removed: Callable[[int, RankEngine, Life], None] = _ignore_removed
        """Called with the number of each instance that has been removed, its engine, and how it came to its end."""
        self._options = options
        self._environment = environment
        self._outputs: dict[int, EngineOutput] = {}
        self._first_deployment: Deployment | None = None
        self._is_running = False
        cluster = build_cluster(options.cluster, deployment, self._new_engine, keeps_history=False)
        self.driver = ClusterDriver(cluster, self._outputs, wire, options.speed)
        self.driver.on_removed = self._remove
        for number in self._outputs:
            self._join(number)
        self._is_running = True

    async def add(self, after_us: Micros) -> int:
        """One more instance, like the first one; it takes requests from then on. Returns its number.

        Raises OptionError where instances are not all alike.
        """
        if self.driver.cluster.disaggregation is not None:
            raise OptionError("instances cannot be added where some compute prompts and others answer")
        if policies_of(self._options.cluster).scaling.node_pools:
            raise OptionError("instances cannot be added by hand where they are placed on the machines of node_pools")
        assert self._first_deployment is not None
        number = self.num_made
        await self.driver.add(self._new_engine(self._first_deployment), after_us)
        return number

    def _new_engine(self, deployment: Deployment) -> Engine:
        """The engine of the instance that comes next."""
        config, latency = with_features(self._options, deployment)
        engine = Engine(config, SlowedLatency(latency), steps=RecentSteps(STEPS_KEPT))
        self._first_deployment = self._first_deployment or deployment
        number = self.num_made
        self.num_made += 1
        self._outputs[number] = EngineOutput(engine, EngineMetrics(deployment.config.limit_tokens))
        if self._is_running:
            self._join(number)
            self.on_joined(number)
        return engine

    def _join(self, number: int) -> None:
        output = self._outputs[number]
        metrics, latency = output.recorder, output.engine.latency
        assert isinstance(metrics, EngineMetrics)
        assert isinstance(latency, SlowedLatency)
        publisher = open_publisher(self._options.kv_sharing, self._environment, output.engine.config, number)
        if publisher is not None:
            output.tell_cache_changes = publisher.publish
        driver = InstanceDriver(self.driver, number, output.engine)
        self.engines[number] = RankEngine(driver, metrics, latency, publisher, dies_alone=True)

    def _remove(self, number: int, life: Life) -> None:
        engine = self.engines.pop(number)
        if engine.kv_events is not None:
            engine.kv_events.close()
        self.on_removed(number, engine, life)


def _ignore(_number: int) -> None:
    """No-op default."""


def _ignore_removed(_number: int, _engine: RankEngine, _life: Life) -> None:
    """No-op default."""
