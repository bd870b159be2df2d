from pathlib import Path

import pytest

from blis_sim.engine.cluster.autoscaling.options import ScalingOptions
from blis_sim.engine.cluster.autoscaling.placement import placement_of
from blis_sim.engine.cluster.build import build_simulation, notes_on_cluster
from blis_sim.engine.cluster.cluster import Cluster
from blis_sim.engine.cluster.policy_file import read_policy_file
from blis_sim.engine.deployment import resolve
from blis_sim.engine.errors import EngineError

POOLS = """
node_pools:
  - {name: small, gpu_type: L40S, gpus_per_node: 1, initial_nodes: 1, cost_per_hour: 2}
  - {name: big, gpu_type: H100, gpus_per_node: 2, initial_nodes: 1, gpu_memory_gib: 96, cost_per_hour: 12}
"""
AUTOSCALER = """
autoscaler:
  interval_us: 1000000
  hpa_scrape_delay: {mean: 0.5, stddev: 0.1}
  scale_up_stabilization_window_us: 2000000
instance_lifecycle:
  loading_delay: {mean: 30}
  warm_start_initial_instances: true
"""


def written(folder: Path, text: str) -> str:
    (folder / "policy.yaml").write_text(text)
    return str(folder / "policy.yaml")


def options(path: str, **more: object) -> ScalingOptions:
    return ScalingOptions(
        model="meta-llama/llama-3.1-8b-instruct",
        policy_config=path,
        **more,  # type: ignore[arg-type]
    )


def test_a_file_says_all_about_machines_and_the_autoscaler(tmp_path: Path) -> None:
    scaling = read_policy_file(written(tmp_path, POOLS + AUTOSCALER)).scaling
    assert [pool.name for pool in scaling.node_pools] == ["small", "big"]
    assert scaling.autoscaler is not None
    assert (scaling.autoscaler.scrape_delay.mean, scaling.autoscaler.windows.scale_up_us) == (0.5, 2_000_000)
    assert (scaling.loading.mean, scaling.starts_warm) == (30.0, True)


def test_instances_are_as_large_and_as_fast_as_their_machines_let_them(tmp_path: Path) -> None:
    given = options(written(tmp_path, POOLS), num_instances=5)
    deployment = resolve(given)
    placement = placement_of(given, deployment)
    assert placement is not None
    assert [node.pool.name for node in placement.placed] == ["small", "big", "big"]
    blocks = [each.config.total_kv_blocks for each in placement.of_instances]
    assert blocks[0] < deployment.config.total_kv_blocks < blocks[1] == blocks[2]
    assert [each.gpu.name for each in placement.of_instances] == ["L40S", "H100", "H100"]
    assert "2 of --num-instances 5 find no machine, and stay absent" in list(notes_on_cluster(given, deployment))
    simulation = build_simulation(given, deployment)
    assert isinstance(simulation, Cluster)
    assert simulation.autoscaler is None


def test_the_flag_switches_the_autoscaler_on(tmp_path: Path) -> None:
    given = options(written(tmp_path, POOLS), model_autoscaler_interval_us=500)
    simulation = build_simulation(given, resolve(given))
    assert isinstance(simulation, Cluster)
    assert simulation.autoscaler is not None


def test_loading_times_without_machines_are_named(tmp_path: Path) -> None:
    given = options(written(tmp_path, "instance_lifecycle: {loading_delay: {mean: 1}}"))
    (note,) = notes_on_cluster(given, resolve(given))
    assert note == "instance_lifecycle of --policy-config has no effect without node_pools"


@pytest.mark.parametrize(
    ("text", "more", "message"),
    [
        ("autoscaler: {interval_us: 10}", {}, "an autoscaler needs node_pools"),
        ("autoscaler: {interval: 10}", {}, "policy.yaml: autoscaler: unknown key 'interval'"),
        ("node_pools: [{name: a, gpu_type: H100, gpus_per_node: 1, nodes: 1}]", {}, "unknown key 'nodes'"),
        ("node_pools: [{name: a, gpus_per_node: 1}]", {}, "policy.yaml: node pool 'a' needs a name and a gpu_type"),
        ("instance_lifecycle: {loading_delay: {mean: -1}}", {}, "loading_delay: mean must be at least 0, got -1"),
        ("instance_lifecycle: {loading_delay: {mean: 1.0e+300}}", {}, "loading_delay: mean must be at most 86400"),
        ("node_pools: [{name: a, gpu_type: H100, initial_nodes: 1000000000}]", {}, "initial_nodes must be a whole num"),
        (
            POOLS + "autoscaler: {interval_us: 10, scale_down_boundary: 0.9}",
            {},
            "policy.yaml: autoscaler: scale_down_boundary must be below scale_up_threshold",
        ),
        (POOLS + "autoscaler: {interval_us: 10, kv_cache_threshold: 2}", {}, "kv_cache_threshold must be at most 1"),
        (
            "node_pools: [{name: a, gpu_type: H100, gpus_per_node: 1, initial_nodes: 0}]",
            {},
            "no machine with the 1 GPUs",
        ),
        (POOLS, {"num_instances": 2, "prefill_instances": 1, "decode_instances": 1}, "cannot be used together"),
        (POOLS + "instances: [{count: 1}]", {}, "cannot be used together with instances"),
    ],
)
def test_what_cannot_be_is_refused_in_a_line(text: str, more: dict[str, object], message: str, tmp_path: Path) -> None:
    given = options(written(tmp_path, text), **more)
    with pytest.raises(EngineError, match=message):
        placement_of(given, resolve(given))
