"""Memory plans decide the blocks of deployments with --engine vllm."""

import json
from pathlib import Path
from typing import Any

import pytest

from blis_sim.engine.batch_shape import BatchShape
from blis_sim.engine.deployment import Deployment, resolve
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


def _resolved(**options: Any) -> Deployment:
    return resolve(DeploymentOptions(model="qwen3-8b", hardware="H100", tp=1, latency_model="roofline", **options))


def test_kv_cache_dtype_doubles_the_blocks_and_halves_what_attention_reads() -> None:
    plain, fp8 = _resolved(), _resolved(kv_cache_dtype="fp8")
    assert fp8.config.total_kv_blocks == pytest.approx(2 * plain.config.total_kv_blocks, abs=1)
    assert (plain.model.bytes_per_kv_element, fp8.model.bytes_per_kv_element) == (0, 1)
    long_contexts = BatchShape(decode_requests=64, decode_context_tokens=64 * 30_000)
    assert fp8.latency.step_time(long_contexts) < plain.latency.step_time(long_contexts)


def test_quantization_leaves_more_blocks_and_reads_fewer_bytes() -> None:
    plain, fp8 = _resolved(), _resolved(quantization="fp8")
    assert fp8.config.total_kv_blocks > plain.config.total_kv_blocks * 1.1
    assert fp8.model.bytes_per_weight == 1
    one_request = BatchShape(decode_requests=1, decode_context_tokens=100)
    assert fp8.latency.step_time(one_request) < 0.6 * plain.latency.step_time(one_request)


def test_kv_cache_memory_bytes_replace_the_utilization() -> None:
    assert _resolved(kv_cache_memory_bytes=36 * 65536 * 1000).config.total_kv_blocks == 1000


def test_dtype_of_32_bits_doubles_weights_and_blocks() -> None:
    wide = _resolved(dtype="float32")
    assert wide.memory is not None
    assert wide.memory.weight_bytes_per_gpu[0] == pytest.approx(2 * 8_190_735_360 * 2, rel=1e-3)
    assert wide.config.total_kv_blocks < _resolved().config.total_kv_blocks / 2


@pytest.mark.parametrize(
    ("options", "note"),
    [
        ({"kv_cache_dtype": "int8_per_token_head"}, "warning: --kv-cache-dtype int8_per_token_head is ignored: the KV"),
        ({"quantization": "awq"}, "warning: --quantization awq is ignored: weights are those of the checkpoint"),
    ],
)
def test_types_that_are_not_modelled_are_ignored_with_a_warning(options: dict[str, str], note: str) -> None:
    deployment = _resolved(**options)
    assert deployment.config == _resolved().config
    assert any(each.startswith(note) for each in deployment.notes)


def test_blis_counts_its_own_blocks_whatever_the_types() -> None:
    blis: dict[str, Any] = {"engine": "blis", "latency_model": "roofline", "hardware": "H100", "tp": 1}
    plain = resolve(DeploymentOptions(model="qwen3-8b", **blis))
    assert resolve(DeploymentOptions(model="qwen3-8b", kv_cache_dtype="fp8", **blis)).config == plain.config


def test_nvfp4_weights_have_the_width_of_their_matrices(tmp_path: Path) -> None:
    quantized = {"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": ["lm_head"]}
    config = {**DENSE, "architectures": ["Qwen3ForCausalLM"], "quantization_config": quantized}
    (tmp_path / "config.json").write_text(json.dumps(config))
    deployment = resolve(DeploymentOptions(model=str(tmp_path), hardware="B200", tp=1))
    assert deployment.model.bytes_per_weight == 0.56


def test_tp_beyond_the_kv_heads_copies_them(tmp_path: Path) -> None:
    config = request_for("Qwen3-235B-A22B-FP8").config
    (tmp_path / "config.json").write_text(json.dumps(config))
    deployment = resolve(DeploymentOptions(model=str(tmp_path), hardware="H200", tp=8))
    assert deployment.memory is not None
    assert deployment.memory.block_bytes_per_gpu == (94 * 16384 // 2 * 2 // 2,)
