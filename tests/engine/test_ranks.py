"""Data-parallel ranks that share experts: forward passes in lockstep, dummy batches, waves, and the rank of a
request."""

import random
from collections.abc import Sequence as SequenceOf
from typing import Any

import pytest

from blis_sim.engine.batch_shape import BatchShape
from blis_sim.engine.cluster.build import build_simulation, notes_on_cluster
from blis_sim.engine.cluster.options import ClusterOptions
from blis_sim.engine.core import Engine
from blis_sim.engine.data_parallel import SLEEP_US, SYNC_INTERVAL, LockstepRanks, RankGroup, new_ranks
from blis_sim.engine.deployment import resolve
from blis_sim.engine.events import CacheChanged, Event, Finished, StepDone
from blis_sim.engine.latency.trained_physics import TrainedPhysics
from blis_sim.engine.latency.wrapped import SlowedLatency
from blis_sim.engine.offloading import OffloadConfig
from blis_sim.engine.request import PrefixGroupBlocks, Request
from blis_sim.engine.sequence import Outcome
from blis_sim.engine.simulation import run_virtual
from blis_sim.engine.speculation import Speculation
from blis_sim.engine.units import Micros
from blis_sim.options import options_from
from tests.fakes import TestLatency, config, request

LATENCY = TestLatency(step_us=3_000, prefill_token_us=70, decode_us=400, queueing_us=900)
LIMITS: dict[str, Any] = {
    "total_kv_blocks": 40,
    "max_num_seqs": 6,
    "max_num_batched_tokens": 32,
    "engine": "vllm",
    "max_model_len": 96,
}
STEP_US = 1_000


def ranks(number: int = 2, latency: TestLatency | None = None, **settings: Any) -> RankGroup:
    return new_ranks(config(**{**LIMITS, **settings}), latency or TestLatency(step_us=STEP_US), number)


def workload(seed: int, number: int = 40, most_gap_us: int = 9_000) -> list[tuple[Micros, Request]]:
    draws, at, found = random.Random(seed), 0, []
    for n in range(number):
        blocks = PrefixGroupBlocks(f"r{n}", f"g{n % 4}", 2)
        found.append((at, request(f"r{n}", draws.randint(9, 60), draws.randint(1, 30), blocks)))
        at += draws.randint(0, most_gap_us)
    return found


def reported(events: SequenceOf[Event]) -> list[tuple[object, ...]]:
    """Comparable parts of events: kind, instant, and the requests concerned."""
    return [
        (type(each).__name__, each.at, [one.request.id for one in each.emitted])
        if isinstance(each, StepDone)
        else (type(each).__name__, each.at, each.sequence.request.id)  # type: ignore[union-attr]
        for each in events
    ]


@pytest.mark.parametrize("is_async", [True, False])
@pytest.mark.parametrize("settings", [{}, {"max_num_seqs": 50}, {"long_prefill_token_threshold": 7}])
def test_one_rank_alone_takes_the_steps_of_an_engine_while_it_has_work(
    is_async: bool, settings: dict[str, Any]
) -> None:
    limits = config(**{**LIMITS, "total_kv_blocks": 400, **settings, "async_scheduling": is_async})
    for seed in range(5):
        arrivals = workload(seed, most_gap_us=0)
        alone = reported(list(run_virtual(Engine(limits, LATENCY), arrivals)))
        assert reported(list(run_virtual(new_ranks(limits, LATENCY, 1), arrivals))) == alone


def test_a_forward_pass_takes_as_long_as_the_slowest_rank_needs() -> None:
    group = ranks(latency=TestLatency(step_us=1_000, prefill_token_us=100))
    group.submit(request("short", 4, 6), 10, rank=0)
    group.submit(request("long", 30, 2), 10, rank=1)
    steps = [event for event in group.advance(10**6) if isinstance(event, StepDone)]
    first, second = group.instances
    assert [first.steps.end(index) for index in range(2)] == [10 + 4_000, 10 + 5_000]
    assert [second.steps.end(index) for index in range(2)] == [10 + 4_000, 10 + 5_000]
    assert {(event.started_at, event.at) for event in steps} == {(10, 4_010), (4_010, 5_010)} | {
        (at, at + 1_000) for at in range(5_010 + SLEEP_US, 9_011, 1_000)
    }


@pytest.mark.parametrize("is_async", [True, False])
def test_a_core_that_composed_no_step_sleeps_before_its_dummy_batch_while_a_request_has_just_ended(
    is_async: bool,
) -> None:
    """Without asynchronous scheduling the end of the last request is known before the next composition."""
    group = ranks(async_scheduling=is_async)
    group.submit(request("short", 4, 2), 0, rank=0)
    group.submit(request("long", 4, 5), 0, rank=1)
    group.advance(10**6)
    starts = [group.instances[1].steps.start(index) for index in range(5)]
    assert starts == [STEP_US * n + SLEEP_US * (is_async and n > 1) for n in range(5)]


def test_a_rank_without_work_slows_the_others_by_its_dummy_batch() -> None:
    group = ranks(latency=TestLatency(step_us=1_000, decode_us=500))
    group.submit(request("a", 4, 3), 10, rank=0)
    group.advance(10**6)
    assert group.instances[0].steps.durations().tolist() == [1_500] * 3
    assert len(group.instances[1].steps) == 0


@pytest.mark.parametrize(
    ("is_async", "arrives_at", "first_step_starts_at"),
    [
        (True, 4_500, 7_000),  # a busy rank would have taken it into the step that starts at 6,000
        (False, 4_500, 6_000),
        (True, 14_500, 16_000),  # composed when all ranks met in the all-reduce
        (False, 15_500, 16_000),
        (False, 500, 1_000),  # they also met after the first forward pass
    ],
)
def test_a_request_comes_a_forward_pass_later_to_a_rank_that_had_none(
    is_async: bool, arrives_at: Micros, first_step_starts_at: Micros
) -> None:
    group = ranks(async_scheduling=is_async)
    group.submit(request("busy", 4, 60), 0, rank=0)
    group.submit(request("newcomer", 4, 2), arrives_at, rank=1)
    group.advance(10**6)
    assert group.instances[1].steps.start(0) == first_step_starts_at


@pytest.mark.parametrize("is_async", [True, False])
def test_a_wave_goes_on_with_dummy_batches_until_ranks_look_for_requests(is_async: bool) -> None:
    group = ranks(async_scheduling=is_async)
    group.submit(request("a", 4, 2), 0, rank=0)
    group.advance(5 * STEP_US)
    assert group.instances[0].stats.num_running == 0
    while (at := group.next_event_at()) is not None:
        group.advance(at)
    assert group.now == SYNC_INTERVAL * STEP_US + (SLEEP_US if is_async else 0)


def test_a_wave_whose_requests_need_one_forward_pass_ends_with_it() -> None:
    group = ranks(async_scheduling=False)
    group.submit(request("a", 4, 1), 0, rank=0)
    group.advance(STEP_US)
    assert group.next_event_at() is None


def test_a_request_that_comes_during_the_last_forward_pass_of_a_wave_begins_the_next_wave() -> None:
    group = ranks(async_scheduling=False, prefill_schedule_interval=4)
    group.submit(request("a", 4, 1), 0, rank=0)
    group.submit(request("b", 4, 40), 500, rank=0)
    late = group.submit(request("c", 4, 2), 2_100, rank=0)
    group.advance(10**6)
    assert late.first_token_at == 6 * STEP_US  # the fifth forward pass of a wave that began at 1,000


def test_a_request_whose_client_left_before_its_rank_took_it_in_begins_a_wave() -> None:
    group = ranks(async_scheduling=False)
    group.submit(request("a", 4, 1), 0, rank=0)
    group.submit(request("gone", 4, 2), 500, rank=0)
    group.abort("gone", 700)
    late = group.submit(request("late", 4, 2), 1_300, rank=1)
    group.advance(10**6)
    assert late.first_token_at == 3 * STEP_US  # after a forward pass of dummy batches


def ranks_with_cpu_memory(block_us: float, **settings: Any) -> RankGroup:
    """Return ranks on whose first a request ends at 1,000 whose blocks go to CPU memory, where alone they are found."""
    offload = OffloadConfig(num_blocks=40, block_us=block_us)
    group = ranks(async_scheduling=False, enable_prefix_caching=False, block_size_tokens=4, offload=offload, **settings)
    group.submit(request("stored", 9, 1, PrefixGroupBlocks("stored", "g", 2)), 0, rank=0)
    return group


def test_a_rank_that_only_stores_blocks_sleeps_before_its_dummy_batch() -> None:
    group = ranks_with_cpu_memory(block_us=300.0)
    other = group.submit(request("other", 4, 12), 400, rank=1)
    group.advance(10**6)
    assert other.first_token_at == STEP_US + SLEEP_US + STEP_US


def test_an_empty_batch_reports_what_came_to_cpu_memory() -> None:
    group = ranks_with_cpu_memory(block_us=300.0, reports_kv_changes=True)
    events = group.advance(10**6)
    changes = [(each.at, len(each.changes)) for each in events if isinstance(each, CacheChanged)]
    assert changes == [(STEP_US + SLEEP_US, 2)]


def test_a_step_behind_many_dummy_batches_is_computed() -> None:
    """A rank that awaits a load hands over a dummy batch each millisecond, and forward passes take longer."""
    group = ranks_with_cpu_memory(block_us=100_000.0, latency=TestLatency(step_us=4 * STEP_US))
    later = group.submit(request("later", 9, 1, PrefixGroupBlocks("later", "g", 2)), 300_000, rank=0)
    group.advance(10**7)
    assert later.outcome is Outcome.COMPLETED


def test_a_load_is_noticed_after_a_sleep_and_begins_behind_the_forward_passes_handed_over_before() -> None:
    group = ranks_with_cpu_memory(block_us=1_500.0)
    later = group.submit(request("later", 9, 1, PrefixGroupBlocks("later", "g", 2)), 3_500, rank=0)
    group.advance(10**6)
    assert later.num_external_tokens == 8
    # Its blocks are there at 5,000, and come back from the end of a dummy batch, 6,000, until 9,000. The core notices
    # that then, sleeps again, and its step waits for the dummy batch of 10,000.
    assert later.first_token_at == 12_000


def test_a_request_after_a_wave_waits_for_no_forward_pass() -> None:
    group = ranks()
    group.submit(request("a", 4, 2), 0)
    late = group.submit(request("b", 4, 2), 100 * STEP_US + 7)
    group.advance(10**6)
    assert late.first_token_at == 101 * STEP_US + 7


@pytest.mark.parametrize("is_async", [True, False])
def test_how_often_a_group_is_advanced_changes_nothing(is_async: bool) -> None:
    for seed in range(4):
        arrivals = workload(seed)
        whole = reported(list(run_virtual(ranks(3, LATENCY, async_scheduling=is_async), arrivals)))
        group, draws, events = ranks(3, LATENCY, async_scheduling=is_async), random.Random(seed), []
        left = list(arrivals)
        while left or group.next_event_at() is not None:
            until = (group.now or 0) + draws.randint(1, 7_000)
            while left and left[0][0] <= until:
                at, each = left.pop(0)
                group.submit(each, at)
            events += group.advance(until)
        assert reported(events) == whole
        assert sum(isinstance(event, Finished) for event in events) == len(arrivals)
        for engine in group.instances:
            engine.check_integrity()
            assert engine.kv.num_used_blocks == 0


def test_requests_go_to_the_rank_that_has_least_to_do() -> None:
    group = ranks(3)
    for n in range(9):
        group.submit(request(f"r{n}", 4, 20), 100 * n)
    group.advance(2_000)
    assert [engine.stats.num_running + engine.stats.num_waiting for engine in group.instances] == [3, 3, 3]
    named = group.submit(request("named", 4, 1), 2_001, rank=2)
    group.advance(10**6)
    assert named.instance == 2


def test_a_client_may_hang_up_before_and_after_its_request_has_come_to_a_rank() -> None:
    group = ranks(latency=LATENCY)
    early, late = group.submit(request("early", 4, 20), 0), group.submit(request("late", 4, 20), 0)
    group.abort("early", 500)
    group.advance(20_000)
    group.abort("late", 25_000)
    group.abort("never there", 25_000)
    group.advance(10**6)
    assert early.outcome is late.outcome is Outcome.ABORTED
    assert group.next_event_at() is None
    assert all(engine.stats.kv_blocks_used == 0 for engine in group.instances)
    with pytest.raises(ValueError, match="already done everything up to 1000000 us"):
        group.abort("late", 10**6)


def test_prefills_are_spaced_alike_on_all_ranks() -> None:
    group = ranks(prefill_schedule_interval=4, total_kv_blocks=200)
    for rank in (0, 1):
        group.submit(request(f"first {rank}", 4, 40), 0, rank=rank)
    newcomers = [group.submit(request(f"r{n}", 4, 2), 2_100 + 4_300 * n, rank=n % 2) for n in range(6)]
    events = group.advance(10**6)
    assert all(each.outcome is Outcome.COMPLETED for each in newcomers)
    firsts = [each.first_token_at for each in newcomers if each.first_token_at is not None]
    assert [at // STEP_US % 4 for at in firsts] == [1] * 6
    assert events


def test_ranks_without_a_request_are_seen_as_one_token_by_the_latency_model() -> None:
    seen: list[tuple[BatchShape, ...]] = []

    class Watching(TestLatency):
        def ranks_time(self, shapes: SequenceOf[BatchShape]) -> Micros:
            seen.append(tuple(shapes))
            return 1_000

    group = ranks(3, Watching())
    group.submit(request("a", 5, 2), 0, rank=1)
    group.advance(1_500)
    assert [shape.num_tokens for shape in seen[0]] == [1, 5, 1]
    assert [(shape.decode_requests, shape.decode_context_tokens) for shape in seen[1]] == [(1, 0), (1, 5), (1, 0)]


def test_a_rank_without_a_request_computes_as_many_drafts_as_a_request_that_decodes() -> None:
    drafts = Speculation(method="ngram", num_tokens=3, acceptance_rates=(0.5,) * 3)
    group = ranks(latency=TestLatency(step_us=1_000, prefill_token_us=70, decode_us=400), speculation=drafts)
    group.submit(request("a", 4, 1), 0, rank=0)
    group.advance(10**6)
    assert group.instances[0].steps.durations().tolist() == [1_000 + 400 + 3 * 70]


def test_a_deployment_with_experts_and_ranks_is_simulated_rank_by_rank() -> None:
    model = {"model": "mixtral-8x7b-v0.1", "latency_model": "trained-physics"}
    options = options_from(ClusterOptions, **model, hardware="H100", tp=2, dp=2)
    deployment = resolve(options.deployment)
    group = build_simulation(options, deployment, adjusted=lambda latency: SlowedLatency(latency, 2.0))
    assert isinstance(group, LockstepRanks)
    assert [engine.config for engine in group.instances] == [deployment.rank] * 2
    assert list(notes_on_cluster(options, deployment)) == []
    decodes = [BatchShape(decode_requests=n, decode_context_tokens=9) for n in (3, 50)]
    steps = group._steps
    steps.shapes = decodes
    assert isinstance(deployment.latency, TrainedPhysics)
    expected_us = deployment.latency.ranks_time(decodes)
    assert group.instances[0].latency.step_time(decodes[0]) == 2 * expected_us


def test_ranks_that_share_experts_are_one_batch_with_pipeline_stages_alone() -> None:
    model = {"model": "mixtral-8x7b-v0.1", "hardware": "H100", "tp": 2, "dp": 2, "num_instances": 2}
    options = options_from(ClusterOptions, **model, latency_model="trained-physics")
    deployment = resolve(options.deployment)
    simulation = build_simulation(options, deployment)
    assert [engine.config for engine in simulation.instances] == [deployment.rank] * 4
    assert list(notes_on_cluster(options, deployment)) == []

    options = options_from(ClusterOptions, **model, latency_model="trained-physics", pp=2)
    deployment = resolve(options.deployment)
    simulation = build_simulation(options, deployment)
    assert [engine.config for engine in simulation.instances] == [deployment.config] * 2
    assert "warning: with pipeline stages" in "".join(notes_on_cluster(options, deployment))
