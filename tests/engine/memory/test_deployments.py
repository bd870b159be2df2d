"""Memory plans decide the blocks of deployments with --engine vllm."""

import json
from pathlib import Path

import pytest

from blis_sim.engine.deployment import resolve
from blis_sim.engine.deployment_options import DeploymentOptions
from blis_sim.engine.errors import EngineError
from tests.engine.memory.plan_table import request_for

DENSE = {
    "architectures": ["NoSuchForCausalLM"],
    "torch_dtype": "bfloat16",
    "hidden_size": 4096,
    "intermediate_size": 12288,
    "num_hidden_layers": 36,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "vocab_size": 151936,
    "max_position_embeddings": 40960,
}


def test_hybrid_has_blocks_as_long_as_a_state(tmp_path: Path) -> None:
    config = request_for("Qwen3.5-35B-A3B").config
    (tmp_path / "config.json").write_text(json.dumps(config))
    deployment = resolve(DeploymentOptions(model=str(tmp_path), hardware="H100", tp=2))
    assert deployment.config.block_size_tokens == 1088
    assert deployment.memory is not None
    assert [group.kind for group in deployment.memory.groups] == ["MambaSpec"] * 3 + ["FullAttentionSpec"]


def test_model_that_cannot_be_planned_is_counted_from_its_sizes_with_a_note(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(DENSE))
    deployment = resolve(DeploymentOptions(model=str(tmp_path), hardware="H100", tp=1))
    assert deployment.memory is None
    assert deployment.config.total_kv_blocks == 23_981
    assert any("the architecture NoSuchForCausalLM is not modelled" in note for note in deployment.notes)


def test_weights_without_room_name_the_tp_that_has_it() -> None:
    with pytest.raises(EngineError, match=r"leaves no room for a KV cache on 1 H100 .*: it needs tp 2 or more"):
        resolve(DeploymentOptions(model="llama-3.1-70b-instruct", hardware="H100", tp=1))
