"""vLLM's distribution of requests over data-parallel ranks, one fact at a time."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from blis_sim.engine.core import Engine
from blis_sim.engine.data_parallel import (
    IDLE_REPORT_INTERVAL_US,
    REPORT_INTERVAL_US,
    LoadReports,
    LockstepReports,
    RankBalancer,
    RankLoad,
    load_of,
)
from tests.fakes import TestLatency, config, request

IDLE = RankLoad()


def reported(*loads: RankLoad, num_front_ends: int = 1, front_end: int = 0) -> RankBalancer:
    balancer = RankBalancer(len(loads), num_front_ends, front_end)
    balancer.update_loads(loads)
    return balancer


def test_idle_ranks_take_turns() -> None:
    balancer = RankBalancer(3)
    assert [balancer.choose() for _ in range(7)] == [0, 1, 2, 0, 1, 2, 0]


def test_front_ends_start_at_different_ranks() -> None:
    assert [RankBalancer(4, 2, front_end).choose() for front_end in range(2)] == [0, 2]


def test_the_start_moves_on_with_every_choice_so_ties_favour_no_rank() -> None:
    balancer = reported(IDLE, IDLE, IDLE)
    chosen = []
    for _ in range(4):
        rank = balancer.choose()
        balancer.finished(rank)
        balancer.update_loads((IDLE, IDLE, IDLE))
        chosen.append(rank)
    assert chosen == [0, 1, 2, 0]


def test_waiting_and_running_requests_count_the_same() -> None:
    assert reported(RankLoad(num_waiting=3, num_running=1), RankLoad(num_running=5)).choose() == 0
    assert reported(RankLoad(num_waiting=4, num_running=2), RankLoad(num_running=5)).choose() == 1


def test_a_queue_weighs_more_the_fuller_the_kv_cache_is() -> None:
    def score(num_waiting: int, usage: float) -> float:
        return reported(RankLoad(num_waiting, 10, usage), IDLE).score(0)

    assert score(4, 0.5) == 14, "up to half full only the numbers count"
    assert score(4, 0.75) == 14 + 4 * 1.5
    assert score(4, 1.0) == 14 + 4 * 3
    assert score(0, 1.0) == 10, "and without a queue, too"


def test_requests_sent_since_the_last_report_count_as_waiting() -> None:
    balancer = reported(IDLE, RankLoad(num_running=2))
    assert [balancer.choose() for _ in range(4)] == [0, 0, 0, 1], "of the third choice's equals the first in turn"


def test_requests_sent_weigh_like_a_queue_in_a_full_cache() -> None:
    balancer = reported(RankLoad(kv_usage_fraction=1.0), RankLoad(num_running=3))
    balancer.choose()
    assert balancer.score(0) == 1 + 3


def test_each_front_end_assumes_that_the_others_send_as_much() -> None:
    balancer = reported(IDLE, RankLoad(num_running=7), num_front_ends=4)
    assert [balancer.choose() for _ in range(3)] == [0, 0, 1]


def test_a_report_replaces_what_was_assumed() -> None:
    balancer = reported(IDLE, RankLoad(num_running=9))
    for _ in range(5):
        balancer.finished(balancer.choose())
    assert balancer.score(0) == 5
    balancer.update_loads((IDLE, IDLE))
    assert balancer.score(0) == 0


def test_unfinished_requests_of_its_own_count_whatever_the_report() -> None:
    balancer = RankBalancer(2)
    for _ in range(3):
        balancer.send_to(0)
    balancer.update_loads((RankLoad(num_running=1), RankLoad(num_running=2)))
    assert (balancer.score(0), balancer.score(1)) == (3, 2)
    balancer.finished(0)
    balancer.finished(0)
    assert balancer.score(0) == 1


def test_the_larger_of_reported_and_own_requests_counts_not_both() -> None:
    balancer = reported(RankLoad(num_running=5), IDLE, num_front_ends=2)
    for _ in range(3):
        balancer.send_to(0)
    assert balancer.score(0) == 6


def test_a_client_that_names_a_rank_moves_neither_the_start_nor_the_queue() -> None:
    balancer = RankBalancer(3)
    balancer.send_to(2)
    balancer.finished(2)
    assert [balancer.choose() for _ in range(3)] == [0, 1, 2]


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9), st.floats(0, 1)), min_size=1, max_size=6))
def test_the_chosen_rank_has_the_lowest_score(loads: list[tuple[int, int, float]]) -> None:
    balancer = reported(*(RankLoad(*load) for load in loads))
    scores = [balancer.score(rank) for rank in range(len(loads))]
    assert scores[balancer.choose()] == min(scores)


def test_a_change_is_reported_at_once_when_the_last_report_is_old_enough() -> None:
    reports = LoadReports(2)
    assert reports.due_at() == IDLE_REPORT_INTERVAL_US - REPORT_INTERVAL_US  # as if there had just been one
    reports.report(1, RankLoad(num_waiting=1), 7_000)
    assert reports.due_at() == 7_000
    assert reports.loads_due(7_000) == (IDLE, RankLoad(num_waiting=1))
    reports.report(1, IDLE, 400_000)
    assert reports.due_at() == 400_000


def test_changes_soon_after_the_last_report_wait_for_100_ms_and_are_reported_together() -> None:
    reports = LoadReports(2)
    reports.report(0, RankLoad(num_waiting=1), 0)
    reports.loads_due(0)
    reports.report(0, RankLoad(num_running=1), 2_000)
    reports.report(1, RankLoad(num_waiting=5), 60_000)
    assert reports.due_at() == 100_000
    assert reports.loads_due(100_000) == (RankLoad(num_running=1), RankLoad(num_waiting=5))


def test_without_a_change_the_loads_are_reported_again_after_5_s() -> None:
    reports = LoadReports(1)
    reports.report(0, RankLoad(num_running=1), 0)
    reports.loads_due(0)
    assert reports.due_at() == 5_000_000


def test_a_rank_reports_when_its_numbers_change_and_its_cache_usage_with_them() -> None:
    reports = LoadReports(1)
    busy = RankLoad(num_running=1, kv_usage_fraction=0.25)
    reports.report(0, busy, 0)
    reports.loads_due(0)
    reports.report(0, replace(busy, kv_usage_fraction=0.75), 300_000)
    assert reports.due_at() == 5_000_000
    assert reports.loads_due(5_000_000) == (busy,)


ONE, TWO = RankLoad(num_waiting=1), RankLoad(num_running=2)


def test_loads_of_ranks_in_lockstep_are_reported_50_ms_after_the_first_forward_pass_with_a_change() -> None:
    reports = LockstepReports(2)
    reports.report(0, ONE, (1, 0), 7_000)
    assert reports.due_at() == 57_000
    assert reports.loads_due(57_000) == (ONE, IDLE)
    assert reports.due_at() == 5_057_000


def test_the_next_forward_pass_releases_the_loads_before_it() -> None:
    reports = LockstepReports(2)
    reports.report(0, ONE, (1, 0), 7_000)
    reports.report(0, TWO, (1, 1), 9_000)
    assert reports.due_at() == 9_000
    assert reports.loads_due(9_000) == (ONE, IDLE)
    assert reports.due_at() == 109_000, "later changes are reported after 100 ms"
    assert reports.loads_due(109_000) == (TWO, IDLE)
    reports.report(1, ONE, (2, 0), 150_000)
    reports.report(1, TWO, (2, 3), 155_000)
    assert reports.due_at() == 209_000
    assert reports.loads_due(209_000) == (TWO, ONE)


def test_an_engine_reports_its_own_load() -> None:
    limits = config(total_kv_blocks=11, engine="vllm", max_num_seqs=1)
    engine = Engine(replace(limits, async_scheduling=False), TestLatency())
    engine.submit(request("a", input_tokens=16), 0)
    engine.submit(request("b"), 0)
    engine.advance(500)
    assert load_of(engine.stats) == RankLoad(num_waiting=1, num_running=1, kv_usage_fraction=0.4)
