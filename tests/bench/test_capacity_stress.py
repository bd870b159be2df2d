"""The stress tests of a plan's winner: each is simulated, or says why it is not."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from math import log
from typing import Any

import pytest

from blis_sim.bench.candidates import SERVED, Candidate, Judgement, Simulations, Targets, Wanted
from blis_sim.bench.capacity import Trial
from blis_sim.bench.capacity import stressed as under_stress
from blis_sim.bench.points import Outcome
from blis_sim.engine.latency.confidence import LEVELS, METRICS, RatioSpread, Sureness

FIGURES = {
    "completed_requests": 10, "injected_requests": 10, "rejected_requests": 0, "timed_out_requests": 0,
    "ttft_p99_ms": 5.0,
}  # fmt: skip


class Asked(Simulations):
    """Simulations that note what is asked, and all meet the targets."""

    def __init__(self) -> None:
        super().__init__("run", None)  # type: ignore[arg-type]
        self.settings: list[Mapping[str, Any]] = []

    def outcomes(self, asked: Sequence[Any], wanted_by: Callable[[Any], Wanted]) -> Iterator[tuple[int, Outcome]]:
        for place, each in enumerate(asked):
            self.settings.append(wanted_by(each).settings)
            yield place, Outcome(FIGURES)


def stressed(**settings: Any) -> tuple[dict[str, str], list[Mapping[str, Any]]]:
    """The reason of each test that was not tried, and the settings of the others."""
    candidate = Candidate(
        gpu="H100", settings=settings, gpus_per_instance=(1,), busy_instances=(1.0,), price_per_gpu_hour=1.0, label="x",
        sureness=Sureness("fitted", {}),
    )  # fmt: skip
    asked, targets = Asked(), Targets({"ttft_p99_ms": 10.0})
    trial = Trial(candidate, (2,), Judgement({"ttft_p99_ms": 0.5}, "ttft_p99_ms"))
    found = under_stress(asked, trial, targets, most_gpus=16).stress_tests
    return {each.name.split(" ")[0]: each.reason for each in found if each.judgement is None}, asked.settings


@pytest.mark.parametrize(
    ("settings", "grown"),
    [
        ({"rate": 10.0}, {"rate": 13.0}),
        ({"rate": 10.0, "workload_spec": "spec.yaml"}, {"rate": 13.0, "workload_spec": "spec.yaml"}),
        ({"trace": "trace.yaml"}, {"trace": "trace.yaml", "speedup": 1.3}),
        ({"trace": "trace.yaml", "speedup": 2.0}, {"trace": "trace.yaml", "speedup": 2.6}),
    ],
)
def test_thirty_percent_more_requests_are_simulated(settings: dict[str, Any], grown: dict[str, Any]) -> None:
    _, asked = stressed(**settings)
    assert grown.items() <= asked[0].items()


def test_bursts_of_a_spec_are_not_tried_as_its_gaps_are_its_own() -> None:
    reasons, asked = stressed(rate=10.0, workload_spec="spec.yaml")
    assert reasons == {"bursts": "the gaps between requests are those of the workload"}
    assert all("arrival_cv" not in each for each in asked)
    assert not stressed(rate=10.0)[0]


def test_users_have_no_rate_to_raise() -> None:
    assert set(stressed(concurrency=8)[0]) == {"30%", "bursts"}


def sure(factor: float) -> Sureness:
    """Servers whose times are so many times the predicted ones, as often more as less within a tenth."""
    spread = RatioSpread(log(factor), 0.1, [2 * level - 1 for level in LEVELS])
    return Sureness("kernels", {}, ratios=dict.fromkeys(METRICS, spread))


def test_a_target_is_met_with_the_probability_that_servers_are_as_fast() -> None:
    targets, outcome = Targets({"ttft_p99_ms": 10.0}), Outcome({"ttft_p99_ms": 5.0})
    assert targets.probability(outcome, sure(2.0)) == pytest.approx(0.5)
    assert targets.probability(outcome, sure(1.0)) == pytest.approx(0.99)
    assert targets.probability(outcome, Sureness("roofline", {})) is None


def test_the_target_that_is_least_sure_decides() -> None:
    outcome = Outcome({"ttft_p99_ms": 5.0, "itl_p99_ms": 20.0})
    assert Targets({"ttft_p99_ms": 10.0, "itl_p99_ms": 10.0}).probability(outcome, sure(1.0)) == pytest.approx(0.01)


@pytest.mark.parametrize("confidence", [0.6, 0.9])
def test_what_is_judged_with_a_confidence_meets_the_targets_as_probably(confidence: float) -> None:
    targets, servers = Targets({"ttft_p99_ms": 10.0}, confidence), sure(1.5)
    (limit_ms,) = targets.for_server(servers).limits_ms.values()
    assert targets.probability(Outcome({"ttft_p99_ms": limit_ms}), servers) == pytest.approx(confidence)


def test_a_confidence_never_allows_more_than_the_target() -> None:
    assert Targets({"ttft_p99_ms": 10.0}, 0.9).for_server(sure(0.1)).limits_ms == {"ttft_p99_ms": 10.0}


def test_without_a_confidence_predicted_times_are_taken_as_they_are() -> None:
    assert Targets({"ttft_p99_ms": 10.0}).for_server(sure(3.0)).limits_ms == {"ttft_p99_ms": 10.0}


def test_an_overloaded_deployment_meets_no_target() -> None:
    overloaded = Outcome({**FIGURES, "overload_queue_growth_per_min": 40.0})
    assert Targets({"ttft_p99_ms": 10.0}).judge(overloaded).worst == SERVED
