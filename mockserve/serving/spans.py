"""An OpenTelemetry span for each request, with vLLM's name and attributes."""

import os
import time
from typing import TYPE_CHECKING, Any

from blis_sim.engine.units import Micros
from blis_sim.options import OptionError
from mockserve.connections.clients import Caller
from mockserve.flight import Flight
from mockserve.protocol.asked.sampling import Sampling
from mockserve.replies.generation import Generation, external_id
from mockserve.replies.reply_set import ReplyJob

if TYPE_CHECKING:
    from opentelemetry.sdk.trace.export import SpanExporter

PROTOCOL_VARIABLE = "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL"
PROTOCOLS = ("grpc", "http/protobuf")
SCOPE = "vllm.tracing.otel"
MODULE_NAME = "vllm.llm_engine"
SPAN_NAME = "llm_request"


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


class RequestSpans:
    """A span `llm_request` for each request to the engine, with vLLM's attributes, child of the client's span.

    A span begins and ends on the wall clock; its latencies are in simulated seconds, as on the metrics page. Spans are
    exported in batches by a thread of the library, which drops spans beyond its queue of 2,048.
    """

    def __init__(self, exporter: "SpanExporter") -> None:
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
        from opentelemetry.trace import SpanKind
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        resource = Resource.create({"vllm.instrumenting_module_name": MODULE_NAME, "vllm.process_id": str(os.getpid())})
        self._provider: TracerProvider = TracerProvider(resource=resource, shutdown_on_exit=False)
        self._provider.add_span_processor(BatchSpanProcessor(exporter))
        self._tracer = self._provider.get_tracer(SCOPE)
        self._propagator = TraceContextTextMapPropagator()
        self._kind = SpanKind.SERVER

    def received(self, job: ReplyJob) -> None:
        """Do nothing: a span is made when it has ended."""

    def completed(
        self, job: ReplyJob, prompt_number: int, generation: Generation, flight: Flight, caller: Caller, started_ns: int
    ) -> None:
        attributes = latency_attributes(flight) | {"gen_ai.request.id": external_id(generation, prompt_number)}
        self._end(attributes | sampling_attributes(job.sampling, flight), caller, started_ns)

    def prefilled(self, flight: Flight, caller: Caller, started_ns: int) -> None:
        name, _, _ = flight.request.id.rpartition("-")
        self._end(latency_attributes(flight) | {"gen_ai.request.id": name}, caller, started_ns)

    def close(self) -> None:
        """Export what is queued, and stop the thread of the library."""
        self._provider.shutdown()

    def _end(self, attributes: dict[str, Any], caller: Caller, started_ns: int) -> None:
        context = None
        if caller.traceparent:
            carrier = {"traceparent": caller.traceparent, "tracestate": caller.tracestate}
            context = self._propagator.extract(carrier)
        span = self._tracer.start_span(
            SPAN_NAME, context=context, kind=self._kind, attributes=attributes, start_time=started_ns
        )
        span.end(time.time_ns())


def latency_attributes(flight: Flight) -> dict[str, Any]:
    """Return vLLM's attributes about tokens and latencies of a complete request; latencies in simulated seconds."""
    scheduled_at, first_at = flight.first_scheduled_at, flight.first_token_at
    scheduled_at = flight.queued_at if scheduled_at is None else scheduled_at
    first_at = scheduled_at if first_at is None else first_at
    return {
        "gen_ai.latency.time_to_first_token": _seconds(flight.first_token_latency_us),
        "gen_ai.latency.e2e": _seconds(flight.e2e_latency_us),
        "gen_ai.latency.time_in_queue": _seconds(scheduled_at - flight.queued_at),
        "gen_ai.usage.prompt_tokens": flight.request.input_tokens,
        "gen_ai.usage.completion_tokens": flight.num_tokens,
        "gen_ai.latency.time_in_model_prefill": _seconds(first_at - scheduled_at),
        "gen_ai.latency.time_in_model_decode": _seconds(flight.last_token_at - first_at),
        "gen_ai.latency.time_in_model_inference": _seconds(flight.last_token_at - scheduled_at),
    }


def sampling_attributes(sampling: Sampling | None, flight: Flight) -> dict[str, Any]:
    """Return vLLM's attributes about sampling. vLLM leaves out a temperature of 0, and each choice has n 1."""
    if sampling is None:
        return {}
    found: dict[str, Any] = {
        "gen_ai.request.top_p": 1.0 if sampling.is_greedy else float(sampling.top_p),
        "gen_ai.request.max_tokens": flight.request.max_output_tokens,
    }
    if sampling.temperature:
        found["gen_ai.request.temperature"] = float(sampling.temperature)
    return found | {"gen_ai.request.n": 1}


def _seconds(us: Micros) -> float:
    return us / 1e6
