"""Notes on flags of an engine that have no effect because of another flag."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from blis_sim.engine.engine_defaults import ADAPTIVE_ENGINES
from blis_sim.options import ineffective_flags

if TYPE_CHECKING:
    from blis_sim.engine.deployment_options import DeploymentOptions

_VLLM_FLAGS = (
    "vllm_version",
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
_URGENCY_FLAGS = ("urgency_window", "urgency_step", "urgency_ceiling", "urgency_interval")
_AGE_FLAGS = ("priority_base", "priority_age_weight")
_GAP_FLAGS = ("min_preempt_priority_gap", "preemption_resume")
_CPU_TIER_FLAGS = ("kv_offload_policy", "kv_offload_threshold", "kv_transfer_bandwidth", "kv_transfer_base_latency")


def flags_without_effect(options: "DeploymentOptions") -> Iterator[str]:
    """Yield a note for the user on each flag without effect."""
    missing: dict[str, str] = {}
    if options.engine != "vllm":
        missing |= dict.fromkeys(_VLLM_FLAGS, "--engine vllm")
    if options.engine not in ("vllm", "blis"):
        missing["long_prefill_token_threshold"] = "--engine vllm or blis"
    if not options.long_prefill_token_threshold:
        missing["long_prefill_token_threshold_adaptive"] = "--long-prefill-token-threshold"
    missing |= _missing_for_priorities(options)
    if options.engine == "vllm":
        missing |= dict.fromkeys(_CPU_TIER_FLAGS, "--engine blis")
    elif options.kv_cpu_blocks <= 0:
        missing |= dict.fromkeys(_CPU_TIER_FLAGS, "--kv-cpu-blocks")
    elif options.kv_offload_policy != "threshold":
        missing["kv_offload_threshold"] = "--kv-offload-policy threshold"
    return ineffective_flags(options, missing)


def _missing_for_priorities(options: "DeploymentOptions") -> dict[str, str]:
    missing: dict[str, str] = {}
    if options.engine not in ADAPTIVE_ENGINES:
        missing["timer_resolution"] = "--engine adaptive"
        if options.engine not in ("vllm", "blis"):
            missing["preemption_policy"] = "--engine vllm, blis or adaptive"
    if "priority" not in options.scheduler and options.preemption_policy == "fcfs":
        missing["priority_policy"] = "a priority scheduler or --preemption-policy priority"
    if options.priority_policy not in ("slo-based", "inverted-slo"):
        missing |= dict.fromkeys(_AGE_FLAGS, "--priority-policy slo-based or inverted-slo")
    if options.priority_policy != "slo-urgency":
        missing |= dict.fromkeys(_URGENCY_FLAGS, "--priority-policy slo-urgency")
    if options.preemption_policy != "gap":
        missing |= dict.fromkeys(_GAP_FLAGS, "--preemption-policy gap")
    return missing
