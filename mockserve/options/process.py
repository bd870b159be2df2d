"""The settings of `blis serve` about its process and about the instances behind it."""

from dataclasses import dataclass

from blis_sim.options import OptionError, check_options, option
from mockserve.log_lines import FORMATS


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessOptions:
    """The server's process and its page of metrics, with settings that vLLM does not have."""

    startup_s: float = option(
        0.0,
        "Seconds until the server listens, as if it were loading weights.",
        flags=("--startup-s", "--startup-delay"),
        at_least=0,
        heading="Process",
    )
    log_format: str = option("text", "What lines on standard error are.", choices=FORMATS)
    max_waiting_requests: int | None = option(
        None, "Requests that may wait for a place in the batch; more are refused with status 429.", at_least=0
    )
    max_body_mb: int = option(32, "Largest body of a request, in MiB.", at_least=1)
    fake_metrics: str = option(
        "",
        "Figures for the metrics page instead of the true ones: a JSON object such as "
        '{"running-requests": 3, "kv-cache-usage": "ramp:0:1:60s"}.',
        metavar="JSON",
    )
    offers_ready_route: bool = option(False, "Offer GET /health/ready as well.", hidden=True)
    pod_headers: tuple[str, ...] = option((), "Headers of every reply, as name=value.", hidden=True)

    def __post_init__(self) -> None:
        check_options(self)
        if self.fake_metrics:
            from mockserve.options.fake_metrics import read_fake_metrics  # few servers make figures up

            read_fake_metrics(self.fake_metrics)  # reading it checks it
        for header in self.pod_headers:
            if "=" not in header:
                raise OptionError(f"--pod-headers must be name=value, got {header!r}")


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
