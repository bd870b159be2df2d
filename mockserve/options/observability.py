"""Settings of request logs and of OpenTelemetry traces."""

from dataclasses import dataclass

from blis_sim.options import OptionError, check_options, option


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservabilityOptions:
    """Settings of request logs, of the access log and of traces, with vLLM's names where vLLM has them."""

    otlp_traces_endpoint: str = option(
        "",
        "OpenTelemetry collector that gets a span for each request, such as http://localhost:4317; needs the extra "
        "otel. OTEL_EXPORTER_OTLP_TRACES_PROTOCOL chooses grpc (the default) or http/protobuf.",
        metavar="URL",
        heading="Request logs and traces",
    )
    enable_log_requests: bool = option(
        False,
        "Log each request's id, sampling parameters and adapter; with VLLM_LOGGING_LEVEL=DEBUG its prompt, too.",
    )
    enable_log_outputs: bool = option(
        False, "Log the text and the finish reason of each choice when it is complete; needs --enable-log-requests."
    )
    max_log_len: int | None = option(
        None, "Characters of a prompt or an output that are logged, and ids of a prompt; all by default.", at_least=0
    )
    access_log: bool = option(False, "Log each HTTP request in the form of uvicorn's access log.")

    def __post_init__(self) -> None:
        check_options(self)
        if self.enable_log_outputs and not self.enable_log_requests:
            raise OptionError("Error: --enable-log-outputs requires --enable-log-requests")
