"""A receiver of spans that is gone holds no program up: a batch is tried for two seconds, or as the environment says."""

import pytest

from blis_sim.options.extras import PROTOCOL_VARIABLE, PROTOCOLS, new_exporter

pytest.importorskip("opentelemetry.exporter.otlp")


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize(("environment", "expected"), [({}, 2.0), ({"OTEL_EXPORTER_OTLP_TIMEOUT": "7"}, 7.0)])
def test_a_batch_is_tried_for_a_limited_time(
    protocol: str, environment: dict[str, str], expected: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {**environment, PROTOCOL_VARIABLE: protocol}.items():
        monkeypatch.setenv(name, value)
    exporter = new_exporter("http://127.0.0.1:9")
    assert exporter._timeout == expected  # type: ignore[attr-defined]
    exporter.shutdown()
