"""One instance that may have one request at a time. A request takes one step of 1000 us per token."""

from blis_sim.engine.cluster.cluster import Cluster
from blis_sim.engine.cluster.gateway.flow_control import FlowControl
from blis_sim.engine.cluster.gateway.queue import QueueLimits
from blis_sim.engine.cluster.gateway.saturation import SaturationLimits
from blis_sim.engine.cluster.gateway.settings import FlowControlSettings
from blis_sim.engine.request import Request
from tests.engine.cluster.clusters import cluster, endings
from tests.fakes import request


def controlled(**settings: object) -> tuple[Cluster, FlowControl]:
    simulated = cluster(max_num_seqs=1)
    given = {
        "saturation_detector": "concurrency",
        "saturation": SaturationLimits(max_in_flight=1),
        "tick_interval_us": 1000,
    }
    gateway = FlowControl(simulated, FlowControlSettings(**(given | settings)))  # type: ignore[arg-type]
    return simulated, gateway


def named(name: str, slo_class: str = "", output_tokens: int = 3) -> Request:
    return request(name, output_tokens=output_tokens, slo_class=slo_class)


def test_who_waits_passes_at_a_tick_that_counts_from_when_it_began_to_wait() -> None:
    simulated, gateway = controlled(tick_interval_us=700)
    ended = endings(simulated, [(0, named("a")), (100, named("b"))])
    # The place is free at 2000, when the last step of `a` begins; ticks are at 800, 1500, 2200.
    assert ended == {"a": (3000, "completed"), "b": (5200, "completed")}
    assert gateway.counters.num_dispatched == 2


def test_without_ticks_somebody_passes_whenever_somebody_ends() -> None:
    simulated, _ = controlled(tick_interval_us=0)
    ended = endings(simulated, [(0, named("a")), (100, named("b")), (200, named("c", "critical"))])
    assert sorted(ended, key=lambda name: ended[name]) == ["a", "c", "b"]
    assert ended["c"] == (5001, "completed")


def test_a_request_that_waits_too_long_expires() -> None:
    simulated, gateway = controlled(ttl_us=500)
    ended = endings(simulated, [(0, named("a")), (100, named("b"))])
    assert ended["b"] == (600, "rejected")
    assert (gateway.counters.num_expired, gateway.counters.num_dispatched) == (1, 1)


def test_a_full_queue_rejects_or_sheds() -> None:
    simulated, gateway = controlled(queue=QueueLimits(max_waiting=1, sheds=True))
    arrivals = [(0, named("a")), (100, named("b", "batch")), (200, named("c", "critical")), (300, named("d", "batch"))]
    ended = endings(simulated, arrivals)
    assert (ended["b"], ended["d"]) == ((200, "rejected"), (300, "rejected"))
    assert (gateway.counters.num_shed, gateway.counters.num_rejected) == (1, 1)
    assert simulated.counters.num_ended == 2


def test_a_sheddable_request_makes_room_on_its_instance_for_one_that_is_not() -> None:
    simulated, gateway = controlled(evicts_in_flight=True)
    ended = endings(simulated, [(0, named("a", "batch", output_tokens=50)), (100, named("b", "critical"))])
    assert ended["a"][1] == "evicted"
    assert ended["b"][1] == "completed"
    assert gateway.counters.num_evicted == 1


def test_nobody_is_evicted_for_one_that_is_sheddable_itself() -> None:
    simulated, gateway = controlled(evicts_in_flight=True)
    ended = endings(simulated, [(0, named("a", "batch")), (100, named("b", "batch"))])
    assert [outcome for _, outcome in ended.values()] == ["completed", "completed"]
    assert gateway.counters.num_evicted == 0


def test_a_client_that_hangs_up_in_the_queue_is_gone() -> None:
    simulated, gateway = controlled()
    simulated.abort("b", 400)
    ended = endings(simulated, [(0, named("a")), (100, named("b"))])
    assert ended["b"] == (400, "aborted")
    assert gateway.num_waiting == 0


def test_when_all_instances_are_gone_nobody_is_kept_waiting() -> None:
    simulated, _ = controlled()
    simulated.kill(0, 500)
    ended = endings(simulated, [(0, named("a")), (100, named("b"))])
    assert ended["a"][1] == "failed"
    assert ended["b"][1] == "rejected"
