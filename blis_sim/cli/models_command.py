"""`blis models`: what a model takes of GPU memory, and how many KV blocks are left."""

import json
import sys
from dataclasses import dataclass
from typing import Any

from blis_sim.engine.errors import EngineError
from blis_sim.engine.gpu_spec import GpuSpec
from blis_sim.engine.latency.catalogue.gpus import load_gpu
from blis_sim.engine.latency.catalogue.reader import (
    default_deployment,
    load_checkpoint,
)
from blis_sim.engine.memory.available import available_kv_bytes
from blis_sim.engine.memory.planner import MemoryLayout, PlanRequest, check_fits, plan_layout
from blis_sim.options import check_options, option

__all__ = ["ModelsOptions", "run"]

_GIB = 2**30
_MOST_GPUS = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelsOptions:
    """A model and the deployment to plan."""

    model: str = option(
        help="Model to plan: a name of the catalogue or a local folder with a Hugging Face config.json.",
        positional=True,
    )
    tp: int = option(
        1, "GPUs that share every layer.", flags=("--tp", "--tensor-parallel-size"), at_least=1, at_most=_MOST_GPUS
    )
    pp: int = option(
        1,
        "Pipeline stages, each with a part of the layers.",
        flags=("--pp", "--pipeline-parallel-size"),
        at_least=1,
        at_most=_MOST_GPUS,
    )
    enable_expert_parallel: bool = option(False, "Give every GPU whole experts instead of a part of all.")
    hardware: str = option(
        "",
        "GPU to plan for, such as H100 (default: the catalogue's choice for the model, else a B200 for checkpoints in "
        "NVFP4 and an H100 for others).",
    )
    kv_cache_memory_bytes: int | None = option(
        None, "Bytes of every GPU for the KV cache (default: what is free beside weights and activations).", at_least=1
    )
    gpu_memory_utilization: float = option(
        0.92, "Fraction of GPU memory to use when --kv-cache-memory-bytes is not given.", above=0, at_most=1
    )
    max_model_len: int | None = option(
        None, "Longest request in tokens (default: the context window of the model).", at_least=1
    )
    max_num_batched_tokens: int = option(8192, "Tokens of one step.", at_least=1)
    max_num_seqs: int = option(1024, "Requests of one step.", at_least=1)
    block_size: int | None = option(
        None, "Tokens per KV block (default: as the attention kernels of the model take them).", at_least=1
    )
    kv_cache_dtype: str = option("auto", "Type of the KV cache: auto, fp8 or another of vLLM's.")
    quantization: str = option("", "Quantisation of the weights, where the checkpoint has none of its own.")
    dtype: str = option("auto", "Precision of weights and activations that are not quantised.")
    enable_prefix_caching: bool = option(True, "Keep the KV blocks of finished requests for others to find.")
    json: bool = option(False, "Print the plan as one JSON object.")

    def __post_init__(self) -> None:
        check_options(self)


def run(options: ModelsOptions) -> int:
    """Print the plan of a model. Raises EngineError for what cannot be planned."""
    layout, gpu = _layout(options)
    kv_bytes = _kv_bytes(options, layout, gpu)
    check_fits(layout, kv_bytes)
    if options.json:
        sys.stdout.write(json.dumps(_as_json(layout, kv_bytes)) + "\n")
    else:
        sys.stdout.write(_as_table(options, layout, gpu, kv_bytes))
    return 0


def _layout(options: ModelsOptions) -> tuple[MemoryLayout, GpuSpec | None]:
    name, checkpoint = load_checkpoint(options.model)
    default = default_deployment(options.model)
    hardware = options.hardware or (default[0] if default else "")
    gpu = load_gpu(hardware) if hardware else None
    request = PlanRequest(
        config=checkpoint.config,
        model=name,
        hf_quant_config=checkpoint.hf_quant_config,
        tp=options.tp,
        pp=options.pp,
        expert_parallel=options.enable_expert_parallel,
        dtype=options.dtype,
        kv_cache_dtype=options.kv_cache_dtype,
        quantization=options.quantization,
        block_size=options.block_size or 0,
        max_model_len=options.max_model_len or 0,
        max_num_batched_tokens=options.max_num_batched_tokens,
        enable_prefix_caching=options.enable_prefix_caching,
        capability_major=int(gpu.compute_capability) if gpu else 0,
    )
    layout = plan_layout(request)
    return layout, gpu or load_gpu("B200" if layout.capability_major >= 10 else "H100")


def _kv_bytes(options: ModelsOptions, layout: MemoryLayout, gpu: GpuSpec | None) -> int:
    if options.kv_cache_memory_bytes is not None:
        return options.kv_cache_memory_bytes
    if gpu is None or gpu.memory_gib <= 0:
        raise EngineError("the memory of the GPU is not known; give --kv-cache-memory-bytes")
    return available_kv_bytes(
        layout,
        gpu,
        gpu_memory_utilization=options.gpu_memory_utilization,
        max_num_batched_tokens=options.max_num_batched_tokens,
        max_num_seqs=options.max_num_seqs,
    )


def _as_json(layout: MemoryLayout, kv_bytes: int) -> dict[str, Any]:
    """Return the plan. The groups are those of a GPU of the first pipeline stage."""
    blocks = layout.num_blocks(kv_bytes)
    return {
        "model": layout.shape.model,
        "weight_bytes_per_gpu": list(layout.weight_bytes_per_gpu),
        "kv_groups": [
            {
                "kind": group.kind,
                "layers": len(group.specs),
                "block_size": group.block_tokens,
                "page_bytes": group.page_bytes,
            }
            for group in layout.groups_of_stage(layout.stages[0])
        ],
        "num_gpu_blocks": blocks,
        "block_size_tokens": layout.granularity[0],
        "hash_block_size_tokens": layout.granularity[1],
        "kv_capacity_tokens": layout.capacity_tokens(blocks),
        "kv_cache_memory_bytes": kv_bytes,
        "kv_cache_dtype": layout.kv_cache_dtype,
        "quantization": layout.quantization or None,
        "max_model_len": layout.limits.max_model_len,
    }


def _as_table(options: ModelsOptions, layout: MemoryLayout, gpu: GpuSpec | None, kv_bytes: int) -> str:
    blocks = layout.num_blocks(kv_bytes)
    capacity = layout.capacity_tokens(blocks)
    weights = ", ".join(f"{size / _GIB:.2f}" for size in layout.weight_bytes_per_gpu)
    on = f"tp {options.tp}, pp {options.pp}" + (f", {gpu.name}" if gpu else "")
    rows = [
        ("model", f"{layout.shape.model} ({on})"),
        ("quantization", layout.quantization or "none"),
        ("weights", f"{weights} GiB per GPU" + (", by pipeline stage" if options.pp > 1 else "")),
        ("KV cache", f"{kv_bytes / _GIB:.2f} GiB per GPU, type {layout.kv_cache_dtype}"),
        ("KV blocks", f"{blocks:,}"),
        ("prefix hits", f"in steps of {layout.granularity[0]:,} tokens"),
        ("capacity", f"{capacity:,} tokens in requests of {layout.limits.max_model_len:,}"),
    ]
    text = "".join(f"{name:<14}{value}\n" for name, value in rows)
    lines = [
        f"  {group.kind:<26}{len(group.specs):>7}{group.block_tokens:>13,}{group.page_bytes:>14,}\n"
        for group in layout.groups_of_stage(layout.stages[0])
    ]
    return f"{text}\n  {'KV group':<26}{'layers':>7}{'block tokens':>13}{'page bytes':>14}\n{''.join(lines)}"
