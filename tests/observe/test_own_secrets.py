"""The keys of the load client, and what is to be redacted, are in none of its files, messages and spans."""

import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeAlias

import pytest

from observe.options import ProxyOptions
from observe.spans import TracingOptions

Observe: TypeAlias = Callable[..., Any]

KEY = "plantedkey-77"


class Echo(BaseHTTPRequestHandler):
    """A server that refuses all requests for tokens, and repeats their keys."""

    protocol_version = "HTTP/1.1"

    def log_message(self, *_: Any) -> None: ...

    def do_GET(self) -> None:
        self._answer(200, {"data": [{"id": "m"}]})

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        if "x-request-id" not in self.headers:  # which counts the tokens of a prompt
            self._answer(200, {"choices": [], "usage": {"prompt_tokens": 100, "completion_tokens": 1}})
            return
        own = self.headers["authorization"], self.headers["x-team-secret"]
        self._answer(
            401, {"error": {"message": f"no such keys: {own}, nor sk-live-PLANTEDPLANTED", "customer": "acme"}}
        )

    def _answer(self, status: int, value: Any) -> None:
        body = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


@pytest.fixture(scope="module")
def echo_url() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Echo)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The spans that were exported."""
    from opentelemetry.sdk.trace.export import SpanExportResult

    found: list[Any] = []

    def export(batch: list[Any]) -> SpanExportResult:
        found.extend(batch)
        return SpanExportResult.SUCCESS

    exporter = SimpleNamespace(export=export, shutdown=lambda: None)
    monkeypatch.setattr("blis_sim.installation.new_exporter", lambda *_: exporter)
    return found


def test_a_server_that_repeats_keys_gets_them_into_nothing(
    echo_url: str, spans: list[Any], observe: Observe, tmp_path: Path
) -> None:
    run = observe(
        url=echo_url,
        num_requests=3,
        api_key=KEY,
        header=("x-team-secret=plantedteam-1",),
        proxying=ProxyOptions(redact=("acme",)),
        tracing=TracingOptions(otlp_traces_endpoint="http://localhost:1"),
    )
    assert run.code == 1
    shown = (
        run.messages
        + "".join(path.read_text() for path in tmp_path.iterdir())
        + "".join(span.to_json() for span in spans)
    )
    assert "no such keys" in shown
    assert [each for each in ("planted", "PLANTED", "acme") if each in shown] == []
    assert len(spans) == 3
