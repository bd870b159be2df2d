"""CPU memory for KV blocks with vLLM's scheduling: how many blocks it holds, and what moving one takes."""

from typing import TYPE_CHECKING

from blis_sim.engine.deployment_options import DeploymentOptions
from blis_sim.engine.errors import EngineError
from blis_sim.engine.gpu_spec import GpuSpec
from blis_sim.engine.model_spec import ModelSpec
from blis_sim.engine.stages import USUAL_PCIE_GB_S

if TYPE_CHECKING:
    from blis_sim.engine.cpu_tier_config import OffloadConfig


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
