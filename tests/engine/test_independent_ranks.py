"""Data-parallel ranks of a model without experts: engines that step on their own behind vLLM's load balancer."""

from dataclasses import replace
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from blis_sim.engine.cluster.build import build_simulation, notes_on_cluster
from blis_sim.engine.cluster.options import ClusterOptions
from blis_sim.engine.config import PipelineStages
from blis_sim.engine.core import Engine
from blis_sim.engine.data_parallel import IndependentRanks, new_ranks
from blis_sim.engine.deployment import resolve
from blis_sim.engine.events import Event, Finished, StepDone
from blis_sim.engine.request import Request
from blis_sim.engine.sequence import Outcome
from blis_sim.engine.simulation import run_virtual
from blis_sim.engine.units import Micros
from blis_sim.options import options_from
from tests.fakes import TestLatency, config, request

LATENCY = TestLatency(step_us=3_000, prefill_token_us=70, decode_us=400, queueing_us=900)
LIMITS = config(total_kv_blocks=40, max_num_seqs=6, max_num_batched_tokens=32, engine="vllm", max_model_len=96)
DENSE = {"model": "qwen/qwen3-14b", "hardware": "H100", "tp": 1, "dp": 4}


def ranks(number: int = 3) -> IndependentRanks:
    group = new_ranks(LIMITS, LATENCY, number, shares_experts=False)
    assert isinstance(group, IndependentRanks)
    return group


def ends(events: list[Event]) -> dict[str, tuple[int, Micros]]:
    """Rank and instant of the end of each request."""
    return {e.sequence.request.id: (e.sequence.instance, e.at) for e in events if isinstance(e, Finished)}


Workload = list[tuple[Micros, Request]]
WORKLOADS = st.lists(
    st.tuples(st.integers(0, 20).map(lambda ms: 1000 * ms), st.integers(1, 60), st.integers(1, 30)), max_size=25
).map(lambda rows: [(at, request(f"r{n}", prompt, output)) for n, (at, prompt, output) in enumerate(sorted(rows))])


@given(WORKLOADS)
def test_each_rank_serves_its_requests_as_an_engine_alone(arrivals: Workload) -> None:
    found = ends(list(run_virtual(ranks(), arrivals)))
    assert found.keys() == {each.id for _, each in arrivals}
    for rank in range(3):
        mine = [(at, each) for at, each in arrivals if found[each.id][0] == rank]
        alone = ends(list(run_virtual(Engine(LIMITS, LATENCY), mine)))
        assert {name: at for name, (_, at) in alone.items()} == {each.id: found[each.id][1] for _, each in mine}


class LongPromptsQueueLonger(TestLatency):
    def queueing_time(self, input_tokens: int) -> Micros:
        return 900 + 10 * input_tokens


def test_requests_of_one_message_reach_the_load_balancer_together_in_their_order() -> None:
    """The shortest would be the first otherwise, and have the rank of the longest."""
    group = new_ranks(LIMITS, LongPromptsQueueLonger(step_us=3_000), 2, shares_experts=False)
    first, *others = [request(f"r{number}", length) for number, length in enumerate((60, 30, 20, 10))]
    group.submit(first, 0)
    for each in others:
        group.submit(each._replace(follows="r0"), 0)
    group.submit(request("alone", 5), 100)  # which is there before them
    group.advance(10_000)
    assert [group.rank_of(f"r{number}") for number in range(4)] == [1, 0, 1, 0]


@given(WORKLOADS, st.lists(st.integers(1, 200_000), max_size=8))
def test_pauses_of_a_driver_change_nothing(arrivals: Workload, pauses: list[Micros]) -> None:
    at_once, in_pieces = ranks(), ranks()
    for at, each in arrivals:
        at_once.submit(each, at)
        in_pieces.submit(each, at)
    events = [event for until in sorted({*pauses, 10**9}) for event in in_pieces.advance(until)]
    assert ends(events) == ends(at_once.advance(10**9))


def test_requests_take_turns_while_all_ranks_are_idle() -> None:
    arrivals = [(1_000_000 * n, request(f"r{n}", 5, 2)) for n in range(6)]
    assert [rank for rank, _ in ends(list(run_virtual(ranks(), arrivals))).values()] == [0, 1, 2, 0, 1, 2]


def test_a_request_may_name_its_rank() -> None:
    group = ranks()
    for n in range(3):
        group.submit(request(f"r{n}", 5, 2), 0, rank=1)
    assert {rank for rank, _ in ends(group.advance(10**9)).values()} == {1}


def test_a_request_can_hang_up_before_and_after_it_has_a_rank() -> None:
    group = ranks()
    group.submit(request("early", 5, 30), 0)
    group.submit(request("late", 5, 30), 0)
    group.abort("early", 100)
    group.abort("late", 20_000)
    outcomes = {e.sequence.request.id: e.outcome for e in group.advance(10**9) if isinstance(e, Finished)}
    assert outcomes == dict.fromkeys(("early", "late"), Outcome.ABORTED)
    assert group.next_event_at() is None


def test_an_idle_rank_reports_at_once_the_end_of_a_request_it_took_in_after_its_client_left() -> None:
    """An idle rank composes an empty batch, whose outputs bring the end. A busy rank brings it with its next step."""
    group = new_ranks(replace(LIMITS, async_scheduling=False), LATENCY, 2, shares_experts=False)
    group.submit(request("first", 5, 30), 0)  # it makes rank 1 the first that is looked at
    group.abort("first", 3_200)
    group.submit(request("gone", 5, 30), 2_000, rank=0)
    group.abort("gone", 3_500)
    group.submit(request("long", 60, 30), 60_000, rank=1)
    group.submit(request("next", 5, 2), 150_000)
    found = ends(group.advance(10**9))
    assert found["long"][1] > 150_000
    assert found["next"][0] == 0


def test_an_empty_batch_between_pipeline_stages_brings_such_an_end_to_the_front_end_of_a_busy_rank() -> None:
    """The empty batch is the first in the queue when the request is taken in. Else the next step brings the end."""
    limits = replace(LIMITS, pipeline=PipelineStages((0.5, 0.5)))
    group = new_ranks(limits, LATENCY, 2, shares_experts=False)
    for name in ("of rank 0", "of rank 1"):
        group.submit(request(name, 5, 30), 0)
    group.submit(request("gone", 5, 30), 2_000, rank=0)
    group.abort("gone", 3_500)
    group.submit(request("next", 5, 2), 5_000)
    assert ends(group.advance(10**9))["next"][0] == 0


def test_a_hang_up_before_a_rank_comes_after_the_step_that_ends_at_its_instant_as_in_an_engine_alone() -> None:
    for simulation in (Engine(LIMITS, LATENCY), ranks(1)):
        simulation.submit(request("first", 5, 30), 0)
        ends_at = next(event.at for event in simulation.advance(5_000) if isinstance(event, StepDone))
        step_us = LATENCY.step_us + LATENCY.decode_us
        simulation.submit(request("second", 5, 30), ends_at + step_us - 100)
        simulation.abort("second", ends_at + step_us)
        events = simulation.advance(ends_at + step_us)
        assert [(type(each), each.at) for each in events] == [
            (StepDone, ends_at + step_us),
            (Finished, ends_at + step_us),
        ]


def test_a_deployment_without_experts_is_simulated_rank_by_rank_with_any_pipeline() -> None:
    for pp in (1, 2):
        options = options_from(ClusterOptions, **DENSE, pp=pp)
        deployment = resolve(options.deployment)
        group = build_simulation(options, deployment)
        assert isinstance(group, IndependentRanks)
        assert [engine.config for engine in group.instances] == [deployment.config] * 4
        assert (deployment.num_gpus, list(notes_on_cluster(options, deployment))) == (4 * pp, [])


def test_ranks_report_their_loads_whether_or_not_the_run_reports_its_steps() -> None:
    options = options_from(ClusterOptions, **{**DENSE, "dp": 3})
    draws = Random(5)
    requests = [request(f"r{n}", draws.randint(1, 4_000), draws.randint(1, 200)) for n in range(60)]
    instants = sorted(draws.randint(0, 6_000_000) for _ in requests)
    found = []
    for reports_steps in (True, False):
        group = build_simulation(options, resolve(options.deployment), reports_steps=reports_steps)
        group.submit_all(requests, instants)
        found.append(ends(group.advance(10**9)))
    assert found[0] == found[1]
    in_turn = [n % 3 for n in range(60)]
    assert [found[0][f"r{n}"][0] for n in range(60)] != in_turn, "loads have decided"


def test_ranks_whose_engines_report_no_steps_are_refused() -> None:
    with pytest.raises(ValueError, match="must report steps"):
        IndependentRanks([Engine(LIMITS, LATENCY, reports_steps=False)])


def test_the_exchange_of_tokens_between_experts_is_noted_as_without_effect() -> None:
    options = options_from(ClusterOptions, **DENSE, moe_comm_backend="pplx")
    assert "--moe-comm-backend pplx has no effect on a model without experts" in resolve(options.deployment).notes
