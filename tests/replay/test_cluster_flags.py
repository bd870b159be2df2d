"""Errors in the flags of gateways and pools."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from blis_sim.cli.main import run
from blis_sim.engine.cluster.build import build_simulation, notes_on_cluster
from blis_sim.engine.cluster.cluster import Cluster
from blis_sim.engine.cluster.options import ClusterOptions
from blis_sim.engine.cluster.policies import has_cluster, with_policies
from blis_sim.engine.deployment import resolve
from blis_sim.engine.latency.model import LatencyModel
from blis_sim.engine.latency.wrapped import PeakWatch
from blis_sim.options import BlisError, options_from
from replay.replay_options import ReplayOptions
from tests import coefficients_file

POOLS = ["--num-instances", "4", "--prefill-instances", "2", "--decode-instances", "2"]


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--pd-decider", "always"], "--pd-decider always needs --prefill-instances and --decode-instances"),
        ([*POOLS, "--prefill-decode-instances", "1"], "at most --num-instances (4), got 5"),
        (["--num-instances", "2", "--prefill-instances", "2"], "separate pools need at least one instance"),
        (["--pd-transfer-bandwidth", "0"], "--pd-transfer-bandwidth must be at least 1e-06, got 0.0"),
        (
            [*POOLS, "--decode-latency-model", "x"],
            "must be one of auto, trained-physics, roofline, blackbox, fitted, kernels, operators, adaptive-toy, "
            "got 'x'",
        ),
        (["--routing-latency", "9223372036854775807"], "--routing-latency must be at most 1e+15"),
        (["--admission-latency", "9" * 30], "--admission-latency must be at most 1e+15"),
        (["--dispatch-tick-interval", "9" * 19], "--dispatch-tick-interval must be at most 1e+15"),
        (["--session-mode", "closed-loop", "--think-time-ms", "9" * 16], "--think-time-ms must be at most 1e+12"),
        (["--saturation-detector", "tea-leaves"], "--saturation-detector"),
        (["--slo-targets", "critical"], "--slo-targets must be like critical=200000,batch=5000000, got 'critical'"),
        ([*POOLS, "--prefill-routing-scorers", "x:1"], "--prefill-routing-scorers"),
        (["--max-concurrency", "3"], "--max-concurrency needs --reissue"),
        (
            ["--reissue", "--flow-control", "--saturation-detector", "concurrency", "--max-concurrency", "3"],
            "--max-concurrency could mean",
        ),
    ],
)
def test_an_impossible_cluster_is_refused_in_a_line(
    flags: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "t.yaml").write_text("trace_version: 3\n")
    assert run(["replay", str(tmp_path / "t.yaml"), "--model", "qwen/qwen3-14b", *flags]) == 2
    reported = capsys.readouterr().err
    assert message in " ".join(reported.replace("│", " ").split())


def test_flags_of_absent_parts_are_named() -> None:
    options = options_from(
        ReplayOptions,
        model="qwen/qwen3-14b",
        queue_shedding=True,
        pd_transfer_contention=True,
        prefill_tp=2,
        per_band_capacity=3,
    )
    assert list(notes_on_cluster(options.cluster, resolve(options.cluster.deployment))) == [
        "--per-band-capacity has no effect without --flow-control",
        "--queue-shedding has no effect without --flow-control",
        "--pd-transfer-contention has no effect without --prefill-instances and --decode-instances",
        "--prefill-tp has no effect without --prefill-instances and --decode-instances",
    ]
    assert not has_cluster(options.cluster)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"prefill_tp": 3}, "prefill instances: qwen3-14b has 40 attention heads, which tp 3 does not divide"),
        ({"decode_hardware": "x"}, "decode instances: GPU 'x' is not in the catalogue"),
    ],
)
def test_an_error_names_its_pool(settings: dict[str, Any], message: str) -> None:
    options = options_from(
        ReplayOptions, model="qwen/qwen3-14b", num_instances=2, prefill_instances=1, decode_instances=1, **settings
    )
    with pytest.raises(BlisError, match=message):
        build_simulation(options.cluster, resolve(options.cluster.deployment))


def test_flags_of_another_policy_are_named(tmp_path: Path) -> None:
    policies = tmp_path / "policies.yaml"
    policies.write_text("admission: {tier_shed_threshold: 3}\n")
    options = options_from(
        ReplayOptions,
        model="qwen/qwen3-14b",
        num_instances=2,
        prefill_instances=1,
        decode_instances=1,
        pd_decider="always",
        pd_prefix_threshold=3,
        flow_control=True,
        saturation_detector="utilization",
        gateway_slo_targets="batch=5000000",
        token_bucket_refill_rate=1.0,
        policy_config=str(policies),
    )
    assert list(notes_on_cluster(options.cluster, resolve(options.cluster.deployment))) == [
        "tier_shed_ settings of --policy-config have no effect without admission policy tier-shed",
        "--token-bucket-refill-rate has no effect without --admission-policy token-bucket",
        "--slo-targets has no effect without --dispatch-order slo-deadline",
        "--pd-prefix-threshold has no effect without --pd-decider prefix-threshold",
    ]


def test_pools_may_run_on_other_hardware() -> None:
    options = options_from(
        ReplayOptions,
        model="qwen/qwen3-14b",
        num_instances=3,
        prefill_instances=1,
        decode_instances=1,
        prefill_tp=2,
        decode_hardware="A100-80",
        decode_pp=2,
        decode_max_model_len=4096,
    )
    simulation = build_simulation(options.cluster, resolve(options.cluster.deployment))
    assert isinstance(simulation, Cluster)
    configs = [engine.config for engine in simulation.instances]
    assert configs[0].total_kv_blocks > 2 * configs[2].total_kv_blocks
    assert [config.max_model_len for config in configs] == [40960, 4096, 40960]
    assert [config.num_stages for config in configs] == [1, 2, 1]


def named(latency: LatencyModel) -> str:
    """The class of a latency model, or of the one that a watch for too fast steps looks at."""
    return type(latency.model if isinstance(latency, PeakWatch) else latency).__name__


@pytest.mark.parametrize("names_file", [False, True])
def test_step_times_of_one_pool_may_be_learned(names_file: bool, tmp_path: Path) -> None:
    coefficients = str(coefficients_file.written(tmp_path)) if names_file else None
    options = options_from(
        ReplayOptions,
        model="qwen/qwen3-14b",
        num_instances=2,
        prefill_instances=1,
        decode_instances=1,
        pd_decider="always",
        latency_model="trained-physics",
        prefill_latency_model="fitted",
        prefill_tp=2,
        coefficients=coefficients,
    )
    deployment = resolve(options.cluster.deployment)
    simulation = build_simulation(options.cluster, deployment)
    assert isinstance(simulation, Cluster)
    prefill, decode = (named(engine.latency) for engine in simulation.instances)
    assert (prefill, decode) == ("RangeWatch", "TrainedPhysics")
    assert deployment.notes == ()
    (note,) = notes_on_cluster(options.cluster, deployment)
    whose = f"{coefficients} was" if names_file else "the shipped coefficients were"
    learned_for = f"prefill instances: warning: {whose} learned for qwen3-14b on H100 with tp 1, not for "
    assert note.startswith(f"{learned_for}qwen3-14b on H100 with tp 2")


def test_learned_step_times_of_one_pool_leave_another_to_its_own_model(tmp_path: Path) -> None:
    options = options_from(
        ReplayOptions,
        model="qwen/qwen3-14b",
        num_instances=2,
        prefill_instances=1,
        decode_instances=1,
        pd_decider="always",
        latency_model="fitted",
        coefficients=str(coefficients_file.written(tmp_path)),
        decode_latency_model="roofline",
    )
    simulation = build_simulation(options.cluster, resolve(options.cluster.deployment))
    assert isinstance(simulation, Cluster)
    assert [named(engine.latency) for engine in simulation.instances] == ["RangeWatch", "Roofline"]


def test_groups_and_node_pools_note_their_step_times(tmp_path: Path) -> None:
    policies = tmp_path / "policies.yaml"
    policies.write_text("instances: [{count: 2}, {hardware: A100-SXM}, {latency_model: roofline}]\n")
    given = options_from(ClusterOptions, model="qwen/qwen3-14b", latency_model="fitted", max_model_len=2048)
    options = with_policies(replace(given, policy_config=str(policies)))
    (note,) = notes_on_cluster(options, resolve(options.deployment))
    assert note.startswith("instances[1] of --policy-config: warning: the shipped coefficients were learned for qwen3")
    assert "not for qwen3-14b on A100-SXM with tp 1" in note
    policies.write_text("node_pools: [{name: slow, gpu_type: L40S, gpus_per_node: 1, initial_nodes: 1}]\n")
    options = with_policies(replace(given, policy_config=str(policies)))
    (note,) = notes_on_cluster(options, resolve(options.deployment))
    assert note.startswith("node pool 'slow': warning: the shipped coefficients were learned for qwen3-14b on H100")


def test_one_instance_may_have_a_gateway() -> None:
    assert has_cluster(options_from(ReplayOptions, model="qwen/qwen3-14b", flow_control=True).cluster)


def test_ranks_that_share_experts_need_scheduling_by_the_rules_of_vllm(capsys: pytest.CaptureFixture[str]) -> None:
    flags = ("--data-parallel-size", "2", "--engine", "orca", "--num-requests", "2")
    assert run(["run", "--model", "qwen3-30b-a3b", *flags]) == 2
    message = "--data-parallel-size must be 1 for a model with experts and other scheduling than vLLM's"
    assert f"{message}, got --engine orca" in capsys.readouterr().err
