"""The number of KV blocks that fit beside the weights."""

from dataclasses import replace

import pytest

from blis_sim.engine.errors import EngineError
from blis_sim.engine.latency.catalogue import load_gpu
from blis_sim.engine.latency.catalogue_reader import load_model
from blis_sim.engine.memory.planner import estimated_weight_bytes, kv_blocks, kv_bytes_per_token
from blis_sim.engine.specs import ModelSpec

H100 = load_gpu("H100")
SMALL = ModelSpec(
    name="small", num_layers=2, hidden_size=8, num_heads=4, num_kv_heads=2, vocab_size=10, intermediate_size=16
)  # fmt: skip


@pytest.mark.parametrize(
    ("model", "gpu", "tp", "dp", "blocks"),
    [
        ("qwen3-14b", "H100", 1, 1, 15_909),
        ("llama-3.1-8b-instruct", "H100", 1, 1, 26_312),
        ("llama-3.1-8b-instruct", "L40S", 1, 1, 11_567),
        ("llama-2-7b-hf", "H100", 1, 1, 6_886),
        ("mixtral-8x7b-v0.1", "H100", 2, 1, 48_956),
        ("mixtral-8x7b-v0.1", "H100", 2, 2, 97_912),
        ("mixtral-8x7b-v0.1", "H100", 4, 1, 390_367),
        ("llama-4-scout-17b-16e-instruct-fp8-dynamic", "H100", 2, 1, 27_345),
        ("llama-4-scout-17b-16e-instruct-fp8-dynamic", "H100", 4, 1, 249_660),
        ("qwen3-30b-a3b", "H100", 1, 1, 5_276),
        ("deepseek-v2-lite", "H100", 1, 1, 74_312),
        ("glm-5.2-fp8", "H100", 16, 1, 326_966),
        ("qwen2.5-7b-instruct", "A100-80", 4, 1, 1_244_786),
        ("mistral-nemo-instruct-2407", "H100", 1, 1, 17_512),
    ],
)
def test_blis_counts_the_memory_of_all_gpus(model: str, gpu: str, tp: int, dp: int, blocks: int) -> None:
    assert kv_blocks(load_model(model), load_gpu(gpu), tp, dp, 16, 0.9, engine="blis") == blocks


@pytest.mark.parametrize(
    ("model", "tp", "blocks"),
    [
        ("llama-3.1-70b-instruct", 2, 1_204),
        ("llama-3.1-70b-instruct", 4, 30_450),
        ("llama-3.1-70b-instruct", 8, 88_941),
        ("qwen3-14b", 1, 15_909),
        ("qwen3-14b", 4, 103_461),
        ("mixtral-8x7b-v0.1", 2, 24_478),
    ],
)
def test_vllm_counts_the_memory_of_one_gpu(model: str, tp: int, blocks: int) -> None:
    found = kv_blocks(load_model(model), H100, tp)
    assert found == blocks
    assert abs(found - kv_blocks(load_model(model), H100, tp, engine="blis") / tp) < 1


_KV_GIB = 37
"""Memory for KV blocks that vLLM's planner was given on each GPU."""


@pytest.mark.parametrize(
    ("model", "blocks_by_tp"),
    [
        ("qwen2.5-7b-instruct", {1: 43_300, 2: 86_601, 4: 173_202}),
        ("llama-3.1-70b-instruct", {1: 7_577, 2: 15_155, 4: 30_310, 8: 60_620, 16: 60_620}),
        ("llama-3.1-8b-instruct", {1: 18_944, 2: 37_888, 4: 75_776, 8: 151_552}),
        ("qwen3-14b", {1: 15_155, 2: 30_310, 4: 60_620, 8: 121_241}),
        ("mistral-nemo-instruct-2407", {1: 15_155, 2: 30_310, 4: 60_620, 8: 121_241}),
        ("llama-2-7b-hf", {1: 4_736, 2: 9_472, 4: 18_944, 8: 37_888}),
    ],
)
def test_a_gpu_holds_as_much_of_a_block_as_vllm_plans(model: str, blocks_by_tp: dict[int, int]) -> None:
    """The numbers of blocks are those of vLLM 0.33's KV cache planner."""
    for tp, blocks in blocks_by_tp.items():
        block_bytes = int(kv_bytes_per_token(load_model(model), tp) * 16)
        assert _KV_GIB * 2**30 // block_bytes == blocks


@pytest.mark.parametrize(
    ("model", "tp", "weights_on_one_gpu"),
    [
        ("qwen2.5-7b-instruct", 4, 3_808_114_688),
        ("llama-3.1-70b-instruct", 4, 35_278_831_616),
        ("llama-3.1-70b-instruct", 8, 17_640_734_720),
        ("llama-3.1-8b-instruct", 8, 2_008_031_232),
        ("qwen3-14b", 8, 3_692_820_480),
        ("mistral-nemo-instruct-2407", 8, 3_062_671_360),
        ("llama-2-7b-hf", 2, 6_738_681_856),
    ],
)
def test_an_equal_share_of_the_weights_is_what_vllm_loads(model: str, tp: int, weights_on_one_gpu: int) -> None:
    """vLLM 0.33 copies the norms to every GPU, which is less than a thousandth. Nemo's heads are smaller than most."""
    allowed = 0.05 if model.startswith("mistral-nemo") else 0.001
    assert estimated_weight_bytes(load_model(model)) / tp == pytest.approx(weights_on_one_gpu, rel=allowed)


def test_weights_are_embeddings_attention_norms_mlp_and_head() -> None:
    attention = 8 * (8 + 2 * 4) + 8 * 8 + 2 * 8
    assert estimated_weight_bytes(SMALL) == 2 * (2 * 10 * 8 + 2 * (attention + 3 * 8 * 16) + 8)


def test_tied_embeddings_are_held_once() -> None:
    assert (
        estimated_weight_bytes(SMALL) - estimated_weight_bytes(replace(SMALL, tie_word_embeddings=True)) == 2 * 10 * 8
    )


def test_the_first_layers_of_a_mixture_may_be_dense() -> None:
    mixture = replace(SMALL, num_experts=4, num_experts_per_tok=1, intermediate_size_mlp=32)
    moe_layer, dense_layer = 4 * 3 * 8 * 16 + 4 * 8, 3 * 8 * 32
    difference = estimated_weight_bytes(mixture) - estimated_weight_bytes(replace(mixture, first_k_dense_replace=1))
    assert difference == 2 * (moe_layer - dense_layer)
    assert estimated_weight_bytes(replace(mixture, first_k_dense_replace=99)) == estimated_weight_bytes(
        replace(mixture, first_k_dense_replace=2)
    )


def test_larger_blocks_are_fewer() -> None:
    model = load_model("qwen3-14b")
    assert kv_blocks(model, H100, 1, block_size_tokens=32) == 15_909 // 2


def test_blis_splits_kv_heads_where_gpus_outnumber_them() -> None:
    qwen = load_model("qwen2.5-7b-instruct")
    assert kv_bytes_per_token(qwen, 8, "blis") == kv_bytes_per_token(qwen, 4, "blis") / 2


def test_vllm_copies_kv_heads_where_gpus_outnumber_them() -> None:
    llama = load_model("llama-3.1-70b-instruct")
    assert kv_bytes_per_token(llama, 16) == kv_bytes_per_token(llama, 8)
    heads_of_their_own = replace(llama, num_kv_heads=16)
    assert kv_blocks(llama, H100, 16) == kv_blocks(heads_of_their_own, H100, 16)


def test_the_tp_advised_may_exceed_the_kv_heads_with_vllm() -> None:
    large = replace(load_model("llama-3.1-70b-instruct"), intermediate_size=28672 * 16)
    with pytest.raises(EngineError, match="it needs tp 32 or more"):
        kv_blocks(large, H100, 8)
    assert kv_blocks(large, H100, 32) > 0
    with pytest.raises(EngineError, match="no tp is enough"):
        kv_blocks(large, H100, 8, engine="blis")


def test_too_small_a_gpu_is_answered_with_the_smallest_tp_that_works() -> None:
    with pytest.raises(EngineError) as refusal:
        kv_blocks(load_model("llama-3.1-70b-instruct"), H100, 1)
    assert str(refusal.value) == (
        "llama-3.1-70b-instruct leaves no room for a KV cache on 1 H100 with 80 GiB at 0.9 utilization: "
        "it needs tp 2 or more"
    )


def test_the_tp_advised_works_and_no_smaller_one_does() -> None:
    model = load_model("glm-5.2-fp8")
    for tp in (1, 2, 4, 8):
        with pytest.raises(EngineError, match="it needs tp 16 or more"):
            kv_blocks(model, H100, tp)
    assert kv_blocks(model, H100, 16) > 0


def test_a_model_that_no_number_of_gpus_can_hold_is_reported() -> None:
    tiny_gpu = replace(H100, memory_gib=0.5)
    with pytest.raises(EngineError, match=r"at 0\.9 utilization: no tp is enough"):
        kv_blocks(load_model("qwen3-14b"), tiny_gpu, 1)


@pytest.mark.parametrize(
    ("model", "tp", "message"),
    [
        (
            replace(SMALL, num_heads=6, num_kv_heads=6, head_dim=2),
            4,
            "small has 6 KV heads, which tp 4 does not divide",
        ),
        (replace(SMALL, num_heads=3), 1, "small has no head_dim and its 3 heads do not divide hidden_size 8"),
        (replace(SMALL, vocab_size=0), 1, "small: vocab_size is missing"),
        (replace(SMALL, intermediate_size=0), 1, "small: intermediate_size is missing"),
    ],
)
def test_a_model_whose_sizes_allow_no_estimate_is_refused(model: ModelSpec, tp: int, message: str) -> None:
    with pytest.raises(EngineError) as refusal:
        kv_blocks(model, H100, tp)
    assert str(refusal.value).startswith(message)


@pytest.mark.parametrize("activation", ["gelu", "relu", "GELU_new"])
def test_an_mlp_without_a_gate_has_two_matrices_of_weights(activation: str) -> None:
    plain = replace(SMALL, hidden_act=activation)
    assert estimated_weight_bytes(SMALL) - estimated_weight_bytes(plain) == int(
        SMALL.num_layers * SMALL.hidden_size * SMALL.intermediate_size * SMALL.bytes_per_weight
    )
    assert kv_blocks(plain, H100, 1) >= kv_blocks(SMALL, H100, 1)
    with pytest.raises(EngineError, match="small: hidden_act must be one of silu, swiglu, geglu, situ"):
        kv_blocks(plain, H100, 1, engine="blis")


def test_a_gpu_of_unknown_memory_is_refused() -> None:
    with pytest.raises(EngineError, match=r"the memory of GPU H100 is not known, .*give --num-gpu-blocks-override"):
        kv_blocks(SMALL, replace(H100, memory_gib=0), 1)
    with pytest.raises(EngineError, match=r"GPU H100 must have at most 1e\+06 GiB of memory, got 1e\+300"):
        kv_blocks(SMALL, replace(H100, memory_gib=1e300), 1)
