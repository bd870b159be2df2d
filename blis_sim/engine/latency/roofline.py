"""A latency model without training: a step takes as long as the slower of its arithmetic and its memory traffic."""

from dataclasses import dataclass, field
from typing import Any, overload

import numpy as np
import numpy.typing as npt

from blis_sim.engine.batch_shape import BatchShape
from blis_sim.engine.errors import EngineError
from blis_sim.engine.latency.decode_steps import Floats, context_at_each_step, whole_micros_each
from blis_sim.engine.latency.model import LatencyModel, checked_coefficients, whole_micros
from blis_sim.engine.specs import GpuSpec, ModelSpec
from blis_sim.engine.units import Micros


@dataclass(frozen=True, slots=True)
class Roofline(LatencyModel):
    """step = max(floating-point work / (peak * MFU), bytes / bandwidth), prefills and decodes merged.

    The model has neither all-reduce nor fixed overheads, and counts the gated MLP as two matrices. By default nothing
    passes outside of the steps; the three alphas are those of `Blackbox`. A call of `step_time` costs about 1 us.
    """

    model: ModelSpec
    gpu: GpuSpec
    tp: int
    alpha: tuple[float, ...] = (0.0, 0.0, 0.0)
    _rates: tuple[float, float, float] = field(init=False, repr=False, compare=False)
    """Prefill and decode operations per second, bytes per second."""
    _flops_per_token: float = field(init=False, repr=False, compare=False)
    _flops_per_reach: float = field(init=False, repr=False, compare=False)
    """Per pair of a new token and a token it attends to."""
    _kv_bytes_per_token: float = field(init=False, repr=False, compare=False)
    _activation_bytes_per_token: float = field(init=False, repr=False, compare=False)
    _dense_weight_bytes: float = field(init=False, repr=False, compare=False)
    _expert_weight_bytes: float = field(init=False, repr=False, compare=False)
    """Weight bytes of one expert, over all layers that have experts."""

    def __post_init__(self) -> None:
        checked_coefficients("alpha_coeffs", self.alpha, 3, 3)
        _check(self.model, self.gpu, self.tp)
        model, gpu = self.model, self.gpu
        hidden, layers = model.hidden_size, model.num_layers
        head_dim = hidden / model.num_heads
        kv_size = model.num_kv_heads * head_dim
        projections = hidden * hidden + 2 * hidden * kv_size + hidden * hidden
        mlp_size = model.intermediate_size or 4 * hidden
        dense_mlp = 2 * hidden * (model.intermediate_size_mlp or mlp_size) * model.num_dense_layers
        expert = 2 * hidden * (model.moe_intermediate_size or mlp_size) * model.num_moe_layers
        peak = gpu.peak_tflops(model.bytes_per_weight) * 1e12
        flops_per_token = 2 * projections * layers + 2 * hidden * layers
        flops_per_token += 2 * dense_mlp + 2 * expert * model.num_experts_per_tok
        values = {
            "_rates": (peak * gpu.mfu_prefill, peak * gpu.mfu_decode, gpu.bandwidth_tb_s * 1e12),
            "_flops_per_token": flops_per_token,
            "_flops_per_reach": (4 * model.num_heads * head_dim + 5 * model.num_heads) * layers,
            "_kv_bytes_per_token": 2 * layers * kv_size * (model.bytes_per_kv_element or model.bytes_per_activation),
            "_activation_bytes_per_token": layers * hidden * model.bytes_per_activation,
            "_dense_weight_bytes": (projections * layers + dense_mlp) * model.bytes_per_weight,
            "_expert_weight_bytes": expert * model.bytes_per_weight,
        }
        for name, value in values.items():
            object.__setattr__(self, name, value)

    def step_time(self, shape: BatchShape) -> Micros:
        prefill_tokens, sequences = shape.prefill_tokens, shape.decode_requests
        num_tokens = prefill_tokens + sequences
        if not num_tokens:
            return 1
        prefill_rate, decode_rate, bandwidth = self._rates
        context = float(shape.decode_context_tokens)
        compute = 0.0
        if prefill_tokens:
            reach = shape.prefill_context_work + (shape.prefill_tokens_squared - prefill_tokens) / 2
            flops = self._flops_per_token * prefill_tokens + self._flops_per_reach * reach
            compute = flops / self.tp / prefill_rate
        if sequences:
            flops = self._flops_per_token * sequences + self._flops_per_reach * context
            compute += flops / self.tp / decode_rate
        memory = self._bytes(num_tokens, shape.prefill_context_tokens + context) / bandwidth
        return whole_micros(max(compute, memory) * 1e6)

    def decode_times(self, shape: BatchShape, steps: int) -> npt.NDArray[np.int64]:
        sequences = shape.decode_requests
        if not sequences:
            return np.ones(steps, dtype=np.int64)
        _, decode_rate, bandwidth = self._rates
        context = context_at_each_step(shape, steps)
        compute = (self._flops_per_token * sequences + self._flops_per_reach * context) / self.tp / decode_rate
        memory = self._bytes(sequences, context) / bandwidth
        return whole_micros_each(np.maximum(compute, memory) * 1e6)

    def queueing_time(self, input_tokens: int) -> Micros:
        return int(self.alpha[0] + self.alpha[1] * input_tokens)

    @property
    def output_token_time(self) -> Micros:
        return int(self.alpha[2])

    @overload
    def _bytes(self, num_tokens: int, context: float) -> float: ...
    @overload
    def _bytes(self, num_tokens: int, context: Floats) -> Floats: ...
    def _bytes(self, num_tokens: int, context: Any) -> Any:
        """Weights once, KV of all contexts read, KV and activations of the new tokens written; on one shard."""
        kv = self._kv_bytes_per_token * num_tokens + self._kv_bytes_per_token * context
        return self._weight_bytes(num_tokens) / self.tp + (kv + self._activation_bytes_per_token * num_tokens) / self.tp

    def _weight_bytes(self, num_tokens: int) -> float:
        """Return the bytes of weights read: only those experts are read that, by chance, some token is routed to."""
        experts = self.model.num_experts
        if not experts:
            return self._dense_weight_bytes
        missed = ((experts - self.model.num_experts_per_tok) / experts) ** num_tokens
        return self._dense_weight_bytes + self._expert_weight_bytes * (experts * (1 - missed))


def _check(model: ModelSpec, gpu: GpuSpec, tp: int) -> None:
    if tp < 1:
        raise EngineError(f"tp must be at least 1, got {tp}")
    for name in ("mfu_prefill", "mfu_decode"):
        if not getattr(gpu, name) > 0:
            raise EngineError(f"the roofline model needs {name} of GPU {gpu.name}, a fraction above 0")
    if model.is_moe and model.num_experts_per_tok < 1:
        raise EngineError(
            f"{model.name}: num_experts_per_tok must be at least 1 for {model.num_experts} experts, got 0"
        )
