"""Goodput of a run: over all that arrived."""

from hypothesis import given, settings
from hypothesis import strategies as st

from replay.analysis.on_demand import goodput
from replay.output.findings import AnalysisConfig, analyze, judgements
from replay.simulation.simulate import Simulated
from tests.examples import examples
from tests.fakes import request
from tests.replay.labelled_runs import labelled_runs, ran
from traces import SloTargets
from traces.goodput import Goodput


def of(run: Simulated, **targets: SloTargets) -> Goodput:
    """In two seconds."""
    return goodput(run.requests, targets, 2.0)


def test_refused_abandoned_and_cut_requests_arrived_but_are_not_good() -> None:
    run = ran(
        (0, request("good"), {}),
        (0, request("refused", input_tokens=10_000), {}),
        (0, request("given up", output_tokens=90, deadline_us=2_500), {}),
        (5_000, request("cut off", output_tokens=90), {}),
        horizon_us=20_000,
    )
    found = of(run, default=SloTargets(ttft_ms=10))
    assert (found.classes["default"].count, found.share, found.per_s) == (4, 0.25, 0.5)
    assert found.classes["default"].attained.by_limit == {"ttft": 1.0}


def test_classes_without_targets_count_nowhere() -> None:
    run = ran((0, request("a"), {"slo_class": "batch"}), (0, request("b"), {"slo_class": "critical"}))
    found = of(run, batch=SloTargets(ttft_ms=10))
    assert (list(found.classes), found.share, found.per_s) == (["batch"], 1.0, 0.5)


def test_all_classes_together_are_weighed_by_their_requests() -> None:
    run = ran(
        (0, request("a", output_tokens=2), {"slo_class": "batch"}),
        (0, request("b", output_tokens=2), {"slo_class": "batch"}),
        (0, request("c", output_tokens=9), {}),
    )
    found = of(run, batch=SloTargets(e2e_ms=2), default=SloTargets(e2e_ms=2))
    assert (found.share, found.per_s) == (2 / 3, 1.0)


def test_the_metrics_leave_out_zeros_and_missing_latencies() -> None:
    run = ran((0, request(input_tokens=10_000), {}))
    found = analyze(run, AnalysisConfig(targets={"default": SloTargets(ttft_ms=1, itl_ms=1)}))
    assert judgements(found) == {
        "per_class": {
            "default": {
                "count": 1,
                "goodput_rps": 0,
                "slo_attainment": 0,
                "slo_attainment_by_dim": {"itl": 0, "ttft": 0},
            }
        }
    }


def test_the_metrics_of_a_class_come_by_name() -> None:
    asked = AnalysisConfig(targets={"default": SloTargets(ttft_ms=1)}, detectors=["threshold"])
    content = judgements(analyze(ran((0, request(), {})), asked))
    assert list(content) == ["saturation", "goodput_rps", "slo_attainment", "per_class"]
    assert content["per_class"]["default"] == {
        "count": 1,
        "e2e_p99_ms": 3,
        "goodput_rps": content["goodput_rps"],
        "itl_mean_ms": 1,
        "slo_attainment": 1,
        "slo_attainment_by_dim": {"ttft": 1},
        "ttft_p99_ms": 1,
    }


_limits_ms = st.sampled_from([0.5, 1.0, 2.0, 5.0, 20.0])


@given(labelled_runs(), _limits_ms, _limits_ms)
@settings(max_examples=examples(60), deadline=None)
def test_goodput_grows_with_the_target(run: Simulated, one_ms: float, other_ms: float) -> None:
    strict, loose = sorted((one_ms, other_ms))
    strictly = of(run, default=SloTargets(e2e_ms=strict, ttft_ms=strict))
    loosely = of(run, default=SloTargets(e2e_ms=loose, ttft_ms=loose))
    assert strictly.share <= loosely.share
    assert strictly.per_s <= loosely.per_s


@given(labelled_runs())
@settings(max_examples=examples(60), deadline=None)
def test_targets_that_nothing_misses_are_met_by_all_that_completed(run: Simulated) -> None:
    classes = ("default", "critical", "standard", "batch", "background")
    found = of(run, **dict.fromkeys(classes, SloTargets(ttft_ms=1e9, itl_ms=1e9, e2e_ms=1e9)))
    assert sum(each.count for each in found.classes.values()) == len(run.requests)
    num_completed = sum(each.is_completed for each in run.requests)
    assert sum(each.attained.num_good for each in found.classes.values()) == num_completed
