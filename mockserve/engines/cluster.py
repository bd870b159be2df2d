"""The instances that a server has behind its router: built at the start, and more of them later."""

from collections.abc import Callable

from blis_options import OptionError
from engine.cluster.assembly import build_cluster
from engine.cluster.policies import policies_of
from engine.core import Engine
from engine.deployment import Deployment
from engine.latency.slowed import SlowedLatency
from engine.step_log import RecentSteps
from engine.units import Micros
from mockserve.engines.build import STEPS_KEPT, RankEngine
from mockserve.engines.deployment import with_features
from mockserve.kv_blocks.setup import open_publisher
from mockserve.metrics.engine import EngineMetrics
from mockserve.options.environment import ServerEnvironment
from mockserve.options.serve import ServeOptions
from mockserve.realtime.cluster import ClusterDriver
from mockserve.realtime.engine_output import EngineOutput
from mockserve.realtime.instance import InstanceDriver
from mockserve.realtime.wire import Wire


class LiveCluster:
    """All that is behind the router, whose clock starts now. Raises OptionError when KV events cannot be published."""

    def __init__(
        self, options: ServeOptions, deployment: Deployment, environment: ServerEnvironment, wire: Wire
    ) -> None:
        self.engines: list[RankEngine] = []
        """The instances, by number; whoever holds the list sees those that come later."""
        self.tell_joined: Callable[[int], None] = _ignore
        """Who wants to know the number of each instance that comes later, whoever wanted it."""
        self._options = options
        self._environment = environment
        self._outputs: list[EngineOutput] = []
        self._deployments: list[Deployment] = []
        cluster = build_cluster(options, deployment, self._new_engine)
        self.driver = ClusterDriver(cluster, self._outputs, wire, options.speed)
        for number in range(len(self._outputs)):
            self._join(number)

    async def add(self, after_us: Micros) -> int:
        """One more instance, like the first one; it takes requests from then on. Returns its number.

        Raises OptionError where instances are not all alike.
        """
        if self.driver.cluster.disaggregation is not None:
            raise OptionError("instances cannot be added where some compute prompts and others answer")
        if policies_of(self._options).scaling.node_pools:
            raise OptionError("instances cannot be added by hand where they are placed on the machines of node_pools")
        number = len(self._outputs)
        await self.driver.add(self._new_engine(self._deployments[0]), after_us)
        return number

    def _new_engine(self, deployment: Deployment) -> Engine:
        """The engine of the instance that comes next."""
        config, latency = with_features(self._options, deployment)
        engine = Engine(config, SlowedLatency(latency), steps=RecentSteps(STEPS_KEPT))
        self._deployments.append(deployment)
        self._outputs.append(EngineOutput(engine, EngineMetrics(deployment.config.limit_tokens)))
        if self.engines:
            self._join(len(self._outputs) - 1)
            self.tell_joined(len(self._outputs) - 1)
        return engine

    def _join(self, number: int) -> None:
        output = self._outputs[number]
        metrics, latency = output.recorder, output.engine.latency
        assert isinstance(metrics, EngineMetrics)
        assert isinstance(latency, SlowedLatency)
        publisher = open_publisher(self._options, self._environment, output.engine.config, number)
        if publisher is not None:
            output.tell_cache_changes = publisher.publish
        driver = InstanceDriver(self.driver, number, output.engine)
        self.engines.append(RankEngine(driver, metrics, latency, publisher, dies_alone=True))


def _ignore(_number: int) -> None:
    """Nobody listens."""
