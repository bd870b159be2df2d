"""Flags of the server that were given although another one keeps them from mattering."""

from collections.abc import Iterator

from blis_options import options_of
from mockserve.options.serve import ServeOptions


def flags_without_effect(options: ServeOptions) -> Iterator[str]:
    """One note for each, for the user to read."""
    needs = {
        "tool_call_probability": ("--enable-auto-tool-choice", options.enable_auto_tool_choice),
        "default_reasoning_tokens": ("--reasoning-parser", options.reasoning_parser),
        "dataset_table_name": ("--dataset-path", options.dataset_path),
        "max_loras": ("--enable-lora", options.enable_lora),
        "max_cpu_loras": ("--enable-lora", options.enable_lora),
        "lora_load_ms": ("--enable-lora", options.enable_lora),
        "lora_swap_ms": ("--enable-lora", options.enable_lora),
        "kv_transfer_gb_per_s": ("--kv-transfer-config", options.kv_transfer_config),
        "kv_transfer_latency_ms": ("--kv-transfer-config", options.kv_transfer_config),
    }
    for setting in options_of(ServeOptions):
        needed, is_there = needs.get(setting.name, ("", True))
        if not is_there and getattr(options, setting.name) != setting.default:
            yield f"{setting.label} has no effect without {needed}"
