import pytest

from blis_sim.engine.cluster.autoscaling.delays import Delay
from blis_sim.engine.cluster.autoscaling.nodes import NodePool, Nodes
from blis_sim.engine.errors import EngineError

H100 = NodePool(name="h100", gpu_type="H100", gpus_per_node=8, initial_nodes=1)
L40S = NodePool(name="l40s", gpu_type="L40S", gpus_per_node=2, initial_nodes=2)


def test_an_instance_takes_gpus_of_one_machine() -> None:
    nodes = Nodes([L40S])
    assert nodes.place(3) is None
    placed = [nodes.place(2) for _ in range(3)]
    assert [node is not None for node in placed] == [True, True, False]
    assert placed[0] is not placed[1]


def test_given_back_gpus_can_be_taken_again() -> None:
    nodes = Nodes([H100, L40S])
    node = nodes.place(8)
    assert node is not None
    assert node.pool is H100
    assert nodes.place(8) is None
    nodes.give_back(node, 8)
    assert nodes.place(1, "l40s") is not None
    assert nodes.place(8, "h100") is node


def test_pools_of_one_name_are_refused() -> None:
    with pytest.raises(EngineError, match="'h100' is used twice"):
        Nodes([H100, H100])


def test_a_pool_without_gpus_is_refused() -> None:
    with pytest.raises(EngineError, match="gpus_per_node of node pool 'x' must be at least 1, got 0"):
        NodePool(name="x", gpu_type="H100", gpus_per_node=0, initial_nodes=1)


def test_delays_are_never_negative_and_repeat() -> None:
    delay = Delay(mean=0.01, stddev=10)
    drawn = [delay.draw(number) for number in range(50)]
    assert min(drawn) == 0
    assert max(drawn) > 1_000_000
    assert drawn == [delay.draw(number) for number in range(50)]
    assert Delay(mean=1.5).draw(7) == 1_500_000
