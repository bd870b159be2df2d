"""A receiver of spans that is gone holds no program up: a batch is tried for two seconds by default."""

from types import SimpleNamespace
from typing import Any

import pytest

from blis_sim.installation import PROTOCOL_VARIABLE, new_exporter

pytest.importorskip("opentelemetry.exporter.otlp")


@pytest.mark.parametrize(("protocol", "package"), [("grpc", "grpc"), ("http/protobuf", "http")])
@pytest.mark.parametrize(("variable", "expected"), [("", 2.0), ("OTEL_EXPORTER_OTLP_TIMEOUT", None)])
def test_a_batch_is_tried_for_a_limited_time(
    protocol: str, package: str, variable: str, expected: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(PROTOCOL_VARIABLE, protocol)
    if variable:
        monkeypatch.setenv(variable, "7")

    def made(**settings: Any) -> Any:
        return SimpleNamespace(**settings)

    monkeypatch.setattr(f"opentelemetry.exporter.otlp.proto.{package}.trace_exporter.OTLPSpanExporter", made)
    exporter: Any = new_exporter("http://127.0.0.1:9")
    assert (exporter.endpoint, exporter.timeout) == ("http://127.0.0.1:9", expected)
