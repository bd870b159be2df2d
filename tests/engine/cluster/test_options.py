"""The flags of a cluster."""

import pytest

from blis_sim.engine.cluster.build import flags_without_effect_on_cluster
from blis_sim.engine.cluster.options import ClusterOptions, gateway_flags_without_effect, notes_on_pools
from blis_sim.options import BlisError, options_from


def options(**given: object) -> ClusterOptions:
    return options_from(ClusterOptions, model="qwen/qwen3-14b", **given)


def test_the_weight_of_adapters_comes_after_the_other_scorers() -> None:
    weights = options(lora_scorer_weight=3.0, routing_scorers="lora-affinity:1,queue-depth:2").scorer_weights
    assert weights == (("queue-depth", 2.0), ("lora-affinity", 3.0))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"num_instances": 10**11}, "--num-instances must be at most 10000, got 100000000000"),
        ({"gateway_slo_targets": "a=1,a=2"}, "--slo-targets names the class 'a'"),
        ({"pd_transfer_bandwidth": 1e-300}, "--pd-transfer-bandwidth must be at least 1e-06"),
        ({"pd_transfer_base_latency": 1e300}, "--pd-transfer-base-latency must be at most"),
        ({"num_instances": 0}, "--num-instances must be at least 1, got 0"),
        ({"routing_policy": "x"}, "--routing-policy must be one of round-robin, least-loaded"),
        ({"routing_scorers": "queue-depth"}, "--routing-scorers must be name:weight"),
        ({"token_bucket_capacity": 0.0}, "--token-bucket-capacity must be above 0"),
    ],
)
def test_invalid_flags_of_a_cluster_are_refused(given: dict[str, object], message: str) -> None:
    with pytest.raises(BlisError, match=message):
        options(**given)


@pytest.mark.parametrize(
    ("given", "notes"),
    [
        ({}, []),
        ({"routing_policy": "weighted", "num_instances": 2, "routing_scorers": "queue-depth:1"}, []),
        ({"routing_scorers": "queue-depth:1"}, ["--routing-scorers has no effect without --routing-policy weighted"]),
        ({"routing_policy": "random"}, ["--routing-policy random has no effect with one instance"]),
    ],
)
def test_flags_without_effect_are_named(given: dict[str, object], notes: list[str]) -> None:
    assert list(flags_without_effect_on_cluster(options(**given))) == notes


@pytest.mark.parametrize(
    ("given", "notes"),
    [
        ({"saturation_detector": "utilization", "queue_depth_threshold": 2.0}, []),
        ({}, ["--flow-control holds no request back without --saturation-detector utilization or concurrency"]),
        (
            {"saturation_detector": "concurrency", "queue_depth_threshold": 2.0},
            ["--queue-depth-threshold has no effect without --saturation-detector utilization"],
        ),
    ],
)
def test_settings_that_a_gateway_ignores_are_named(given: dict[str, object], notes: list[str]) -> None:
    assert list(gateway_flags_without_effect(options(flow_control=True, **given).gateway)) == notes


def test_a_prefill_pool_without_work_is_named() -> None:
    pools: dict[str, object] = {"num_instances": 2, "prefill_instances": 1, "decode_instances": 1}
    note = "--prefill-instances get no requests without --pd-decider; --pd-decider always sends them all prompts"
    assert list(notes_on_pools(options(**pools).pools, 2)) == [note]
    assert list(notes_on_pools(options(**pools, pd_decider="always").pools, 2)) == []


def test_instances_without_a_role_beside_pools_are_named() -> None:
    pools = {"num_instances": 5, "prefill_instances": 1, "decode_instances": 2, "pd_decider": "always"}
    (note,) = notes_on_pools(options(**pools).pools, 5)
    assert note.startswith("warning: 2 of 5 instances have no role and get no requests: ")
    assert note.endswith("add up to 3")


def test_a_pool_for_both_without_a_decider_is_named() -> None:
    (note,) = notes_on_pools(options(num_instances=2, prefill_decode_instances=2).pools, 2)
    assert note.startswith("--prefill-decode-instances compute the prompts of their own requests")
