"""A running KV cache follows the plan of its groups: block sizes, capacity, and the blocks that stay after a prompt."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from blis_sim.engine.config import EngineConfig
from blis_sim.engine.deployment import Deployment, resolve
from blis_sim.engine.deployment_options import DeploymentOptions
from blis_sim.engine.errors import EngineError
from blis_sim.engine.memory.kv_groups import CHUNKED, FULL, SLIDING, STATE, KVCacheGroupSpec, blocks_after
from blis_sim.engine.memory.planner import bytes_per_block
from blis_sim.engine.speculation import Speculation
from blis_sim.engine.speculation_options import SpeculationOptions
from tests.engine.memory.plan_table import request_for


def deployment(folder: Path, model: str, **options: object) -> Deployment:
    (folder / "config.json").write_text(json.dumps(dict(request_for(model).config)))
    values = {"model": str(folder), "hardware": "H200", "tp": 8, "max_model_len": 16384, **options}
    return resolve(DeploymentOptions(**values))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("model", "kinds", "block_size_tokens"),
    [
        ("gpt-oss-120b", [(SLIDING, 16, 128), (FULL, 16, 0)], 16),
        ("Llama-4-Scout-17B-16E-Instruct", [(CHUNKED, 16, 8192)] * 3 + [(FULL, 16, 0)], 16),
        ("Qwen3.5-35B-A3B", [(STATE, 320, 0)] * 3 + [(FULL, 320, 0)], 320),
        ("DeepSeek-V3.2", [], 64),
    ],
)
def test_an_engine_runs_the_groups_of_its_plan(
    tmp_path: Path, model: str, kinds: list[tuple[str, int, int]], block_size_tokens: int
) -> None:
    found = deployment(tmp_path, model)
    assert [(group.kind, group.block_tokens, group.reach_tokens) for group in found.config.kv_groups] == kinds
    assert found.config.block_size_tokens == block_size_tokens
    assert found.memory is not None
    assert found.config.kv_size_tokens == found.memory.capacity_tokens(found.config.total_kv_blocks)


def test_a_transfer_counts_the_planned_bytes_of_a_block(tmp_path: Path) -> None:
    found = deployment(tmp_path, "gpt-oss-120b", kv_cache_dtype="fp8")
    memory, config = found.memory, found.config
    assert memory is not None
    size = bytes_per_block(found.model, found.tp, config.engine, config.block_size_tokens, memory)
    assert size == max(memory.block_bytes_per_gpu)


def test_a_prompt_leaves_its_window_its_chunk_and_one_state_behind() -> None:
    full = KVCacheGroupSpec(FULL, 16)
    assert blocks_after((full,), 1000) == 63
    assert blocks_after((full, KVCacheGroupSpec(SLIDING, 16, 128)), 1000) == 63 + 9
    assert blocks_after((full, KVCacheGroupSpec(CHUNKED, 16, 512)), 1000) == 63 + 31
    assert blocks_after((KVCacheGroupSpec(STATE, 832), KVCacheGroupSpec(FULL, 832)), 1000) == 1 + 2


@pytest.mark.parametrize("method", ["eagle", "eagle3"])
def test_with_drafts_from_hidden_states_chunks_are_kept_whole(tmp_path: Path, method: str) -> None:
    """vLLM switches its hybrid manager off there, whose managers of chunks know no drafts from hidden states."""
    speculation = {"method": method, "model": "some/drafter", "num_speculative_tokens": 2}
    found = deployment(
        tmp_path,
        "Llama-4-Scout-17B-16E-Instruct",
        drafts=SpeculationOptions(speculative_config=json.dumps(speculation)),
    )
    assert found.config.kv_groups == ()
    without = deployment(tmp_path, "Llama-4-Scout-17B-16E-Instruct")
    assert found.config.total_kv_blocks * 3 < without.config.total_kv_blocks


def test_drafts_from_the_prompt_leave_chunks_alone(tmp_path: Path) -> None:
    speculation = {"method": "ngram", "num_speculative_tokens": 2}
    found = deployment(
        tmp_path,
        "Llama-4-Scout-17B-16E-Instruct",
        drafts=SpeculationOptions(speculative_config=json.dumps(speculation)),
    )
    assert [group.kind for group in found.config.kv_groups] == [CHUNKED] * 3 + [FULL]


def test_an_engine_refuses_chunks_whose_last_block_would_be_dropped() -> None:
    """The genuine manager of chunks asserts that, when the first prefix is looked up."""
    groups = (KVCacheGroupSpec(FULL, 16), KVCacheGroupSpec(CHUNKED, 16, 64))
    limits = EngineConfig(200, 16, engine="vllm", max_num_batched_tokens=256, kv_groups=groups)
    drafts = Speculation(method="eagle", num_tokens=2, acceptance_rates=(0.5, 0.5), hashes_next_token=False)
    with pytest.raises(EngineError, match="drafts by eagle need layers that keep the whole context"):
        replace(limits, speculation=drafts)
    assert replace(limits, speculation=replace(drafts, keeps_last_hit_block=True)).speculation is not None
    assert replace(limits, speculation=replace(drafts, method="ngram")).speculation is not None
    assert replace(limits, speculation=drafts, enable_prefix_caching=False).speculation is not None
