"""Flags of an engine that were given although another one keeps them from mattering."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from blis_sim.options import ineffective_flags

if TYPE_CHECKING:
    from blis_sim.engine.deployment_options import DeploymentOptions

_OF_VLLM = (
    "async_scheduling",
    "enable_chunked_prefill",
    "enable_prefix_caching",
    "scheduler_reserve_full_isl",
    "watermark",
    "prefill_schedule_interval",
    "max_num_active_seqs",
    "cpu_offload_gb",
    "performance_mode",
    "disable_chunked_mm_input",
    "long_prefill_token_threshold_adaptive",
    "kv_offloading_size",
)
_OF_VLLM_AND_BLIS = ("long_prefill_token_threshold", "preemption_policy")
_OF_CPU_TIER = ("kv_offload_policy", "kv_offload_threshold", "kv_transfer_bandwidth", "kv_transfer_base_latency")


def flags_without_effect(options: "DeploymentOptions") -> Iterator[str]:
    """One note for each, for the user to read."""
    missing: dict[str, str] = {}
    if options.engine != "vllm":
        missing |= dict.fromkeys(_OF_VLLM, "--engine vllm")
    if options.engine not in ("vllm", "blis"):
        missing |= dict.fromkeys(_OF_VLLM_AND_BLIS, "--engine vllm or blis")
    if not options.long_prefill_token_threshold:
        missing["long_prefill_token_threshold_adaptive"] = "--long-prefill-token-threshold"
    if "priority" not in options.scheduler and options.preemption_policy == "fcfs":
        missing["priority_policy"] = "a priority scheduler or --preemption-policy priority"
    if options.engine == "vllm":
        missing |= dict.fromkeys(_OF_CPU_TIER, "--engine blis")
    elif options.kv_cpu_blocks <= 0:
        missing |= dict.fromkeys(_OF_CPU_TIER, "--kv-cpu-blocks")
    elif options.kv_offload_policy != "threshold":
        missing["kv_offload_threshold"] = "--kv-offload-policy threshold"
    return ineffective_flags(options, missing)
