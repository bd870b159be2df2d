"""Plans of models of every kind equal those of vLLM 0.33."""

import pytest

from tests.engine.memory.plan_table import KV_BYTES, Expected, expected_plans, groups_of, layout_of

PLANS = list(expected_plans())
MOST_WEIGHT_ERROR = 0.02


def _named(plan: Expected) -> str:
    return f"{plan.model}-tp{plan.tp}-pp{plan.pp}"


@pytest.mark.parametrize("plan", PLANS, ids=_named)
def test_groups_blocks_capacity_and_hits_equal_vllm(plan: Expected) -> None:
    layout = layout_of(plan.model, tp=plan.tp, pp=plan.pp)
    blocks = layout.num_blocks(KV_BYTES)
    assert groups_of(layout) == plan.groups
    assert blocks == plan.num_blocks
    assert layout.capacity_tokens(blocks) == plan.capacity_tokens
    assert layout.granularity == (plan.hit_tokens, plan.hash_tokens)


@pytest.mark.parametrize("plan", PLANS, ids=_named)
def test_weights_are_within_two_percent_of_vllm(plan: Expected) -> None:
    layout = layout_of(plan.model, tp=plan.tp, pp=plan.pp)
    assert layout.weight_bytes_per_gpu == pytest.approx(plan.weight_bytes, rel=MOST_WEIGHT_ERROR)
