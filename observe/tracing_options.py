"""The settings of `blis observe` about OpenTelemetry."""

from dataclasses import dataclass

from blis_sim.options import check_options, option


@dataclass(frozen=True, slots=True, kw_only=True)
class TracingOptions:
    """OpenTelemetry spans of the requests that are sent."""

    otlp_traces_endpoint: str = option(
        "",
        "Send a `traceparent` with each request, and OpenTelemetry spans of the recorded ones to this OTLP endpoint"
        " when the run has ended; needs OpenTelemetry.",
        metavar="URL",
        heading="OpenTelemetry",
    )

    def __post_init__(self) -> None:
        check_options(self)
        if self.otlp_traces_endpoint:
            from blis_sim.options.otlp import new_exporter

            new_exporter(self.otlp_traces_endpoint).shutdown()
