"""A server whose instances have data-parallel ranks: metrics, choice of a rank, control routes, ports, replays."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from blis_sim.engine.cluster.build import build_simulation
from blis_sim.engine.cluster.cluster import Cluster
from blis_sim.engine.data_parallel import IndependentRanks, LockstepRanks, RankGroup
from blis_sim.options import with_settings
from mockserve.engines import deployment_of
from tests.wire.instances import BODY, at_instance, finished, instances, kill, lives
from tests.wire.plain_http import call, complete, wait_for_metric
from tests.wire.serving import TestServer, running_server

EXPERTS: dict[str, Any] = {
    "model": "mixtral-8x7b-v0.1",
    "hardware": "H100",
    "tp": 4,
    "latency_model": "trained-physics",
}


def groups_of(server: TestServer) -> list[RankGroup]:
    live = server.service.cluster
    assert live is not None
    members = live._live_cluster.driver.cluster.members  # type: ignore[attr-defined]
    return [member.engine for member in members.values()]


def test_the_router_spreads_requests_over_instances_and_each_over_its_ranks() -> None:
    with running_server(num_instances=2, dp=2) as server:
        assert all(isinstance(group, IndependentRanks) for group in groups_of(server))
        for _ in range(8):
            assert complete(server, **BODY).status == 200
        assert [finished(server, engine) for engine in range(4)] == [2, 2, 2, 2]
        assert [each["num_completed"] for each in instances(server)] == [4, 4]


def test_ranks_that_share_experts_step_together_in_each_instance() -> None:
    with running_server(num_instances=2, dp=2, speed=50.0, **EXPERTS) as server:
        assert all(isinstance(group, LockstepRanks) for group in groups_of(server))
        assert [complete(server, **BODY).status for _ in range(4)] == [200] * 4
        assert sum(finished(server, engine) for engine in range(4)) == 4


def test_a_header_names_an_engine_by_its_number_and_at_a_port_by_its_rank() -> None:
    with running_server(num_instances=2, dp=2, instance_ports=0) as server:
        named = {"X-data-parallel-rank": "3"}
        assert [call(server, "POST", "/v1/completions", BODY, named).status for _ in range(2)] == [200, 200]
        assert [finished(server, engine) for engine in range(4)] == [0, 0, 0, 2]
        refused = call(server, "POST", "/v1/completions", BODY, {"X-data-parallel-rank": "4"})
        assert (refused.status, refused.json["error"]["message"]) == (
            400,
            "data_parallel_rank 4 is out of range [0, 4).",
        )
        at_port = at_instance(server, 0)
        assert call(at_port, "POST", "/v1/completions", BODY, {"X-data-parallel-rank": "1"}).status == 200
        assert call(at_port, "POST", "/v1/completions", BODY).status == 200
        assert call(at_port, "POST", "/v1/completions", BODY, {"X-data-parallel-rank": "2"}).status == 400
        assert finished(server, 0) + finished(server, 1) == 2
        assert finished(server, 1) >= 1


def test_an_instance_is_drained_killed_and_added_with_all_its_ranks() -> None:
    with running_server(num_instances=2, dp=2, enable_instance_control=True) as server:
        assert call(server, "POST", "/blis/instances/0/drain").json["life"] in ("draining", "drained")
        for _ in range(4):
            assert complete(server, **BODY).status == 200
        assert [finished(server, engine) for engine in (2, 3)] == [2, 2]
        assert call(server, "POST", "/blis/instances").json["instance"] == 2
        assert kill(server, 1).json["life"] == "killed"
        for _ in range(4):
            assert complete(server, **BODY).status == 200
        assert [finished(server, engine) for engine in (4, 5)] == [2, 2]
        assert lives(server) == ["drained", "killed", "ready"]


def test_a_hanging_rank_leaves_the_other_ranks_alone() -> None:
    with running_server(num_instances=2, dp=2, enable_fault_control=True) as server:
        call(server, "POST", "/blis/faults", {"rank": 1, "engine": {"hang": None}})
        for engine in (0, 2, 3):
            named = {"X-data-parallel-rank": str(engine)}
            assert call(server, "POST", "/v1/completions", BODY, named).status == 200
        call(server, "DELETE", "/blis/faults")
        assert call(server, "POST", "/v1/completions", BODY, {"X-data-parallel-rank": "1"}).status == 200


def test_a_control_route_of_one_instance_acts_on_all_its_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_SERVER_DEV_MODE", "1")
    with running_server(num_instances=2, dp=2) as server, ThreadPoolExecutor(2) as pool:
        assert call(server, "POST", "/pause?instance=1&mode=keep").status == 200
        named = [{"X-data-parallel-rank": rank} for rank in ("2", "3")]
        asked = [pool.submit(call, server, "POST", "/v1/completions", BODY, each) for each in named]
        for engine in ("2", "3"):
            wait_for_metric(server, "vllm:num_requests_waiting", 1, engine=engine)
        assert [each["num_waiting"] for each in instances(server)] == [0, 2]
        call(server, "POST", "/resume?instance=1")
        assert [each.result().status for each in asked] == [200, 200]


@pytest.mark.parametrize("settings", [{}, EXPERTS])
def test_served_instances_are_those_of_a_run(settings: dict[str, Any]) -> None:
    with running_server(num_instances=2, dp=2, **settings) as server:
        options, groups = server.service.options, groups_of(server)
        described = with_settings(options.cluster)
        simulation = build_simulation(described, deployment_of(options))
    assert isinstance(simulation, Cluster)
    found = [member.engine for member in simulation.members.values()]
    assert [type(each) for each in found] == [type(each) for each in groups]
    assert [engine.config for engine in simulation.instances] == [
        engine.config for group in groups for engine in group.instances
    ]
