"""Kubernetes' HorizontalPodAutoscaler and KEDA's ScaledObject: what they ask for, and the fleet that follows."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from blis_sim.engine.cluster.autoscaler import AutoscalerMetrics, ReplicaMetrics, VariantMetrics
from blis_sim.engine.cluster.autoscaler_manifest import read_manifest
from blis_sim.engine.cluster.horizontal import (
    Activation,
    HorizontalPipeline,
    HorizontalSettings,
    MetricTarget,
    ScalingRules,
    ScalingStep,
)
from blis_sim.engine.errors import EngineError

SECOND = 1_000_000
WAITING = MetricTarget(figures=("num_requests_waiting",), target=5)
MANIFEST = Path(__file__).parents[3] / "docker" / "kubernetes" / "autoscaling.yaml"


def metrics_of(*waiting: int, num_loading: int = 0, num_queued: int = 0) -> AutoscalerMetrics:
    """Instances that serve, by the requests that wait there, and others that load."""
    replicas = [ReplicaMetrics(number, "pods", 1000, 0, each) for number, each in enumerate(waiting)]
    return AutoscalerMetrics(replicas, [VariantMetrics("pods", 1000, 0.0, num_loading)], num_queued)


def settings(**changes: Any) -> HorizontalSettings:
    return HorizontalSettings(**{"name": "h", "least": 1, "most": 20, "metrics": (WAITING,), **changes})


def change(pipeline: HorizontalPipeline, metrics: AutoscalerMetrics, at_s: float) -> int:
    decision = pipeline.decide(metrics, round(at_s * SECOND))
    return 0 if decision is None else decision.num_instances


@pytest.mark.parametrize(
    ("waiting", "wanted"),
    [
        ((10, 10), 4),  # twice the target
        ((5, 6), 2),  # 1.1 times the target is within the tolerance
        ((5, 7), 3),  # 1.2 times the target: ceil(2 x 1.2)
        ((100, 100), 6),  # at most four more, or twice as many, in 15 s
    ],
)
def test_the_number_follows_the_ratio_of_the_metric_to_its_target(waiting: tuple[int, ...], wanted: int) -> None:
    assert len(waiting) + change(HorizontalPipeline(settings()), metrics_of(*waiting), 0) == wanted


def test_instances_that_load_count_as_idle_before_more_are_asked_for() -> None:
    """Ready pods have 10 each, twice the target; with two that load at 0 the ratio is 1, and nothing changes."""
    assert change(HorizontalPipeline(settings()), metrics_of(10, 10, num_loading=2), 0) == 0


def test_instances_that_load_count_as_busy_before_any_is_removed() -> None:
    """One ready pod has 1 of 5; with the other one at its target the ratio is 0.6: ceil(2 x 0.6) is 2."""
    quick = settings(down=ScalingRules(window_us=0, steps=(ScalingStep(value=9, is_percent=False, period_us=SECOND),)))
    assert change(HorizontalPipeline(quick), metrics_of(1, num_loading=1), 0) == 0


def test_fewer_instances_wait_for_the_window_of_five_minutes() -> None:
    pipeline = HorizontalPipeline(settings())
    changes = [change(pipeline, metrics_of(0, 0, 0, 0), at_s) for at_s in range(0, 331, 15)]
    assert changes[:20] == [0] * 20
    assert changes[20] == -3


def test_a_step_of_a_behavior_limits_what_is_added_in_its_period() -> None:
    one = ScalingRules(window_us=0, steps=(ScalingStep(value=1, is_percent=False, period_us=60 * SECOND),))
    pipeline, count, added = HorizontalPipeline(settings(up=one)), 2, []
    for at_s in range(0, 121, 15):
        more = change(pipeline, metrics_of(*[50] * count), at_s)
        count += more
        if more:
            added.append(at_s)
    assert added == [0, 60, 120]


def test_a_disabled_direction_never_changes() -> None:
    never = ScalingRules(
        window_us=0, steps=(ScalingStep(value=1, is_percent=False, period_us=SECOND),), select="Disabled"
    )
    assert change(HorizontalPipeline(settings(up=never)), metrics_of(50, 50), 0) == 0


def test_the_metric_that_asks_for_most_decides() -> None:
    total = MetricTarget(figures=("num_requests_waiting",), target=2, is_per_pod=False)
    assert change(HorizontalPipeline(settings(metrics=(WAITING, total))), metrics_of(5, 5), 0) == 3  # ceil(10 / 2) - 2


def test_keda_starts_the_first_instance_for_what_waits_at_the_gateway_and_stops_the_last_after_its_cooldown() -> None:
    queue = MetricTarget(
        figures=("num_requests_waiting", "inference_extension_flow_control_queue_size"), target=5, is_per_pod=False
    )
    keda = settings(least=0, metrics=(queue,), activation=Activation(thresholds=(0.0,), cooldown_us=60 * SECOND))
    pipeline = HorizontalPipeline(keda)
    assert change(pipeline, metrics_of(), 0) == 0
    assert change(pipeline, metrics_of(num_queued=3), 15) == 0, "KEDA looks every 30 s"
    assert change(pipeline, metrics_of(num_queued=3), 30) == 1
    assert [change(pipeline, metrics_of(0), at_s) for at_s in (60, 75)] == [0, 0]
    assert change(pipeline, metrics_of(0), 90) == -1


@pytest.mark.parametrize(("initial_s", "stopped"), [(0, [0]), (60, [60])])
def test_keda_stops_instances_that_never_served_when_its_initial_cooldown_is_over(
    initial_s: int, stopped: list[int]
) -> None:
    activation = Activation(thresholds=(0.0,), initial_cooldown_us=initial_s * SECOND)
    waiting = MetricTarget(figures=("num_requests_waiting",), target=5, is_per_pod=False)
    pipeline = HorizontalPipeline(settings(least=0, metrics=(waiting,), activation=activation))
    assert [at_s for at_s in (0, 15, 30, 45, 60) if change(pipeline, metrics_of(0), at_s)][:1] == stopped


def test_keda_keeps_first_instances_for_its_cooldown_once_one_was_active() -> None:
    activation = Activation(thresholds=(0.0,), cooldown_us=60 * SECOND, initial_cooldown_us=60 * SECOND)
    waiting = MetricTarget(figures=("num_requests_waiting",), target=5, is_per_pod=False)
    pipeline = HorizontalPipeline(settings(least=0, metrics=(waiting,), activation=activation))
    assert [change(pipeline, metrics_of(n), at_s) for n, at_s in ((0, 0), (3, 30), (0, 60), (0, 75))] == [0, 0, 0, 0]
    assert change(pipeline, metrics_of(0), 90) == -1


@given(
    waiting=st.lists(st.integers(0, 1000), min_size=1, max_size=8),
    num_loading=st.integers(0, 8),
    least=st.integers(1, 6),
    more=st.integers(0, 8),
)
def test_the_number_is_never_outside_its_bounds(waiting: list[int], num_loading: int, least: int, more: int) -> None:
    pipeline = HorizontalPipeline(settings(least=least, most=least + more))
    found = len(waiting) + num_loading + change(pipeline, metrics_of(*waiting, num_loading=num_loading), 0)
    assert least <= found <= least + more


@given(st.lists(st.integers(0, 60), min_size=1, max_size=6), st.integers(1, 6))
def test_more_waiting_requests_never_ask_for_fewer_instances(waiting: list[int], more: int) -> None:
    busier = [each + more for each in waiting]
    first, second = (change(HorizontalPipeline(settings()), metrics_of(*each), 0) for each in (waiting, busier))
    assert first <= second


def test_the_manifest_of_the_repository_is_read_as_it_is_applied() -> None:
    found = read_manifest(MANIFEST)
    assert (found.least, found.most, found.metrics) == (1, 8, (WAITING,))
    assert (found.up.window_us, found.down.window_us) == (0, 120 * SECOND)


def scaled(**changes: Any) -> str:
    trigger = {"type": "prometheus", "metadata": {"query": 'sum(vllm:num_requests_waiting{job="a"})', "threshold": "5"}}
    spec = {"scaleTargetRef": {"name": "a"}, "triggers": [trigger], **changes}
    return yaml.safe_dump({"apiVersion": "keda.sh/v1alpha1", "kind": "ScaledObject", "spec": spec})


def test_a_scaled_object_has_the_defaults_of_keda(tmp_path: Path) -> None:
    (tmp_path / "keda.yaml").write_text(f"# by hand\n---\nkind: Service\n---\n{scaled()}")
    found = read_manifest(tmp_path / "keda.yaml")
    assert (found.least, found.most, found.wakes) == (0, 100, True)
    assert found.activation == Activation(thresholds=(0.0,))
    assert found.metrics == (MetricTarget(figures=("num_requests_waiting",), target=5, is_per_pod=False),)


def test_an_object_may_stand_in_a_list_as_kubectl_prints_it(tmp_path: Path) -> None:
    path = tmp_path / "list.yaml"
    path.write_text(yaml.safe_dump({"kind": "List", "items": [{"kind": "Service"}, yaml.safe_load(scaled())]}))
    assert read_manifest(path).most == 100


def horizontal(*metrics: dict[str, Any], **changes: Any) -> str:
    return yaml.safe_dump(
        {"kind": "HorizontalPodAutoscaler", "spec": {"maxReplicas": 3, "metrics": list(metrics), **changes}}
    )


def of_pods(name: str, **target: Any) -> dict[str, Any]:
    return {"type": "Pods", "pods": {"metric": {"name": name}, "target": {"type": "AverageValue", **target}}}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "kind: Service\n---\nkind: HorizontalPodAutoscaler\nspec: {a: 1]\n---\nkind: Service\n",
            ": line 4: expected ',' or '}', but got ']'",
        ),
        ("kind: Deployment\n", ": needs one object of kind HorizontalPodAutoscaler or ScaledObject, found none"),
        (
            horizontal(),
            " key spec: metrics must have a metric of vLLM: without one Kubernetes goes by the use of processors",
        ),
        (
            horizontal({"type": "Resource", "resource": {"name": "cpu"}}),
            ": unknown key 'resource' of spec.metrics[0], known are type, pods, external, object",
        ),
        (
            horizontal(of_pods("queue_length", averageValue="5")),
            " key spec.metrics[0].pods.metric.name: a simulated fleet has the metrics vllm:num_requests_waiting, "
            "vllm:num_requests_running, vllm:kv_cache_usage_perc, inference_extension_flow_control_queue_size, "
            "got 'queue_length'",
        ),
        (
            horizontal(of_pods("vllm_num_requests_waiting", averageValue="-1")),
            " key spec.metrics[0].pods.target.averageValue: must be a quantity above 0 such as 5, "
            '"0.8" or "500m", got \'-1\'',
        ),
        (
            horizontal(of_pods("vllm_num_requests_waiting", averageValue=5), minReplicas=4),
            ": an autoscaler needs at most 10000 replicas and no fewer than its least, got 4 to 3",
        ),
        (scaled(idleReplicaCount=0), " key spec: idleReplicaCount must be below minReplicaCount (0), got 0"),
        (
            scaled(triggers=[{"type": "prometheus", "metadata": {"query": "rate(x[1m])", "threshold": 1}}]),
            " key spec.triggers[0].metadata.query: must be sum(METRIC) or avg(METRIC), or several of one kind "
            "added up, got 'rate(x[1m])'",
        ),
    ],
)
def test_what_a_simulated_fleet_cannot_obey_is_refused_with_its_place(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "autoscaler.yaml"
    path.write_text(text)
    with pytest.raises(EngineError) as refused:
        read_manifest(path)
    assert str(refused.value) == f"{path}{message}"


def test_a_manifest_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    (tmp_path / "latin.yaml").write_bytes(b"\xff\xfe")
    for name, reason in (("none.yaml", "No such file or directory"), ("latin.yaml", "not UTF-8 text")):
        with pytest.raises(EngineError) as refused:
            read_manifest(tmp_path / name)
        assert str(refused.value) == f"{tmp_path / name}: cannot be read: {reason}"
