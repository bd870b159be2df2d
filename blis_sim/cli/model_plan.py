"""The memory plan of a model as `blis models` prints it, with its catalogue entry and latency models."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from blis_sim.engine.errors import EngineError
from blis_sim.engine.latency.catalogue.entries import ModelEntry, gpu_names, load_gpu
from blis_sim.engine.latency.choice import LatencyChoice
from blis_sim.engine.latency.registry import LATENCY_MODELS, build
from blis_sim.engine.memory.planner import MemoryLayout, PlanRequest, available_kv_bytes, check_fits, plan_layout
from blis_sim.engine.specs import GpuSpec, ModelSpec

_GIB = 2**30
_TPS = (1, 2, 4, 8, 16)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelPlan:
    """A plan on one GPU type. `kv_bytes` are those of every GPU for the KV cache.

    `context_window` is the longest request before it was cut to what fits.
    """

    request: PlanRequest
    layout: MemoryLayout
    gpu: GpuSpec
    kv_bytes: int
    context_window: int
    fits: Mapping[str, int]
    latency_models: Mapping[str, str]
    entry: ModelEntry | None


@dataclass(frozen=True, slots=True)
class StepLimits:
    """Limits of a step that vLLM's estimate of activations depends on, and the fraction of memory that an instance
    takes."""

    gpu_memory_utilization: float
    max_num_batched_tokens: int
    max_num_seqs: int


def free_bytes(layout: MemoryLayout, gpu: GpuSpec, limits: StepLimits) -> int:
    """Return the bytes of every GPU that are left for the KV cache. Raises EngineError when its memory is not known."""
    if gpu.memory_gib <= 0:
        raise EngineError("the memory of the GPU is not known; give --kv-cache-memory-bytes")
    return available_kv_bytes(
        layout,
        gpu,
        gpu_memory_utilization=limits.gpu_memory_utilization,
        max_num_batched_tokens=limits.max_num_batched_tokens,
        max_num_seqs=limits.max_num_seqs,
    )


def fitting_gpus(request: PlanRequest, limits: StepLimits) -> dict[str, int]:
    """Return the fewest GPUs of each type, up to 16, that hold the weights and one request of the longest length."""
    layouts: dict[tuple[int, int], MemoryLayout | None] = {}
    found = {}
    for name in gpu_names():
        gpu = load_gpu(name)
        for tp in _TPS:
            key = (int(gpu.compute_capability), tp)
            if key not in layouts:
                layouts[key] = _layout(request._replace(tp=tp, pp=1, capability_major=key[0]))
            layout = layouts[key]
            if layout is not None and _fits(layout, free_bytes(layout, gpu, limits)):
                found[name] = tp
                break
    return found


def _layout(request: PlanRequest) -> MemoryLayout | None:
    try:
        return plan_layout(request)
    except EngineError:
        return None


def _fits(layout: MemoryLayout, kv_bytes: int) -> bool:
    try:
        check_fits(layout, kv_bytes)
    except EngineError:
        return False
    return True


def known_latency_models(model: ModelSpec, gpu: GpuSpec, tp: int) -> dict[str, str]:
    """Return the expected error of every latency model that can time the deployment."""
    from blis_sim.engine.latency.coefficients_file import expected_error  # Imported here: it loads numpy.

    found = {}
    for name in LATENCY_MODELS:
        try:
            build(name, LatencyChoice(model=model, gpu=gpu, tp=tp))
        except EngineError:
            continue
        found[name] = expected_error(name, model, gpu, tp)
    return found


def kv_bytes_per_token(layout: MemoryLayout) -> float:
    """Return the bytes of a GPU that a token adds to a request of half of the longest length.

    Windows are full by then, and recurrent states do not grow.
    """
    most = layout.limits.max_model_len
    blocks = layout.blocks_per_request(most) - layout.blocks_per_request(most // 2)
    return blocks * max(layout.block_bytes_per_gpu) / (most - most // 2)


def as_json(plan: ModelPlan) -> dict[str, Any]:
    """Return the plan as one JSON object. The groups are those of a GPU of the first pipeline stage."""
    layout = plan.layout
    blocks = layout.num_blocks(plan.kv_bytes)
    return {
        "model": layout.shape.model,
        "hardware": plan.gpu.name,
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
        "kv_bytes_per_token_per_gpu": kv_bytes_per_token(layout),
        "num_gpu_blocks": blocks,
        "block_size_tokens": layout.granularity[0],
        "hash_block_size_tokens": layout.granularity[1],
        "kv_capacity_tokens": layout.capacity_tokens(blocks),
        "kv_cache_memory_bytes": plan.kv_bytes,
        "kv_cache_dtype": layout.kv_cache_dtype,
        "quantization": layout.quantization or None,
        "max_model_len": layout.limits.max_model_len,
        "context_window": plan.context_window,
        "fits_on": dict(plan.fits),
        "latency_models": dict(plan.latency_models),
        "source": plan.entry.source if plan.entry else None,
        "assumed": list(plan.entry.assumed) if plan.entry else [],
    }


def as_table(plan: ModelPlan) -> str:
    """Return the plan as lines for a reader."""
    layout, request = plan.layout, plan.request
    blocks = layout.num_blocks(plan.kv_bytes)
    longest = f"{layout.limits.max_model_len:,}"
    weights = ", ".join(f"{size / _GIB:.2f}" for size in layout.weight_bytes_per_gpu)
    rows = [
        ("model", f"{layout.shape.model} (tp {request.tp}, pp {request.pp}, {plan.gpu.name})"),
        *_origin(plan.entry),
        ("quantization", layout.quantization or "none"),
        ("weights", f"{weights} GiB per GPU" + (", by pipeline stage" if request.pp > 1 else "")),
        ("KV cache", f"{plan.kv_bytes / _GIB:.2f} GiB per GPU, type {layout.kv_cache_dtype}"),
        ("KV of a token", f"{kv_bytes_per_token(layout):,.0f} bytes per GPU"),
        ("KV blocks", f"{blocks:,}"),
        ("prefix hits", f"in steps of {layout.granularity[0]:,} tokens"),
        ("capacity", f"{layout.capacity_tokens(blocks):,} tokens in requests of {longest}"),
        *_cut_rows(plan.context_window, longest, layout.limits.max_model_len),
        *_fitting_rows(plan.fits, f"{plan.context_window:,}"),
        *(("step times", f"{name}: {error}") for name, error in plan.latency_models.items()),
    ]
    text = "".join(f"{name:<14}{value}\n" for name, value in rows)
    lines = [
        f"  {group.kind:<26}{len(group.specs):>7}{group.block_tokens:>13,}{group.page_bytes:>14,}\n"
        for group in layout.groups_of_stage(layout.stages[0])
    ]
    return f"{text}\n  {'KV group':<26}{'layers':>7}{'block tokens':>13}{'page bytes':>14}\n{''.join(lines)}"


def _origin(entry: ModelEntry | None) -> list[tuple[str, str]]:
    if entry is None:
        return []
    unsure = f"; not checked: {', '.join(entry.assumed)}" if entry.assumed else ""
    names = f"{entry.organisation}/{entry.name}" if entry.organisation else entry.name
    return [("sizes from", f"{entry.source}, of {names}{unsure}")]


def _cut_rows(context_window: int, longest: str, max_model_len: int) -> list[tuple[str, str]]:
    """Return a row for a context window that does not fit, else no row."""
    if max_model_len >= context_window:
        return []
    return [("context", f"one request of {context_window:,} tokens does not fit: cut to {longest}")]


def _fitting_rows(fits: Mapping[str, int], longest: str) -> list[tuple[str, str]]:
    """Return a row for each number of GPUs; one request of the longest length is what has to fit."""
    rows = [
        ("fits on", f"{tp} x {', '.join(name for name, count in fits.items() if count == tp)}")
        for tp in _TPS
        if tp in fits.values()
    ]
    return rows or [("fits on", f"no {_TPS[-1]} GPUs of any type with a request of {longest} tokens")]
