"""The flag of an autoscaler; all else about it is in the policy file."""

from dataclasses import dataclass

from blis_sim.engine.cluster.disaggregation.options import PoolOptions
from blis_sim.options import option


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalingOptions(PoolOptions):
    """A cluster that may grow and shrink.

    A subclass with a `__post_init__` of its own calls `ScalingOptions.__post_init__(self)`.
    """

    model_autoscaler_interval_us: int = option(
        0,
        "Microseconds between looks of the autoscaler; needs node_pools in --policy-config (default: what that says).",
        at_least=0,
        metavar="US",
        heading="Autoscaler",
    )

    def __post_init__(self) -> None:
        PoolOptions.__post_init__(self)
