"""The official exporter of OpenTelemetry spans, over gRPC or HTTP."""

import os
from typing import TYPE_CHECKING

from blis_sim.options.errors import OptionError

if TYPE_CHECKING:
    from opentelemetry.sdk.trace.export import SpanExporter

PROTOCOL_VARIABLE = "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL"
PROTOCOLS = ("grpc", "http/protobuf")


def new_exporter(endpoint: str) -> "SpanExporter":
    """Return the official exporter to `endpoint`. Raises OptionError without the library or with another protocol."""
    protocol = os.environ.get(PROTOCOL_VARIABLE, PROTOCOLS[0])
    if protocol not in PROTOCOLS:
        raise OptionError(f"{PROTOCOL_VARIABLE} must be one of {', '.join(PROTOCOLS)}, got {protocol!r}")
    try:
        if protocol == "grpc":
            from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter as GrpcExporter

            return GrpcExporter(endpoint=endpoint, insecure=True)
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter as HttpExporter

        return HttpExporter(endpoint=endpoint)
    except ImportError:
        raise OptionError("--otlp-traces-endpoint needs OpenTelemetry: pip install 'blis-mockserve[otel]'") from None
