"""Instances of 100 blocks of 4 tokens on machines of one GPU each. A step takes 1000 us."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from blis_sim.engine.cluster.autoscaling.analyzers import Thresholds
from blis_sim.engine.cluster.autoscaling.autoscaler import Autoscaler, Scaling
from blis_sim.engine.cluster.autoscaling.delays import Delay
from blis_sim.engine.cluster.autoscaling.fleet import Fleet, Machinery
from blis_sim.engine.cluster.autoscaling.nodes import NodePool, Nodes
from blis_sim.engine.cluster.autoscaling.pipeline import AutoscalerSettings
from blis_sim.engine.cluster.cluster import Cluster
from blis_sim.engine.cluster.gateway.flow_control import FlowControl
from blis_sim.engine.cluster.gateway.settings import FlowControlSettings
from blis_sim.engine.core import Engine
from blis_sim.engine.events import Event, Finished
from blis_sim.engine.request import Request
from tests.engine.cluster.clusters import cluster, endings
from tests.fakes import TestLatency, config, request


def scaled(
    num_instances: int = 1, num_nodes: int = 4, loading_s: float = 0.0, warm: bool = True, **settings: Any
) -> tuple[Cluster, Autoscaler]:
    limits = config(total_kv_blocks=100, max_num_seqs=2)
    simulated = cluster(num_instances, total_kv_blocks=100, max_num_seqs=2)
    nodes = Nodes([NodePool(name="p", gpu_type="H100", gpus_per_node=1, initial_nodes=num_nodes)])
    machinery = Machinery(
        nodes=nodes,
        gpus_per_instance=1,
        configs={"p": limits},
        new_engine=lambda _: Engine(limits, TestLatency()),
        loading=Delay(mean=loading_s),
    )
    fleet = Fleet(simulated, machinery)
    for number in range(num_instances):
        node = nodes.place(1)
        assert node is not None
        fleet.place_first(number, node, is_warm=warm)
    settings = {"interval_us": 10_000, "thresholds": Thresholds(tokens_per_request=40), **settings}
    chosen = AutoscalerSettings(**settings)
    return simulated, Autoscaler(simulated, chosen, fleet)


def many(num_requests: int, output_tokens: int = 40) -> list[tuple[int, Request]]:
    return [(100 + number, request(f"r{number}", 20, output_tokens)) for number in range(num_requests)]


def test_instances_are_started_while_requests_wait_and_drained_when_they_are_idle() -> None:
    simulated, autoscaler = scaled(loading_s=0.005)
    arrivals = [(2_000 * number, each) for number, (_, each) in enumerate(many(60))]
    arrivals.append((3_000_000, request("late", 20, 40)))
    ended = endings(simulated, arrivals)
    assert {outcome for _, outcome in ended.values()} == {"completed"}
    started = [each for each in autoscaler.scalings if each.num_instances > 0]
    drained = [each for each in autoscaler.scalings if each.num_instances < 0]
    assert started[0].at == 20_000
    assert sum(each.num_done for each in started) == 3
    assert sum(each.num_done for each in drained) == -3
    served = [sum(engine.counters.ended.values()) for engine in simulated.instances]
    assert min(served) > 0


def test_without_a_free_machine_nothing_is_started() -> None:
    simulated, autoscaler = scaled(num_nodes=1)
    endings(simulated, many(30))
    assert len(simulated.instances) == 1
    assert autoscaler.scalings[0] == Scaling(10_000, "p", autoscaler.scalings[0].num_instances, 0)


def test_machines_of_drained_instances_are_used_again() -> None:
    simulated, autoscaler = scaled(num_nodes=2)
    again = [(3_000_000 + at, each._replace(id=f"again {each.id}")) for at, each in many(30)]
    endings(simulated, [*many(30), *again])
    assert sum(each.num_done for each in autoscaler.scalings if each.num_instances > 0) == 2
    assert len(simulated.instances) == 3


def test_actions_follow_the_figures_after_the_delay_of_the_scrape() -> None:
    simulated, autoscaler = scaled(scrape_delay=Delay(mean=0.003))
    endings(simulated, many(30))
    assert autoscaler.scalings[0].at == 13_000


def test_a_gateway_lets_requests_wait_for_instances_that_are_loading() -> None:
    simulated, _ = scaled(loading_s=0.5, warm=False)
    FlowControl(simulated, FlowControlSettings(saturation_detector="concurrency", tick_interval_us=1000))
    ended = endings(simulated, [(100, request("a", 20, 4))])
    assert ended["a"][1] == "completed"
    assert ended["a"][0] > 500_000


def test_without_a_gateway_they_find_no_instance() -> None:
    simulated, _ = scaled(loading_s=0.5, warm=False)
    assert endings(simulated, [(100, request("a", 20, 4))])["a"] == (100, "rejected")


@given(
    st.lists(st.tuples(st.integers(0, 400), st.integers(1, 60), st.integers(0, 60)), min_size=1, max_size=25),
    st.lists(st.integers(1, 40), min_size=1, max_size=6),
    st.sampled_from([0.0, 0.004, 0.03]),
    st.booleans(),
)
def test_every_request_ends_once_however_the_driver_wakes(
    requests: list[tuple[int, int, int]], pauses: list[int], loading_s: float, warm: bool
) -> None:
    arrivals = sorted(
        ((tick * 500, request(f"r{place}", length, output)) for place, (tick, length, output) in enumerate(requests)),
        key=lambda arrival: arrival[0],
    )
    expected = endings(scaled(2, loading_s=loading_s, warm=warm)[0], arrivals)
    assert len(expected) == len(arrivals)
    simulated, _ = scaled(2, loading_s=loading_s, warm=warm)
    events: list[Event] = []
    now, turn, todo = -1, 0, list(arrivals)
    while todo or simulated.next_event_at() is not None:
        until = now + pauses[turn % len(pauses)] * 250
        turn += 1
        while todo and todo[0][0] <= until:
            at, each = todo.pop(0)
            simulated.submit(each, at)
        events += simulated.advance(until)
        now = until
    told = [(each.sequence.request.id, (each.at, each.outcome.value)) for each in events if isinstance(each, Finished)]
    assert len(told) == len(arrivals)
    assert dict(told) == expected
