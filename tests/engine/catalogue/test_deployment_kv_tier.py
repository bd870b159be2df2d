"""The flags of the CPU tier and of priorities."""

from typing import Any

import pytest

from blis_sim.engine.cpu_tier_config import CpuTierConfig
from blis_sim.engine.deployment import resolve
from blis_sim.engine.deployment_options import DeploymentOptions
from blis_sim.engine.errors import EngineError
from blis_sim.options import OptionError


def options(**given: Any) -> DeploymentOptions:
    return DeploymentOptions(model="qwen3-14b", **({"engine": "blis"} | given))


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
        (
            {"kv_cpu_blocks": 5, "engine": "vllm"},
            "--kv-cpu-blocks needs --engine blis, whose rules it follows, got vllm",
        ),
        (
            {"priority_policy": "age"},
            "--priority-policy must be one of slo-class, constant, slo-based, inverted-slo, got 'age'",
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
    ],
)
def test_flags_that_another_keeps_from_mattering_are_noted(given: dict[str, Any], notes: list[str]) -> None:
    assert list(resolve(options(**given)).notes) == notes
