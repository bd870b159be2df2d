"""What OpenTelemetry spans cost a server, and whether a receiver can join them with those of its clients.

    pip install -e '.[otel]'
    python -m workshop.spans

Clients have spans of the official SDK, whose context goes along as `traceparent`. A receiver of OTLP over HTTP takes
the server's spans, each of which must be well formed and the child of its client's span.
"""

import argparse
import asyncio
import os
import subprocess
import sys
import threading
import time
from contextlib import ExitStack
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import aiohttp
from opentelemetry import trace
from opentelemetry.propagate import inject
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace import TracerProvider

MODEL = "qwen/qwen3-14b"
NUM_AT_ONCE = 64
NUM_WARM_UP = 300


class Receiver(ThreadingHTTPServer):
    """Keeps the spans that are sent to it."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.bodies: list[bytes] = []
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @property
    def spans(self) -> list[Any]:
        messages = [ExportTraceServiceRequest.FromString(body) for body in self.bodies]
        return [
            span for each in messages for found in each.resource_spans for scope in found.scope_spans
            for span in scope.spans
        ]  # fmt: skip


class _Handler(BaseHTTPRequestHandler):
    server: Receiver

    def do_POST(self) -> None:
        self.server.bodies.append(self.rfile.read(int(self.headers["Content-Length"])))
        self.send_response(200)
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        """Keep the output clean."""


def problems(span: Any) -> list[str]:
    """What OpenTelemetry's protocol forbids."""
    found = []
    if len(span.trace_id) != 16 or not any(span.trace_id) or len(span.span_id) != 8 or not any(span.span_id):
        found.append("ids")
    if not span.name or span.kind not in range(1, 6):
        found.append("name or kind")
    if not 0 < span.start_time_unix_nano <= span.end_time_unix_nano:
        found.append("times")
    keys = [each.key for each in span.attributes]
    if len(keys) != len(set(keys)) or not all(keys):
        found.append("attributes")
    return found


async def send(url: str, number: int, parents: set[bytes]) -> None:
    """Send so many requests, each within a span of the client."""
    tracer = TracerProvider().get_tracer("client")
    waiting = iter(range(number))
    async with aiohttp.ClientSession() as session:

        async def client() -> None:
            for _ in waiting:
                span = tracer.start_span("ask", kind=trace.SpanKind.CLIENT)
                headers: dict[str, str] = {}
                inject(headers, trace.set_span_in_context(span))
                parents.add(span.get_span_context().span_id.to_bytes(8, "big"))
                body = {"model": MODEL, "prompt": "once upon a time", "max_tokens": 16, "ignore_eos": True}
                async with session.post(url + "/v1/completions", json=body, headers=headers) as reply:
                    await reply.read()
                    assert reply.status == 200
                span.end()

        await asyncio.gather(*(client() for _ in range(NUM_AT_ONCE)))


def processor_s(pid: int) -> float:
    cells = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(cells[11]) + int(cells[12])) / os.sysconf("SC_CLK_TCK")


def measured(flags: list[str], number: int, parents: set[bytes]) -> tuple[float, float]:
    """Milliseconds of processor per request, and requests per second."""
    command = [sys.executable, "-m", "blis_sim.cli", "serve", MODEL, "--host", "127.0.0.1", "--port", "0"]
    environment = {**os.environ, "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "http/protobuf"}
    with ExitStack() as stack:
        process = subprocess.Popen(
            [*command, "--speed", "50", *flags], stderr=subprocess.PIPE, text=True, env=environment
        )
        stack.callback(process.wait, 30)
        stack.callback(process.terminate)
        assert process.stderr is not None
        url = "http://127.0.0.1:" + process.stderr.readline().split(" (")[0].rsplit(":", 1)[1]
        asyncio.run(send(url, NUM_WARM_UP, parents))
        before, began = processor_s(process.pid), time.monotonic()
        asyncio.run(send(url, number, parents))
        lasted_s = time.monotonic() - began
        return (processor_s(process.pid) - before) / number * 1e3, number / lasted_s


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=4000)
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    with Receiver() as receiver:
        parents: set[bytes] = set()
        for _ in range(given.rounds):
            for name, flags in (
                ("off", []),
                ("on", ["--otlp-traces-endpoint", f"http://127.0.0.1:{receiver.server_address[1]}/v1/traces"]),
            ):
                sent = parents if name == "on" else set()
                cpu_ms, per_s = measured(flags, given.requests, sent)
                print(f"spans {name:<3} {cpu_ms:.3f} ms of processor per request, {per_s:.0f} requests/s", flush=True)
        spans = receiver.spans
        receiver.shutdown()
    wrong = [each for span in spans if (each := problems(span))]
    joined = {span.parent_span_id for span in spans} & parents
    print(f"{len(spans)} spans of {len(parents)} requests, {len(wrong)} not well formed;", end=" ")
    print(f"{len(joined)} parents are spans of clients")


if __name__ == "__main__":
    main()
