"""A receiver of spans that is gone holds no program up, and no setting with a URL brings a key into a log."""

from types import SimpleNamespace
from typing import Any

import pytest

from blis_sim.installation import PROTOCOL_VARIABLE, new_exporter
from blis_sim.options import OptionError, options_from
from mockserve.options.content import PlaybackOptions

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
def test_a_url_with_a_key_is_refused_without_showing_it(url: str) -> None:
    with pytest.raises(OptionError, match="--otlp-traces-endpoint must not carry a user name") as of_spans:
        new_exporter(url)
    with pytest.raises(OptionError, match="--playback-upstream must not carry a user name") as of_playback:
        options_from(PlaybackOptions, playback="r.jsonl", playback_miss="forward", playback_upstream=url)
    assert "planted" not in f"{of_spans.value} {of_playback.value}"
