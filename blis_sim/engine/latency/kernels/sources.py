"""From a deployment to its kernel times: those of a profile, or of the tables of its GPU."""

from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from blis_sim.engine.errors import EngineError
from blis_sim.engine.gpu_spec import GpuSpec
from blis_sim.engine.latency.kernels.operations import StepOperations
from blis_sim.engine.latency.kernels.placing import KernelPlacement, operations_of
from blis_sim.engine.latency.kernels.profile import digest_of, read_profile, shipped_profile
from blis_sim.engine.latency.kernels.tables import INSTALL, SYSTEMS, Tables, are_installed
from blis_sim.engine.model_spec import ModelSpec

if TYPE_CHECKING:
    from blis_sim.engine.latency.kernels.grids import KernelGrids

_KEPT_GRIDS = 8


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
