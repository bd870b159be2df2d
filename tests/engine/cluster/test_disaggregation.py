"""Prefill/decode disaggregation: pools, deciders, transfers, handovers and evicted reservations."""

from typing import Any

import pytest

from blis_sim.engine.batch_shape import BatchShape
from blis_sim.engine.cluster.admission import ADMISSIONS, AdmissionSettings
from blis_sim.engine.cluster.build import build_simulation, notes_after_run
from blis_sim.engine.cluster.cluster import Cluster
from blis_sim.engine.cluster.disaggregation import (
    DECIDERS,
    Disaggregation,
    DisaggregationSettings,
    Pools,
    Prompt,
    Role,
    TransferNetwork,
    TransferSettings,
)
from blis_sim.engine.cluster.options import ClusterOptions
from blis_sim.engine.cluster.routing import LeastOutstanding, RoundRobin
from blis_sim.engine.cluster.settings import Freshness
from blis_sim.engine.core import Engine
from blis_sim.engine.deployment import resolve
from blis_sim.engine.errors import EngineError
from blis_sim.engine.events import Event, Finished, Preempted, StepDone
from blis_sim.engine.request import PrefixGroupBlocks
from blis_sim.engine.simulation import run_virtual
from blis_sim.options import options_from
from tests.engine.cluster.clusters import cluster, endings
from tests.fakes import TestLatency, config, request


def test_roles_follow_the_index_of_the_instance() -> None:
    pools = Pools(num_instances=6, num_prefill=2, num_decode=1, num_both=1, num_encode=1)
    assert pools.roles == (Role.PREFILL, Role.PREFILL, Role.DECODE, Role.BOTH, Role.ENCODE, None)
    assert pools.prefill == (0, 1, 3)
    assert pools.decode == (2, 3)


def test_without_pools_no_instance_has_a_role() -> None:
    pools = Pools(num_instances=2)
    assert not pools.is_disaggregated
    assert pools.roles == (None, None)


@pytest.mark.parametrize(("prefill", "decode", "encode"), [(1, 0, 0), (0, 2, 0), (0, 0, 1)])
def test_pools_that_cannot_serve_a_request_are_refused(prefill: int, decode: int, encode: int) -> None:
    with pytest.raises(EngineError, match="--prefill-decode-instances"):
        Pools(4, prefill, decode, 0, encode)


def test_instances_of_both_roles_suffice() -> None:
    assert Pools(2, num_both=2).decode == (0, 1)


def test_more_roles_than_instances_are_refused() -> None:
    with pytest.raises(EngineError, match=r"at most --num-instances \(3\), got 4"):
        Pools(3, 2, 2)


def test_without_a_number_of_instances_there_are_those_of_the_pools() -> None:
    pools = {"prefill_instances": 1, "decode_instances": 3}
    assert options_from(ClusterOptions, model="qwen3-14b", **pools).num_instances == 4
    assert options_from(ClusterOptions, model="qwen3-14b", **pools, num_instances=6).num_instances == 6


def num_requests_of_instances(scheduling: str, num_prefill: int, num_decode: int) -> list[int]:
    """How many requests each instance finished of 60 whose prompts are all computed apart."""
    options = options_from(
        ClusterOptions,
        model="qwen3-14b",
        engine=scheduling,
        num_instances=num_prefill + num_decode,
        prefill_instances=num_prefill,
        decode_instances=num_decode,
        pd_decider="always",
    )
    simulation = build_simulation(options, resolve(options.deployment))
    arrivals = [(number * 10_000, request(f"r{number}", 100, 4)) for number in range(60)]
    list(run_virtual(simulation, arrivals))
    return [sum(engine.counters.ended.values()) for engine in simulation.instances]


@pytest.mark.parametrize(
    ("num_prefill", "num_decode", "expected"),
    [(2, 2, [30, 30, 30, 30]), (1, 3, [60, 20, 20, 20]), (4, 2, [15, 15, 15, 15, 30, 30])],
)
def test_vllm_gives_each_pool_a_counter(num_prefill: int, num_decode: int, expected: list[int]) -> None:
    assert num_requests_of_instances("vllm", num_prefill, num_decode) == expected


def test_blis_shares_one_counter_among_the_pools() -> None:
    assert sorted(num_requests_of_instances("blis", 2, 2)) == [0, 0, 60, 60]


def test_the_threshold_counts_tokens_that_the_decode_instance_is_missing() -> None:
    decide = DECIDERS["prefix-threshold"].separates
    assert not decide(Prompt(num_tokens=116, num_cached_tokens=100, threshold_tokens=16))
    assert decide(Prompt(num_tokens=117, num_cached_tokens=100, threshold_tokens=16))


def test_always_and_never_ignore_the_prompt() -> None:
    prompts = [Prompt(1, 0, 16), Prompt(1000, 992, 16)]
    assert [DECIDERS["always"].separates(prompt) for prompt in prompts] == [True, True]
    assert [DECIDERS["never"].separates(prompt) for prompt in prompts] == [False, False]


QWEN3_14B_BYTES_PER_BLOCK = 16 * 163_840.0


def test_a_transfer_takes_its_latency_and_its_bytes_rounded_up() -> None:
    network = TransferNetwork(TransferSettings(), QWEN3_14B_BYTES_PER_BLOCK)
    assert network.start(num_blocks=7) == 785


def test_without_contention_transfers_do_not_slow_each_other() -> None:
    network = TransferNetwork(TransferSettings(gb_per_s=10, base_latency_ms=0), 16 * 512.0)
    assert [network.start(10), network.start(10)] == [9, 9]


def test_with_contention_a_transfer_gets_its_share_at_the_start_and_keeps_it() -> None:
    network = TransferNetwork(TransferSettings(10, 0, is_shared=True), 16 * 512.0)
    assert [network.start(10), network.start(10)] == [9, 17]
    network.end()
    network.end()
    assert network.start(10) == 9
    assert (network.num_started, network.num_ended, network.num_active, network.most_active) == (3, 2, 1, 2)


def test_a_transfer_takes_at_least_a_microsecond() -> None:
    assert TransferNetwork(TransferSettings(base_latency_ms=0), 16.0).start(0) == 1


@pytest.mark.parametrize(("bandwidth", "latency"), [(0, 0), (-1, 0), (float("inf"), 0), (25, -1), (25, float("nan"))])
def test_impossible_networks_are_refused(bandwidth: float, latency: float) -> None:
    with pytest.raises(EngineError, match="transfer"):
        TransferSettings(bandwidth, latency)


def separated(
    decider: str = "always", threshold_tokens: int = 0, engine: str = "blis", total_kv_blocks: int = 100
) -> tuple[Cluster, Disaggregation]:
    """One prefill and one decode instance. A step takes 1000 us, a transfer 500 us."""
    simulated = cluster(2, engine=engine, total_kv_blocks=total_kv_blocks)
    settings = DisaggregationSettings(
        pools=Pools(2, num_prefill=1, num_decode=1),
        decider=decider,
        threshold_tokens=threshold_tokens,
        transfer=TransferSettings(base_latency_ms=0.5),
    )
    return simulated, Disaggregation(simulated, settings, bytes_per_block=0.0)


def test_with_the_scheduling_of_blis_the_transfer_runs_beside_the_last_step_of_the_prompt() -> None:
    simulated, disaggregation = separated()
    ended = endings(simulated, [(100, request("a", 10, 3))])
    # Two steps from 600 on: the first token comes with the second.
    assert ended == {"a": (2600, "completed")}
    (sequence,) = disaggregation.separated
    assert sequence.prompt_part is not None
    assert (sequence.instance, sequence.prompt_part.instance) == (1, 0)
    assert list(disaggregation.transfer_us) == [500]


def test_with_the_scheduling_of_vllm_the_transfer_begins_when_the_prompt_has_been_computed() -> None:
    simulated, disaggregation = separated(engine="vllm")
    ended = endings(simulated, [(100, request("a", 10, 3))])
    (sequence,) = disaggregation.separated
    assert sequence.queued_at == 1600
    assert ended == {"a": (4600, "completed")}


def test_only_tokens_missing_from_the_decode_instances_cache_count_for_the_threshold() -> None:
    simulated, disaggregation = separated("prefix-threshold", threshold_tokens=8)
    long = [request(name, 20, 1, PrefixGroupBlocks(name, "g", 4)) for name in "ab"]
    endings(simulated, [(0, request("short", 8, 1)), (0, long[0]), (20_000, long[1])])
    assert [sequence.request.id for sequence in disaggregation.separated] == ["a"]


def test_a_prompt_without_free_blocks_on_its_decode_instance_is_dropped() -> None:
    simulated, disaggregation = separated(total_kv_blocks=5)
    ended = endings(simulated, [(0, request("a", 16, 4)), (0, request("b", 4, 4)), (0, request("c", 4, 4))])
    assert sorted(outcome for _, outcome in ended.values()) == ["completed", "completed", "dropped"]
    assert disaggregation.num_dropped == 1


@pytest.mark.parametrize(("at", "num_transfers"), [(300, 0), (800, 1)])
def test_a_client_may_hang_up_while_its_prompt_is_computed_or_on_its_way(at: int, num_transfers: int) -> None:
    simulated, disaggregation = separated(engine="vllm" if not num_transfers else "blis")
    simulated.abort("a", at)
    ended = endings(simulated, [(100 if not num_transfers else 700, request("a", 10, 3))])
    assert ended["a"] == (at, "aborted")
    assert len(disaggregation.transfer_us) == num_transfers
    assert all(engine.stats.kv_blocks_used == 0 for engine in simulated.instances)


@pytest.mark.parametrize("chunk_us", [500, 1_000_000])
def test_a_reservation_is_released_when_its_client_hangs_up_however_late_the_driver_advances(chunk_us: int) -> None:
    simulated = cluster(2, total_kv_blocks=10)
    settings = DisaggregationSettings(
        pools=Pools(2, num_prefill=1, num_decode=1), decider="always", transfer=TransferSettings(base_latency_ms=40.0)
    )
    Disaggregation(simulated, settings, bytes_per_block=0.0)
    simulated.submit(request("a", 4, 30), 0)
    simulated.submit(request("b", 16, 4), 30_000)
    simulated.abort("b", 65_000)
    events = [event for until in range(0, 1_000_001, chunk_us) for event in simulated.advance(until)]
    # Until then "a" runs out of blocks, and computes again what it loses.
    assert [(each.at, each.sequence.request.id) for each in events if isinstance(each, Preempted)] == [(60_000, "a")]


def test_on_one_instance_prompt_and_answer_can_find_the_blocks_of_each_other() -> None:
    simulated = cluster(1)
    settings = DisaggregationSettings(pools=Pools(1, num_both=1), decider="always")
    disaggregation = Disaggregation(simulated, settings, bytes_per_block=0.0)
    assert endings(simulated, [(0, request("a", 10, 3))])["a"][1] == "completed"
    (sequence,) = disaggregation.separated
    assert sequence.prompt_part is not None
    assert [each.num_shareable_blocks for each in (sequence, sequence.prompt_part)] == [2, 2]


def test_events_of_prefill_sub_requests_are_not_reported() -> None:
    simulated, _ = separated(engine="vllm")
    simulated.submit(request("a", 10, 3), 0)
    events: list[Event] = []
    while (due_at := simulated.next_event_at()) is not None:
        events += simulated.advance(due_at)
    reported = {sequence.request.id for event in events if isinstance(event, StepDone) for sequence in event.emitted}
    assert reported == {"a"}


MOST_EVENTS = 20_000
"""Far more instants than any of these runs has, so a livelock fails a test instead of keeping it busy."""


def outcomes_of(simulated: Cluster, num_requests: int, input_tokens: int, output_tokens: int) -> list[str]:
    """How requests that arrive almost at once end, if all of them do."""
    for number in range(num_requests):
        simulated.submit(request(f"r{number}", input_tokens, output_tokens), number * 10)
    ended: list[str] = []
    for _ in range(MOST_EVENTS):
        due_at = simulated.next_event_at()
        if due_at is None:
            break
        ended += [event.outcome.value for event in simulated.advance(due_at) if isinstance(event, Finished)]
    for engine in simulated.instances:
        engine.check_integrity()
        assert engine.stats.kv_blocks_used == 0
    return ended


def both_roles(num_instances: int = 1, **settings: Any) -> Cluster:
    """Instances that compute prompts and answers, by BLIS's rules; all prompts are computed apart."""
    simulated = cluster(num_instances, **settings)
    pools = DisaggregationSettings(pools=Pools(num_instances, num_both=num_instances), decider="always")
    Disaggregation(simulated, pools, bytes_per_block=0.0)
    return simulated


@pytest.mark.parametrize("output_tokens", [1, 10, 40])
@pytest.mark.parametrize("max_num_batched_tokens", [2048, 64])
@pytest.mark.parametrize("preemption_policy", ["fcfs", "priority"])
def test_a_prompt_that_waits_for_blocks_of_waiting_requests_gets_them(
    output_tokens: int, max_num_batched_tokens: int, preemption_policy: str
) -> None:
    simulated = both_roles(
        total_kv_blocks=126, max_num_batched_tokens=max_num_batched_tokens, preemption_policy=preemption_policy
    )
    assert outcomes_of(simulated, 14, 100, output_tokens) == ["completed"] * 14
    (engine,) = simulated.instances
    assert engine.counters.num_reservations_evicted > 0


@pytest.mark.parametrize("output_tokens", [0, 1])
def test_a_prompt_that_fills_the_cache_is_computed_where_it_is_answered(output_tokens: int) -> None:
    simulated = both_roles(2, total_kv_blocks=25)
    assert outcomes_of(simulated, 1, 100, output_tokens) == ["completed"]


def test_a_run_reports_in_one_line_that_reservations_were_evicted() -> None:
    simulated = both_roles(total_kv_blocks=126)
    outcomes_of(simulated, 14, 100, 10)
    (note,) = notes_after_run(simulated)
    assert note.startswith("warning: requests lost the KV blocks of their transferred prompts ")


def test_a_run_with_enough_blocks_evicts_no_reservation() -> None:
    simulated = both_roles(total_kv_blocks=1000)
    outcomes_of(simulated, 14, 100, 10)
    assert list(notes_after_run(simulated)) == []


@pytest.mark.parametrize("pools", [{"num_both": 1}, {"num_both": 2}, {"num_prefill": 1, "num_decode": 1}], ids=str)
def test_empty_steps_while_transfers_hold_all_blocks_are_taken_at_once(
    pools: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    num_timed, step_time = 0, TestLatency.step_time

    def counted(latency: TestLatency, shape: BatchShape) -> int:
        nonlocal num_timed
        num_timed += 1
        return step_time(latency, shape)

    # A compiled scheduler has no replaceable methods; the latency model is called for the time of each step composed.
    monkeypatch.setattr(TestLatency, "step_time", counted)
    runs, timed = [], []
    for reports_steps, span_us in ((True, 0), (False, 1_000_000)):
        num_timed, ended = 0, []
        simulated = cluster_with_slow_transfers(2, pools, reports_steps)
        for number, input_tokens in enumerate((100, 100, 90, 90)):
            simulated.submit(request(f"r{number}", input_tokens, 4), number * 300)
        while (due_at := simulated.next_event_at()) is not None:
            ended += [each for each in simulated.advance(due_at + span_us) if isinstance(each, Finished)]
        steps = [[each.tolist() for each in engine.steps.span(0, len(engine.steps))] for engine in simulated.instances]
        runs.append(([(each.at, each.sequence.request.id, each.outcome) for each in ended], steps))
        timed.append(num_timed)
    assert runs[0] == runs[1]
    assert timed[0] > 500
    assert timed[1] < 50


def cluster_with_slow_transfers(num_instances: int, pools: dict[str, int], reports_steps: bool) -> Cluster:
    """Instances by BLIS's rules with room for one prompt, whose empty steps take 1 us."""
    latency = TestLatency(step_us=0, prefill_token_us=10, decode_us=1000)
    settings = config(engine="blis", total_kv_blocks=40)
    simulated = Cluster(
        [Engine(settings, latency, reports_steps) for _ in range(num_instances)],
        ADMISSIONS["always-admit"](AdmissionSettings()),
        RoundRobin(),
        Freshness(refresh_interval_us=0, cache_delay_us=0),
    )
    roles = DisaggregationSettings(
        pools=Pools(num_instances, **pools),
        decider="prefix-threshold",
        threshold_tokens=95,
        transfer=TransferSettings(gb_per_s=0.02),
    )
    Disaggregation(simulated, roles, bytes_per_block=1000.0)
    return simulated


def share_found_by_prefills(decode_scorers: str, **flags: Any) -> float:
    """Share of prompt tokens found in the caches of three prefill instances, for 60 prompts of 12 prefixes."""
    options = options_from(
        ClusterOptions,
        model="qwen3-14b",
        prefill_instances=3,
        decode_instances=2,
        pd_decider="always",
        decode_routing_scorers=decode_scorers,
        **flags,
    )
    simulation = build_simulation(options, resolve(options.deployment))
    arrivals = [
        (number * 200_000, request(f"r{number}", 1000, 4, PrefixGroupBlocks(f"r{number}", f"g{number % 12}", 56)))
        for number in range(60)
    ]
    list(run_virtual(simulation, arrivals))
    return sum(engine.kv.hit_tokens for engine in list(simulation.instances)[:3]) / (60 * 1000)


@pytest.mark.parametrize("decode_scorers", ["active-requests:1", "precise-prefix-cache:1", "queue-depth:1"])
@pytest.mark.parametrize("delay_us", [0, 50_000])
def test_caches_that_only_the_prefill_pool_reads_are_reported(decode_scorers: str, delay_us: int) -> None:
    flags = {"prefill_routing_scorers": "precise-prefix-cache:1", "cache_signal_delay": delay_us}
    assert share_found_by_prefills(decode_scorers, **flags) > 0.7


def test_requests_in_flight_that_only_the_prefill_pool_counts_are_counted() -> None:
    simulated = cluster(3, engine="vllm")
    settings = DisaggregationSettings(pools=Pools(3, num_prefill=2, num_decode=1), decider="always")
    disaggregation = Disaggregation(simulated, settings, bytes_per_block=0.0, prefill_router=LeastOutstanding())
    endings(simulated, [(number, request(f"r{number}", 10, 3)) for number in range(4)])
    parts = [each.prompt_part for each in disaggregation.separated]
    assert [each.instance for each in parts if each is not None] == [0, 1, 0, 1]


def test_requests_whose_prompts_are_computed_elsewhere_are_in_flight_where_they_will_be_answered() -> None:
    simulated = cluster(3, engine="vllm", router=LeastOutstanding())
    settings = DisaggregationSettings(pools=Pools(3, num_prefill=1, num_decode=2), decider="always")
    disaggregation = Disaggregation(simulated, settings, bytes_per_block=0.0)
    endings(simulated, [(number, request(f"r{number}", 10, 3)) for number in range(4)])
    assert [each.instance for each in disaggregation.separated] == [1, 2, 1, 2]
    assert not any(disaggregation.has_handover(number) for number in range(3))


def test_adapters_that_only_the_prefill_pool_reads_are_reported() -> None:
    options = options_from(
        ClusterOptions,
        model="qwen3-14b",
        prefill_instances=2,
        decode_instances=1,
        pd_decider="always",
        prefill_routing_scorers="lora-affinity:1",
        decode_routing_scorers="active-requests:1",
    )
    simulation = build_simulation(options, resolve(options.deployment))
    assert isinstance(simulation, Cluster)
    assert simulation.state.reads_adapters
    assert simulation.router_reads_snapshots
