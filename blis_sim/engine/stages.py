"""The stages of a pipeline, of a model and its GPUs: which share of a step each takes, and what a transfer takes."""

from blis_sim.engine.gpu_spec import GpuSpec
from blis_sim.engine.latency.step_work import step_work
from blis_sim.engine.memory.sharding import stage_layers
from blis_sim.engine.model_spec import ModelSpec
from blis_sim.engine.pipeline import PipelineStages

_TENSORS = 2
"""Tensors of the hidden size that a stage sends for each token: hidden states and residual."""
_TRANSFER_START_US = 20.0
"""Time to send the smallest message to the GPU of another stage."""


def pipeline_stages(model: ModelSpec, gpu: GpuSpec, tp: int, pp: int) -> PipelineStages:
    """Return `pp` stages of `tp` GPUs each. Raises EngineError when the model has too few layers.

    A stage takes its share of the layers, the last one also the output head. Each GPU sends its part of the activations
    over the slowest link that joins the GPUs of the instance; a link of unknown rate takes only the time to start.
    """
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
