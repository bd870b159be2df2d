"""FP8 in blocks that do not divide over GPUs is refused as by vLLM, by the release that refuses it."""

from typing import Any

import pytest

from blis_sim.engine.deployment import resolve
from blis_sim.engine.deployment_options import DeploymentOptions
from blis_sim.engine.errors import EngineError
from blis_sim.engine.memory.planner import PlanRequest, plan_layout
from blis_sim.engine.memory.weights import ShardingError

BLOCKS = {"quant_method": "fp8", "weight_block_size": [128, 128], "activation_scheme": "dynamic"}
DENSE = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "hidden_size": 2560,
    "num_hidden_layers": 2,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "intermediate_size": 9728,
    "vocab_size": 151936,
    "max_position_embeddings": 4096,
    "quantization_config": BLOCKS,
}
EXPERTS = {
    **DENSE,
    "architectures": ["Qwen3MoeForCausalLM"],
    "model_type": "qwen3_moe",
    "intermediate_size": 6144,
    "moe_intermediate_size": 768,
    "num_experts": 64,
    "num_experts_per_tok": 8,
}
GATE_AND_UP = "The output_size of gate's and up's weight = {} is not divisible by weight quantization block_n = 128."


def problem(
    config: dict[str, Any], tp: int, *, refines: bool = True, expert_parallel: bool = False, **more: Any
) -> str:
    request = PlanRequest(
        config={**config, **more}, model="m", tp=tp, refines_fp8_blocks=refines, expert_parallel=expert_parallel
    )
    try:
        plan_layout(request)
    except ShardingError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("model", ["minimax-m2.5", "qwen3-235b-a22b-fp8", "qwen3-235b-a22b-instruct-2507-fp8"])
@pytest.mark.parametrize("version", ["0.11", "0.15", "0.19", "0.23"])
def test_experts_of_which_a_gpu_would_hold_a_block_and_a_half_are_refused(model: str, version: str) -> None:
    options: dict[str, Any] = {"model": model, "hardware": "H200", "vllm_version": version}
    with pytest.raises(EngineError) as refusal:
        resolve(DeploymentOptions(**options, tp=8))
    assert str(refusal.value) == f"{model} with tp 8: {GATE_AND_UP.format(192)}"
    assert resolve(DeploymentOptions(**options, tp=4)).tp == 4
    assert resolve(DeploymentOptions(**options, tp=8, enable_expert_parallel=True)).tp == 8


@pytest.mark.parametrize("model", ["minimax-m2.5", "qwen3-235b-a22b-fp8"])
def test_a_release_that_takes_smaller_blocks_serves_them(model: str) -> None:
    assert resolve(DeploymentOptions(model=model, hardware="H200", tp=8, vllm_version="0.33")).tp == 8


def test_blocks_become_smaller_only_down_to_32() -> None:
    assert not problem(EXPERTS, 4), "192 columns, blocks of 64"
    assert not problem(EXPERTS, 8), "96 columns, blocks of 32"
    assert problem(EXPERTS, 8, moe_intermediate_size=640) == f"m with tp 8: {GATE_AND_UP.format(80)}"
    assert problem(EXPERTS, 8, refines=False) == f"m with tp 8: {GATE_AND_UP.format(96)}"
    assert not problem(EXPERTS, 8, refines=False, expert_parallel=True)


def test_a_whole_expert_of_part_of_a_block_is_refused_on_a_single_gpu_too() -> None:
    narrow: dict[str, Any] = {"moe_intermediate_size": 720}
    assert problem(EXPERTS, 1, **narrow) == f"m with tp 1: {GATE_AND_UP.format(720)}"


@pytest.mark.parametrize("refines", [False, True])
def test_inputs_of_dense_layers_must_be_whole_blocks_on_each_gpu(refines: bool) -> None:
    expected = (
        "m with tp {}: Weight input_size_per_partition = {} is not divisible by weight quantization block_k = 128."
    )
    assert problem(DENSE, 8, refines=refines) == expected.format(8, 1216)
    assert problem(DENSE, 4, refines=refines) == ""
    odd: dict[str, Any] = {"head_dim": 96, "num_attention_heads": 8}
    assert problem(DENSE, 2, refines=refines, **odd, hidden_size=768) == ""
    assert problem(DENSE, 4, refines=refines, **odd, hidden_size=768) == expected.format(4, 192)


def test_weights_without_blocks_divide_anyhow() -> None:
    assert problem(DENSE, 8, quantization_config={"quant_method": "fp8", "activation_scheme": "dynamic"}) == ""
    assert problem(DENSE, 8, quantization_config={**BLOCKS, "modules_to_not_convert": [
        f"model.layers.{layer}.mlp.{name}" for layer in range(2) for name in ("down_proj", "gate_proj", "up_proj")
    ]}) == ""  # fmt: skip
    assert problem({**DENSE, "quantization_config": None}, 8) == ""


def test_a_simulator_with_other_rules_shards_as_before() -> None:
    assert resolve(DeploymentOptions(model="minimax-m2.5", hardware="H200", tp=8, engine="blis")).tp == 8
