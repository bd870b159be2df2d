"""OpenTelemetry spans and log lines of requests, compared with those of vLLM 0.33."""

import json
import logging
import queue
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import pytest

from blis_sim.options import OptionError, options_from
from mockserve.options.serve import ServeOptions
from tests.patience import PATIENCE_S
from tests.wire.serving import running_server
from tests.wire.test_no_secrets_in_logs import HEADERS as PLANTED
from tests.wire.test_server_process import ask, process

collector = pytest.importorskip("opentelemetry.proto.collector.trace.v1.trace_service_pb2")

TRACE_ID, PARENT_ID = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
CLIENT = {"traceparent": f"00-{TRACE_ID}-{PARENT_ID}-01", "tracestate": "a=b"}
LATENCIES = (
    "gen_ai.latency.time_to_first_token", "gen_ai.latency.e2e", "gen_ai.latency.time_in_queue",
    "gen_ai.latency.time_in_model_prefill", "gen_ai.latency.time_in_model_decode",
    "gen_ai.latency.time_in_model_inference",
)  # fmt: skip


class Collector(ThreadingHTTPServer):
    """A receiver of OTLP over HTTP that keeps the spans."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.spans: queue.Queue[tuple[Any, Any]] = queue.Queue()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/v1/traces"

    def taken(self, number: int) -> list[dict[str, Any]]:
        """The next spans with their attributes as plain values."""
        return [_plain(*self.spans.get(timeout=PATIENCE_S)) for _ in range(number)]


class _Handler(BaseHTTPRequestHandler):
    server: Collector

    def do_POST(self) -> None:
        message = collector.ExportTraceServiceRequest()
        message.ParseFromString(self.rfile.read(int(self.headers["Content-Length"])))
        for resource in message.resource_spans:
            for scope in resource.scope_spans:
                for span in scope.spans:
                    self.server.spans.put((scope.scope.name, span))
        self.send_response(200)
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        """Keep the output of tests clean."""


def _plain(scope: str, span: Any) -> dict[str, Any]:
    values = {each.key: getattr(each.value, each.value.WhichOneof("value")) for each in span.attributes}
    return {
        "scope": scope,
        "name": span.name,
        "kind": span.kind,
        "trace": span.trace_id.hex(),
        "span": span.span_id.hex(),
        "parent": span.parent_span_id.hex(),
        "state": span.trace_state,
        "lasted_s": (span.end_time_unix_nano - span.start_time_unix_nano) / 1e9,
        **values,
    }


@contextmanager
def collecting(monkeypatch: pytest.MonkeyPatch) -> Iterator[Collector]:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "http/protobuf")
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "50")
    with Collector() as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield server
        server.shutdown()
        thread.join(PATIENCE_S)


def post(url: str, path: str, headers: dict[str, str] | None = None, **body: Any) -> bytes:
    sent = Request(url + path, json.dumps(body).encode(), {"Content-Type": "application/json", **(headers or {})})
    with urlopen(sent, timeout=PATIENCE_S) as response:
        return bytes(response.read())


def test_each_choice_has_a_span_with_the_attributes_of_vllm(monkeypatch: pytest.MonkeyPatch) -> None:
    with collecting(monkeypatch) as found, running_server(otlp_traces_endpoint=found.url) as server:
        chat = [{"role": "user", "content": "hi there"}]
        post(
            server.url,
            "/v1/chat/completions",
            {**CLIENT, "X-Request-Id": "abc"},
            model="m",
            messages=chat,
            n=2,
            max_tokens=5,
        )
        both = found.taken(2)
        post(
            server.url,
            "/v1/completions",
            model="m",
            prompt=["one", "two"],
            max_tokens=4,
            temperature=0,
            top_p=0.5,
            stream=True,
        )
        greedy = found.taken(2)
    for span in both:
        assert (span["scope"], span["name"], span["kind"]) == ("vllm.tracing.otel", "llm_request", 2)
        assert (span["trace"], span["parent"], span["state"]) == (TRACE_ID, PARENT_ID, "a=b")
        assert (span["gen_ai.request.id"], span["gen_ai.request.n"]) == ("chatcmpl-abc", 1)
        assert (span["gen_ai.request.temperature"], span["gen_ai.request.top_p"]) == (1.0, 1.0)
        assert (span["gen_ai.usage.completion_tokens"], span["gen_ai.request.max_tokens"]) == (5, 5)
    # Five steps of 1 ms, the first of which is prefill; the second choice joins the step after that of the first.
    assert sorted([round(span[name], 6) for name in LATENCIES] for span in both) == [
        [0.001, 0.005, 0.0, 0.001, 0.004, 0.005],
        [0.002, 0.006, 0.0, 0.002, 0.004, 0.006],
    ]
    ids = [span["gen_ai.request.id"] for span in greedy]
    assert [each[-2:] for each in ids] == ["-0", "-1"]
    assert all(each.startswith("cmpl-") for each in ids)
    for span in greedy:
        assert "gen_ai.request.temperature" not in span
        assert (span["gen_ai.request.top_p"], span["parent"]) == (1.0, "")
        assert 0 < span["lasted_s"] < PATIENCE_S


def test_planted_keys_are_in_no_span(monkeypatch: pytest.MonkeyPatch) -> None:
    with collecting(monkeypatch) as found, running_server(otlp_traces_endpoint=found.url) as server:
        prompt = "sk-proj-plantedplantedplanted"
        post(
            server.url,
            "/v1/completions?api_key=planted-1",
            PLANTED,
            model="m",
            prompt=prompt,
            max_tokens=2,
            openai_api_key="planted-9",
        )
        (span,) = found.taken(1)
    assert "planted" not in str(span)


def test_a_malformed_trace_context_begins_a_trace_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    with collecting(monkeypatch) as found, running_server(otlp_traces_endpoint=found.url) as server:
        post(server.url, "/v1/responses", {"traceparent": "junk"}, model="m", input="hello", max_output_tokens=3)
        post(server.url, "/v1/completions", CLIENT, model="m", prompt="x", n=600, max_tokens=1)
        (first, *many) = found.taken(601)
    assert first["parent"] == ""
    assert first["gen_ai.request.id"].startswith("resp_")
    assert first["gen_ai.request.id"].endswith("_0")
    assert {each["parent"] for each in many} == {PARENT_ID}


def test_pooled_prompts_have_spans_without_sampling(monkeypatch: pytest.MonkeyPatch) -> None:
    with (
        collecting(monkeypatch) as found,
        running_server(otlp_traces_endpoint=found.url, convert="embed") as server,
    ):
        post(server.url, "/v1/embeddings", CLIENT, model="m", input=["a b", "c"])
        spans = found.taken(2)
    assert {each["parent"] for each in spans} == {PARENT_ID}
    assert not [name for each in spans for name in each if name.startswith("gen_ai.request.") and name[15:] != "id"]


@pytest.mark.slow
def test_several_processes_export_their_spans_and_the_last_ones_before_they_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with collecting(monkeypatch) as found:
        monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "60000")
        settings = ("--port", "0", "--api-server-count", "2", "--otlp-traces-endpoint", found.url)
        with process(*settings, "--served-model-name", "m", "--speed", "20") as (running, line):
            body = json.dumps({"model": "m", "prompt": "x", "max_tokens": 2}).encode()
            head = f"POST /v1/completions HTTP/1.0\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n"
            ask(line, head.encode() + f"traceparent: {CLIENT['traceparent']}\r\n\r\n".encode() + body)
            running.send_signal(signal.SIGTERM)
            assert running.wait(PATIENCE_S) == 0
        (span,) = found.taken(1)
    assert (span["parent"], span["gen_ai.usage.completion_tokens"]) == (PARENT_ID, 2)
    assert span["gen_ai.latency.e2e"] >= span["gen_ai.latency.time_to_first_token"] > 0


@pytest.mark.slow
def test_an_exporting_process_that_starts_late_exports_the_spans_of_a_server_that_has_stopped(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "sitecustomize.py").write_text("import time\ntime.sleep(4)\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with collecting(monkeypatch) as found:
        with running_server(otlp_traces_endpoint=found.url) as server:
            post(server.url, "/v1/completions", CLIENT, model="m", prompt="x", max_tokens=2)
        assert found.spans.qsize() == 1


def test_requests_are_logged_in_the_words_of_vllm(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "mockserve")
    settings: dict[str, Any] = {"enable_log_requests": True, "enable_log_outputs": True, "max_log_len": 3}
    with running_server(**settings) as server:
        body = post(server.url, "/v1/completions", {"X-Request-Id": "q"}, model="m", prompt="one", max_tokens=4, seed=1)
        text = json.loads(body)["choices"][0]["text"]
    received, generated = [each.getMessage() for each in caplog.records if each.name == "mockserve.reply.observers"]
    assert received == (
        "Received request cmpl-q-0: params: SamplingParams(n=1, presence_penalty=0.0, frequency_penalty=0.0, "
        "repetition_penalty=1.0, temperature=1.0, watermarking=None, top_p=1.0, top_k=0, min_p=0.0, seed=1, stop=[], "
        "stop_token_ids=[], bad_words=[], thinking_token_budget=None, include_stop_str_in_output=False, "
        "ignore_eos=False, max_tokens=4, min_tokens=0, logprobs=None, prompt_logprobs=None, skip_special_tokens=True, "
        "spaces_between_special_tokens=True, structured_outputs=None, extra_args=None), lora_request: None."
    )
    assert generated == f"Generated response cmpl-q-0: output: {text[:3]!r}, finish_reason: length"


def test_an_access_log_names_client_request_and_status(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "mockserve")
    with running_server(access_log=True) as server:
        urlopen(server.url + "/health?x=%0A", timeout=PATIENCE_S).read()
        with pytest.raises(OSError, match="404"):
            urlopen(server.url + "/nothing", timeout=PATIENCE_S)
    lines = [each.getMessage() for each in caplog.records if each.name == "mockserve.http.application"]
    assert [line.partition(" - ")[2] for line in lines] == [
        '"GET /health?x=%0A HTTP/1.1" 200 OK',
        '"GET /nothing HTTP/1.1" 404 Not Found',
    ]
    assert lines[0].startswith("127.0.0.1:")


def test_outputs_are_logged_only_with_requests() -> None:
    with pytest.raises(OptionError, match="--enable-log-outputs requires --enable-log-requests"):
        options_from(ServeOptions, model="qwen/qwen3-14b", enable_log_outputs=True)


def test_an_unknown_protocol_of_traces_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "smoke")
    from blis_sim.installation import new_exporter

    with pytest.raises(OptionError, match="must be one of grpc, http/protobuf, got 'smoke'"):
        new_exporter("http://127.0.0.1:1")
