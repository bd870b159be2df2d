"""The settings of `blis serve` that make it a better stand-in: slow starts, made-up figures, refusals of its own."""

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
