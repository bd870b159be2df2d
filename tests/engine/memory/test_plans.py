"""Plans of models of every kind equal those of vLLM 0.33."""

from typing import Any

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
    layout = layout_of(plan.model, tp=plan.tp, pp=plan.pp, runs_marlin=True)
    assert layout.weight_bytes_per_gpu == pytest.approx(plan.weight_bytes, rel=MOST_WEIGHT_ERROR)


@pytest.mark.parametrize(
    ("changes", "inputs", "width"),
    [
        ({}, 2880, 2880),
        ({"tp": 2}, 2880, 1472),
        ({"runs_marlin": True}, 3072, 2944),
        ({"capability_major": 10}, 3072, 2944),
        ({"capability_major": 12}, 3072, 2944),
    ],
)
def test_experts_in_mxfp4_are_padded_as_their_kernels_take_them(
    changes: dict[str, Any], inputs: int, width: int
) -> None:
    """Triton's kernels run on Hopper. The weights of 128 experts in each of 36 layers take 17 bytes for 32 values."""
    plain = layout_of("gpt-oss-120b", **{"tp": 1, **changes, "runs_marlin": True})
    found = layout_of("gpt-oss-120b", **changes)
    marlin_width = 1536 if changes.get("tp") == 2 else 2944
    saved = 36 * 128 * 3 * (3072 * marlin_width - inputs * width) * 17 // 32
    assert plain.weight_bytes_per_gpu[0] - found.weight_bytes_per_gpu[0] == saved
