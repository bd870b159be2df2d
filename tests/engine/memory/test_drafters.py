"""Drafters: layers in the KV cache and weights as vLLM 0.33's own planner has them, for 40 GiB of KV cache per GPU."""

import json
from pathlib import Path
from typing import Any

import pytest

from blis_sim.engine.deployment import resolve
from blis_sim.engine.deployment_options import DeploymentOptions
from blis_sim.engine.latency.catalogue import model_entry
from blis_sim.engine.memory.drafters import DrafterRequest
from blis_sim.engine.memory.planner import MemoryLayout, PlanRequest, plan_layout
from blis_sim.engine.speculation_options import SpeculationOptions
from tests.engine.memory.plan_table import groups_of

LLAMA = model_entry("llama-3.1-8b-instruct").checkpoint.config
HEADS: dict[str, dict[str, Any]] = {
    "eagle3-llama": {**LLAMA, "num_hidden_layers": 1, "draft_vocab_size": 32_000},
    "eagle-llama": {**LLAMA, "num_hidden_layers": 1},
    "llama-3.2-1b": dict(model_entry("llama-3.2-1b-instruct").checkpoint.config),
    "eagle3-gpt-oss": {
        "num_hidden_layers": 1, "hidden_size": 2880, "num_attention_heads": 64, "num_key_value_heads": 8,
        "head_dim": 64, "intermediate_size": 17280, "vocab_size": 201088, "draft_vocab_size": 201088,
    },
    "dflash-qwen3": {
        **model_entry("qwen3-8b").checkpoint.config, "num_hidden_layers": 5,
        "dflash_config": {"target_layer_ids": [1, 9, 17, 25, 33]},
    },
}  # fmt: skip


def planned(model: str, tp: int, pp: int, method: str, head: str, num_tokens: int) -> MemoryLayout:
    drafter = DrafterRequest(method=method, num_tokens=num_tokens, config=HEADS.get(head), name=head)
    checkpoint = model_entry(model).checkpoint
    request = PlanRequest(
        config=checkpoint.config, model=model, tp=tp, pp=pp, max_model_len=16384, capability_major=9, drafter=drafter
    )
    return plan_layout(request)


def without_drafter(model: str, tp: int, pp: int) -> MemoryLayout:
    config = model_entry(model).checkpoint.config
    return plan_layout(PlanRequest(config=config, model=model, tp=tp, pp=pp, max_model_len=16384, capability_major=9))


PLANS: list[tuple[tuple[str, int, int, str, str, int], list[list[object]], int, int, int]] = [
    (("llama-3.1-8b-instruct", 1, 1, "eagle3", "eagle3-llama", 3), [["FullAttentionSpec", 33, 16, 65536]],
     19_859, 317_744, 849_635_328),
    (("llama-3.1-8b-instruct", 1, 1, "eagle", "eagle-llama", 3), [["FullAttentionSpec", 33, 16, 65536]],
     19_859, 317_744, 503_324_672),
    (("deepseek-v3", 8, 1, "mtp", "", 1), [["MLAAttentionSpec", 62, 16, 18432]], 37_583, 601_328, 1_661_047_968),
    (("qwen3-next-80b-a3b-instruct", 2, 1, "mtp", "", 2),
     [*[["MambaSpec", 12, 576, 589824]] * 3, ["FullAttentionSpec", 13, 576, 589824]], 5_601, 2_085_608, 1_651_532_800),
    (("glm-4.5-air", 4, 1, "mtp", "", 1), [["FullAttentionSpec", 47, 16, 16384]], 55_775, 892_400, 1_239_727_616),
    (("qwen3.5-122b-a10b", 4, 1, "mtp", "", 2),
     [*[["MambaSpec", 12, 1088, 1114112]] * 3, ["FullAttentionSpec", 13, 1088, 1114112]],
     2_965, 1_567_050, 1_264_620_544),
    (("gpt-oss-120b", 2, 1, "eagle3", "eagle3-gpt-oss", 3),
     [["SlidingWindowSpec", 18, 16, 16384], ["FullAttentionSpec", 19, 16, 16384]], 137_970, 1_103_221, 819_509_760),
    (("llama-3.1-8b-instruct", 1, 2, "eagle3", "eagle3-llama", 3), [["FullAttentionSpec", 16, 16, 65536]],
     38_550, 616_800, 1_900_308_480),
    (("deepseek-v3.2", 8, 1, "mtp", "", 1), [["UniformTypeKVCacheSpecs", 124, 64, 5094912]],
     8_429, 539_456, 1_676_386_464),
    (("qwen3-8b", 1, 1, "dflash", "dflash-qwen3", 7), [["FullAttentionSpec", 41, 16, 65536]],
     15_984, 255_744, 2_097_261_056),
    (("llama-3.1-8b-instruct", 1, 1, "draft_model", "llama-3.2-1b", 4),
     [["UniformTypeKVCacheSpecs", 48, 16, 2_621_440]], 16_384, 262_144, 2_471_628_800),
]  # fmt: skip
"""Model, tp, pp, method, head and drafts; groups as kind, layers, block tokens and page bytes; blocks; capacity in
tokens; bytes of the parameters that the drafter does not share."""


@pytest.mark.parametrize(("deployment", "groups", "num_blocks", "capacity", "weight_bytes"), PLANS, ids=str)
def test_kv_cache_and_weights_with_a_drafter_are_as_vllm_plans_them(
    deployment: tuple[str, int, int, str, str, int],
    groups: list[list[object]],
    num_blocks: int,
    capacity: int,
    weight_bytes: int,
) -> None:
    layout = planned(*deployment)
    assert groups_of(layout) == groups
    blocks = layout.num_blocks(40 * 2**30)
    assert (blocks, layout.capacity_tokens(blocks)) == (num_blocks, capacity)
    own = layout.weight_bytes_per_gpu[-1] - without_drafter(*deployment[:3]).weight_bytes_per_gpu[-1]
    assert own == pytest.approx(weight_bytes, rel=0.01)


def test_layers_of_a_drafter_lie_on_the_last_pipeline_stage() -> None:
    layout = planned("llama-3.1-8b-instruct", 1, 2, "eagle3", "eagle3-llama", 3)
    assert [len(stage) for stage in layout.stages] == [16, 17]


def deployed(config: dict[str, str], **options: Any) -> Any:
    text = json.dumps({"num_speculative_tokens": 3, **config})
    drafts = SpeculationOptions(speculative_config=text)
    return resolve(DeploymentOptions(model="qwen3-14b", hardware="H100", tp=1, drafts=drafts, **options))


def test_a_drafter_leaves_fewer_blocks() -> None:
    alone = resolve(DeploymentOptions(model="qwen3-14b", hardware="H100", tp=1)).config.total_kv_blocks
    for config in (
        {"method": "eagle3", "model": "head"},
        {"model": "some/medusa-head"},
        {"method": "draft_model", "model": "qwen3-0.6b"},
    ):
        assert deployed(config).config.total_kv_blocks < alone


MEDUSA = {"model_type": "medusa", "num_heads": 5, "num_hidden_layers": 2, "torch_dtype": "bfloat16"}


@pytest.mark.parametrize(
    ("more", "num_heads", "num_layers", "head_rows"),
    [
        ({}, 5, 2, 5 * 128_256),
        ({"original_lm_head": True}, 5, 2, 128_256),
        ({"truncated_vocab_size": 32_000}, 5, 2, 5 * 32_000),
        ({"num_heads": None, "num_hidden_layers": None}, 3, 1, 3 * 128_256),
    ],
)
def test_medusas_heads_have_weights_and_no_kv(
    more: dict[str, Any], num_heads: int, num_layers: int, head_rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(HEADS, "medusa", {**MEDUSA, **more})
    layout, alone = (
        planned("llama-3.1-8b-instruct", 1, 1, "medusa", "medusa", 3),
        without_drafter("llama-3.1-8b-instruct", 1, 1),
    )
    assert groups_of(layout) == groups_of(alone)
    own = layout.weight_bytes_per_gpu[-1] - alone.weight_bytes_per_gpu[-1]
    assert own == 2 * 4096 * (num_heads * num_layers * 4096 + head_rows)


def test_a_head_of_unknown_size_is_assumed_to_be_a_usual_one_and_a_folder_says_its_own(tmp_path: Path) -> None:
    note = "neither in the catalogue nor a folder with a config.json"
    assert any(note in each for each in deployed({"method": "eagle3", "model": "head"}).notes)
    (tmp_path / "config.json").write_text(json.dumps(HEADS["eagle3-llama"]), encoding="utf-8")
    assert not any(note in each for each in deployed({"method": "eagle3", "model": str(tmp_path)}).notes)


def test_an_unknown_model_that_drafts_takes_no_memory_and_is_warned_about() -> None:
    alone = resolve(DeploymentOptions(model="qwen3-14b", hardware="H100", tp=1))
    unknown = deployed({"method": "draft_model", "model": "nowhere"})
    warning = (
        "warning: weights and KV cache of the drafter take no GPU memory: the drafter nowhere is neither in the "
        "catalogue nor a folder with a config.json"
    )
    assert warning in unknown.notes
    assert unknown.config.total_kv_blocks == alone.config.total_kv_blocks
