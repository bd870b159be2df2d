"""Both sides are held to the same limits."""

import pytest

from calibrate.calibration import Goodput, goodput, goodput_compat, itl, itl_compat
from calibrate.compare import Network, latencies, pair, pair_compat
from tests.calibrate.recordings import result, row, trace
from traces import ResultRow, SloTargets, TraceRow

Chunks = dict[int, list[int]]


def _goodput(rows: list[TraceRow], results: list[ResultRow], chunks: Chunks, **targets: SloTargets) -> Goodput:
    pairing = pair(trace(rows), results, 0)
    return goodput(pairing, latencies(pairing, Network()), itl(pairing, chunks), targets)


def _compat(rows: list[TraceRow], results: list[ResultRow], chunks: Chunks, **targets: SloTargets) -> Goodput:
    pairing = pair_compat(trace(rows), results, 0)
    return goodput_compat(pairing, latencies(pairing, Network()), itl_compat(pairing, chunks), targets)


def test_a_request_is_good_when_it_meets_all_limits_of_its_class() -> None:
    rows = [
        row(0, ttft_us=50, e2e_us=150, slo_class="a"),
        row(1, ttft_us=150, e2e_us=160, slo_class="a"),
        row(2, ttft_us=50, e2e_us=999, slo_class="a"),
        row(3, ttft_us=999, e2e_us=999, slo_class="b"),
    ]
    found = _goodput(rows, [result(number) for number in range(4)], {}, a=SloTargets(ttft_ms=0.1, e2e_ms=0.5))
    (of_class,) = found.classes.values()
    assert (of_class.count, of_class.real.share, of_class.sim.share) == (3, 1 / 3, 1.0)
    assert of_class.real.by_limit == {"e2e": 2 / 3, "ttft": 2 / 3}
    assert of_class.real.per_s == pytest.approx(1 / 999e-6)


def test_default_limits_hold_for_requests_without_a_class() -> None:
    rows = [row(0), row(1, slo_class="batch"), row(2, slo_class="default")]
    found = _goodput(rows, [result(number) for number in range(3)], {}, default=SloTargets(ttft_ms=1))
    assert found.classes["default"].count == 2


def test_an_itl_limit_is_checked_on_both_sides_or_on_neither() -> None:
    rows = [row(0), row(1)]
    results = [result(0, itl_mean_us=50.0), result(1, itl_mean_us=50.0)]
    found = _goodput(rows, results, {0: [1050, 1060, 1070, 1080, 1090]}, default=SloTargets(itl_ms=0.02))
    of_class = found.classes["default"]
    assert found.itl_skipped
    assert (of_class.real.share, of_class.sim.share) == (1.0, 0.5)
    assert (of_class.real.by_limit, of_class.sim.by_limit) == ({"itl": 1.0}, {"itl": 0.0})


def test_an_empty_class_has_no_share() -> None:
    of_class = _goodput([row(0)], [result(0)], {}, critical=SloTargets(e2e_ms=1)).classes["critical"]
    assert (of_class.count, of_class.real.share, of_class.real.by_limit) == (0, 0.0, {"e2e": 0.0})


def test_the_original_checks_later_limits_only_for_what_met_the_earlier() -> None:
    rows = [row(0, ttft_us=50), row(1, ttft_us=500, e2e_us=500), row(2, ttft_us=50, status="error")]
    results = [result(number) for number in range(3)]
    targets = SloTargets(ttft_ms=0.1, e2e_ms=0.2, itl_ms=1)
    of_class = _compat(rows, results, {}, default=targets).classes["default"]
    assert (of_class.count, of_class.real.share) == (3, 0.0)
    assert of_class.real.by_limit == {"e2e": 1.0, "itl": 0.0, "ttft": 0.5}
