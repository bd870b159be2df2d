"""Flags of an engine that were given although another one keeps them from mattering."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from blis_options import options_of

if TYPE_CHECKING:
    from engine.deployment_options import DeploymentOptions

_OF_VLLM = (
    "async_scheduling",
    "enable_chunked_prefill",
    "enable_prefix_caching",
    "scheduler_reserve_full_isl",
    "watermark",
    "prefill_schedule_interval",
)


def flags_without_effect(options: "DeploymentOptions") -> Iterator[str]:
    """One note for each, for the user to read."""
    needs = {
        "priority_policy": (
            "priority" in options.scheduler or options.preemption_policy == "priority",
            "a priority scheduler or --preemption-policy priority",
        ),
        "kv_offload_policy": (options.kv_cpu_blocks > 0, "--kv-cpu-blocks"),
        "kv_offload_threshold": (
            options.kv_cpu_blocks > 0 and options.kv_offload_policy == "threshold",
            "--kv-offload-policy threshold" if options.kv_cpu_blocks else "--kv-cpu-blocks",
        ),
        "kv_transfer_bandwidth": (options.kv_cpu_blocks > 0, "--kv-cpu-blocks"),
        "kv_transfer_base_latency": (options.kv_cpu_blocks > 0, "--kv-cpu-blocks"),
    }
    for setting in options_of(type(options)):
        matters, needed = needs.get(setting.name, (True, ""))
        if setting.name in _OF_VLLM:
            matters, needed = options.scheduling == "vllm", "--scheduling vllm"
        if not matters and getattr(options, setting.name) != setting.default:
            yield f"{setting.label} has no effect without {needed}"
