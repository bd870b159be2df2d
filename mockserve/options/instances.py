"""The settings of `blis serve` about its instances beyond those of a simulated cluster."""

from dataclasses import dataclass

from blis_sim.engine.cluster.autoscaling.options import ScalingOptions
from blis_sim.engine.cluster.policies import has_cluster
from blis_sim.options import OptionError, option

LARGEST_PORT = 65_535


@dataclass(frozen=True, slots=True, kw_only=True, init=False, repr=False, eq=False)
class InstanceOptions(ScalingOptions):
    """How instances are reached and controlled."""

    instance_ports: int | None = option(
        None,
        "Port on which instance 0 listens as a server of its own, past the router; the others follow. 0 takes free "
        "ones.",
        at_least=0,
        at_most=LARGEST_PORT,
        heading="Instances of a server",
    )
    enable_instance_control: bool = option(
        False, "Offer to add, drain and kill instances while running, below /blis/instances."
    )

    def __post_init__(self) -> None:
        ScalingOptions.__post_init__(self)
        last_port = (self.instance_ports or 0) + self.num_instances - 1
        if last_port > LARGEST_PORT:
            raise OptionError(
                f"--instance-ports must be at most {LARGEST_PORT + 1 - self.num_instances} with {self.num_instances} "
                f"instances, got {self.instance_ports}"
            )

    @property
    def serves_cluster(self) -> bool:
        """Whether there is more behind the server than one engine. Raises EngineError."""
        return self.enable_instance_control or self.instance_ports is not None or has_cluster(self)
