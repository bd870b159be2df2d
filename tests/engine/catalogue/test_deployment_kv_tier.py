"""The flags of the CPU tier and of priorities."""

from typing import Any

import pytest

from blis_sim.engine.deployment import resolve
from blis_sim.engine.deployment_options import DeploymentOptions
from blis_sim.engine.errors import EngineError
from blis_sim.engine.offloading import CpuTierConfig, OffloadConfig
from blis_sim.options import OptionError, options_from


def options(**given: Any) -> DeploymentOptions:
    return options_from(DeploymentOptions, model="qwen3-14b", **({"engine": "blis"} | given))


def test_without_blocks_there_is_no_tier() -> None:
    assert resolve(options()).config.cpu_tier is None


def test_the_flags_reach_the_tier() -> None:
    config = resolve(
        options(
            kv_cpu_blocks=300, kv_offload_policy="threshold", kv_offload_threshold=0.5, kv_transfer_bandwidth=2.5,
            kv_transfer_base_latency=50,
        )
    ).config  # fmt: skip
    assert config.cpu_tier == CpuTierConfig(300, "threshold", 0.5, 2.5, 50)


def test_blocks_alone_give_the_documented_defaults() -> None:
    assert resolve(options(kv_cpu_blocks=300)).config.cpu_tier == CpuTierConfig(300, "mirror", 0.9, 100.0, 0)


@pytest.mark.parametrize(
    ("given", "error"),
    [
        ({"kv_cpu_blocks": -1}, "--kv-cpu-blocks must be at least 0, got -1"),
        ({"kv_offload_threshold": 1.01}, "--kv-offload-threshold must be at most 1, got 1.01"),
        ({"kv_offload_threshold": -0.1}, "--kv-offload-threshold must be at least 0, got -0.1"),
        ({"kv_transfer_bandwidth": 0.0}, "--kv-transfer-bandwidth must be above 0, got 0.0"),
        ({"kv_transfer_bandwidth": float("inf")}, "--kv-transfer-bandwidth must be a finite number, got inf"),
        ({"kv_transfer_base_latency": -5}, "--kv-transfer-base-latency must be at least 0, got -5"),
        ({"kv_offload_policy": "lru"}, "--kv-offload-policy must be one of mirror, threshold, got 'lru'"),
        ({"kv_offloading_size": 0.0, "engine": "vllm"}, "--kv-offloading-size must be above 0, got 0.0"),
        (
            {"kv_cpu_blocks": 5, "kv_offloading_size": 3.0, "engine": "vllm"},
            "--kv-cpu-blocks and --kv-offloading-size say the same; give one of them",
        ),
        (
            {"priority_policy": "age"},
            "--priority-policy must be one of slo-class, constant, slo-based, inverted-slo, slo-urgency, got 'age'",
        ),
    ],
)
def test_a_bad_flag_is_named_with_what_is_allowed(given: dict[str, Any], error: str) -> None:
    with pytest.raises(OptionError) as caught:
        options(**given)
    assert str(caught.value) == error


def test_a_transfer_that_takes_for_ever_is_refused() -> None:
    with pytest.raises(EngineError, match=r"^bringing back a block of 16 tokens would take 1.6e\+301 us; it must take"):
        resolve(options(kv_cpu_blocks=5, kv_transfer_bandwidth=1e-300))


@pytest.mark.parametrize(
    ("given", "notes"),
    [
        ({"kv_transfer_bandwidth": 5.0}, ["--kv-transfer-bandwidth has no effect without --kv-cpu-blocks"]),
        ({"kv_offload_threshold": 0.5}, ["--kv-offload-threshold has no effect without --kv-cpu-blocks"]),
        (
            {"kv_offload_threshold": 0.5, "kv_cpu_blocks": 9},
            ["--kv-offload-threshold has no effect without --kv-offload-policy threshold"],
        ),
        ({"kv_offload_threshold": 0.5, "kv_cpu_blocks": 9, "kv_offload_policy": "threshold"}, []),
        ({"kv_transfer_base_latency": 5, "kv_cpu_blocks": 9}, []),
        ({"kv_offloading_size": 5.0}, ["--kv-offloading-size has no effect without --engine vllm"]),
        (
            {"priority_policy": "slo-based"},
            ["--priority-policy has no effect without a priority scheduler or --preemption-policy priority"],
        ),
        ({"priority_policy": "slo-based", "scheduler": "reverse-priority"}, []),
        ({"priority_policy": "slo-based", "preemption_policy": "priority"}, []),
        ({"watermark": 0.1, "engine": "blis"}, ["--watermark has no effect without --engine vllm"]),
        (
            {"async_scheduling": False, "engine": "blis"},
            ["--async-scheduling has no effect without --engine vllm"],
        ),
        ({"priority_base": "1"}, ["--priority-base has no effect without --priority-policy slo-based or inverted-slo"]),
        ({"urgency_window": 9}, ["--urgency-window has no effect without --priority-policy slo-urgency"]),
        ({"urgency_window": 9, "priority_policy": "slo-urgency", "engine": "vllm"}, []),
        ({"preemption_resume": "keep"}, ["--preemption-resume has no effect without --preemption-policy gap"]),
        ({"preemption_resume": "keep", "preemption_policy": "gap", "engine": "vllm"}, []),
        ({"kv_cache_memory_bytes": 9}, ["--kv-cache-memory-bytes has no effect without --engine vllm"]),
        ({"dtype": "float32"}, ["--dtype has no effect without --engine vllm or --latency-model kernels"]),
        ({"enable_expert_parallel": True}, ["--enable-expert-parallel has no effect on a model without experts"]),
        ({"timer_resolution": 9}, ["--timer-resolution has no effect without --engine adaptive"]),
    ],
)
def test_flags_that_another_keeps_from_mattering_are_noted(given: dict[str, Any], notes: list[str]) -> None:
    assert list(resolve(options(**given)).notes) == notes


@pytest.mark.parametrize("given", [{}, {"preemption_resume": "keep", "urgency_window": 9, "timer_resolution": 9}])
def test_rules_that_the_adaptive_engine_applies_are_not_noted(given: dict[str, Any]) -> None:
    assert not [note for note in resolve(options(engine="adaptive", **given)).notes if "no effect" in note]


def test_engines_without_preemption_by_priority_are_named() -> None:
    found = resolve(options(engine="sarathi", preemption_policy="priority")).notes
    assert found[-1] == "--preemption-policy has no effect without --engine vllm, blis or adaptive"


GIB = 2**30


def offload(**given: Any) -> OffloadConfig | None:
    settings: dict[str, Any] = {"model": "qwen3-14b", "hardware": "H100", "tp": 2, **given}
    return resolve(options_from(DeploymentOptions, **settings)).config.offload


def test_cpu_memory_holds_the_blocks_of_all_gpus_and_each_loads_its_part_over_pcie() -> None:
    block_bytes = 16 * 40 * 2 * 8 * 128 * 2
    found = offload(kv_offloading_size=10.0)
    assert found is not None
    assert found.num_blocks == 10 * GIB // block_bytes
    assert found.block_us == pytest.approx(block_bytes / 2 / 64e3)
    assert offload(kv_cpu_blocks=77) == OffloadConfig(
        77, found.block_us, block_bytes // 2, num_gpus=2, stored_bytes=block_bytes
    )
    assert offload() is None


def test_latent_kv_is_kept_once_for_all_gpus() -> None:
    found = offload(model="deepseek-ai/DeepSeek-V3", hardware="H200", tp=8, kv_offloading_size=1.0, max_model_len=4096)
    block_bytes = 16 * 61 * 576 * 2
    assert found is not None
    assert found.num_blocks == pytest.approx(GIB // block_bytes, rel=0.35)


@pytest.mark.parametrize(
    "given",
    [
        {"pp": 2},
        {"spec_method": "ngram", "spec_tokens": 2},
        {"model": "openai/gpt-oss-20b", "tp": 1},
        {"model": "google/gemma-3-27b-it"},
        {"model": "Qwen/Qwen3.5-27B"},
    ],
)
def test_cpu_memory_goes_with_stages_drafts_and_groups(given: dict[str, Any]) -> None:
    settings: dict[str, Any] = {"model": "qwen3-14b", "hardware": "H100", "tp": 2, "kv_offloading_size": 5.0, **given}
    deployment = resolve(options_from(DeploymentOptions, **settings))
    assert deployment.config.offload is not None
    assert not [note for note in deployment.notes if "CPU memory" in note]


def test_blocks_in_cpu_memory_are_named_by_their_own_tokens_alone() -> None:
    settings: dict[str, Any] = {"model": "qwen3-14b", "hardware": "H100", "spec_method": "ngram", "spec_tokens": 2}
    for size, hashes_next_token in ((None, True), (5.0, False)):
        found = resolve(options_from(DeploymentOptions, **settings, kv_offloading_size=size)).config.speculation
        assert found is not None
        assert found.hashes_next_token is hashes_next_token


def test_cpu_memory_below_one_block_is_refused() -> None:
    with pytest.raises(
        EngineError, match=r"^--kv-offloading-size must hold at least one KV block, 0.00244 GiB, got 0.001"
    ):
        offload(kv_offloading_size=0.001)
