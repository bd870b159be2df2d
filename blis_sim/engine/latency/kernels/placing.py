"""From a deployment to the operations that its steps have."""

from typing import NamedTuple

from blis_sim.engine.errors import EngineError
from blis_sim.engine.latency.kernels.model_operations import Placed, step_operations
from blis_sim.engine.latency.kernels.operations import AUTO, StepOperations
from blis_sim.engine.memory.families import read_model
from blis_sim.engine.memory.quantization import read_quantization
from blis_sim.engine.memory.sharding import Sharding
from blis_sim.engine.model_spec import ModelSpec


class KernelPlacement(NamedTuple):
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
