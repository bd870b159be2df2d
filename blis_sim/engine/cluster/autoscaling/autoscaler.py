"""An autoscaler at work: it looks at the instances of a cluster, starts new ones and drains others."""

from dataclasses import dataclass

from blis_sim.engine.cluster.agenda import ClusterDue
from blis_sim.engine.cluster.autoscaling.figures import Change, Figures, ReplicaFigures
from blis_sim.engine.cluster.autoscaling.fleet import Fleet
from blis_sim.engine.cluster.autoscaling.pipeline import AutoscalerSettings, Pipeline
from blis_sim.engine.cluster.cluster import Cluster
from blis_sim.engine.units import Micros


@dataclass(frozen=True, slots=True)
class Scaling:
    """Something the autoscaler did. `num_instances` is what it wanted, `num_done` what there was room for."""

    at: Micros
    variant: str
    num_instances: int
    num_done: int


class Autoscaler:
    """Looks at `cluster` at every tick from the first instant on, also while nothing else happens.

    A simulation that has nothing else to do ends all the same.
    """

    def __init__(self, cluster: Cluster, settings: AutoscalerSettings, fleet: Fleet) -> None:
        self.scalings: list[Scaling] = []
        self._cluster = cluster
        self._settings = settings
        self._fleet = fleet
        self._pipeline = Pipeline(settings)
        self._num_decisions = 0
        cluster.autoscaler = self
        cluster.add_background(0, ClusterDue.SCALING, self._tick)

    def _tick(self, at: Micros) -> None:
        self._cluster.look(at)
        change = self._pipeline.decide(self._collect(), at)
        if change is not None:
            delay_us = self._settings.scrape_delay.draw(self._num_decisions)
            self._num_decisions += 1
            self._cluster.agenda.add(at + delay_us, ClusterDue.SCALE_ACTUATION, self._act, change)
        self._cluster.add_background(at + self._settings.interval_us, ClusterDue.SCALING, self._tick)

    def _collect(self) -> Figures:
        """What is known of the instances, as fresh as routers know it."""
        replicas = []
        for snapshot in self._cluster.state.candidates:
            config = self._cluster.members[snapshot.instance].engine.config
            capacity = config.total_kv_blocks * config.block_size_tokens
            in_use = round(snapshot.kv_usage_fraction * capacity)
            variant = self._fleet.variant_of(snapshot.instance)
            replicas.append(ReplicaFigures(snapshot.instance, variant, capacity, in_use, snapshot.num_waiting))
        return Figures(replicas, self._fleet.variants())

    def _act(self, change: object, at: Micros) -> None:
        assert isinstance(change, Change)
        act = self._fleet.start if change.num_instances > 0 else self._fleet.drain
        num_done = 0
        while num_done < abs(change.num_instances) and act(change.variant, at):
            num_done += 1
        sign = 1 if change.num_instances > 0 else -1
        self.scalings.append(Scaling(at, change.variant, change.num_instances, sign * num_done))
