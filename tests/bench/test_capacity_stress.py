"""The stress tests of a plan's winner: each is simulated, or says why it is not."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from math import inf, log
from typing import Any

import pytest

from blis_sim.bench.candidates import SERVED, Candidate, Judgement, Simulations, Targets, Wanted
from blis_sim.bench.capacity import Trial, Winner
from blis_sim.bench.capacity import stressed as under_stress
from blis_sim.bench.points import Outcome
from blis_sim.engine.latency.confidence import METRICS, RatioSpread, Sureness

FIGURES = {
    "completed_requests": 10, "injected_requests": 10, "rejected_requests": 0, "timed_out_requests": 0,
    "ttft_p99_ms": 5.0,
}  # fmt: skip


class Asked(Simulations):
    """Simulations that note what is asked, and all meet the targets."""

    def __init__(self, *, are_open: bool = False, slowest_overload: float = inf) -> None:
        """With `are_open` longer runs judge, which find an overload from a rate on."""
        super().__init__("run", None)  # type: ignore[arg-type]
        self.settings: list[Mapping[str, Any]] = []
        self.by_longer: list[tuple[float, int]] = []
        self._are_open = are_open
        self._slowest_overload = slowest_overload

    def outcomes(self, asked: Sequence[Any], wanted_by: Callable[[Any], Wanted]) -> Iterator[tuple[int, Outcome]]:
        for place, each in enumerate(asked):
            settings, by_longer = wanted_by(each)
            self.settings.append(settings)
            self.by_longer += [(settings["rate"], settings["num_instances"])] if by_longer and self._are_open else []
            is_overload = by_longer and settings.get("rate", 0) >= self._slowest_overload
            growth = {"overload_queue_growth_per_min": 1.0} if is_overload else {}
            yield place, Outcome({**FIGURES, **growth}, is_open=self._are_open and not by_longer)


def winner_of(asked: Asked, *, is_open: bool, **settings: Any) -> Winner | None:
    candidate = Candidate(
        gpu="H100", settings=settings, gpus_per_instance=(1,), busy_instances=(1.0,), price_per_gpu_hour=1.0, label="x",
        sureness=Sureness("fitted", {}),
    )  # fmt: skip
    trial = Trial(candidate, (2,), Judgement({"ttft_p99_ms": 0.5}, "ttft_p99_ms", is_open=is_open))
    return under_stress(asked, trial, Targets({"ttft_p99_ms": 10.0}), most_gpus=16)


def stressed(**settings: Any) -> tuple[dict[str, str], list[Mapping[str, Any]]]:
    """The reason of each test that was not tried, and the settings of the others."""
    asked = Asked()
    found = winner_of(asked, is_open=False, **settings)
    assert found is not None
    reasons = {each.name.split(" ")[0]: each.reason for each in found.stress_tests if each.judgement is None}
    return reasons, asked.settings


def test_longer_runs_of_the_highest_rate_spare_those_of_the_winner_and_of_lower_rates() -> None:
    asked = Asked(are_open=True)
    winner = winner_of(asked, is_open=True, rate=10.0)
    assert winner is not None
    assert winner.highest_rate_per_s == 20
    bursts = (10, 2)
    assert [each for each in asked.by_longer if each[1] == 2] == [(20, 2), bursts]


def test_a_winner_that_longer_runs_find_overloaded_is_none() -> None:
    assert winner_of(Asked(are_open=True, slowest_overload=10.0), is_open=True, rate=10.0) is None
    winner = winner_of(Asked(are_open=True, slowest_overload=15.0), is_open=True, rate=10.0)
    assert winner is not None
    assert (winner.highest_rate_per_s or 0) < 15


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
    levels = [place / 100 for place in range(1, 100)]
    spread = RatioSpread([log(factor) + 0.1 * (2 * level - 1) for level in levels], levels)
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
    (limit_ms,) = targets.for_server(servers, Outcome({})).limits_ms.values()
    assert targets.probability(Outcome({"ttft_p99_ms": limit_ms}), servers) == pytest.approx(confidence)


@pytest.mark.parametrize(("ttft_ms", "factor"), [(99.0, 1.5), (100.0, 3.0)])
def test_what_servers_are_slower_by_is_that_of_bursts_where_requests_wait_for_a_tenth_of_their_time(
    ttft_ms: float, factor: float
) -> None:
    servers = sure(1.5)._replace(waiting_ratios=sure(3.0).ratios)
    outcome = Outcome({"ttft_mean_ms": ttft_ms, "e2e_mean_ms": 1000.0, "itl_p99_ms": 10.0})
    targets = Targets({"itl_p99_ms": 30.0}, 0.5)
    (limit_ms,) = targets.for_server(servers, outcome).limits_ms.values()
    assert limit_ms == pytest.approx(30.0 / factor)
    assert Targets({"itl_p99_ms": 10.0 * factor}).probability(outcome, servers) == pytest.approx(0.5)


def test_a_confidence_never_allows_more_than_the_target() -> None:
    assert Targets({"ttft_p99_ms": 10.0}, 0.9).for_server(sure(0.1), Outcome({})).limits_ms == {"ttft_p99_ms": 10.0}


def test_without_a_confidence_predicted_times_are_taken_as_they_are() -> None:
    assert Targets({"ttft_p99_ms": 10.0}).for_server(sure(3.0), Outcome({})).limits_ms == {"ttft_p99_ms": 10.0}


def test_an_overloaded_deployment_meets_no_target() -> None:
    overloaded = Outcome({**FIGURES, "overload_queue_growth_per_min": 40.0})
    assert Targets({"ttft_p99_ms": 10.0}).judge(overloaded).worst == SERVED
