"""GPUs on which a request that decodes costs more in a step that has prompts."""

import pytest

from blis_sim.engine.deployment import resolve
from blis_sim.engine.deployment_options import DeploymentOptions
from blis_sim.engine.latency.catalogue import load_gpu
from blis_sim.engine.latency.catalogue_reader import load_model
from blis_sim.engine.latency.kernel_profiles import decode_rows, has_one_attention_call
from blis_sim.engine.latency.kernels import KernelSteps
from blis_sim.engine.latency.model_operations import KernelPlacement, operations_of
from blis_sim.engine.latency.wrapped import PeakWatch


@pytest.mark.parametrize(
    ("gpu", "rows"),
    [("A100", 64), ("L40S", 64), ("RTX-PRO-6000", 64), ("H100", 0), ("H200", 0), ("B200", 0), ("B300", 0), ("T4", 0)],
)
def test_heads_are_not_packed_beside_prompts_where_vllm_takes_flash_attention_2(gpu: str, rows: int) -> None:
    operations = operations_of(load_model("llama-3.1-8b"), KernelPlacement())
    assert decode_rows(operations, load_gpu(gpu)) == rows


def test_caches_in_fp8_and_latent_attention_are_computed_by_other_kernels() -> None:
    gpu = load_gpu("RTX-PRO-6000")
    in_fp8 = operations_of(load_model("llama-3.1-8b"), KernelPlacement(kv_cache_dtype="fp8"))
    latent = operations_of(load_model("deepseek-v2-lite"), KernelPlacement())
    assert decode_rows(in_fp8, gpu) == decode_rows(latent, gpu) == 0


@pytest.mark.parametrize("eager", [False, True])
def test_a_deployment_has_the_rows_of_its_gpu(eager: bool) -> None:
    options = DeploymentOptions(
        model="llama-3.1-8b", hardware="RTX-PRO-6000", tp=1, latency_model="kernels", enforce_eager=eager
    )
    latency = resolve(options).latency
    kernels = latency.model if isinstance(latency, PeakWatch) else latency
    assert isinstance(kernels, KernelSteps)
    assert kernels.decode_rows == 64
    assert kernels.has_one_attention_call


@pytest.mark.parametrize(
    ("gpu", "is_one"), [("A100", True), ("L40S", True), ("RTX-PRO-6000", True), ("H100", True), ("B200", False)]
)
def test_flash_attention_computes_prompts_and_decodes_in_one_call(gpu: str, is_one: bool) -> None:
    operations = operations_of(load_model("llama-3.1-8b"), KernelPlacement())
    assert has_one_attention_call(operations, load_gpu(gpu)) is is_one


def test_latent_attention_has_a_call_for_prompts_and_one_for_decodes() -> None:
    latent = operations_of(load_model("deepseek-v2-lite"), KernelPlacement())
    assert not has_one_attention_call(latent, load_gpu("H100"))
