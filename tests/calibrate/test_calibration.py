"""A calibration as a whole: network, throughput, groups, hit rates, and what cannot be compared."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from calibrate.calibration import (
    COMPAT,
    PLAIN,
    Calibration,
    HitRate,
    MetricsFile,
    Rules,
    calibrate,
    compare_adapter,
    hit_rate,
    summary_sentences,
)
from calibrate.compare import CalibrateError, Network, latencies, pair, rtt_us_of
from calibrate.report import additions, report_of
from tests.calibrate.recordings import result, row, trace
from tests.capped import capped_rows
from traces import ResultRow, Trace, TraceHeader, dump_json


def _calibrate(recorded: Trace, results: list[ResultRow], rules: Rules = PLAIN, **given: Any) -> Calibration:
    settings: dict[str, Any] = {"chunks": {}, "warm_up_requests": 0, "network": Network(), "targets": {}}
    settings |= {"hit_rate": None, "ttft_threshold": 0.15} | given
    return calibrate(recorded, results, rules=rules, **settings)


def _metrics(**values: Any) -> MetricsFile:
    return MetricsFile(Path("m.json"), values)


def test_the_network_is_added_to_the_simulated_side() -> None:
    pairing = pair(trace([row(0)]), [result(0, ttft_us=60, e2e_us=160, input_tokens=1000, output_tokens=50)], 0)
    times = latencies(pairing, Network(rtt_us=2000, bandwidth_mbps=100))
    assert (times.real_ttft_us[0], times.real_e2e_us[0]) == (50, 150)
    assert times.sim_ttft_us[0] == pytest.approx(60 + 2000 + 320)
    assert times.sim_e2e_us[0] == pytest.approx(160 + 2000 + 320 + 16)


def test_the_round_trip_of_the_header_is_cut_to_whole_microseconds() -> None:
    assert rtt_us_of(TraceHeader(measured_rtt_ms=1.2349)) == 1234
    assert rtt_us_of(TraceHeader()) == 0


def test_throughput_counts_requests_and_tokens_over_the_whole_time() -> None:
    rows = [row(0, send_us=10, e2e_us=1_000_000), row(1, send_us=1_000_010, e2e_us=1_000_000)]
    found = _calibrate(trace(rows), [result(0, e2e_us=1e6), result(1, e2e_us=3e6, output_tokens=15)])
    assert (found.real_throughput.requests_per_s, found.real_throughput.output_tokens_per_s) == (1.0, 5.0)
    assert (found.sim_throughput.requests_per_s, found.sim_throughput.output_tokens_per_s) == (0.5, 5.0)


def test_a_simulation_that_sent_by_itself_takes_as_long_as_it_did() -> None:
    rows = [row(0, send_us=10, e2e_us=1_000_000), row(1, send_us=1_000_010, e2e_us=1_000_000)]
    results = [result(0, e2e_us=1e6, sent_at_us=0), result(1, e2e_us=1e6, sent_at_us=4_000_000)]
    found = _calibrate(trace(rows), results)
    assert (found.real_throughput.duration_s, found.sim_throughput.duration_s) == (2.0, 5.0)


def test_a_simulation_that_sent_when_a_capped_client_did_is_named() -> None:
    rows = capped_rows(40, cap=4)
    as_recorded = [result(each.request_id, sent_at_us=each.send_time_us - 500) for each in rows]
    found = _calibrate(trace(rows), as_recorded)
    assert found.ignored_cap is not None
    assert found.ignored_cap.max_concurrency == 4
    assert any("--reissue --max-concurrency 4" in sentence for sentence in summary_sentences(found))
    by_itself = [each._replace(sent_at_us=3 * (each.sent_at_us or 0)) for each in as_recorded]
    assert _calibrate(trace(rows), by_itself).ignored_cap is None
    assert _calibrate(trace(rows), as_recorded, is_recording=True).ignored_cap is None


def test_classes_and_models_are_distinguished() -> None:
    rows = [row(0, ttft_us=100, slo_class="a", model="m"), row(1, ttft_us=100, slo_class="b"), row(2, slo_class="b")]
    results = [result(0, ttft_us=110), result(1, ttft_us=120), result(2, ttft_us=50)]
    found = _calibrate(trace(rows), results)
    assert {name: group.count for name, group in found.by_slo_class.items()} == {"a": 1, "b": 2}
    assert found.by_slo_class["b"].ttft_mape == pytest.approx(0.1)
    assert list(found.by_model) == ["m"]


def test_a_recording_compared_with_itself_is_excellent() -> None:
    rows = [row(number, ttft_us=50 + 10 * number, e2e_us=1000 + 70 * number) for number in range(20)]
    results = [result(number, ttft_us=50 + 10 * number, e2e_us=1000 + 70 * number) for number in range(20)]
    found = _calibrate(trace(rows), results)
    assert {comparison.quality for comparison in found.metrics.values()} == {"excellent"}
    assert {comparison.mape for comparison in found.metrics.values()} == {0.0}
    assert {comparison.bias for comparison in found.metrics.values()} == {"neutral"}


@pytest.mark.parametrize(
    ("rows", "warm_up", "said"),
    [
        ([], 0, r"^t\.csv has no rows, so there is nothing to compare$"),
        ([row(9), row(8)], 0, r"^no row of t\.csv can be compared: of 2, 2 have a request_id the results lack$"),
        ([row(0), row(1)], 5, r"can be compared: of 2, 2 are warm-up$"),
        ([row(0, status="error"), row(9)], 0, r": of 2, 1 failed, 1 have a request_id the results lack$"),
        ([row(0, ttft_us=-5)], 0, r": of 1, 1 have no usable times$"),
    ],
)
def test_an_empty_comparison_is_explained(rows: list[Any], warm_up: int, said: str) -> None:
    with pytest.raises(CalibrateError, match=said):
        _calibrate(trace(rows), [result(0), result(1)], warm_up_requests=warm_up)


def test_an_empty_comparison_is_explained_by_the_rules_of_the_original_too() -> None:
    rows = [row(0, ttft_us=-5, status="error"), row(1, ttft_us=-5), row(9)]
    with pytest.raises(CalibrateError, match=r": of 3, 2 have no usable times, 1 have a request_id the results lack$"):
        _calibrate(trace(rows), [result(0), result(1)], COMPAT)


@given(st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 10**6)), min_size=1, max_size=20))
def test_a_report_can_always_be_written(latency_pairs: list[tuple[int, int]]) -> None:
    rows = [row(place, ttft_us=real, e2e_us=real) for place, (real, _) in enumerate(latency_pairs)]
    results = [result(place, ttft_us=sim, e2e_us=sim) for place, (_, sim) in enumerate(latency_pairs)]
    for rules in (PLAIN, COMPAT):
        found = _calibrate(trace(rows), results, rules)
        assert dump_json(report_of(found) | additions(found))


def test_hit_rates_within_the_tolerance_are_accepted_to_the_last_digit() -> None:
    header = TraceHeader(observed_kv_metrics={"hit_rate": 0.35, "source": "tiered"})
    found = hit_rate(header, _metrics(cache_hit_rate=0.3), 5.0)
    assert isinstance(found, HitRate)
    assert (found.within, found.source) == (True, "tiered")
    assert found.error_pp == pytest.approx(5)
    further = hit_rate(header, _metrics(cache_hit_rate=0.2999), 5.0)
    assert isinstance(further, HitRate)
    assert not further.within


def test_a_missing_hit_rate_is_reported() -> None:
    header = TraceHeader(observed_kv_metrics={"hit_rate": 0.35})
    assert hit_rate(header, _metrics(), 5.0) == "m.json holds no cache_hit_rate, so cache hit rates are not compared"
    said = "the trace header holds no observed_kv_metrics.hit_rate, so cache hit rates are not compared"
    assert hit_rate(TraceHeader(), _metrics(cache_hit_rate=0.3), 5.0) == said


@pytest.mark.parametrize(
    ("reference", "said"),
    [
        ({}, "m.json key adapter_aware.ttft: expected a number, but the key is missing"),
        ({"adapter_aware": {"ttft": "50"}}, "m.json key adapter_aware.ttft: expected a number, got '50'"),
        ({"adapter_aware": {"ttft": 0}}, "m.json key adapter_aware.ttft: expected a number above 0, got 0"),
    ],
)
def test_a_bad_adapter_reference_is_named(reference: dict[str, Any], said: str) -> None:
    with pytest.raises(CalibrateError, match=f"^{said}$"):
        compare_adapter(_metrics(**reference), _metrics(ttft_mean_ms=1), None, 0.2)
