"""One instance for prompts, one for answers. A step takes 1000 us, a transfer 500."""

import pytest

from blis_sim.engine.cluster.cluster import Cluster
from blis_sim.engine.cluster.disaggregation.handover import Disaggregation
from blis_sim.engine.cluster.disaggregation.pools import Pools
from blis_sim.engine.cluster.disaggregation.settings import DisaggregationSettings
from blis_sim.engine.cluster.disaggregation.transfer import TransferSettings
from blis_sim.engine.events import Event, Preempted, StepDone
from blis_sim.engine.request import PrefixGroupBlocks
from tests.engine.cluster.clusters import cluster, endings
from tests.fakes import request


def separated(
    decider: str = "always", threshold_tokens: int = 0, engine: str = "blis", total_kv_blocks: int = 100
) -> tuple[Cluster, Disaggregation]:
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


def test_with_the_scheduling_of_vllm_it_begins_when_the_prompt_has_been_computed() -> None:
    simulated, disaggregation = separated(engine="vllm")
    ended = endings(simulated, [(100, request("a", 10, 3))])
    (sequence,) = disaggregation.separated
    assert sequence.queued_at == 1600
    assert ended == {"a": (4600, "completed")}


def test_only_what_the_decode_instance_lacks_counts_for_the_threshold() -> None:
    simulated, disaggregation = separated("prefix-threshold", threshold_tokens=8)
    long = [request(name, 20, 1, PrefixGroupBlocks(name, "g", 4)) for name in "ab"]
    endings(simulated, [(0, request("short", 8, 1)), (0, long[0]), (20_000, long[1])])
    assert [sequence.request.id for sequence in disaggregation.separated] == ["a"]


def test_a_prompt_without_room_is_dropped() -> None:
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
def test_a_reservation_is_given_up_when_its_client_hangs_up_however_late_the_driver_asks(chunk_us: int) -> None:
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


def test_nobody_outside_hears_of_the_prompts() -> None:
    simulated, _ = separated(engine="vllm")
    simulated.submit(request("a", 10, 3), 0)
    events: list[Event] = []
    while (due_at := simulated.next_event_at()) is not None:
        events += simulated.advance(due_at)
    heard = {sequence.request.id for event in events if isinstance(event, StepDone) for sequence in event.emitted}
    assert heard == {"a"}
