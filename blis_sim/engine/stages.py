"""Time that links between GPUs, and to the CPU, add to a step: the stages of a pipeline, and weights in CPU memory."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from blis_sim.engine.gpu_spec import GpuSpec
from blis_sim.engine.latency.model import LatencyModel
from blis_sim.engine.latency.step_work import step_work
from blis_sim.engine.memory.sharding import stage_layers
from blis_sim.engine.model_spec import ModelSpec

if TYPE_CHECKING:
    from blis_sim.engine.pipeline import PipelineStages

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
