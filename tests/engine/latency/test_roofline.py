"""Time outside of steps under the roofline model, and the deployments it refuses."""

from dataclasses import replace

import pytest

from blis_sim.engine.errors import EngineError
from blis_sim.engine.latency.roofline import Roofline
from blis_sim.engine.specs import GpuSpec, ModelSpec

# One operation per microsecond, and memory for free.
SLOW_COMPUTE = GpuSpec(name="c", tflops=1e-6, bandwidth_tb_s=1e6, mfu_prefill=1.0, mfu_decode=0.5)
DENSE = ModelSpec(
    name="dense", num_layers=2, hidden_size=8, num_heads=4, num_kv_heads=2, vocab_size=10, intermediate_size=16
)  # fmt: skip


def test_alphas_shape_the_time_outside_of_steps_and_default_to_none() -> None:
    latency = Roofline(DENSE, SLOW_COMPUTE, 1, (100.5, 2.0, 7.9))
    assert (latency.queueing_time(10), latency.output_token_time, latency.post_decode_time) == (120, 7, 0)
    bare = Roofline(DENSE, SLOW_COMPUTE, 1)
    assert (bare.queueing_time(10), bare.output_token_time, bare.post_decode_time) == (0, 0, 0)


def test_a_gpu_without_known_efficiency_is_refused() -> None:
    with pytest.raises(EngineError, match="the roofline model needs mfu_decode of GPU c, a fraction above 0"):
        Roofline(DENSE, replace(SLOW_COMPUTE, mfu_decode=0.0), 1)


def test_experts_without_a_number_per_token_are_refused() -> None:
    with pytest.raises(EngineError, match="dense: num_experts_per_tok must be at least 1 for 8 experts, got 0"):
        Roofline(replace(DENSE, num_experts=8), SLOW_COMPUTE, 1)
