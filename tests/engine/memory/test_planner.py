"""Effects of a deployment on a plan, and the deployments that are refused."""

import pytest

from blis_sim.engine.errors import EngineError
from blis_sim.engine.memory.planner import PlanRequest, check_fits, plan_layout
from tests.engine.memory.plan_table import groups_of, layout_of, request_for


def test_kv_heads_replicate_when_gpus_outnumber_them() -> None:
    four, eight = (layout_of("Qwen3-235B-A22B-FP8", tp=tp) for tp in (4, 8))
    assert eight.block_bytes_per_gpu == four.block_bytes_per_gpu


def test_refuses_tp_that_does_not_divide_the_heads() -> None:
    with pytest.raises(EngineError, match="16 attention heads, which tp 3 does not divide"):
        layout_of("Qwen3-0.6B", tp=3)


def test_fp8_kv_cache_halves_the_bytes_of_a_block() -> None:
    plain, fp8 = layout_of("Qwen3-8B"), layout_of("Qwen3-8B", kv_cache_dtype="fp8")
    assert fp8.block_bytes_per_gpu[0] * 2 == plain.block_bytes_per_gpu[0]


def test_fp8_quantization_halves_all_weights_but_embeddings_and_head() -> None:
    plain, fp8 = layout_of("Qwen3-8B"), layout_of("Qwen3-8B", quantization="fp8")
    embeddings = 2 * 151936 * 4096 * 2
    matrices = plain.weight_bytes_per_gpu[0] - embeddings
    assert fp8.weight_bytes_per_gpu[0] - embeddings == pytest.approx(matrices / 2, rel=1e-3)


def test_refuses_unknown_quantization() -> None:
    with pytest.raises(EngineError, match=r"--quantization must be one of fp8, .* got 'q4'"):
        layout_of("Qwen3-8B", quantization="q4")


def test_refuses_quantization_that_contradicts_the_checkpoint() -> None:
    with pytest.raises(EngineError, match="--quantization must be fp8 or left out for Qwen3-235B-A22B-FP8, got 'awq'"):
        layout_of("Qwen3-235B-A22B-FP8", quantization="awq")


def test_refuses_unknown_kv_cache_dtype() -> None:
    with pytest.raises(EngineError, match=r"--kv-cache-dtype must be one of auto, fp8, .* got 'fp3'"):
        layout_of("Qwen3-8B", kv_cache_dtype="fp3")


def test_stages_before_the_last_take_the_layers_that_do_not_divide_evenly() -> None:
    layout = layout_of("DeepSeek-V3", tp=8, pp=2)
    assert [len(stage) for stage in layout.stages] == [31, 30]


def test_state_of_a_hybrid_serves_a_whole_request_without_prefix_caching() -> None:
    layout = layout_of("Qwen3.5-35B-A3B", enable_prefix_caching=False)
    states = [group for group in groups_of(layout) if group[0] == "MambaSpec"]
    assert [group[2] for group in states] == [16384] * 3
    assert layout.blocks_per_request() == 3 + -(-16384 // groups_of(layout)[-1][2])


def test_sparse_attention_of_glm_keeps_fp8_on_blackwell() -> None:
    assert layout_of("GLM-5.2", capability_major=10).kv_cache_dtype == "fp8_e4m3"
    assert layout_of("GLM-5.2").kv_cache_dtype == "auto"


def test_modelopt_checkpoint_declares_the_type_of_its_kv_cache() -> None:
    assert layout_of("Llama-3.1-70B-Instruct-FP8").kv_cache_dtype == "fp8_e4m3"


def test_refuses_a_kv_cache_too_small_for_one_request() -> None:
    layout = layout_of("Qwen3-8B")
    needed = (layout.blocks_per_request() + 1) * layout.block_bytes_per_gpu[0]
    check_fits(layout, needed)
    with pytest.raises(
        EngineError, match=r"Qwen3-8B needs 2.25 GiB of KV cache per GPU for one request of 16384 tokens"
    ):
        check_fits(layout, needed - 1)


@pytest.mark.parametrize(
    ("config", "error"),
    [
        ({}, "architectures must name vLLM's class"),
        ({"architectures": ["WhisperForConditionalGeneration"]}, "the architecture Whisper.* is not modelled"),
        ({"hybrid_override_pattern": "M*X"}, "the layer kind 'X' of hybrid_override_pattern is not modelled"),
    ],
)
def test_refuses_what_is_not_modelled_in_one_line(config: dict[str, object], error: str) -> None:
    request = request_for("NVIDIA-Nemotron-3-Nano-30B-A3B-BF16")
    whole = {**request.config, **config} if config else {}
    with pytest.raises(EngineError, match=error) as raised:
        plan_layout(PlanRequest(config=whole, model="m"))
    assert "\n" not in str(raised.value)


def test_refuses_compressed_sparse_attention_by_name() -> None:
    request = request_for("DeepSeek-V3")
    config = {**request.config, "compress_ratios": [0, 4]}
    with pytest.raises(EngineError, match=r"the layer kind compressed sparse attention \(compress_ratios\)"):
        plan_layout(PlanRequest(config=config, model="v4"))
