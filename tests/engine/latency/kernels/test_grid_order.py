"""Grids of attention are put in order: more never takes less, and what is found in a cache never costs time."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from blis_sim.engine.batch_shape import BatchShape
from blis_sim.engine.deployment import resolve
from blis_sim.engine.deployment_options import DeploymentOptions
from blis_sim.engine.latency.catalogue import load_gpu
from blis_sim.engine.latency.kernel_profiles import (
    RepairedTables,
    ordered,
    ordered_decodes,
    ordered_prompts,
)
from blis_sim.engine.latency.kernel_tables import Tables
from blis_sim.engine.latency.kernels import Times
from blis_sim.engine.latency.operations import AttentionOperation, LatentAttention, SparseLatentAttention
from tests.examples import examples

NEW, CONTEXTS = (1, 16, 256, 2048), (0, 256, 1024, 8192)
REQUESTS = (1, 2, 4, 8, 16, 32)


def never_falls(times: Times) -> bool:
    return all(bool((np.diff(times, axis=axis) >= -1e-9 * times.max()).all()) for axis in range(times.ndim))


def test_points_in_order_stay() -> None:
    times = np.add.outer(np.array([3.0, 5.0, 9.0]), np.array([0.0, 1.0, 4.0]))
    assert (ordered_decodes(times, REQUESTS[:3]) == times).all()
    assert (ordered(np.array([7.0, 7.0, 8.0]), 0) == [7, 7, 8]).all()


def test_points_out_of_order_meet_in_the_middle() -> None:
    assert ordered(np.array([10.0, 40.0, 10.0, 50.0]), 0).tolist() == pytest.approx([10, 20, 20, 50])
    assert ordered(np.array([10.0, 40.0, 20.0, 30.0, 50.0]), 0).tolist() == pytest.approx(
        [10, 800**0.5, 800**0.5, 1200**0.5, 50]
    )


def test_a_batch_takes_at_most_what_its_halves_take() -> None:
    times = np.array([[100.0, 100], [150, 150], [1300, 1300]])
    assert ordered_decodes(times, (128, 256, 512))[:, 0].tolist() == [100, 150, 300]


@pytest.mark.parametrize(("model", "gpu"), [("deepseek-r1", "B200"), ("deepseek-v3.2", "H200")])
def test_more_gpus_never_slow_long_contexts_down(model: str, gpu: str) -> None:
    prompt = BatchShape(1, 1024, 1024**2, 0, 1024 * 65_536)

    def times_us(tp: int) -> tuple[int, int]:
        options = DeploymentOptions(model=model, hardware=gpu, tp=tp, latency_model="kernels", total_kv_blocks=99_999)
        latency = resolve(options).latency
        return latency.step_time(prompt), latency.decode_timer()(64, 64 * 65_536)

    prompts_us, decodes_us = zip(*map(times_us, (2, 4, 8)), strict=True)
    assert sorted(prompts_us, reverse=True) == list(prompts_us)
    assert sorted(decodes_us, reverse=True) == list(decodes_us)


def test_a_chunk_after_others_takes_at_least_what_it_takes_first() -> None:
    times = np.full((1, 4, 4), 1000.0)
    times[0, 0] = [55, 0.1, 0.2, 70]
    assert ordered_prompts(times, NEW, CONTEXTS)[0, 0].tolist() == pytest.approx([55, 55, 55, 70])


def test_a_hit_takes_no_longer_than_computing_all() -> None:
    times = np.array([[[100.0, 300, 500, 900], [100, 300, 500, 900], [100, 300, 500, 900], [200, 310, 700, 1300]]])
    found = ordered_prompts(times, NEW, CONTEXTS)[0]
    assert found[0, 1] == pytest.approx(100, rel=0.01), "257 tokens, between 256 at 100 us and 2048 at 200 us"
    assert 100 < found[2, 2] < 200, "1,280 tokens"
    assert found[3, 3] < 500, "10,240 tokens, in line with the last two"


@settings(max_examples=examples(60), deadline=None)
@given(st.lists(st.floats(0.01, 1e5), min_size=48, max_size=48))
def test_any_grid_comes_out_in_order(values: list[float]) -> None:
    prompts = ordered_prompts(np.array(values).reshape(3, 4, 4), NEW, CONTEXTS)
    assert never_falls(prompts)
    assert (prompts > 0).all()
    assert never_falls(ordered_decodes(np.array(values).reshape(6, 8), REQUESTS))


class InstantTables(Tables):
    """Nothing takes time."""

    def __init__(self) -> None:
        pass

    def decode_us(self, attention: AttentionOperation, requests: Times, context: Times) -> Times:
        return np.zeros(len(requests))


@pytest.mark.parametrize(
    ("attention", "kv_bytes"),
    [
        (LatentAttention(16, 128, "bfloat16", "block fp8", ()), 50_000 * 1152),
        (LatentAttention(16, 128, "fp8", "block fp8", ()), 50_000 * 656),
        (SparseLatentAttention("DeepseekV32ForCausalLM", 16, "bfloat16", ()), 2048 * 1152 + 50_000 * 132),
    ],
)
def test_latent_attention_takes_at_least_the_time_to_read_its_cache(
    attention: LatentAttention | SparseLatentAttention, kv_bytes: int
) -> None:
    tables = RepairedTables(load_gpu("H200"), InstantTables())
    assert tables.decode_us(attention, np.array([8.0]), np.array([50_000.0])) == pytest.approx(
        8 * kv_bytes / (0.92 * 4.8e6)
    )
