"""The flags of a cluster."""

import pytest

from blis_options import BlisError
from engine.cluster.autoscaling.options import ScalingOptions
from engine.cluster.build import flags_without_effect_on_cluster


def options(**given: object) -> ScalingOptions:
    return ScalingOptions(model="qwen/qwen3-14b", **given)  # type: ignore[arg-type]


def test_the_weight_of_adapters_comes_after_the_other_scorers() -> None:
    weights = options(lora_scorer_weight=3.0, routing_scorers="lora-affinity:1,queue-depth:2").scorer_weights
    assert weights == (("queue-depth", 2.0), ("lora-affinity", 3.0))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"num_instances": 0}, "--num-instances must be at least 1, got 0"),
        ({"routing_policy": "x"}, "--routing-policy must be one of round-robin, least-loaded"),
        ({"routing_scorers": "queue-depth"}, "--routing-scorers must be name:weight"),
        ({"token_bucket_capacity": 0.0}, "--token-bucket-capacity must be above 0"),
    ],
)
def test_flags_that_mean_nothing_are_refused(given: dict[str, object], message: str) -> None:
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
