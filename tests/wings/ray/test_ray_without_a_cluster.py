"""A run on a Ray cluster as far as it needs none: its senders by machine, and an option that needs another."""

from pathlib import Path

import pytest

from blis_sim.options import BlisError
from blis_sim.wings.ray.senders import Node, assign_nodes
from tests.observe.test_processes import options

ONE, OTHER, NO_WORK = Node("1", "10.0.0.1", 3), Node("2", "10.0.0.2", 1), Node("0", "10.0.0.0", 0)


def test_the_address_of_a_cluster_without_one_to_send_from_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BlisError, match="--ray-address needs --ray"):
        options("http://localhost", tmp_path, ray_address="auto")


def test_each_machine_that_works_has_one_sender_unless_there_are_to_be_more() -> None:
    nodes = [NO_WORK, ONE, OTHER]
    assert assign_nodes(nodes, None) == [ONE, OTHER]
    assert assign_nodes(nodes, 1) == [ONE]
    assert assign_nodes(nodes, 4) == [ONE, OTHER, ONE, ONE]
    with pytest.raises(BlisError, match="--processes 5: the Ray cluster has 4 CPUs"):
        assign_nodes(nodes, 5)
    with pytest.raises(BlisError, match="no machine of the cluster has a CPU"):
        assign_nodes([NO_WORK], None)
