"""The life of requests in front of instances, and of instances."""

import pytest

from blis_sim.engine.cluster.admission import FunctionPolicy, always_admit, reject_all
from blis_sim.engine.cluster.cluster import Cluster, DecisionLog
from blis_sim.engine.cluster.routing import LeastOutstanding, RoundRobin, least_loaded
from blis_sim.engine.cluster.settings import Freshness, Latencies
from blis_sim.engine.core import Engine
from blis_sim.engine.errors import EngineError
from blis_sim.engine.events import Finished, Scheduled
from blis_sim.engine.sequence import NOWHERE
from tests.engine.cluster.small_clusters import cluster, endings, engine, run_out
from tests.fakes import TestLatency, config, request


def last(num_equals: int, input_tokens: int) -> int:
    return num_equals - 1


def submitted(made: Cluster, count: int, gap_us: int = 0) -> Cluster:
    for number in range(count):
        made.submit(request(f"r{number}"), number * gap_us)
    return made


def test_decisions_take_their_time_and_latencies_count_from_the_arrival() -> None:
    made = submitted(cluster(1, latencies=Latencies(admission_us=300, routing_us=40)), 1)
    (scheduled,) = (event for event in run_out(made) if isinstance(event, Scheduled))
    assert scheduled.at == 340
    assert scheduled.sequence.arrived_at == 0


def test_a_rejected_request_comes_to_no_instance() -> None:
    made = submitted(cluster(1, admission=FunctionPolicy(reject_all)), 2)
    assert endings(made) == [(0, "r0", "rejected", NOWHERE), (0, "r1", "rejected", NOWHERE)]
    assert made.counters.num_rejected_at_admission == 2
    assert made.counters.rejected_by_class == {"standard": 2}
    assert made.clock == 0


def test_the_clock_is_that_of_an_arrival_that_has_not_come_to_the_queue_yet() -> None:
    engines = [Engine(config(), TestLatency(queueing_us=300)) for _ in range(2)]
    made = Cluster(engines, FunctionPolicy(always_admit), RoundRobin())
    assert made.clock == 0
    made.submit(request(), 10)
    for until, clock in ((5, 0), (10, 10), (200, 10), (400, 310)):
        made.advance(until)
        assert made.clock == clock


def test_all_that_arrive_at_an_instant_are_seen_by_the_router_one_after_the_other() -> None:
    made = submitted(cluster(3, router=least_loaded(last)), 3)
    assert [instance for _, _, _, instance in endings(made)] == [0, 1, 2]


@pytest.mark.parametrize("gap_us", [0, 300])
def test_the_least_outstanding_instance_is_the_one_with_the_fewest_requests_in_flight(gap_us: int) -> None:
    made = submitted(cluster(3, router=LeastOutstanding()), 6, gap_us)
    assert sorted((name, instance) for _, name, _, instance in endings(made)) == [
        (f"r{number}", number % 3) for number in range(6)
    ]


def test_a_stale_report_hides_what_an_instance_has_to_do() -> None:
    """Only what the router sent itself is known at once."""
    made = cluster(2, router=least_loaded(last), freshness=Freshness(refresh_interval_us=1_000_000))
    submitted(made, 4, gap_us=500)
    made.advance(1_600)
    assert [snapshot.num_waiting + snapshot.num_running for snapshot in made.state.candidates] == [0, 0]
    assert [snapshot.num_in_flight for snapshot in made.state.candidates] == [1, 2]


def test_a_client_that_hangs_up_before_its_request_is_routed_ends_it_there() -> None:
    made = submitted(cluster(1, latencies=Latencies(routing_us=500)), 1)
    made.abort("r0", 200)
    assert endings(made) == [(200, "r0", "aborted", NOWHERE)]


def test_a_client_that_hangs_up_later_ends_it_on_its_instance() -> None:
    made = submitted(cluster(2), 2)
    made.abort("r1", 1_500)
    assert (1_500, "r1", "aborted", 1) in endings(made)


def test_an_id_can_be_used_again_when_its_request_has_ended() -> None:
    made = submitted(cluster(1), 1)
    with pytest.raises(ValueError, match="still in the cluster"):
        made.submit(request("r0"), 10)
    made.advance(100_000)
    made.submit(request("r0"), 200_000)
    assert len(endings(made)) == 1


def test_an_executed_event_cannot_be_changed() -> None:
    made = cluster(1)
    made.advance(50)
    too_late = pytest.raises(ValueError, match="already done everything up to 50 us")
    with too_late:
        made.submit(request("r0"), 50)
    with too_late:
        made.abort("r0", 50)
    with too_late:
        made.kill(0, 50)


def test_a_drained_instance_finishes_what_it_has_and_gets_no_more() -> None:
    made = submitted(cluster(2), 6, gap_us=100)
    made.drain(0, 250)
    ended = endings(made)
    assert {name: instance for _, name, _, instance in ended} == {"r0": 0, "r1": 1, "r2": 0, "r3": 1, "r4": 1, "r5": 1}
    assert {outcome for _, _, outcome, _ in ended} == {"completed"}


def test_requests_of_a_killed_instance_fail() -> None:
    made = submitted(cluster(2), 4, gap_us=100)
    made.kill(0, 250)
    assert {name: outcome for _, name, outcome, _ in endings(made)} == {
        "r0": "failed",
        "r1": "completed",
        "r2": "failed",
        "r3": "completed",
    }


def test_without_an_instance_requests_are_rejected() -> None:
    made = submitted(cluster(1), 2, gap_us=100)
    made.kill(0, 50)
    assert (100, "r1", "rejected", NOWHERE) in endings(made)
    assert made.counters.num_rejected_at_routing == 1


def test_an_instance_that_was_added_takes_requests_from_its_instant_on() -> None:
    made = submitted(cluster(1), 4, gap_us=100)
    assert made.add_instance(engine(), 150) == 1
    assert {name: instance for _, name, _, instance in endings(made)} == {"r0": 0, "r1": 0, "r2": 0, "r3": 1}


def test_instances_may_differ() -> None:
    engines = [Engine(config(), TestLatency(step_us=step_us)) for step_us in (1_000, 5_000)]
    made = submitted(Cluster(engines, FunctionPolicy(always_admit), RoundRobin()), 2)
    assert [(at, name) for at, name, _, _ in endings(made)] == [(3_000, "r0"), (15_000, "r1")]


@pytest.mark.parametrize(("num_candidates", "regret"), [(1, 2), (3, 2), (0, 0)])
def test_regret_is_what_a_better_choice_would_have_scored_more(num_candidates: int, regret: int) -> None:
    log = DecisionLog(num_candidates)
    made = Cluster(
        [engine(), engine()],
        FunctionPolicy(always_admit),
        RoundRobin(),
        Freshness(refresh_interval_us=0, cache_delay_us=0),
        decisions=log,
    )
    made.submit(request("long", output_tokens=50), 0)
    made.submit(request("short", output_tokens=1), 0)
    made.submit(request("late"), 10_000)
    run_out(made)
    assert [decision.regret for decision in log.decisions] == [0, 0, regret], "it runs there and is in flight"
    best = ["instance_1", "instance_0"][:num_candidates]
    assert [candidate.instance for candidate in log.decisions[2].candidates] == best
    assert log.num_admitted == 3


def test_state_of_many_ended_requests_is_forgotten() -> None:
    made = cluster(2)
    ended = 0
    for number in range(5_000):
        made.submit(request(f"r{number}", output_tokens=1), number * 5_000)
        ended += sum(isinstance(event, Finished) for event in made.advance(number * 5_000))
    assert ended > 4_900
    assert len(made._request_table) < 1_100


@pytest.mark.parametrize("name", ["refresh_interval_us", "cache_delay_us"])
def test_no_report_is_fresher_than_one_with_interval_0(name: str) -> None:
    with pytest.raises(EngineError, match=f"{name} must be at least 0, got -1"):
        Freshness(**{name: -1})


def test_a_request_that_names_an_instance_is_neither_admitted_nor_routed() -> None:
    made = cluster(3, admission=FunctionPolicy(reject_all))
    made.submit(request("a"), 5, instance=2)
    (ended,) = endings(made)
    assert ended[1:] == ("a", "completed", 2)
    assert made.instance_of("a") == 2
    assert made.counters.num_rejected_at_admission == 0


def test_no_request_comes_to_an_instance_that_is_gone_by_its_name() -> None:
    made = cluster(2)
    made.kill(1, 3)
    made.submit(request("a"), 5, instance=1)
    assert endings(made) == [(5, "a", "rejected", NOWHERE)]
    assert (made.instance_of("a"), made.instance_of("b")) == (NOWHERE, NOWHERE)


def test_a_request_that_hangs_up_before_coming_to_a_named_instance_is_not_there() -> None:
    made = cluster(2)
    made.submit(request("a"), 5, instance=1)
    made.submit(request("b"), 5, instance=0)
    made.abort("a", 5)
    assert sorted(endings(made))[0] == (5, "a", "aborted", 1)
    assert not made.instances[1].live


def test_events_can_be_reported_with_their_instances() -> None:
    numbered = submitted(cluster(3), 6, gap_us=400)
    plain = submitted(cluster(3), 6, gap_us=400)
    reported = numbered.advance_each(1_000_000)
    assert [(event.at, type(event)) for _, event in reported] == [
        (event.at, type(event)) for event in plain.advance(1_000_000)
    ]
    for number, event in reported:
        if isinstance(event, Scheduled | Finished):
            assert event.sequence.instance == number
    assert {number for number, _ in reported} == {0, 1, 2}
