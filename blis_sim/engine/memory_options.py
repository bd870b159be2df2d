"""Flags of a deployment about memory and links: the planner's settings, stages, weights and KV blocks in CPU memory."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from blis_sim.engine.deployment_options import DeploymentOptions
from blis_sim.engine.drafting import drafter_of
from blis_sim.engine.engine_defaults import BatchLimits, engine_defaults
from blis_sim.engine.errors import EngineError
from blis_sim.engine.kv_cache.sizing import MemorySettings
from blis_sim.engine.latency.model import LatencyModel
from blis_sim.engine.latency.step_work import step_work
from blis_sim.engine.memory.kv_specs import KV_DTYPE_BITS
from blis_sim.engine.memory.quantization import refused_quantization
from blis_sim.engine.memory.shapes import stage_layers
from blis_sim.engine.specs import GpuSpec, ModelSpec

if TYPE_CHECKING:
    from blis_sim.engine.cpu_tier_config import OffloadConfig
    from blis_sim.engine.pipeline import PipelineStages


def memory_settings(options: DeploymentOptions, limits: BatchLimits) -> MemorySettings:
    """Return the memory settings of the flags. Without --block-size the kernels decide, as in vLLM."""
    return MemorySettings(
        gpu_memory_utilization=options.memory_utilization,
        max_num_batched_tokens=limits.max_num_batched_tokens,
        max_num_seqs=limits.max_num_seqs,
        max_model_len=options.max_model_len,
        block_size=options.block_size or engine_defaults(options.engine).block_size_tokens,
        enable_prefix_caching=options.enable_prefix_caching,
        expert_parallel=options.enable_expert_parallel,
        kv_cache_memory_bytes=options.kv_cache_memory_bytes or None,
        kv_cache_dtype=options.kv_cache_dtype,
        quantization=options.quantization,
        dtype=options.dtype,
        pp=options.pp,
        drafter=drafter_of(options),
        cpu_offload_bytes=int(options.cpu_offload_gb * 2**30),
    )


def modelled_settings(
    options: DeploymentOptions, model: ModelSpec, settings: MemorySettings, notes: list[str]
) -> MemorySettings:
    """Return the settings without types that are not modelled, with a warning for each that names the assumption."""
    if options.kv_cache_dtype not in ("auto", *KV_DTYPE_BITS):
        notes.append(f"warning: --kv-cache-dtype {options.kv_cache_dtype} is ignored: the KV cache is planned as auto")
        settings = settings._replace(kv_cache_dtype="auto")
    if model.checkpoint is not None and (problem := refused_quantization(model.checkpoint, options.quantization)):
        notes.append(f"warning: --quantization {options.quantization} is ignored: {problem}")
        settings = settings._replace(quantization="")
    return settings


_TENSORS = 2
"""Tensors of the hidden size that a stage sends for each token: hidden states and residual."""
USUAL_PCIE_GB_S = 32.0
"""The rate of PCIe 4 with 16 lanes, for GPUs whose link to the CPU is not known."""
_TRANSFER_START_US = 20.0
"""Time to send the smallest message to the GPU of another stage."""


def pipeline_stages(model: ModelSpec, gpu: GpuSpec, tp: int, pp: int) -> "PipelineStages":
    """Return `pp` stages of `tp` GPUs each. Raises EngineError when the model has too few layers.

    A stage takes its share of the layers, the last one also the output head. Each GPU sends its part of the activations
    over the slowest link that joins the GPUs of the instance; a link of unknown rate takes only the time to start.
    """
    from blis_sim.engine.pipeline import PipelineStages

    work = step_work(model, gpu, tp, 1, "naive")
    layers_us = work.weight_us / model.num_layers
    times = [len(layers) * layers_us for layers in stage_layers(model.num_layers, pp, model.name)]
    times[-1] += work.head_us
    total = sum(times)
    sent_bytes = _TENSORS * model.hidden_size * model.bytes_per_activation / tp
    rate = gpu.link_gb_s(tp * pp) * 1e3
    return PipelineStages(
        tuple(time / total for time in times),
        transfer_start_us=_TRANSFER_START_US,
        transfer_token_us=sent_bytes / rate if rate else 0.0,
    )


def with_offloaded_weights(
    latency: LatencyModel, gpu: GpuSpec, offload_gib: float, weight_bytes_per_gpu: Sequence[int]
) -> LatencyModel:
    """Return `latency` with steps in which every GPU reads so much of its weights from CPU memory, stage by stage."""
    from blis_sim.engine.latency.wrapped import AddedTime  # Imported here: it loads numpy, which no help text needs.

    offloaded_bytes = sum(min(offload_gib * 2**30, weights) for weights in weight_bytes_per_gpu)
    return AddedTime(latency, round(offloaded_bytes / ((gpu.pcie_gb_s or USUAL_PCIE_GB_S) * 1e3)))


def simulates_offloading(options: DeploymentOptions, has_speculation: bool, has_groups: bool, notes: list[str]) -> bool:
    """Whether KV blocks are copied to CPU memory; adds a note where that is requested and not simulated."""
    if options.engine == "blis" or not (options.kv_cpu_blocks or options.kv_offloading_size):
        return False
    causes = {
        "speculative decoding": has_speculation,
        "several groups of KV caches": has_groups,
        "pipeline stages": options.pp > 1,
    }
    for cause, is_there in causes.items():
        if is_there:
            notes.append(
                f"warning: KV blocks in CPU memory are not modelled with {cause}: KV blocks that are evicted are lost"
            )
            return False
    return True


def offload_of(
    options: DeploymentOptions, model: ModelSpec, gpu: GpuSpec, block_bytes: float, tp: int, notes: list[str]
) -> "OffloadConfig":
    """Return the CPU memory of an instance. Raises EngineError where it holds no block.

    `block_bytes` is what each GPU holds of a block. GPUs load side by side; latent KV, which all GPUs hold alike, is
    kept once.
    """
    from blis_sim.engine.cpu_tier_config import OffloadConfig  # few engines have one

    num_blocks = options.kv_cpu_blocks
    if options.kv_offloading_size is not None:
        stored_bytes = block_bytes * (1 if model.is_mla else tp)
        num_blocks = int(options.kv_offloading_size * 2**30 // stored_bytes)
        if num_blocks < 1:
            raise EngineError(
                f"--kv-offloading-size must hold at least one KV block, {stored_bytes / 2**30:.3g} GiB, "
                f"got {options.kv_offloading_size:g}"
            )
    rate_gb_s = gpu.pcie_gb_s
    if not rate_gb_s:
        rate_gb_s = USUAL_PCIE_GB_S
        notes.append(f"the link of {gpu.name} to the CPU is not known: KV blocks move at {rate_gb_s:g} GB/s")
    return OffloadConfig(num_blocks, block_bytes / (rate_gb_s * 1e3))
