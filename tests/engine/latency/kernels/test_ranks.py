"""Kernel times of data-parallel ranks that share experts."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from blis_sim.engine.batch_shape import BatchShape
from blis_sim.engine.deployment import Deployment, resolve
from blis_sim.engine.deployment_options import DeploymentOptions
from blis_sim.engine.errors import EngineError
from blis_sim.engine.latency.catalogue import load_gpu
from blis_sim.engine.latency.catalogue_reader import load_model
from blis_sim.engine.latency.choice import NetworkOptions
from blis_sim.engine.latency.kernel_profiles import grids_of
from blis_sim.engine.latency.kernels import KernelSteps
from blis_sim.engine.latency.model_operations import KernelPlacement, operations_of
from blis_sim.engine.latency.operations import AcrossRanks, AllReduce, Experts

PROMPT = BatchShape(prefill_requests=1, prefill_tokens=2048, prefill_tokens_squared=2048**2)
DECODES = BatchShape(decode_requests=16, decode_context_tokens=16_000)


def deployment(**settings: Any) -> Deployment:
    asked = DeploymentOptions(model="qwen3-30b-a3b", hardware="H100", tp=1, dp=2, latency_model="kernels")
    return resolve(replace(asked, **settings))


def steps(**settings: Any) -> KernelSteps:
    latency = deployment(**settings).latency
    while not isinstance(latency, KernelSteps):
        latency = latency.model  # type: ignore[attr-defined]
    return latency


def test_experts_are_spread_over_the_gpus_of_all_ranks_and_compute_the_tokens_of_all() -> None:
    placement = KernelPlacement(tp=2, dp=4, expert_parallel=True)
    operations = [each for each, _ in operations_of(load_model("qwen3-30b-a3b"), placement).per_token]
    across = [each for each in operations if isinstance(each, AcrossRanks)]
    assert {each.ranks for each in across} == {4}
    (experts,) = [each.operation for each in across if isinstance(each.operation, Experts)]
    assert (experts.tp, experts.ep) == (1, 8)
    assert [each.operation.gpus for each in across if isinstance(each.operation, AllReduce)] == [8]


def test_attention_is_that_of_one_rank() -> None:
    grids = [
        grids_of(load_model("qwen3-30b-a3b"), load_gpu("H100"), KernelPlacement(dp=dp, expert_parallel=True))
        for dp in (1, 2)
    ]
    assert np.array_equal(grids[0].decode_us, grids[1].decode_us)
    assert np.array_equal(grids[0].prompt_us, grids[1].prompt_us)


def test_equal_batches_take_the_time_of_a_step() -> None:
    latency = steps(enable_expert_parallel=True)
    for shape in (PROMPT, DECODES):
        assert latency.ranks_time([shape, shape]) == pytest.approx(latency.step_time(shape), abs=2)


def test_a_rank_with_decodes_waits_for_one_with_a_prompt_whose_experts_compute_less() -> None:
    latency = steps(enable_expert_parallel=True)
    assert latency.step_time(DECODES) < latency.ranks_time([PROMPT, DECODES]) < latency.step_time(PROMPT)


def test_ranks_that_only_decode_are_padded_to_the_largest_batch() -> None:
    latency = steps(enable_expert_parallel=True)
    one = BatchShape(decode_requests=1, decode_context_tokens=1_000)
    assert latency.ranks_time([one, DECODES]) == pytest.approx(latency.step_time(DECODES), abs=2)


def test_ranks_are_timed_from_kernels_unless_another_model_is_asked_for() -> None:
    assert deployment(latency_model="auto").latency_name == "kernels"
    assert deployment(latency_model="trained-physics").latency_name == "trained-physics"


def test_exchanges_of_ranks_are_those_of_tables_alone() -> None:
    with pytest.raises(EngineError, match="does not support dp"):
        deployment(network=NetworkOptions(collectives="analytical"))
