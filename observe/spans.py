"""An OpenTelemetry span for each request of a load client, whose id goes to the server as `traceparent`.

The ids follow from the request's own, which the recording has. So spans are made from its rows when the run has ended.
Nothing is computed or sent for them while requests are measured.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from hashlib import blake2b
from typing import TYPE_CHECKING, Any
from uuid import UUID

from blis_sim.options import check_options, option
from observe.http import Server
from traces import TraceRow

if TYPE_CHECKING:
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import ReadableSpan


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
            from blis_sim.installation import new_exporter
            from traces.redaction import check_url_without_keys

            instead = "give OTEL_EXPORTER_OTLP_TRACES_HEADERS"
            check_url_without_keys(self.otlp_traces_endpoint, "--otlp-traces-endpoint", instead)
            new_exporter(self.otlp_traces_endpoint).shutdown()


SERVICE = "blis-observe"
OPERATIONS = {"chat": "chat", "completions": "text_completion"}
"""OpenTelemetry's names of the operation of each interface."""
_AT_ONCE = 512


def traceparent(x_request_id: str) -> str:
    """The header of W3C's trace context for a request: its trace, its span, and that it is sampled."""
    trace_id, span_id = _ids(x_request_id)
    return f"00-{trace_id:032x}-{span_id:016x}-01"


def _ids(x_request_id: str) -> tuple[int, int]:
    trace = UUID(x_request_id)
    return trace.int, int.from_bytes(blake2b(trace.bytes, digest_size=8).digest()) or 1


def export_spans(endpoint: str, rows: Iterable[TraceRow], server: Server, model: str, api: str) -> tuple[int, int]:
    """Send a span for each row with a request id; return how many were taken, and how many were not.

    The first batch that the receiver refuses is the last one.
    """
    from opentelemetry.sdk.resources import SERVICE_NAME, OTELResourceDetector, Resource
    from opentelemetry.sdk.trace.export import SpanExportResult

    from blis_sim.installation import new_exporter

    # Service attributes of the environment take precedence.
    resource = Resource.create({SERVICE_NAME: SERVICE}).merge(OTELResourceDetector().detect())
    sent = [row for row in rows if row.x_request_id and row.send_time_us]
    exporter, num_taken = new_exporter(endpoint), 0
    try:
        for batch in _batches(sent):
            spans = [_span(row, server, model, api, resource) for row in batch]
            if exporter.export(spans) is not SpanExportResult.SUCCESS:
                break
            num_taken += len(spans)
    finally:
        exporter.shutdown()
    return num_taken, len(sent) - num_taken


def _batches(rows: list[TraceRow]) -> Iterator[list[TraceRow]]:
    for first in range(0, len(rows), _AT_ONCE):
        yield rows[first : first + _AT_ONCE]


def _span(row: TraceRow, server: Server, model: str, api: str, resource: "Resource") -> "ReadableSpan":
    from opentelemetry.sdk.trace import ReadableSpan
    from opentelemetry.sdk.util.instrumentation import InstrumentationScope
    from opentelemetry.trace import SpanContext, SpanKind, Status, StatusCode, TraceFlags

    trace_id, span_id = _ids(row.x_request_id)
    operation, name = OPERATIONS[api], row.model or model
    status = Status(StatusCode.UNSET) if row.status == "ok" else Status(StatusCode.ERROR, row.error_message)
    return ReadableSpan(
        name=f"{operation} {name}",
        context=SpanContext(trace_id, span_id, is_remote=False, trace_flags=TraceFlags(TraceFlags.SAMPLED)),
        resource=resource,
        attributes=_attributes(row, server, operation, name),
        kind=SpanKind.CLIENT,
        status=status,
        start_time=row.send_time_us * 1000,
        end_time=max(row.send_time_us, row.last_chunk_time_us) * 1000,
        instrumentation_scope=InstrumentationScope(SERVICE),
    )


def _attributes(row: TraceRow, server: Server, operation: str, model: str) -> dict[str, Any]:
    """The attributes of OpenTelemetry's conventions for generative AI, and vLLM's for latencies, in seconds."""
    found: dict[str, Any] = {
        "gen_ai.operation.name": operation,
        "gen_ai.request.model": model,
        "gen_ai.request.id": row.x_request_id,
        "server.address": server.host,
        "server.port": server.port,
    }
    if row.status == "ok":
        found["gen_ai.usage.input_tokens"] = row.server_input_tokens or row.prefix_length + row.input_tokens
        found["gen_ai.usage.output_tokens"] = row.output_tokens
        if row.first_chunk_time_us:
            found["gen_ai.latency.time_to_first_token"] = (row.first_chunk_time_us - row.send_time_us) / 1e6
        found["gen_ai.latency.e2e"] = (row.last_chunk_time_us - row.send_time_us) / 1e6
    else:
        found["error.type"] = row.status
    if row.finish_reason:
        found["gen_ai.response.finish_reasons"] = (row.finish_reason,)
    if row.session_id:
        found["gen_ai.conversation.id"] = row.session_id
    return found
