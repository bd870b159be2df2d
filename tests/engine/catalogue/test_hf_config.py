"""Reading of the architecture from a `config.json`."""

import json
from pathlib import Path
from typing import Any

import pytest

from blis_sim.engine.errors import EngineError
from blis_sim.engine.hf_config import parse_hf_config
from blis_sim.engine.specs import ModelSpec

PLAIN: dict[str, Any] = {
    "num_hidden_layers": 2,
    "hidden_size": 8,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 16,
    "vocab_size": 10,
    "torch_dtype": "bfloat16",
}


def parsed(name: str = "m", /, **keys: Any) -> ModelSpec:
    return parse_hf_config({**PLAIN, **keys}, name)


def without(*keys: str) -> dict[str, Any]:
    return {key: value for key, value in PLAIN.items() if key not in keys}


def test_a_plain_config_gives_its_sizes() -> None:
    assert parsed() == ModelSpec(
        name="m", num_layers=2, hidden_size=8, num_heads=4, num_kv_heads=2, vocab_size=10, intermediate_size=16
    )  # fmt: skip


def test_unknown_keys_are_ignored() -> None:
    assert parsed(rope_theta=10_000, auto_map={"x": 1}) == parsed()


def test_text_config_wins_over_the_top_level() -> None:
    model = parsed(text_config={"num_hidden_layers": 9, "head_dim": 64})
    assert (model.num_layers, model.head_dim, model.hidden_size) == (9, 64, 8)


def test_a_text_config_without_a_value_is_ignored() -> None:
    assert parsed(text_config=None) == parsed()


@pytest.mark.parametrize("key", ["num_key_value_heads", "num_kv_heads", "multi_query_group_num"])
def test_kv_heads_have_several_names(key: str) -> None:
    assert parse_hf_config({**without("num_key_value_heads"), key: 1}, "m").num_kv_heads == 1


def test_without_kv_heads_every_head_has_its_own() -> None:
    assert parse_hf_config(without("num_key_value_heads"), "m").num_kv_heads == 4


def test_the_first_kv_head_count_that_is_not_zero_counts() -> None:
    assert parsed(num_key_value_heads=0, num_kv_heads=None, multi_query_group_num=2).num_kv_heads == 2


def test_ffn_hidden_size_stands_in_for_intermediate_size() -> None:
    assert parse_hf_config({**without("intermediate_size"), "ffn_hidden_size": 32}, "m").intermediate_size == 32


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"num_key_value_heads": "2"}, "m: num_key_value_heads must be a number, got '2'"),
        ({"num_key_value_heads": [1, 2]}, r"m: num_key_value_heads must be a number, got \[1, 2\]"),
        ({"num_key_value_heads": {}}, "m: num_key_value_heads must be a number, got {}"),
        ({"num_key_value_heads": True}, "m: num_key_value_heads must be a number, got True"),
        ({"num_key_value_heads": 2.5}, "m: num_key_value_heads must be a whole number, got 2.5"),
        ({"num_hidden_layers": 2.9}, "m: num_hidden_layers must be a whole number, got 2.9"),
        ({"head_dim": "64"}, "m: head_dim must be a number, got '64'"),
        ({"hidden_size": 1e308}, r"m: hidden_size must be at most 10000000, got 1e\+308"),
        ({"num_hidden_layers": 1e6}, r"m: num_hidden_layers must be at most 10000, got 1000000\.0"),
        ({"hidden_size": 10**400}, r"m: hidden_size must be at most 10000000, got 1000.*\.\.\.$"),
        ({"max_position_embeddings": 1e13}, "m: max_position_embeddings must be at most 1000000000000, got 1000"),
        ({"tie_word_embeddings": "yes"}, "m: tie_word_embeddings must be true or false, got 'yes'"),
        ({"text_config": "none"}, "m: text_config must be an object, got 'none'"),
        ({"quantization_config": "none"}, "m: quantization_config must be an object, got 'none'"),
        ({"rope_scaling": "linear"}, "m: rope_scaling must be an object, got 'linear'"),
        ({"rope_scaling": {"type": "linear", "factor": "8"}}, "m: rope_scaling: factor must be a number, got '8'"),
        ({"rope_scaling": {"type": "linear", "factor": 1e9}}, "m: rope_scaling: factor must be at most 1000000, got 1"),
    ],
)
def test_refuses_a_value_of_another_type_or_beyond_any_model(keys: dict[str, Any], message: str) -> None:
    with pytest.raises(EngineError, match=message):
        parsed(**keys)


def test_takes_a_list_with_one_number_for_all_layers_as_that_number() -> None:
    assert parsed(intermediate_size=[16, 16]) == parsed()


@pytest.mark.parametrize(
    "key", ["num_experts", "moe_num_experts", "n_routed_experts", "num_local_experts", "num_routed_experts"]
)
def test_experts_have_several_names(key: str) -> None:
    assert parsed(**{key: 8}).num_experts == 8


def test_a_single_expert_is_no_mixture() -> None:
    model = parsed(num_experts=1)
    assert (model.num_experts, model.is_moe) == (0, False)


def test_the_shared_expert_is_declared_or_counted_in_expert_sizes() -> None:
    mixture = {"num_experts": 8, "n_shared_experts": 2}
    assert parsed(**mixture, shared_expert_intermediate_size=5).shared_expert_size == 5
    assert parsed(**mixture, moe_intermediate_size=6).shared_expert_size == 12
    assert parsed(**mixture).shared_expert_size == 32


@pytest.mark.parametrize(
    ("dtype", "width"), [("float32", 4), ("float16", 2), ("bfloat16", 2), ("int8", 1), ("uint8", 1), ("fp8", 1)]
)  # fmt: skip
def test_the_compute_type_sets_the_width_of_activations_and_weights(dtype: str, width: float) -> None:
    model = parsed(torch_dtype=dtype)
    assert (model.bytes_per_activation, model.bytes_per_weight) == (width, width)


def test_dtype_counts_where_torch_dtype_is_no_string() -> None:
    assert parsed(torch_dtype=None, dtype="float32").bytes_per_activation == 4
    assert parsed(torch_dtype="float16", dtype="float32").bytes_per_activation == 2


@pytest.mark.parametrize(
    ("quantisation", "width"),
    [
        ({"bits": 4, "quant_method": "gptq"}, 0.5),
        ({"bits": "8"}, 1.0),
        ({"quant_method": "fp8"}, 1.0),
        (
            {
                "quant_method": "compressed-tensors",
                "config_groups": {"group_1": {"weights": {"num_bits": 8}}, "group_0": {"weights": {"num_bits": 4}}},
            },
            0.5,
        ),
        ({"quant_method": "compressed-tensors", "config_groups": {"group_0": {"weights": None}}}, 2.0),
        ({"quant_method": "unheard-of"}, 2.0),
    ],
)
def test_the_quantisation_sets_the_width_of_weights_only(quantisation: object, width: float) -> None:
    model = parsed(quantization_config=quantisation)
    assert (model.bytes_per_activation, model.bytes_per_weight) == (2.0, width)


@pytest.mark.parametrize(
    ("name", "width"),
    [
        ("org/m-quantized.w4a16", 0.5),
        ("m-w8a8", 1.0),
        ("M-FP8-dynamic", 1.0),
        ("m_fp8", 1.0),
        ("m-nofp8", 2.0),
        ("m-w4a16x", 2.0),
    ],
)
def test_the_name_of_a_model_gives_the_width_of_weights_where_its_config_does_not(name: str, width: float) -> None:
    assert parsed(name).bytes_per_weight == width


def test_the_quantisation_of_the_config_wins_over_the_name() -> None:
    assert parsed("m-fp8", quantization_config={"bits": 4}).bytes_per_weight == 0.5


@pytest.mark.parametrize(
    ("scaling", "window"),
    [
        (None, 4096),
        ({"type": "linear", "factor": 2.5}, 10_240),
        ({"rope_type": "dynamic", "factor": 2}, 8192),
        ({"type": "linear"}, 4096),
        ({"type": "linear", "factor": 0.5}, 4096),
        ({"rope_type": "llama3", "factor": 8}, 4096),
        ({"type": "su", "factor": 8}, 4096),
        ({"type": "longrope", "factor": 8}, 4096),
        ({"type": "yarn", "factor": 4}, 16_384),
        ({"type": "yarn", "factor": 40, "original_max_position_embeddings": 1024}, 40_960),
        ({"type": "linear", "factor": 40, "original_max_position_embeddings": 1024}, 163_840),
    ],
)
def test_rope_scaling_stretches_the_context_window(scaling: object, window: int) -> None:
    assert parsed(max_position_embeddings=4096, rope_scaling=scaling).max_model_len == window


def test_gemma3_states_its_window_after_scaling() -> None:
    scaled = {"max_position_embeddings": 4096, "rope_scaling": {"type": "linear", "factor": 8}}
    assert parsed(model_type="gemma3_text", **scaled).max_model_len == 4096


def test_a_config_without_window_has_no_limit() -> None:
    assert parsed().max_model_len == 0


@pytest.mark.parametrize("key", ["num_hidden_layers", "hidden_size", "num_attention_heads"])
def test_a_size_nothing_works_without_must_be_there(key: str) -> None:
    with pytest.raises(EngineError, match=f"m: {key} must be a number of at least 1, got no such key"):
        parse_hf_config(without(key), "m")


@pytest.mark.parametrize(
    "key", ["head_dim", "kv_lora_rank", "qk_rope_head_dim", "first_k_dense_replace", "hidden_size"]
)
def test_a_negative_size_is_refused(key: str) -> None:
    with pytest.raises(EngineError, match=f"m: {key} must be at least 0, got -3"):
        parsed(**{key: -3})


def test_an_infinite_size_is_refused() -> None:
    with pytest.raises(EngineError, match="m: vocab_size must be a finite number, got inf"):
        parsed(vocab_size=float("inf"))


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"torch_dtype": "float7"}, "m: torch_dtype must be one of float32, float16, .*, got 'float7'"),
        ({"torch_dtype": None, "dtype": "float7"}, "m: dtype must be one of float32, .*, got 'float7'"),
    ],
)
def test_an_unknown_compute_type_is_refused(keys: dict[str, object], message: str) -> None:
    with pytest.raises(EngineError, match=message):
        parsed(**keys)


def test_a_config_without_a_compute_type_runs_in_16_bits() -> None:
    assert parsed(torch_dtype=None).bytes_per_activation == 2


def test_layers_are_counted_where_a_config_only_lists_them() -> None:
    assert parsed(num_hidden_layers=None, hybrid_override_pattern="MEM*").num_layers == 4


@pytest.mark.parametrize("key", ["top_k_experts", "num_experts_per_token", "experts_per_token"])
def test_experts_per_token_have_several_names(key: str) -> None:
    assert parsed(num_experts=8, num_experts_per_tok=None, **{key: 2}).num_experts_per_tok == 2


def test_width_of_experts_stands_for_a_missing_width_of_layers() -> None:
    assert parsed(intermediate_size=None, moe_intermediate_size=512).intermediate_size == 512


def test_published_configs_of_other_families_are_read(reference: Path) -> None:
    folder = reference / "golden/vidur-data/hf_configs"
    read = {path.name: parse_hf_config(json.loads(path.read_text()), "m") for path in folder.glob("*_config.json")}
    assert read["qwen3-8B_config.json"].num_layers == 36
    deepseek = read["deepseek_v3_config.json"]
    assert (deepseek.num_experts, deepseek.is_mla, deepseek.bytes_per_weight) == (256, True, 1.0)
    assert (deepseek.max_model_len, deepseek.first_k_dense_replace) == (163_840, 3)
