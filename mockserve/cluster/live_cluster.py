"""The instances that a server has behind its router: built at the start, and more of them later."""

from collections.abc import Callable
from dataclasses import dataclass

from blis_options import OptionError
from engine.cluster.build import build_cluster
from engine.core import Engine
from engine.deployment import Deployment
from engine.latency.slowed import SlowedLatency
from engine.step_log import RecentSteps
from mockserve.cluster.driver import ClusterDriver
from mockserve.cluster.instance_driver import InstanceDriver
from mockserve.config import ServeOptions
from mockserve.deploying import with_features
from mockserve.engine_metrics import EngineMetrics
from mockserve.engine_output import EngineOutput
from mockserve.engines import STEPS_KEPT, RankEngine
from mockserve.environment import ServerEnvironment
from mockserve.kv_events.setup import open_publisher
from mockserve.wire import Wire


@dataclass(slots=True)
class LiveCluster:
    """What is behind the router. The lists grow with the instances."""

    driver: ClusterDriver
    engines: list[RankEngine]
    _outputs: list[EngineOutput]
    _new_output: Callable[[], EngineOutput]
    _seen_alone: Callable[[EngineOutput, ClusterDriver, int], RankEngine]

    async def add(self, after_us: int) -> int:
        """One more instance, like the first one; it takes requests from then on. Returns its number.

        Raises OptionError where instances have roles.
        """
        if self.driver.cluster.disaggregation is not None:
            raise OptionError("instances cannot be added where some compute prompts and others answer")
        output, number = self._new_output(), len(self._outputs)
        engine = self._seen_alone(output, self.driver, number)
        self._outputs.append(output)
        self.engines.append(engine)
        await self.driver.add(output.engine, after_us)
        return number


def build_live_cluster(
    options: ServeOptions, deployment: Deployment, environment: ServerEnvironment, wire: Wire
) -> LiveCluster:
    """All instances, whose clock starts now. Raises OptionError when KV events cannot be published."""
    outputs: list[EngineOutput] = []
    deployments: list[Deployment] = []

    def new_output(each: Deployment) -> EngineOutput:
        config, latency = with_features(options, each)
        engine = Engine(config, SlowedLatency(latency), steps=RecentSteps(STEPS_KEPT))
        return EngineOutput(engine, EngineMetrics(each.config.limit_tokens))

    def new_engine(each: Deployment) -> Engine:
        deployments.append(each)
        outputs.append(new_output(each))
        return outputs[-1].engine

    def seen_alone(output: EngineOutput, driver: ClusterDriver, number: int) -> RankEngine:
        publisher = open_publisher(options, environment, output.engine.config, number)
        if publisher is not None:
            output.tell_cache_changes = publisher.publish
        assert isinstance(output.recorder, EngineMetrics)
        assert isinstance(output.engine.latency, SlowedLatency)
        return RankEngine(
            InstanceDriver(driver, number), output.recorder, output.engine.latency, publisher, dies_alone=True
        )

    cluster = build_cluster(options, deployment, new_engine)
    driver = ClusterDriver(cluster, outputs, wire, options.speed)
    engines = [seen_alone(output, driver, number) for number, output in enumerate(outputs)]
    return LiveCluster(driver, engines, outputs, lambda: new_output(deployments[0]), seen_alone)
