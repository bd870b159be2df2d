"""Every model of the catalogue: its config is whole, and its memory can be planned."""

import json

import pytest

from blis_sim.engine.errors import EngineError
from blis_sim.engine.latency.catalogue import _written_out, gpu_names, has_model, load_gpu, model_entry, model_names
from blis_sim.engine.latency.catalogue_reader import load_model
from blis_sim.engine.memory.planner import PlanRequest, available_kv_bytes, plan_layout

NOT_PLANNED = "the layer kind compressed sparse attention (compress_ratios) is not modelled"
PUBLISHED_WEIGHTS_GB = {
    "llama-3.1-8b-instruct": 16.1, "llama-3.3-70b-instruct": 141.1, "llama-3.1-405b": 811.7, "qwen3-4b": 8.0,
    "qwen3-235b-a22b": 470.2, "qwen3-next-80b-a3b-instruct": 159.3, "qwen3.5-122b-a10b": 244.7, "deepseek-v3": 671.0,
    "kimi-k2-instruct": 1026.4, "gemma-3-27b-it": 54.9,
    "glm-4.5-air": 213.8, "glm-4.7-flash": 59.9, "kimi-linear-48b-a3b-instruct": 98.2, "phi-3.5-moe-instruct": 83.7,
    "phi-4-mini-instruct": 7.7, "ministral-3-8b-base-2512": 17.0, "minimax-m2.5": 230.1,
    "mistral-large-instruct-2411": 245.2, "granite-3.1-2b-instruct": 5.1, "seed-oss-36b-instruct": 72.3,
}  # fmt: skip
"""Sizes of the published checkpoints without layers for multi-token prediction, in 1e9 bytes."""

FAMILIES = (
    "llama-3.1-8b", "llama-3.2-3b", "meta-llama/Llama-3.3-70B-Instruct", "llama-4-scout-17b-16e-instruct",
    "llama-4-maverick-17b-128e-instruct", "Qwen/Qwen2.5-72B-Instruct", "qwen3-32b", "qwen3-235b-a22b", "qwen3.5-27b",
    "qwen3.5-122b-a10b", "deepseek-ai/DeepSeek-V3", "deepseek-r1", "deepseek-v3.2", "deepseek-v4-flash",
    "moonshotai/Kimi-K2-Instruct", "kimi-k2.5", "openai/gpt-oss-20b", "openai/gpt-oss-120b", "minimax-m2.5", "glm-4.5",
    "zai-org/GLM-5", "google/gemma-3-27b-it", "gemma-4-31b-it", "mistral-7b-instruct-v0.3", "mixtral-8x7b",
    "devstral-small-2505", "microsoft/phi-4", "granite-3.3-8b-instruct", "nvidia-nemotron-3-nano-30b-a3b-bf16",
)  # fmt: skip


@pytest.mark.parametrize("name", FAMILIES)
def test_models_that_people_serve_are_found_by_name(name: str) -> None:
    assert has_model(name)


def test_every_model_but_those_of_one_kind_is_planned_on_its_default_deployment_with_room_for_a_request() -> None:
    refused = []
    for name in model_names():
        entry = model_entry(name)
        gpu = load_gpu(entry.gpu)
        request = PlanRequest(
            config=entry.checkpoint.config,
            hf_quant_config=entry.checkpoint.hf_quant_config,
            model=name,
            tp=entry.tp,
            capability_major=int(gpu.compute_capability),
        )
        try:
            layout = plan_layout(request)
        except EngineError as error:
            refused.append(str(error))
            continue
        free = available_kv_bytes(
            layout, gpu, gpu_memory_utilization=0.92, max_num_batched_tokens=8192, max_num_seqs=1024
        )
        assert layout.longest_request_tokens(layout.num_blocks(free)) >= min(layout.limits.max_model_len, 32_768), name
    assert [error.split(": ", 1)[1] for error in refused] == [NOT_PLANNED] * len(refused)
    assert all(error.startswith("deepseek-v4-") for error in refused)


def test_every_model_has_a_spec_a_gpu_of_the_catalogue_and_a_source() -> None:
    for name in model_names():
        entry = model_entry(name)
        spec = load_model(name)
        assert spec.max_model_len > 0
        assert entry.gpu in gpu_names()
        assert entry.source
        assert entry.organisation


@pytest.mark.parametrize("name", PUBLISHED_WEIGHTS_GB)
def test_weights_are_those_of_the_published_checkpoint_within_three_percent(name: str) -> None:
    layout = plan_layout(PlanRequest(config=model_entry(name).checkpoint.config, model=name))
    assert layout.weight_bytes_per_gpu[0] / 1e9 == pytest.approx(PUBLISHED_WEIGHTS_GB[name], rel=0.03)


@pytest.mark.parametrize(
    ("short", "whole"),
    [
        (["a", {"times": 2, "of": ["b", "c"]}], ["a", "b", "c", "b", "c"]),
        ({"x": ["layers.{0..2,5}.mlp"]}, {"x": ["layers.0.mlp", "layers.1.mlp", "layers.2.mlp", "layers.5.mlp"]}),
        ({"l.{0..1}.e.{7}": {"a": 1}}, {"l.0.e.7": {"a": 1}, "l.1.e.7": {"a": 1}}),
        (["re:.*mlp.gate$", [1, 2], None], ["re:.*mlp.gate$", [1, 2], None]),
    ],
)
def test_short_forms_of_the_table_are_written_out(short: object, whole: object) -> None:
    assert _written_out(short) == whole


def test_a_row_that_is_like_another_has_its_keys_but_for_its_own() -> None:
    base, like = model_entry("qwen3-8b").checkpoint.config, model_entry("qwen3-8b-fp8").checkpoint.config
    assert like == {**base, "quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]}}
    assert json.loads(json.dumps(like)) == like
