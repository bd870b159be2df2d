"""The deployment and the files that a latency model is built from."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from blis_sim.engine.gpu_spec import GpuSpec
from blis_sim.engine.latency.step_work import MOE_COMM_BACKENDS
from blis_sim.engine.model_spec import ModelSpec
from blis_sim.engine.network_options import NetworkOptions

if TYPE_CHECKING:
    from blis_sim.engine.latency.kernels.placing import KernelPlacement


@dataclass(frozen=True, slots=True, kw_only=True)
class LatencyChoice:
    """The deployment to time, and its coefficients: empty means those that the model ships with."""

    model: ModelSpec
    gpu: GpuSpec
    tp: int
    dp: int = 1
    moe_comm_backend: str = MOE_COMM_BACKENDS[0]
    alpha: tuple[float, ...] = ()
    beta: tuple[float, ...] = ()
    coefficients: str | None = None
    """The file of a fitted model; None for the one that ships."""
    learned: Mapping[str, Any] | None = None
    """Content of that file; None when it has not been read."""
    placement: "KernelPlacement | None" = None
    """Properties that decide which kernels run; None takes them from the model alone."""
    max_num_seqs: int = 1024
    """Requests in a step: vLLM captures CUDA graphs of up to twice as many tokens."""
    operators: str | None = None
    """Where the times of operators come from; None without --operators."""
    network: NetworkOptions = field(default_factory=NetworkOptions)
    """Where the times of all-reduces come from."""
    pp: int = 1
    engine: str = "vllm"
    """Engine by whose rules the model is sharded. BLIS's physics refuses more GPUs than KV heads; vLLM copies heads."""
