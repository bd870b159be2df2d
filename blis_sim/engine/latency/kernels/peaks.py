"""The least time that a step can take: its arithmetic and its memory traffic at the peak rates of the GPU."""

from typing import NamedTuple

from blis_sim.engine.batch_shape import BatchShape
from blis_sim.engine.gpu_spec import GpuSpec
from blis_sim.engine.latency.kernels.operations import (
    Experts,
    HeadAttention,
    Matmul,
    SharedExpert,
    StepOperations,
    bits_of,
)

_BLACKWELL = 10
_BYTES_OF_FP8, _BYTES_OF_HALF = 1, 2


class StepPeaks(NamedTuple):
    """Microseconds at peak rates, per unit of what a step holds."""

    token_us: float
    """Arithmetic of a token in matrix multiplications."""
    head_us: float
    """Arithmetic of the logits of a request."""
    pair_us: float
    """Arithmetic of a new prompt token with a token that it attends to."""
    weights_us: float
    """Reading the weights that any step reads: of experts, those of a single token."""
    kv_us: float
    """Reading the KV cache of a token."""

    def step_us(self, shape: BatchShape) -> float:
        """Return the least time of a step."""
        prefills, prefill_tokens, squares, _, context_work, _, decodes, context, _ = shape
        arithmetic_us = self.token_us * (prefill_tokens + decodes) + self.head_us * (prefills + decodes)
        arithmetic_us += self.pair_us * (context_work + squares / 2)
        memory_us = self.weights_us + self.kv_us * context
        return arithmetic_us if arithmetic_us > memory_us else memory_us


def step_peaks(operations: StepOperations, gpu: GpuSpec) -> StepPeaks:
    """Return the peaks of a deployment on one of its GPUs."""
    token_us = weights_us = pair_us = kv_us = 0.0
    bytes_per_us = gpu.bandwidth_tb_s * 1e6
    for operation, count in operations.per_token:
        matmul = operation.matmul if isinstance(operation, SharedExpert) else operation
        if isinstance(matmul, Matmul):
            weights = matmul.rows * matmul.columns * count
            token_us += 2 * weights / _flops_per_us(gpu, matmul.weights)
        elif isinstance(matmul, Experts):
            shared = matmul.tp * matmul.ep
            weights = (3 if matmul.has_gate else 2) * matmul.hidden_size * matmul.inner_size * count * matmul.chosen
            weights //= shared
            token_us += 2 * weights / _flops_per_us(gpu, matmul.weights)
        else:
            continue
        weights_us += weights * bits_of(matmul.weights) / 8 / bytes_per_us
    for attention, count in operations.attention:
        if isinstance(attention, HeadAttention) and not attention.window_tokens:
            pair_us += 4 * attention.heads * attention.head_size * count / _flops_per_us(gpu, "")
            width = _BYTES_OF_FP8 if attention.kv_dtype == "fp8" else _BYTES_OF_HALF
            kv_us += 2 * attention.kv_heads * attention.head_size * width * count / bytes_per_us
    head = operations.head.rows * operations.head.columns
    return StepPeaks(
        token_us=token_us,
        head_us=2 * head / _flops_per_us(gpu, ""),
        pair_us=pair_us,
        weights_us=weights_us + head * _BYTES_OF_HALF / bytes_per_us,
        kv_us=kv_us,
    )


def _flops_per_us(gpu: GpuSpec, weights: str) -> float:
    """Return the peak of the widest type that the operands of such weights are multiplied in."""
    if weights == "nvfp4" and gpu.tflops_fp4:
        return gpu.tflops_fp4 * 1e6
    is_mxfp8 = weights == "mxfp4" and gpu.compute_capability // 1 >= _BLACKWELL
    if (is_mxfp8 or weights in ("fp8", "block fp8", "mxfp8", "int8")) and gpu.tflops_fp8:
        return gpu.tflops_fp8 * 1e6
    return gpu.tflops * 1e6
