"""Priorities of requests."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from blis_sim.engine.core import Engine
from blis_sim.engine.events import Preempted, Scheduled
from blis_sim.engine.scheduler.policies import PRIORITIES, PriorityPolicy
from blis_sim.engine.urgency import (
    DEFAULT_AGE_SCORES,
    DEFAULT_SLO_PRIORITIES,
    SLO_CLASS_PRIORITIES,
    AgeScores,
    parse_base_scores,
)
from blis_sim.options import OptionError
from tests.fakes import TestLatency, config, request, run

urgency = DEFAULT_SLO_PRIORITIES.urgency


def policy(name: str, scores: AgeScores = DEFAULT_AGE_SCORES) -> PriorityPolicy:
    return PRIORITIES[name](DEFAULT_SLO_PRIORITIES, scores)


def test_classes_are_ordered_by_importance() -> None:
    classes = ["background", "sheddable", "batch", "standard", "critical"]
    assert sorted(classes, key=urgency) == ["critical", "standard", "batch", "sheddable", "background"]


def test_the_most_important_class_has_urgency_0() -> None:
    assert min(map(urgency, SLO_CLASS_PRIORITIES)) == urgency("critical") == 0


@pytest.mark.parametrize("slo_class", ["", "gold", "Critical"])
def test_an_unknown_class_counts_as_standard(slo_class: str) -> None:
    assert urgency(slo_class) == urgency("standard")


@pytest.mark.parametrize(("own", "expected"), [(None, urgency("batch")), (-7, -7), (0, 0)])
def test_by_default_a_request_that_names_its_priority_has_that_and_others_that_of_their_class(
    own: int | None, expected: int
) -> None:
    assert policy("slo-class")(request(slo_class="batch")._replace(priority=own), 0) == expected


@given(st.lists(st.integers(0, 1000), unique=True), st.integers(1000, 10_000), st.integers(-5, 5))
def test_the_order_is_that_of_the_documented_scores_at_any_instant(arrivals: list[int], now: int, base: int) -> None:
    """Larger scores come first; smaller priorities do."""
    scores = {
        "slo-based": lambda arrived_at: base + 1e-6 * (now - arrived_at),
        "inverted-slo": lambda arrived_at: base - 1e-6 * (now - arrived_at),
    }
    for name, score in scores.items():
        by_score = sorted(arrivals, key=score, reverse=True)
        assert sorted(arrivals, key=lambda arrived_at: policy(name)(request(), arrived_at)) == by_score


CLASSES = ("", "batch", "critical")


@given(
    st.lists(st.tuples(st.integers(0, 1000), st.sampled_from(CLASSES)), unique_by=lambda each: each[0]),
    st.dictionaries(st.sampled_from(["default", *CLASSES[1:]]), st.integers(-5, 5)),
    st.sampled_from([0.0, 1e-3, 0.5]),
)
def test_bases_by_class_and_the_weight_of_age_set_the_order(
    arrivals: list[tuple[int, str]], bases: dict[str, int], weight: float
) -> None:
    scores, now = AgeScores(1.0, bases, weight), 5_000
    for name, sign in (("slo-based", 1), ("inverted-slo", -1)):
        priority = policy(name, scores)
        for at, slo_class in arrivals:
            for other_at, other_class in arrivals:
                score = bases.get(slo_class or "default", 1.0) + sign * weight * (now - at)
                other = bases.get(other_class or "default", 1.0) + sign * weight * (now - other_at)
                ours, theirs = (
                    priority(request(slo_class=each), instant)
                    for each, instant in ((slo_class, at), (other_class, other_at))
                )
                assert (ours < theirs) == (score > other + 1e-9), "smaller priorities come first, and larger scores"


def test_a_request_of_a_lower_base_comes_first_once_it_is_old_enough() -> None:
    aged = AgeScores(*parse_base_scores("critical=1"), weight=0.5)
    limits = config(scheduler="priority-fcfs", priority_policy="slo-based", age_scores=aged, max_num_seqs=1)
    for waits_us, first in ((1, "critical"), (3, "batch")):
        arrivals = [(1, request("batch", slo_class="batch")), (1 + waits_us, request("critical", slo_class="critical"))]
        events = run(Engine(limits, TestLatency()), [(0, request("first")), *arrivals])
        order = [event.sequence.request.id for event in events if isinstance(event, Scheduled)]
        assert order[1] == first


@pytest.mark.parametrize(
    ("text", "expected"),
    [("0", (0.0, {})), ("-2.5", (-2.5, {})), ("critical=4, batch=-1", (0.0, {"critical": 4.0, "batch": -1.0}))],
)
def test_bases_are_one_score_or_one_for_each_class(text: str, expected: tuple[float, dict[str, float]]) -> None:
    assert parse_base_scores(text) == expected


@pytest.mark.parametrize("text", ["", "high", "=1", "batch=", "batch=nan", "1e300", "a=1,a=2", "1,2"])
def test_other_bases_are_refused(text: str) -> None:
    with pytest.raises(OptionError, match="--priority-base"):
        parse_base_scores(text)


def admitted(scheduler: str, priority_policy: str) -> str:
    """Return the order in which an engine with one seat admits waiting requests: `c` is critical, and came last."""
    classes = [("a", ""), ("b", "batch"), ("c", "critical")]
    arrivals = [(at, request(name, slo_class=slo_class)) for at, (name, slo_class) in enumerate(classes, 1)]
    limits = config(scheduler=scheduler, priority_policy=priority_policy, max_num_seqs=1)
    engine = Engine(limits, TestLatency())
    events = run(engine, [(0, request("first")), *arrivals])
    return "".join(event.sequence.request.id for event in events if isinstance(event, Scheduled)).removeprefix("first")


@pytest.mark.parametrize(
    ("scheduler", "priority_policy", "order"),
    [
        ("priority-fcfs", "slo-class", "cab"),
        ("priority-fcfs", "constant", "abc"),
        ("priority-fcfs", "slo-based", "abc"),
        ("priority-fcfs", "inverted-slo", "cba"),
        ("reverse-priority", "slo-class", "bac"),
        ("reverse-priority", "constant", "abc"),
        ("reverse-priority", "slo-based", "cba"),
        ("reverse-priority", "inverted-slo", "abc"),
        ("fcfs", "inverted-slo", "abc"),
        ("sjf", "inverted-slo", "abc"),
    ],
)
def test_schedulers_go_by_the_priority_policy(scheduler: str, priority_policy: str, order: str) -> None:
    assert admitted(scheduler, priority_policy) == order


@pytest.mark.parametrize(
    ("priority_policy", "victim"), [("slo-class", "old"), ("slo-based", "young"), ("inverted-slo", "old")]
)
@pytest.mark.parametrize("scheduling", ["blis", "vllm"])
def test_the_victim_of_a_preemption_is_the_least_urgent(scheduling: str, priority_policy: str, victim: str) -> None:
    num_blocks = 6 if scheduling == "vllm" else 5  # vLLM keeps one for itself
    limits = config(num_blocks, engine=scheduling, preemption_policy="priority", priority_policy=priority_policy)
    arrivals = [(0, request("old", 7, 9, slo_class="batch")), (1, request("young", 7, 9, slo_class="critical"))]
    events = run(Engine(limits, TestLatency()), arrivals)
    assert next(event.sequence.request.id for event in events if isinstance(event, Preempted)) == victim
