"""Policies from a file, beside flags."""

from pathlib import Path

import pytest

from blis_sim.engine.cluster.build import build_simulation
from blis_sim.engine.cluster.cluster import Cluster
from blis_sim.engine.cluster.options import ClusterOptions
from blis_sim.engine.cluster.policies import with_policies
from blis_sim.engine.cluster.policy_file import PolicyFile, read_policy_file
from blis_sim.engine.core import Engine
from blis_sim.engine.data_parallel import RankGroup
from blis_sim.engine.deployment import resolve
from blis_sim.options import BlisError, options_from
from tests.engine.cluster.small_clusters import endings
from tests.fakes import request

ALL = """
admission:
  policy: tier-shed
  token_bucket_capacity: 500
  token_bucket_refill_rate: 20.5
  tier_shed_threshold: 7
  tier_shed_min_priority: -1
  gaie_qd_threshold: 3
  gaie_kv_threshold: 0.5
  slo_targets: {critical: 1e5, batch: 5000000}
  slo_priorities: {gold: 10, batch: 2}
routing:
  policy: weighted
  scorers:
    - {name: queue-depth, weight: 2}
    - {name: prefix-affinity, weight: 0.5}
priority: {policy: slo-based}
scheduler: sjf
preemption: {policy: priority}
tenant_budgets: {alice: 0.25}
instances:
  - {count: 2, max_num_seqs: 8}
  - {hardware: A100-SXM, alpha_coeffs: [1, 2, 3], beta_coeffs: [1, 2, 3, 4, 5, 6, 7]}
"""


def written(folder: Path, text: str) -> str:
    path = folder / "policies.yaml"
    path.write_text(text)
    return str(path)


def options(path: str, **more: object) -> ClusterOptions:
    return with_policies(options_from(ClusterOptions, model="qwen/qwen3-14b", policy_config=path, **more))


def test_every_setting_of_a_file_is_taken(tmp_path: Path) -> None:
    merged = options(written(tmp_path, ALL))
    assert merged.admission_policy == "tier-shed"
    assert merged.token_bucket_capacity == 500
    assert merged.token_bucket_refill_rate == 20.5
    assert merged.routing_policy == "weighted"
    assert merged.scorer_weights == (("queue-depth", 2.0), ("prefix-affinity", 0.5))
    assert merged.deployment.priority_policy == "slo-based"
    assert merged.deployment.scheduler == "sjf"
    assert merged.deployment.preemption_policy == "priority"
    assert merged.gateway.slo_targets_us == {"critical": 100_000, "batch": 5_000_000}
    assert merged.num_instances == 3


def test_whole_numbers_may_be_written_with_a_point_and_empty_names_change_nothing(tmp_path: Path) -> None:
    text = "admission: {tier_shed_threshold: 20.0, policy: ''}\nscheduler: ''"
    file = read_policy_file(written(tmp_path, text))
    assert (file.tier_shed_threshold, file.admission_policy, file.scheduler) == (20, None, None)


@pytest.mark.parametrize(
    ("limits", "is_rejected"),
    [("", False), ("gaie_qd_threshold: 1", True), ("gaie_qd_threshold: 1000, gaie_kv_threshold: 0.001", True)],
)
def test_sheddable_requests_are_rejected_above_the_thresholds_of_the_file(
    limits: str, is_rejected: bool, tmp_path: Path
) -> None:
    merged = options(
        written(tmp_path, f"admission: {{policy: gaie-legacy, {limits}}}"),
        max_num_seqs=1,
        total_kv_blocks=600,
        snapshot_refresh_interval=0,
    )
    simulation = build_simulation(merged, resolve(merged.deployment))
    assert isinstance(simulation, Cluster)
    for number in range(3):
        simulation.submit(request(f"r{number}", output_tokens=50), number)
    simulation.submit(request("batch", slo_class="batch"), 30_000)
    ended = {request_id: outcome for _, request_id, outcome, _ in endings(simulation)}
    assert (ended["batch"] == "rejected") is is_rejected


def test_flags_with_another_value_than_their_default_win(tmp_path: Path) -> None:
    merged = options(written(tmp_path, ALL), routing_policy="random", token_bucket_capacity=9.0)
    assert merged.routing_policy == "random"
    assert merged.token_bucket_capacity == 9.0
    assert merged.token_bucket_refill_rate == 20.5


def test_an_empty_file_changes_nothing(tmp_path: Path) -> None:
    assert read_policy_file(written(tmp_path, "{}")) == PolicyFile()


def test_instances_have_the_settings_of_their_groups(tmp_path: Path) -> None:
    merged = options(written(tmp_path, ALL))
    simulation = build_simulation(merged, resolve(merged.deployment))
    assert isinstance(simulation, Cluster)
    assert [engine.config.max_num_seqs for engine in simulation.instances] == [8, 8, 256]
    assert simulation.instances[2].latency.post_decode_time == 2
    blocks = [engine.config.total_kv_blocks for engine in simulation.instances]
    assert blocks[0] == blocks[1]
    assert all(engine.config.slo_priorities.importance("gold") == 10 for engine in simulation.instances)


def test_budgets_alone_make_a_cluster_of_one(tmp_path: Path) -> None:
    merged = options(written(tmp_path, "tenant_budgets: {alice: 0}"))
    simulation = build_simulation(merged, resolve(merged.deployment))
    assert isinstance(simulation, Cluster)
    for number in range(3):
        simulation.submit(request(f"r{number}", slo_class="batch")._replace(tenant="alice"), number)
    assert [outcome for _, _, outcome, _ in endings(simulation)] == ["rejected", "rejected", "completed"]


def test_without_anything_of_a_cluster_there_is_one_engine() -> None:
    given = options_from(ClusterOptions, model="qwen/qwen3-14b")
    assert isinstance(build_simulation(given, resolve(given.deployment)), Engine)


def build(path: str) -> Engine | RankGroup | Cluster:
    merged = options(path)
    return build_simulation(merged, resolve(merged.deployment))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[]", "must be a mapping of names to values"),
        ("admissions: {}", "unknown key 'admissions', known are admission, routing, "),
        ("admission: 3", "key admission: expected keys and values, got 3"),
        ("admission: {policy: some}", "key admission.policy: expected always-admit or .* got 'some'"),
        ("admission: {capacity: 1}", "unknown key 'capacity' of admission, known are policy, "),
        (
            "admission: {token_bucket_capacity: 0}",
            "key admission.token_bucket_capacity: expected a number above 0, got 0",
        ),
        ("admission: {token_bucket_capacity: much}", "token_bucket_capacity: expected a number above 0, got 'much'"),
        (
            "admission: {tier_shed_threshold: 1.5}",
            "tier_shed_threshold: expected a whole number of at least 0, got 1.5",
        ),
        ("admission: {slo_priorities: {a: 101}}", "slo_priorities.a: expected a whole number between -100 and 100"),
        ("routing: {scorers: 3}", "key routing.scorers: expected a list, got 3"),
        ("routing: {scorers: [{name: rocket, weight: 1}]}", "routing.scorers must name scorers of .* got 'rocket'"),
        (
            "routing: {scorers: [{name: queue-depth}]}",
            r"routing\.scorers\[0\]: weight must be given a value",
        ),
        ("routing: {scorers: [{nam: 1}]}", r"unknown key 'nam' of routing.scorers\[0\]"),
        ("preemption: {policy: oldest}", "key preemption.policy: expected fcfs or priority or gap, got 'oldest'"),
        ("admission: {gaie_kv_threshold: 1.5}", "gaie_kv_threshold: expected a number above 0 and at most 1, got 1.5"),
        ("admission: {gaie_qd_threshold: 0}", "gaie_qd_threshold: expected a number above 0, got 0"),
        ("admission: {slo_targets: {gold: 0}}", "admission.slo_targets.gold: expected a number of at least 1, got 0"),
        ("admission: {slo_targets: {'a,b': 9}}", "admission.slo_targets: the name of a class must have no .* 'a,b'"),
        ("scheduler: lifo", "key scheduler: expected fcfs or .* got 'lifo'"),
        ("tenant_budgets: {a: 2}", "tenant_budgets.a: expected a number between 0 and 1, got 2"),
        ("instances: [{count: 0}]", r"instances\[0\].count: expected a whole number of at least 1, got 0"),
        ("instances: [{model: x}]", r"instances\[0\]: unknown key 'model', known are count, hardware, "),
        ("instances: [{max_num_seqs: 0}]", r"instances\[0\]: --max-num-seqs must be at least 1, got 0"),
        ("instances: [{max_num_seqs: many}]", r"instances\[0\]: --max-num-seqs must be a whole number, got 'many'"),
        ("instances: [{max_num_seqs: 1.5}]", r"instances\[0\]: --max-num-seqs must be a whole number, got '1.5'"),
        ("instances: [{max_num_seqs: {a: 1}}]", r"instances\[0\]: --max-num-seqs must be a whole number"),
        ("instances: [{tp: [1]}]", r"instances\[0\]: --tp must be a whole number"),
        ("instances: [{tp: null}]", r"instances\[0\]: --tp must be given a value"),
        ("instances: [{gpu_memory_utilization: true}]", "--gpu-memory-utilization must be a number, got 'true'"),
        ("instances: [{alpha_coeffs: [[1]], beta_coeffs: [1]}]", "--alpha-coeffs must be a list"),
        ("instances: [{latency_model: fitted, coefficients: [x]}]", r"instances\[0\]: x|coefficients"),
        ("admission: {policy: [always-admit]}", "policy: expected always-admit or .* got \\['always-admit'\\]"),
        ("scheduler: {fcfs: 1}", "scheduler: expected fcfs or .* got {'fcfs': 1}"),
        (f"admission: {{token_bucket_capacity: 1{'0' * 400}}}", "line 1 is not valid YAML: '10000"),
        (
            "admission: {slo_priorities: {gold: null}}",
            "slo_priorities.gold: expected a whole number between -100 and 100, got None",
        ),
        ("tenant_budgets: {alice: null}", "tenant_budgets.alice: expected a number between 0 and 1, got None"),
        ("tenant_budgets: {a: -1}", "tenant_budgets.a: expected a number between 0 and 1, got -1"),
        ("instances: [{hardware: H1000}]", r"instances\[0\]: GPU 'H1000' is not"),
        ("instances: [{hardware: 3}]", r"instances\[0\]: hardware must be text, got 3"),
    ],
)
def test_an_invalid_policy_file_is_refused_in_one_line(text: str, message: str, tmp_path: Path) -> None:
    path = written(tmp_path, text)
    with pytest.raises(BlisError, match=message) as caught:
        build(path)
    assert path in str(caught.value)
    assert "\n" not in str(caught.value)


def test_another_number_of_instances_than_the_file_lists_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BlisError, match=r"--num-instances must be the 3 instances of .*, got 2"):
        options(written(tmp_path, ALL), num_instances=2)
