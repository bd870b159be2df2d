"""The process that makes and exports spans from lines that the server writes."""

import os
import signal
import sys
import threading
from typing import Any, BinaryIO

import orjson

from blis_sim.installation import new_exporter

SCOPE = "vllm.tracing.otel"
MODULE_NAME = "vllm.llm_engine"
SPAN_NAME = "llm_request"
NICENESS = 5
"""Niceness of the process: the server has precedence."""
FINAL_EXPORT_TIMEOUT_S = 1.5
"""Time limit for exporting the last spans of a server, whose receiver may be gone."""


def export_until_closed(lines: BinaryIO, endpoint: str, server_pid: str) -> None:
    """Export the spans of each line, a JSON list, until the input closes; then flush queued spans within the limit."""
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor
    from opentelemetry.trace import SpanKind
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    resource = Resource.create({"vllm.instrumenting_module_name": MODULE_NAME, "vllm.process_id": server_pid})
    provider: Any = TracerProvider(resource=resource, shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(new_exporter(endpoint)))
    tracer, propagator = provider.get_tracer(SCOPE), TraceContextTextMapPropagator()
    for line in lines:
        for attributes, parent, state, started_ns, ended_ns in orjson.loads(line):
            context = propagator.extract({"traceparent": parent, "tracestate": state}) if parent else None
            span = tracer.start_span(
                SPAN_NAME, context=context, kind=SpanKind.SERVER, attributes=attributes, start_time=started_ns
            )
            span.end(ended_ns)
    # The limit begins here: on a busy machine this process may still be starting when its server stops.
    limit = threading.Timer(FINAL_EXPORT_TIMEOUT_S, os._exit, (1,))
    limit.start()
    provider.shutdown()
    limit.cancel()


if __name__ == "__main__":
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # a terminal or service manager signals all processes at once
    os.nice(NICENESS)
    export_until_closed(sys.stdin.buffer, *sys.argv[1:])
