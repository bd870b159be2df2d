"""The settings of `blis serve` about its instances beyond those of a simulated cluster."""

from dataclasses import dataclass

from blis_sim.options import OptionError, check_options, option

LARGEST_PORT = 65_535


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceOptions:
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
        check_options(self)

    def check_ports(self, num_instances: int) -> None:
        """Raise OptionError when the last of so many instances would have a port beyond the largest."""
        last_port = (self.instance_ports or 0) + num_instances - 1
        if last_port > LARGEST_PORT:
            raise OptionError(
                f"--instance-ports must be at most {LARGEST_PORT + 1 - num_instances} with {num_instances} "
                f"instances, got {self.instance_ports}"
            )
