"""Flags of the server that were given although another one keeps them from mattering."""

from collections.abc import Iterator

from blis_sim.options import in_vain
from mockserve.options.serve import ServeOptions


def flags_without_effect(options: ServeOptions) -> Iterator[str]:
    """One note for each, for the user to read."""
    needs = (
        (options.content.tools.enable_auto_tool_choice, "--enable-auto-tool-choice", ("tool_call_probability",)),
        (options.content.reasoning.reasoning_parser, "--reasoning-parser", ("default_reasoning_tokens",)),
        (options.content.dataset_path, "--dataset-path", ("dataset_table_name",)),
        (options.lora.enable_lora, "--enable-lora", ("max_loras", "max_cpu_loras", "lora_load_ms", "lora_swap_ms")),
        (
            options.kv_sharing.kv_transfer_config,
            "--kv-transfer-config",
            ("kv_transfer_gb_per_s", "kv_transfer_latency_ms"),
        ),
    )
    for flag, value in (("--quantization", options.quantization), ("--kv-cache-dtype", options.kv_cache_dtype)):
        if value not in ("", "auto"):
            yield f"warning: {flag} {value} is ignored: sizes and times are those of the model's own types"
    yield from in_vain(options, {name: flag for is_there, flag, names in needs if not is_there for name in names})
