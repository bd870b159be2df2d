"""Terms of the roofline model, and the deployments it refuses."""

from dataclasses import replace

import pytest

from blis_sim.engine.batch_shape import BatchShape
from blis_sim.engine.errors import EngineError
from blis_sim.engine.latency.roofline import Roofline
from blis_sim.engine.specs import GpuSpec, ModelSpec

# One operation per microsecond and memory for free, or the other way round.
SLOW_COMPUTE = GpuSpec(name="c", tflops=1e-6, bandwidth_tb_s=1e6, mfu_prefill=1.0, mfu_decode=0.5)
SLOW_MEMORY = GpuSpec(name="m", tflops=1e12, bandwidth_tb_s=1e-6, mfu_prefill=1.0, mfu_decode=0.5)
DENSE = ModelSpec(
    name="dense", num_layers=2, hidden_size=8, num_heads=4, num_kv_heads=2, vocab_size=10, intermediate_size=16
)  # fmt: skip
SECOND_CHUNK = BatchShape(
    prefill_requests=1, prefill_tokens=3, prefill_tokens_squared=9, prefill_context_tokens=5, prefill_context_work=15,
    prefill_prompt_work=24,
)  # fmt: skip
TWO_DECODES = BatchShape(decode_requests=2, decode_context_tokens=30)
LINEAR_PER_TOKEN = 2 * 2 * (8 * 8 + 2 * 8 * 4 + 8 * 8) + 2 * 2 * 8 + 2 * 2 * 2 * 8 * 16
PER_ATTENDED_TOKEN = 2 * (4 * 4 * 2 + 5 * 4)
WEIGHT_BYTES = 2 * 2 * ((8 * 8 + 2 * 8 * 4 + 8 * 8) + 2 * 8 * 16)
KV_BYTES = 2 * 2 * 4 * 2


def test_a_chunk_attends_to_its_context_and_to_half_of_itself() -> None:
    attended = 3 * (5 + (3 - 1) / 2)
    expected = LINEAR_PER_TOKEN * 3 + PER_ATTENDED_TOKEN * attended
    assert Roofline(DENSE, SLOW_COMPUTE, 1).step_time(SECOND_CHUNK) == expected


def test_decodes_compute_at_their_own_efficiency() -> None:
    expected = (LINEAR_PER_TOKEN * 2 + PER_ATTENDED_TOKEN * 30) / 0.5
    assert Roofline(DENSE, SLOW_COMPUTE, 1).step_time(TWO_DECODES) == expected


def test_memory_traffic_is_weights_once_kv_of_all_contexts_and_activations() -> None:
    expected = WEIGHT_BYTES + KV_BYTES * (30 + 2) + 2 * 8 * 2 * 2
    assert Roofline(DENSE, SLOW_MEMORY, 1).step_time(TWO_DECODES) == expected


def test_sharding_divides_everything() -> None:
    for gpu in (SLOW_COMPUTE, SLOW_MEMORY):
        assert Roofline(DENSE, gpu, 2).step_time(TWO_DECODES) * 2 == Roofline(DENSE, gpu, 1).step_time(TWO_DECODES)


def test_more_tokens_read_more_experts_each_at_most_once() -> None:
    mixture = replace(DENSE, num_experts=8, num_experts_per_tok=1, num_layers=1)
    one_expert = 2 * 8 * 16 * 2
    times = [
        Roofline(mixture, SLOW_MEMORY, 1).step_time(BatchShape(decode_requests=n)) - n * (8 * 2 + KV_BYTES // 2)
        for n in (1, 2, 1000)
    ]
    attention = 2 * (8 * 8 + 2 * 8 * 4 + 8 * 8)
    assert times == [attention + one_expert, attention + one_expert * 15 // 8, attention + one_expert * 8]


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
