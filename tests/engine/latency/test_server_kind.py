"""The kind of server that a deployment is: class of model, precision, GPU, and how the work is shared."""

import pytest

from blis_sim.engine.latency.catalogue import load_gpu
from blis_sim.engine.latency.catalogue_reader import load_model
from blis_sim.engine.latency.confidence import kind_of
from blis_sim.engine.latency.model_operations import KernelPlacement


def kind(model: str, gpu: str = "H100", tp: int = 1, dp: int = 1, pp: int = 1, **placement: object) -> tuple[str, ...]:
    given = KernelPlacement(tp=tp, **placement)  # type: ignore[arg-type]
    return kind_of(load_model(model), load_gpu(gpu), given, dp, pp)


@pytest.mark.parametrize(
    ("model", "model_class", "precision"),
    [
        ("qwen3-14b", "dense models", "16 bits"),
        ("llama-2-7b-hf", "dense models without grouped KV heads", "16 bits"),
        ("llama-3.1-70b-instruct-fp8", "dense models", "FP8"),
        ("llama-3.3-70b-instruct-awq", "dense models", "INT4"),
        ("mixtral-8x7b", "models with experts", "16 bits"),
        ("gpt-oss-120b", "models with experts", "MXFP4"),
        ("minimax-m2.5-nvfp4", "models with experts", "NVFP4"),
        ("deepseek-v3", "latent attention", "FP8 by blocks"),
        ("kimi-k2.5", "latent attention", "INT4"),
        ("deepseek-v3.2", "sparse attention", "FP8 by blocks"),
        ("qwen3.5-35b-a3b", "hybrid attention", "16 bits"),
        ("nvidia-nemotron-3-nano-30b-a3b-bf16", "hybrid attention", "16 bits"),
    ],
)
def test_class_and_precision_are_those_of_most_of_the_weights(model: str, model_class: str, precision: str) -> None:
    assert kind(model)[:2] == (model_class, precision)


def test_the_precision_that_a_server_quantises_to_counts() -> None:
    assert kind("llama-3.1-70b", tp=4, quantization="fp8")[1] == "FP8"


def test_experts_in_mxfp4_are_told_apart_by_their_kernels() -> None:
    """Marlin's kernels take up to twice as long as Triton's, and their errors are others."""
    assert kind("gpt-oss-120b", moe_backend="marlin")[1] == "MXFP4 by Marlin"
    assert kind("gpt-oss-120b", has_triton_experts=False)[1] == "MXFP4 by Marlin"
    assert kind("gpt-oss-120b", has_triton_experts=False, moe_backend="triton")[1] == "MXFP4"
    assert kind("minimax-m2.5", moe_backend="marlin")[1] == "FP8 by blocks"


@pytest.mark.parametrize(
    ("gpu", "sharing", "name"),
    [
        ("H100", {}, "one GPU"),
        ("H100", {"tp": 8}, "GPUs over NVLink"),
        ("RTX-PRO-6000", {"tp": 2}, "two GPUs over PCIe"),
        ("L40S", {"tp": 4}, "more than two GPUs over PCIe"),
        ("A100-PCIE", {"tp": 4}, "more than two GPUs over PCIe"),  # a bridge joins two
        ("H100", {"tp": 16}, "GPUs of several nodes"),
        ("H100", {"tp": 4, "expert_parallel": True}, "experts spread over GPUs"),
        ("H100", {"tp": 2, "dp": 2}, "data-parallel ranks"),
        ("H100", {"tp": 2, "pp": 2}, "pipeline stages"),
    ],
)
def test_sharing_of_the_work_is_what_is_least_known_of_it(gpu: str, sharing: dict[str, int], name: str) -> None:
    assert kind("mixtral-8x7b", gpu, **sharing)[2:] == (gpu, name)
