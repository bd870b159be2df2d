"""Kernels that older releases and older GPUs run in place of those that were measured."""

import numpy as np
import pytest

from blis_sim.engine.deployment import resolve
from blis_sim.engine.deployment_options import DeploymentOptions
from blis_sim.engine.errors import EngineError
from blis_sim.engine.latency.catalogue import load_gpu
from blis_sim.engine.latency.catalogue_reader import load_model
from blis_sim.engine.latency.kernel_profiles import RepairedTables, decode_rows, grids_of
from blis_sim.engine.latency.kernel_tables import ScaledTables, experts_least, gpus_with_tables, peaks_of
from blis_sim.engine.latency.kernels import KernelGrids
from blis_sim.engine.latency.model_operations import KernelPlacement, operations_of
from blis_sim.engine.latency.operations import Experts, HeadAttention, Matmul

OF_GLM = Experts(hidden_size=5120, inner_size=1536, experts=160, chosen=8, tp=8, ep=1, weights="bfloat16")
TOKENS = (1, 64, 8192)


def repaired(gpu: str) -> RepairedTables:
    return RepairedTables(load_gpu(gpu), ScaledTables(load_gpu(gpu), gpus_with_tables()))


def grids(model: str, gpu: str, tp: int, release: str) -> KernelGrids:
    options = DeploymentOptions(model=model, hardware=gpu, tp=tp, vllm_version=release)
    return grids_of(load_model(model), load_gpu(gpu), options.kernel_placement(tp, load_gpu(gpu)))


def test_experts_of_sizes_that_no_gpu_has_are_between_those_of_smaller_and_larger_ones() -> None:
    tables = repaired("H200")
    smaller = OF_GLM._replace(hidden_size=4096, inner_size=1536, experts=128)
    larger = OF_GLM._replace(hidden_size=6144, inner_size=2560)
    found, least, most = (tables.token_us(each, TOKENS) for each in (OF_GLM, smaller, larger))
    assert (least < found).all()
    assert (found < most).all()
    assert any("not measured" in note for note in tables.notes)


def test_experts_far_from_any_that_were_measured_are_refused() -> None:
    with pytest.raises(EngineError, match="have no times of Experts"):
        repaired("H200").token_us(OF_GLM._replace(hidden_size=64), TOKENS)


def test_experts_without_a_tuned_kernel_take_twice_what_exceeds_the_least_time() -> None:
    tables, gpu = repaired("H200"), load_gpu("H200")
    tuned, untuned = (tables.token_us(OF_GLM._replace(is_tuned=each), TOKENS) for each in (True, False))
    least = experts_least(OF_GLM, np.array(TOKENS, dtype=np.float64), peaks_of(gpu)).us
    assert untuned == pytest.approx(np.maximum(tuned, 2 * tuned - least))


@pytest.mark.parametrize(("release", "are_slower"), [("0.11", True), ("0.15", True), ("0.19", False)])
def test_releases_to_0_16_have_no_tuned_kernel_for_the_experts_of_minimax(release: str, are_slower: bool) -> None:
    found, latest = (grids("minimax-m2.5", "H200", 4, each) for each in (release, "0.33"))
    slower = found.token_us[1] / latest.token_us[1]
    assert (slower[0] > 1.5, slower[-1] > 1.5, (slower >= 1).all()) == (are_slower, are_slower, True)


def test_experts_of_mixtral_are_tuned_in_all_releases() -> None:
    assert (
        grids("mixtral-8x7b-v0.1", "H100", 2, "0.11").token_us == grids("mixtral-8x7b-v0.1", "H100", 2, "0.33").token_us
    ).all()


def test_weights_in_fp8_are_multiplied_in_16_bits_on_an_a100_and_read_in_half_the_time() -> None:
    tables = repaired("A100-SXM")
    whole, half = (tables.token_us(Matmul(8192, 8192, weights), TOKENS) for weights in ("bfloat16", "block fp8"))
    assert half[0] < 0.7 * whole[0]
    assert half[-1] == pytest.approx(whole[-1], rel=0.02)
    assert any("Marlin" in note for note in tables.notes)


def test_attention_with_sinks_is_that_of_triton_on_an_a100_alone() -> None:
    sinks = HeadAttention(heads=64, kv_heads=8, head_size=64, window_tokens=0, kv_dtype="bfloat16", has_sinks=True)
    one, new, before = np.ones(1), np.array([32_000.0]), np.zeros(1)

    def slower_by(gpu: str) -> float:
        times = [
            repaired(gpu).context_us(each, one, new, before)[0] for each in (sinks, sinks._replace(has_sinks=False))
        ]
        return float(times[0] / times[1])

    assert slower_by("A100-SXM") > 2
    assert slower_by("H100") == 1


def test_triton_packs_query_heads_beside_prompts_too() -> None:
    operations = operations_of(load_model("gpt-oss-20b"), KernelPlacement())
    assert decode_rows(operations, load_gpu("A100-SXM")) == 0
    assert decode_rows(operations_of(load_model("qwen3-14b"), KernelPlacement()), load_gpu("A100-SXM")) > 0


@pytest.mark.parametrize("requests", [1, 400])
def test_steps_that_are_not_composed_ahead_take_the_work_of_the_host_longer(requests: int) -> None:
    def step_us(is_async: bool) -> int:
        options = DeploymentOptions(
            model="qwen3-14b", hardware="H100", tp=1, latency_model="kernels", async_scheduling=is_async
        )
        return resolve(options).latency.decode_timer()(requests, 1_000 * requests)

    assert step_us(is_async=False) - step_us(is_async=True) == pytest.approx(700 + 21 * requests, abs=1)


@pytest.mark.parametrize(("model", "longer_us"), [("deepseek-r1", 61 * 113), ("glm-4.6", 0)])
def test_the_host_prolongs_steps_for_each_layer_of_latent_attention_in_0_11(model: str, longer_us: int) -> None:
    def step_us(release: str) -> int:
        options = DeploymentOptions(
            model=model, hardware="H200", tp=8, latency_model="kernels", vllm_version=release, async_scheduling=False
        )
        return resolve(options).latency.decode_timer()(4, 1_200)

    assert step_us("0.11") - step_us("0.15") == pytest.approx(longer_us, abs=1)


@pytest.mark.parametrize(
    ("spreads_experts", "requests", "context", "measured_us"), [(False, 4, 1_300, 19_000), (True, 1, 8_400, 15_850)]
)
def test_steps_are_as_long_as_those_of_two_servers_of_deepseek_r1(
    spreads_experts: bool, requests: int, context: int, measured_us: int
) -> None:
    options = DeploymentOptions(
        model="deepseek-r1",
        hardware="H200",
        tp=8,
        enable_expert_parallel=spreads_experts,
        latency_model="kernels",
        vllm_version="0.11",
    )
    assert resolve(options).latency.decode_timer()(requests, context) == pytest.approx(measured_us, rel=0.1)
