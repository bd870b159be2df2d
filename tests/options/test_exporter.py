"""A receiver of spans that is gone holds no program up, and no setting with a URL brings a key into a log."""

from types import SimpleNamespace
from typing import Any

import pytest

from blis_sim.installation import PROTOCOL_VARIABLE, new_exporter
from blis_sim.options import OptionError, options_from
from mockserve.options.content import PlaybackOptions
from mockserve.options.server import ObservabilityOptions
from observe.spans import TracingOptions

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


@pytest.mark.parametrize("url", ["http://ann:planted@h:4318/v1/traces", "http://h/v1?api-key=planted"])
@pytest.mark.parametrize(
    ("options", "settings"),
    [
        (ObservabilityOptions, {"otlp_traces_endpoint": ""}),
        (TracingOptions, {"otlp_traces_endpoint": ""}),
        (PlaybackOptions, {"playback_upstream": "", "playback": "r.jsonl", "playback_miss": "forward"}),
    ],
)
def test_a_url_with_a_key_is_refused_without_showing_it(url: str, options: type, settings: dict[str, str]) -> None:
    with pytest.raises(OptionError, match=r"^--[a-z-]+ must not carry a user name, a password or a key, ") as refused:
        options_from(options, **{name: value or url for name, value in settings.items()})
    assert "planted" not in str(refused.value)
