"""From a deployment to its kernel times: which operations its steps have, and where their times come from."""

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from blis_sim.engine.errors import EngineError
from blis_sim.engine.gpu_spec import GpuSpec
from blis_sim.engine.latency.kernels.model_operations import Placed, step_operations
from blis_sim.engine.latency.kernels.operations import AUTO, StepOperations
from blis_sim.engine.latency.kernels.profile import digest_of, read_profile, shipped_profile
from blis_sim.engine.latency.kernels.tables import INSTALL, SYSTEMS, Tables, are_installed
from blis_sim.engine.memory.families import read_model
from blis_sim.engine.memory.quantization import read_quantization
from blis_sim.engine.memory.sharding import Sharding
from blis_sim.engine.model_spec import ModelSpec

if TYPE_CHECKING:
    from blis_sim.engine.latency.kernels.grids import KernelGrids

_KEPT_GRIDS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelPlacement:
    """The properties of a deployment that decide which kernels run, beside the model and the GPU."""

    tp: int = 1
    expert_parallel: bool = False
    kv_cache_dtype: str = "auto"
    quantization: str = ""
    dtype: str = "auto"
    profile: str | None = None
    """The file of a baked profile; None takes one that ships, or else the tables."""
    moe_backend: str = AUTO
    """Kernels of the experts, as vLLM calls them; only those of MXFP4 are known by two names."""
    eager: bool = False
    """Whether kernels are started one by one, without CUDA graphs."""


def operations_of(model: ModelSpec, placement: KernelPlacement) -> StepOperations:
    """Return the operations of a step. Raises EngineError for what cannot be read from the checkpoint."""
    if model.checkpoint is None:
        raise EngineError(f"{model.name} has no config.json to read its layers from")
    checkpoint = model.checkpoint
    quantization = read_quantization(checkpoint.config, checkpoint.hf_quant_config, model.name, placement.quantization)
    kv_dtype = quantization.kv_cache_dtype if placement.kv_cache_dtype == "auto" else placement.kv_cache_dtype
    placed = Placed(
        shape=read_model(checkpoint.config, model.name, placement.dtype),
        sharding=Sharding(model=model.name, tp=placement.tp, expert_parallel=placement.expert_parallel),
        format_of=quantization.format_of,
        kv_dtype="fp8" if kv_dtype.startswith("fp8") else "bfloat16",
        moe_backend=placement.moe_backend,
    )
    return step_operations(placed)


@lru_cache(maxsize=_KEPT_GRIDS)
def measured_grids(operations: StepOperations, gpu: GpuSpec) -> "KernelGrids":
    """Return the kernel times of a deployment from the tables of its GPU. Raises EngineError."""
    from blis_sim.engine.latency.kernels.baking import bake  # deployments with a profile do without the tables
    from blis_sim.engine.latency.kernels.repairs import RepairedTables

    return bake(operations, RepairedTables(gpu, Tables(gpu.name)))


def grids_of(model: ModelSpec, gpu: GpuSpec, placement: KernelPlacement) -> "KernelGrids":
    """Return the kernel times of a deployment: of the profile that it names, else of one that ships, else of tables.

    Raises EngineError, which names what to install where there are none of these.
    """
    operations = operations_of(model, placement)
    digest = digest_of(operations, gpu.name)
    deployment = deployment_name(model, gpu, placement)
    if placement.profile is not None:
        return read_profile(Path(placement.profile), digest, deployment)
    shipped = shipped_profile(digest)
    if shipped is not None:
        return read_profile(shipped, digest, deployment)
    if gpu.name in SYSTEMS and not are_installed():
        raise EngineError(f"no profile of the kernels of {deployment} ships, and their tables need: {INSTALL}")
    return measured_grids(operations, gpu)


def deployment_name(model: ModelSpec, gpu: GpuSpec, placement: KernelPlacement) -> str:
    """Return a deployment in words."""
    experts = " and expert parallelism" if placement.expert_parallel else ""
    kv_dtype = "" if placement.kv_cache_dtype == "auto" else f", KV cache in {placement.kv_cache_dtype}"
    return f"{model.name} on {gpu.name} with tp {placement.tp}{experts}{kv_dtype}"
