"""What was simulated, if that was more than one engine."""

from typing import TYPE_CHECKING

from blis_sim.engine.core import Engine
from blis_sim.engine.simulation import Simulation

if TYPE_CHECKING:
    from blis_sim.engine.cluster.cluster import Cluster


def cluster_of(simulation: Simulation) -> "Cluster | None":
    """The cluster of a run that had one."""
    if isinstance(simulation, Engine):
        return None
    from blis_sim.engine.cluster.cluster import Cluster  # runs of one engine never need it

    return simulation if isinstance(simulation, Cluster) else None
