"""OpenTelemetry spans of `blis observe`, joined with those of the server."""

from pathlib import Path
from typing import Any

import pytest

from blis_sim.cli.main import run
from blis_sim.options import OptionError, options_from
from observe.options import ObserveOptions
from tests.wire.serving import running_server
from tests.wire.test_request_spans import collecting
from traces import read_trace

LOAD = ["--rate", "50", "--num-requests", "4", "--prompt-tokens", "20", "--output-tokens", "3"]


def by_scope(spans: list[dict[str, Any]], scope: str) -> list[dict[str, Any]]:
    return [span for span in spans if span["scope"] == scope]


def test_spans_of_the_server_are_children_of_those_of_the_client(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    prefix = str(tmp_path / "load")
    with collecting(monkeypatch) as found, running_server(otlp_traces_endpoint=found.url) as server:
        asked = ["observe", "--url", server.url, *LOAD, "--warmup-requests", "1", "-o", prefix]
        assert run([*asked, "--otlp-traces-endpoint", found.url]) == 0
        spans: list[dict[str, Any]] = []
        while sum(bool(span["parent"]) for span in spans) < 3 or len(by_scope(spans, "blis-observe")) < 3:
            spans += found.taken(1)
    assert f"3 spans sent to {found.url}" in capsys.readouterr().err
    of_client = {span["span"]: span for span in by_scope(spans, "blis-observe")}
    of_server = [span for span in spans if span["parent"]]
    assert {span["name"] for span in of_server} == {"llm_request"}
    joined = [of_client[span["parent"]] for span in of_server]
    rows = {row.x_request_id: row for row in read_trace(f"{prefix}.yaml").rows}
    assert sorted(span["gen_ai.request.id"] for span in joined) == sorted(rows)
    assert [span["trace"] for span in of_server] == [span["trace"] for span in joined]
    for span in joined:
        row = rows[span["gen_ai.request.id"]]
        assert (span["name"], span["kind"], span["parent"]) == ("text_completion m", 3, "")
        assert (span["gen_ai.usage.input_tokens"], span["gen_ai.usage.output_tokens"]) == (row.server_input_tokens, 3)
        assert span["lasted_s"] == pytest.approx((row.last_chunk_time_us - row.send_time_us) / 1e6)
        assert span["gen_ai.latency.e2e"] == pytest.approx(span["lasted_s"])


def test_without_the_flag_no_context_is_sent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with collecting(monkeypatch) as found, running_server(otlp_traces_endpoint=found.url) as server:
        assert run(["observe", "--url", server.url, *LOAD, "-o", str(tmp_path / "load")]) == 0
        assert [span["parent"] for span in found.taken(4)] == [""] * 4


def test_a_receiver_that_is_not_there_takes_nothing_from_the_recording(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "http/protobuf")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_TIMEOUT", "1")
    prefix = str(tmp_path / "load")
    with running_server() as server:
        asked = ["observe", "--url", server.url, *LOAD, "-o", prefix]
        assert run([*asked, "--otlp-traces-endpoint", "http://127.0.0.1:9/v1/traces"]) == 0
    assert "4 spans were not taken by http://127.0.0.1:9/v1/traces" in capsys.readouterr().err
    assert len(read_trace(f"{prefix}.yaml").rows) == 4


def test_a_proxy_sends_no_requests_to_make_spans_of() -> None:
    given: dict[str, Any] = {"url": "http://127.0.0.1:9", "proxy": (0,), "output": "x"}
    with pytest.raises(OptionError, match="--proxy and --otlp-traces-endpoint exclude each other"):
        options_from(ObserveOptions, otlp_traces_endpoint="http://127.0.0.1:9", **given)
