"""The autoscaler: nodes, the decision, its effect on a cluster, and its part of the policy file."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from blis_sim.engine.cluster.assembly import placement_of
from blis_sim.engine.cluster.autoscaler import (
    ANALYZERS,
    Autoscaler,
    AutoscalerMetrics,
    AutoscalerPipeline,
    AutoscalerSettings,
    CapacityNeed,
    Delay,
    Fleet,
    InstanceResources,
    NodePool,
    Nodes,
    ReplicaMetrics,
    ScalingAction,
    ScalingDecision,
    StabilizationWindows,
    Thresholds,
    VariantMetrics,
)
from blis_sim.engine.cluster.build import build_simulation, notes_on_cluster
from blis_sim.engine.cluster.cluster import Cluster
from blis_sim.engine.cluster.gateway import FlowControl, FlowControlSettings
from blis_sim.engine.cluster.options import ClusterOptions
from blis_sim.engine.cluster.policy_file import read_policy_file
from blis_sim.engine.core import Engine
from blis_sim.engine.deployment import resolve
from blis_sim.engine.errors import EngineError
from blis_sim.engine.events import Event, Finished
from blis_sim.engine.request import Request
from blis_sim.options import options_from
from tests.engine.cluster.clusters import cluster, endings
from tests.examples import examples
from tests.fakes import TestLatency, config, request

H100 = NodePool(name="h100", gpu_type="H100", gpus_per_node=8, initial_nodes=1)
L40S = NodePool(name="l40s", gpu_type="L40S", gpus_per_node=2, initial_nodes=2)


def test_an_instance_takes_gpus_of_one_node() -> None:
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
    nodes.free(node, 8)
    assert nodes.place(1, "l40s") is not None
    assert nodes.place(8, "h100") is node


GROWING = NodePool(
    name="g", gpu_type="H100", gpus_per_node=2, initial_nodes=1, min_nodes=1, max_nodes=3, provisioning=Delay(mean=2)
)


def test_nodes_are_bought_up_to_the_most_and_ready_after_their_delay() -> None:
    nodes = Nodes([GROWING])
    assert nodes.place(2) is not None
    first, second = nodes.buy(1, "g", 500), nodes.buy(2, "g", 700)
    assert first is not None
    assert second is not None
    assert (first.bought_at, first.ready_at, first.num_free_gpus) == (500, 2_000_500, 1)
    assert nodes.buy(1, "g", 900) is None
    assert nodes.place(1) is first


def test_a_node_that_is_too_small_for_an_instance_is_not_bought() -> None:
    assert Nodes([GROWING]).buy(3, "g", 0) is None


def test_empty_nodes_are_given_back_down_to_the_least() -> None:
    nodes = Nodes([GROWING])
    initial = nodes.place(2)
    bought = nodes.buy(1, "g", 0)
    assert initial is not None
    assert bought is not None
    nodes.give_back_empty(1)
    nodes.free(bought, 1)
    nodes.free(initial, 2)
    nodes.give_back_empty(7)
    assert (initial.given_back_at, bought.given_back_at) == (None, 7)
    assert nodes.place(2) is initial


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"initial_nodes": 3, "max_nodes": 2}, "initial_nodes of node pool 'x' must be at most max_nodes .2., got 3"),
        ({"min_nodes": 5, "max_nodes": 4}, "min_nodes of node pool 'x' must be at most max_nodes .4., got 5"),
        ({"min_nodes": -1}, "min_nodes of node pool 'x' must be at least 0, got -1"),
    ],
)
def test_bounds_of_a_pool_that_contradict_each_other_are_refused(settings: dict[str, int], message: str) -> None:
    with pytest.raises(EngineError, match=message):
        NodePool(**{"name": "x", "gpu_type": "H100", "gpus_per_node": 1, "initial_nodes": 1, **settings})  # type: ignore[arg-type]


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


DEAR, CHEAP = VariantMetrics("dear", 1000, 8.0), VariantMetrics("cheap", 500, 3.0)


def figures(in_use: list[int], num_waiting: int = 0, num_pending: int = 0) -> AutoscalerMetrics:
    replicas = [ReplicaMetrics(index, "dear", 1000, tokens, num_waiting) for index, tokens in enumerate(in_use)]
    return AutoscalerMetrics(replicas, [VariantMetrics("dear", 1000, 8.0, num_pending), CHEAP])


def pipeline(scale_up_us: int = 0, scale_down_us: int = 0) -> AutoscalerPipeline:
    return AutoscalerPipeline(
        AutoscalerSettings(
            interval_us=1000, windows=StabilizationWindows(scale_up_us=scale_up_us, scale_down_us=scale_down_us)
        )
    )


@pytest.mark.parametrize(
    ("seen", "need"),
    [
        (figures([640]), CapacityNeed()),
        (figures([640], num_waiting=1), CapacityNeed(missing_tokens=640.0)),
        (figures([640], num_waiting=1, num_pending=1), CapacityNeed()),
        (figures([0]), CapacityNeed()),
        (figures([160, 160]), CapacityNeed()),
        (figures([100, 100]), CapacityNeed(spare_tokens=1100.0)),
    ],
)
def test_need_follows_from_tokens_held_and_expected(seen: AutoscalerMetrics, need: CapacityNeed) -> None:
    found = ANALYZERS["kv-tokens"](seen, Thresholds())
    assert (found.missing_tokens, found.spare_tokens) == pytest.approx((need.missing_tokens, need.spare_tokens))


def test_instances_are_added_to_the_cheapest_variant_and_removed_from_the_most_expensive() -> None:
    assert pipeline().decide(figures([640], num_waiting=1), 0) == ScalingDecision("cheap", 2)
    assert pipeline().decide(figures([0, 0, 0]), 0) == ScalingDecision("dear", -2)


def test_the_last_instance_stays() -> None:
    assert pipeline().decide(figures([0, 0]), 0) == ScalingDecision("dear", -1)
    assert pipeline().decide(figures([0]), 0) is None


def test_a_decision_takes_effect_after_its_window_and_then_the_window_starts_again() -> None:
    each = pipeline(scale_up_us=2000)
    missing, enough = figures([640], num_waiting=1), figures([640])
    acted = [each.decide(seen, at) is not None for at, seen in ((0, missing), (1000, missing), (2000, missing))]
    assert acted == [False, False, True]
    acted = [each.decide(seen, at) is not None for at, seen in ((3000, missing), (4000, enough), (5000, missing))]
    assert acted == [False, False, False]
    assert each.decide(missing, 7000) is not None


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"interval_us": 99}, "interval_us of the autoscaler must be at least 100, got 99"),
        ({"interval_us": 100, "analyzer": "tea-leaves"}, "must be one of kv-tokens, got 'tea-leaves'"),
    ],
)
def test_autoscaler_settings_out_of_bounds_are_refused(settings: dict[str, int | str], message: str) -> None:
    with pytest.raises(EngineError, match=message):
        AutoscalerSettings(**settings)  # type: ignore[arg-type]


def test_thresholds_that_never_settle_are_refused() -> None:
    with pytest.raises(EngineError, match="scale_down must be below scale_up"):
        Thresholds(scale_up=0.4, scale_down=0.4)


def pool_of(num_nodes: int, **more: Any) -> NodePool:
    return NodePool(name="p", gpu_type="H100", gpus_per_node=1, initial_nodes=num_nodes, **more)


def autoscaled(
    num_instances: int = 1,
    loading_s: float = 0.0,
    warm: bool = True,
    pool: NodePool | None = None,
    **settings: Any,
) -> tuple[Cluster, Autoscaler]:
    """Instances of 100 blocks of 4 tokens on nodes of one GPU each. A step takes 1000 us."""
    limits = config(total_kv_blocks=100, max_num_seqs=2)
    simulated = cluster(num_instances, total_kv_blocks=100, max_num_seqs=2)
    nodes = Nodes([pool or pool_of(4)])
    resources = InstanceResources(
        nodes=nodes,
        gpus_per_instance=1,
        configs={"p": limits},
        new_engine=lambda _: Engine(limits, TestLatency()),
        loading=Delay(mean=loading_s),
    )
    fleet = Fleet(simulated, resources)
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
    simulated, autoscaler = autoscaled(loading_s=0.005)
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


def test_without_free_gpus_no_instance_is_started() -> None:
    simulated, autoscaler = autoscaled(pool=pool_of(1))
    endings(simulated, many(30))
    assert len(simulated.instances) == 1
    assert autoscaler.scalings[0] == ScalingAction(10_000, "p", autoscaler.scalings[0].num_instances, 0)


def test_gpus_of_drained_instances_are_used_again() -> None:
    simulated, autoscaler = autoscaled(pool=pool_of(2))
    again = [(3_000_000 + at, each._replace(id=f"again {each.id}")) for at, each in many(30)]
    endings(simulated, [*many(30), *again])
    assert sum(each.num_done for each in autoscaler.scalings if each.num_instances > 0) == 2
    assert len(simulated.instances) == 3


def test_nodes_are_bought_while_requests_wait_and_given_back_when_their_instances_have_left() -> None:
    pool = pool_of(1, min_nodes=1, max_nodes=3, provisioning=Delay(mean=0.3))
    simulated, autoscaler = autoscaled(loading_s=0.005, pool=pool)
    arrivals = [(10_000 * number, each) for number, (_, each) in enumerate(many(60))]
    arrivals.append((3_000_000, request("late", 20, 40)))
    ended = endings(simulated, arrivals)
    assert {outcome for _, outcome in ended.values()} == {"completed"}
    assert [node.ready_at - node.bought_at for node in autoscaler.nodes.bought] == [300_000, 300_000]
    first_steps = [engine.steps.end(0) for engine in simulated.instances[1:]]
    bought_at = autoscaler.nodes.bought[0].bought_at
    assert min(first_steps) > bought_at + 305_000
    given_back = [node for node in (*autoscaler.nodes.initial, *autoscaler.nodes.bought) if node.given_back_at]
    assert len(given_back) == 2


def test_a_scaling_takes_effect_after_the_scrape_delay() -> None:
    simulated, autoscaler = autoscaled(scrape_delay=Delay(mean=0.003))
    endings(simulated, many(30))
    assert autoscaler.scalings[0].at == 13_000


def test_a_gateway_lets_requests_wait_for_instances_that_are_loading() -> None:
    simulated, _ = autoscaled(loading_s=0.5, warm=False)
    FlowControl(simulated, FlowControlSettings(saturation_detector="concurrency", tick_interval_us=1000))
    ended = endings(simulated, [(100, request("a", 20, 4))])
    assert ended["a"][1] == "completed"
    assert ended["a"][0] > 500_000


def test_without_a_gateway_requests_are_rejected_while_all_instances_load() -> None:
    simulated, _ = autoscaled(loading_s=0.5, warm=False)
    assert endings(simulated, [(100, request("a", 20, 4))])["a"] == (100, "rejected")


@given(
    st.lists(st.tuples(st.integers(0, 400), st.integers(1, 60), st.integers(0, 60)), min_size=1, max_size=25),
    st.lists(st.integers(1, 40), min_size=1, max_size=6),
    st.sampled_from([0.0, 0.004, 0.03]),
    st.booleans(),
)
@settings(max_examples=examples(40))
def test_every_request_ends_once_however_the_driver_wakes(
    requests: list[tuple[int, int, int]], pauses: list[int], loading_s: float, warm: bool
) -> None:
    arrivals = sorted(
        ((tick * 500, request(f"r{place}", length, output)) for place, (tick, length, output) in enumerate(requests)),
        key=lambda arrival: arrival[0],
    )
    expected = endings(autoscaled(2, loading_s=loading_s, warm=warm)[0], arrivals)
    assert len(expected) == len(arrivals)
    simulated, _ = autoscaled(2, loading_s=loading_s, warm=warm)
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
    ended = [(each.sequence.request.id, (each.at, each.outcome.value)) for each in events if isinstance(each, Finished)]
    assert len(ended) == len(arrivals)
    assert dict(ended) == expected


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


def written_policy(folder: Path, text: str) -> str:
    (folder / "policy.yaml").write_text(text)
    return str(folder / "policy.yaml")


def scaling_options(path: str, **more: object) -> ClusterOptions:
    return options_from(
        ClusterOptions,
        model="meta-llama/llama-3.1-8b-instruct",
        policy_config=path,
        **more,
    )


def test_the_policy_file_describes_node_pools_and_the_autoscaler(tmp_path: Path) -> None:
    scaling = read_policy_file(written_policy(tmp_path, POOLS + AUTOSCALER)).scaling
    assert [pool.name for pool in scaling.node_pools] == ["small", "big"]
    assert isinstance(scaling.autoscaler, AutoscalerSettings)
    assert (scaling.autoscaler.scrape_delay.mean, scaling.autoscaler.windows.scale_up_us) == (0.5, 2_000_000)
    assert (scaling.loading.mean, scaling.starts_warm) == (30.0, True)


def test_instances_take_memory_and_speed_of_the_gpus_of_their_node_pool(tmp_path: Path) -> None:
    given = scaling_options(written_policy(tmp_path, POOLS), num_instances=5)
    deployment = resolve(given.deployment)
    placement = placement_of(given, deployment)
    assert placement is not None
    assert [node.pool.name for node in placement.placed] == ["small", "big", "big"]
    blocks = [each.config.total_kv_blocks for each in placement.of_instances]
    assert blocks[0] < deployment.config.total_kv_blocks < blocks[1] == blocks[2]
    assert [each.gpu.name for each in placement.of_instances] == ["L40S", "H100", "H100"]
    assert "2 of --num-instances 5 find too few free GPUs and are absent" in list(notes_on_cluster(given, deployment))
    simulation = build_simulation(given, deployment)
    assert isinstance(simulation, Cluster)
    assert simulation.part(Autoscaler) is None


GROWING_POOLS = """
node_pools:
  - name: standard
    gpu_type: H100
    gpus_per_node: 8
    gpu_memory_gib: 80
    initial_nodes: 1.0
    min_nodes: 1
    max_nodes: 8
    provisioning_delay: {mean: 120.0, stddev: 30.0}
    cost_per_hour: 0.0
"""


def test_a_pool_has_its_least_and_most_nodes_and_may_cost_nothing(tmp_path: Path) -> None:
    (pool,) = read_policy_file(written_policy(tmp_path, GROWING_POOLS)).scaling.node_pools
    assert (pool.min_nodes, pool.most_nodes, pool.cost_per_hour) == (1, 8, 0.0)
    assert pool.provisioning == Delay(mean=120.0, stddev=30.0)


def test_thresholds_may_stand_below_the_analyzer(tmp_path: Path) -> None:
    text = "autoscaler: {interval_us: 1e7, analyzer: {scale_up_threshold: 0.9, avg_input_tokens: 256}}"
    autoscaler = read_policy_file(written_policy(tmp_path, text)).scaling.autoscaler
    assert isinstance(autoscaler, AutoscalerSettings)
    assert autoscaler.interval_us == 10_000_000
    assert (autoscaler.thresholds.scale_up, autoscaler.thresholds.tokens_per_request) == (0.9, 256)
    assert autoscaler.analyzer == "kv-tokens"


def test_an_autoscaler_without_an_interval_decides_nothing_until_a_flag_gives_one(tmp_path: Path) -> None:
    path = written_policy(tmp_path, GROWING_POOLS + "autoscaler: {analyzer: {scale_up_threshold: 0.7}}")
    given = scaling_options(path)
    simulation = build_simulation(given, resolve(given.deployment))
    assert isinstance(simulation, Cluster)
    assert simulation.part(Autoscaler) is None
    assert list(notes_on_cluster(given, resolve(given.deployment))) == [
        "autoscaler of --policy-config has no effect without interval_us or --model-autoscaler-interval-us",
        "max_nodes of --policy-config has no effect without an autoscaler, which alone buys nodes",
    ]
    by_flag = scaling_options(path, model_autoscaler_interval_us=500)
    simulation = build_simulation(by_flag, resolve(by_flag.deployment))
    assert isinstance(simulation, Cluster)
    assert simulation.part(Autoscaler) is not None


@pytest.mark.parametrize("interval_us", [500, 500.4, 1e7])
def test_the_flag_switches_the_autoscaler_on(interval_us: float, tmp_path: Path) -> None:
    given = scaling_options(written_policy(tmp_path, POOLS), model_autoscaler_interval_us=interval_us)
    simulation = build_simulation(given, resolve(given.deployment))
    assert isinstance(simulation, Cluster)
    assert simulation.part(Autoscaler) is not None


def test_a_loading_delay_without_node_pools_is_reported_as_ineffective(tmp_path: Path) -> None:
    given = scaling_options(written_policy(tmp_path, "instance_lifecycle: {loading_delay: {mean: 1}}"))
    (note,) = notes_on_cluster(given, resolve(given.deployment))
    assert note == "instance_lifecycle of --policy-config has no effect without node_pools"


@pytest.mark.parametrize(
    ("text", "more", "message"),
    [
        ("autoscaler: {interval_us: 100}", {}, "an autoscaler needs node_pools"),
        (POOLS + "autoscaler: {interval_us: 99}", {}, "interval_us of the autoscaler must be at least 100, got 99"),
        (
            POOLS + "autoscaler: {analyzer: {scale_up: 0.9}}",
            {},
            "policy.yaml: unknown key 'scale_up' of autoscaler.analyzer, known are kv_cache_threshold",
        ),
        (
            POOLS + "autoscaler: {analyzer: {}, scale_up_threshold: 0.9}",
            {},
            "policy.yaml: unknown key 'scale_up_threshold' of autoscaler",
        ),
        (
            "node_pools: [{name: a, gpu_type: H100, gpus_per_node: 1, initial_nodes: 2, max_nodes: 1}]",
            {},
            "policy.yaml: initial_nodes of node pool 'a' must be at most max_nodes",
        ),
        ("autoscaler: {interval: 10}", {}, "policy.yaml: unknown key 'interval' of autoscaler"),
        ("node_pools: [{name: a, gpu_type: H100, gpus_per_node: 1, nodes: 1}]", {}, "unknown key 'nodes'"),
        ("node_pools: [{name: a, gpus_per_node: 1}]", {}, "policy.yaml: node pool 'a' needs a name and a gpu_type"),
        (
            "instance_lifecycle: {loading_delay: {mean: -1}}",
            {},
            "loading_delay.mean: expected a number between 0 and 86400, got -1",
        ),
        (
            "instance_lifecycle: {loading_delay: {mean: 1.0e+300}}",
            {},
            "loading_delay.mean: expected a number between 0 and 86400",
        ),
        (
            "node_pools: [{name: a, gpu_type: H100, initial_nodes: 1000000000}]",
            {},
            "initial_nodes: expected a whole num",
        ),
        (
            POOLS + "autoscaler: {interval_us: 100, scale_down_boundary: 0.9}",
            {},
            "policy.yaml key autoscaler: scale_down_boundary must be below scale_up_threshold",
        ),
        (
            POOLS + "autoscaler: {interval_us: 100, kv_cache_threshold: 2}",
            {},
            "kv_cache_threshold: expected a number above 0 and at most 1",
        ),
        (
            "node_pools: [{name: a, gpu_type: H100, gpus_per_node: 1, initial_nodes: 0}]",
            {},
            "no node with the 1 GPUs",
        ),
        (POOLS, {"num_instances": 2, "prefill_instances": 1, "decode_instances": 1}, "cannot be used together"),
        (POOLS + "instances: [{count: 1}]", {}, "cannot be used together with instances"),
        (
            POOLS + "autoscaler: {interval_us: -4}",
            {},
            r"^[^:]*policy.yaml key autoscaler.interval_us: expected a number of at least 0, got -4$",
        ),
    ],
)
def test_an_invalid_scaling_policy_is_refused_in_one_line(
    text: str, more: dict[str, object], message: str, tmp_path: Path
) -> None:
    given = scaling_options(written_policy(tmp_path, text), **more)
    with pytest.raises(EngineError, match=message):
        placement_of(given, resolve(given.deployment))
