"""The flag of an autoscaler; its other settings are in the policy file."""

from dataclasses import dataclass

from blis_sim.engine.cluster.disaggregation.options import PoolOptions
from blis_sim.options import option


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalingOptions(PoolOptions):
    """The number of instances may change: the last link of the chain of cluster options.

    A subclass with a `__post_init__` of its own calls `ScalingOptions.__post_init__(self)`.
    """

    model_autoscaler_interval_us: int = option(
        0,
        "Microseconds between decisions of the autoscaler; needs node_pools in --policy-config (default: interval_us "
        "of that file).",
        at_least=0,
        metavar="US",
        heading="Autoscaler",
    )

    def __post_init__(self) -> None:
        PoolOptions.__post_init__(self)
