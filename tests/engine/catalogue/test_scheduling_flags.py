"""Flags of vLLM's scheduler: their effect on the limits of a deployment."""

import json
from typing import Any

import pytest

from blis_sim.engine.batch_shape import BatchShape
from blis_sim.engine.config import EngineConfig
from blis_sim.engine.deployment import Deployment, resolve
from blis_sim.engine.deployment_options import DeploymentOptions
from blis_sim.options import OptionError, options_from


def deployed(**settings: Any) -> Deployment:
    return resolve(options_from(DeploymentOptions, **{"model": "qwen3-14b", "hardware": "H100", "tp": 1, **settings}))


def config(**settings: Any) -> EngineConfig:
    return deployed(**settings).config


def speculating(method: str, **fields: Any) -> str:
    return json.dumps({"method": method, "num_speculative_tokens": 7, **fields})


def test_active_requests_are_limited_apart_from_the_requests_of_a_step() -> None:
    assert config(max_num_active_seqs=5).max_num_seqs == 5
    with pytest.raises(OptionError, match="--max-num-active-seqs must be at most --max-num-seqs, 4, got 5"):
        config(max_num_seqs=4, max_num_active_seqs=5)


def test_more_active_requests_than_run_in_a_step_by_default_are_refused() -> None:
    with pytest.raises(OptionError, match="--max-num-active-seqs must be at most --max-num-seqs, 1024, got 5000"):
        config(max_num_active_seqs=5000)


def test_scheduled_tokens_are_limited_apart_from_the_room_of_a_step() -> None:
    limited = config(max_num_scheduled_tokens=1000, max_num_batched_tokens=4096)
    assert (limited.token_budget, limited.max_num_batched_tokens) == (1000, 4096)
    assert config(max_num_scheduled_tokens=100_000, max_num_batched_tokens=4096).token_budget == 4096


def test_with_blis_scheduled_tokens_are_the_room_of_a_step() -> None:
    assert config(engine="blis", max_num_scheduled_tokens=1000).max_num_batched_tokens == 1000
    with pytest.raises(OptionError, match="are one setting with --engine blis, got 1000 and 2000"):
        config(engine="blis", max_num_scheduled_tokens=1000, max_num_batched_tokens=2000)


def test_a_drafter_that_takes_room_in_a_step_leaves_scheduled_tokens_unlimited_with_a_warning() -> None:
    found = deployed(max_num_scheduled_tokens=1000, speculative_config=speculating("draft_model", model="d"))
    assert found.config.token_budget == found.config.max_num_batched_tokens
    assert any(
        note.startswith("warning: --max-num-scheduled-tokens is ignored with draft_model") for note in found.notes
    )


def test_the_mode_of_throughput_doubles_the_defaults_and_no_flag() -> None:
    usual, doubled = config(), config(performance_mode="throughput")
    assert doubled.max_num_seqs == 2 * usual.max_num_seqs
    assert doubled.max_num_batched_tokens == 2 * usual.max_num_batched_tokens
    assert config(performance_mode="interactivity").max_num_batched_tokens == usual.max_num_batched_tokens
    kept = config(performance_mode="throughput", max_num_seqs=8, max_num_batched_tokens=512)
    assert (kept.max_num_seqs, kept.max_num_batched_tokens) == (8, 512)


def test_suffixes_are_drafted_as_deep_as_their_tree_and_steps_are_not_composed_ahead() -> None:
    found = deployed(speculative_config='{"method": "suffix"}')
    assert found.config.speculation is not None
    assert (found.config.speculation.num_tokens, found.config.async_scheduling) == (24, False)
    assert "steps are not composed ahead: vLLM has no asynchronous scheduling with suffix" in found.notes


@pytest.mark.parametrize(("method", "slots"), [("dflash", 8), ("dspark", 7), ("eagle3", 7), ("nemotron_h_mtp", 7)])
def test_drafters_with_kv_take_slots_beyond_the_tokens_of_a_step(method: str, slots: int) -> None:
    speculation = config(speculative_config=speculating(method, model="d")).speculation
    assert speculation is not None
    assert (speculation.num_lookahead_tokens, speculation.rows_per_request) == (slots, 0)


def test_a_head_of_unknown_size_is_noted_unless_kv_blocks_are_given() -> None:
    def is_noted(**options: Any) -> bool:
        notes = deployed(speculative_config=speculating("eagle3", model="d"), **options).notes
        return any(note.startswith("the drafter d is neither in the catalogue nor a folder") for note in notes)

    assert is_noted()
    assert not is_noted(total_kv_blocks=1000)


def test_a_drafter_with_a_pass_of_its_own_admits_the_requests_whose_rows_fit_a_step() -> None:
    flash = speculating("dflash", model="d")
    assert config(speculative_config=flash, max_num_seqs=64, max_num_batched_tokens=160).max_num_seqs == 20
    assert config(speculative_config=flash, max_num_seqs=8, max_num_batched_tokens=160).max_num_seqs == 8


def test_parallel_drafts_are_not_composed_ahead_with_several_stages() -> None:
    parallel = speculating("eagle3", model="d", parallel_drafting=True)
    assert config(speculative_config=parallel).async_scheduling
    staged = config(speculative_config=parallel, pp=2)
    assert (staged.async_scheduling, staged.max_concurrent_batches) == (False, 2)


def test_a_model_has_stages_whose_last_also_has_the_output_head() -> None:
    found = deployed(pp=2)
    assert found.config.pipeline is not None
    first, last = found.config.pipeline.shares
    assert 0.4 < first < last < 0.6
    assert found.config.max_concurrent_batches == 3
    assert found.num_gpus == 2
    assert found.config.total_kv_blocks > 2 * deployed().config.total_kv_blocks
    with pytest.raises(OptionError, match="--pipeline-parallel-size must be 1 with --engine blis, got 2"):
        deployed(pp=2, engine="blis")


def test_weights_in_cpu_memory_leave_room_for_kv_and_cross_pcie_in_every_step() -> None:
    usual, offloaded = deployed(), deployed(cpu_offload_gb=8)
    assert usual.memory is not None
    more_blocks = offloaded.config.total_kv_blocks - usual.config.total_kv_blocks
    assert more_blocks == pytest.approx(8 * 2**30 / usual.memory.block_bytes_per_gpu[0], abs=1)
    decodes = BatchShape(decode_requests=4, decode_context_tokens=4000)
    added_us = offloaded.latency.step_time(decodes) - usual.latency.step_time(decodes)
    assert added_us == pytest.approx(8 * 2**30 / (usual.gpu.pcie_gb_s * 1e3), rel=0.01)
    most = deployed(cpu_offload_gb=1000).latency.step_time(decodes) - usual.latency.step_time(decodes)
    assert most == pytest.approx(usual.memory.weight_bytes_per_gpu[0] / (usual.gpu.pcie_gb_s * 1e3), rel=0.01)
