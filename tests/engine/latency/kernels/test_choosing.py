"""The latency model that `auto` takes, and the notes on it."""

from pathlib import Path
from typing import Any

import pytest

from blis_sim.engine.deployment import Deployment, notes_after, resolve
from blis_sim.engine.deployment_options import DeploymentOptions
from blis_sim.engine.errors import EngineError
from blis_sim.engine.latency.catalogue import load_gpu
from blis_sim.engine.latency.catalogue_reader import load_model
from blis_sim.engine.latency.model_operations import operations_of
from blis_sim.engine.latency.operations import MXFP4_BY_MARLIN, Experts, Routing

QUANTIZED = "llama-4-scout-17b-16e-instruct-fp8-dynamic"


def deployment(model: str, **settings: Any) -> Deployment:
    return resolve(DeploymentOptions(model=model, max_model_len=2048, **settings))


@pytest.mark.parametrize(
    ("model", "settings", "name"),
    [
        ("qwen3-14b", {}, "fitted"),  # learned for exactly this
        ("llama-3.1-8b", {}, "fitted"),  # measured on other servers of it
        ("mixtral-8x7b", {"hardware": "H100", "tp": 2}, "kernels"),
        ("llama-2-7b-hf", {"hardware": "H100", "tp": 1}, "kernels"),  # no grouped KV heads
        ("codellama-34b-instruct-hf", {"hardware": "H100", "tp": 2}, "kernels"),
        ("llama-2-70b-hf", {"hardware": "H100", "tp": 4}, "kernels"),
        ("llama-3.1-8b", {"hardware": "RTX-PRO-6000", "tp": 1}, "kernels"),
        ("qwen3-32b", {"hardware": "RTX-PRO-6000", "tp": 2}, "kernels"),  # over PCIe
        ("llama-3.1-8b", {"hardware": "A100", "tp": 1}, "kernels"),
        ("llama-3.1-70b", {"hardware": "H200", "tp": 4}, "kernels"),
        ("qwen3-30b-a3b", {}, "kernels"),
        ("mixtral-8x22b-instruct-v0.1", {}, "kernels"),
        (QUANTIZED, {}, "kernels"),
        ("qwen3-14b", {"hardware": "A100", "tp": 1}, "kernels"),
        ("qwen3-14b", {"hardware": "L4", "tp": 1, "total_kv_blocks": 900}, "kernels"),  # scaled from another GPU
        ("nvidia-nemotron-3-nano-30b-a3b-nvfp4", {}, "fitted"),  # Mamba-2 was measured on no GPU
        ("qwen3-30b-a3b", {"engine": "blis"}, "trained-physics"),
    ],
)
def test_the_model_that_was_measured_to_be_closer_is_taken(model: str, settings: dict[str, Any], name: str) -> None:
    assert deployment(model, **settings).latency_name == name


def test_one_line_names_the_gpu_that_kernels_are_scaled_from_and_the_error_to_expect() -> None:
    scaled = deployment("llama-3.1-8b", hardware="L4", tp=1, total_kv_blocks=900).notes
    (note,) = (each for each in scaled if "scaled" in each)
    assert note == (
        "kernels of L4 were not measured. They are scaled from L40S, expected to be 9% off in steps that decode and "
        "14% in those of prompts (medians of GPUs left out)"
    )
    assert not any("scaled" in each for each in deployment("llama-3.1-8b", hardware="L40S", tp=1).notes)
    some = deployment("gpt-oss-20b", hardware="A100", tp=1, latency_model="kernels").notes
    assert any(each.startswith("some kernels of A100-SXM were not measured. They are scaled from") for each in some)


def test_learned_host_overheads_and_scales_are_taken_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "coefficients.yaml"
    host = {"step_us": 0, "prompt_us": 0, "request_us": 0, "arrival_us": 5000, "arrival_token_us": 0, "output_us": 0}
    lines = ["latency_model: kernels", "host:", *(f"  {name}: {value}" for name, value in host.items())]
    path.write_text("\n".join([*lines, "  output_request_us: 0", "scales:", "  matmul: 2"]))
    slow = deployment("llama-3.1-8b", coefficients=str(path))
    fast = deployment("llama-3.1-8b", latency_model="kernels")
    assert slow.latency_name == "kernels"
    assert slow.latency.queueing_time(100) == 5000
    assert slow.latency.decode_times is not None
    path.write_text(path.read_text().replace("matmul", "matmuls"))
    with pytest.raises(
        EngineError, match=r"coefficients.yaml: scales has an unknown key 'matmuls', known are matmul, "
    ):
        deployment("llama-3.1-8b", coefficients=str(path))
    assert fast.latency.queueing_time(100) != 5000


def test_a_step_faster_than_the_gpu_is_reported_with_its_latency_model() -> None:
    from blis_sim.engine.batch_shape import BatchShape

    found = deployment("llama-3.1-70b", latency_model="trained-physics")
    assert notes_after(found) == []
    for _ in range(2):
        found.latency.step_time(BatchShape(1, 8192, 8192**2, 0, 0, 8192**2))
    (note,) = notes_after(found)
    assert note.startswith("warning: 2 steps were predicted to be faster than the GPU's peak rates allow, by trained-")
    kernels = deployment("llama-3.1-70b", latency_model="kernels")
    kernels.latency.step_time(BatchShape(1, 8192, 8192**2, 0, 0, 8192**2))
    assert notes_after(kernels) == []


def test_eager_mode_takes_longer() -> None:
    from blis_sim.engine.batch_shape import decodes

    eager = deployment("llama-3.1-8b", latency_model="kernels", enforce_eager=True)
    graphs = deployment("llama-3.1-8b", latency_model="kernels")
    assert eager.latency.step_time(decodes(1, 100)) > graphs.latency.step_time(decodes(1, 100))


def experts_run(model: str, hardware: str, **given: Any) -> set[str]:
    """Weights of the experts as kernels are named by them."""
    options, gpu = DeploymentOptions(model=model, **given), load_gpu(hardware)
    operations = operations_of(load_model(model), options.kernel_placement(2, gpu))
    return {each.weights for each, _ in operations.per_token if isinstance(each, Experts | Routing)}


BY_MARLIN, BY_TRITON = {MXFP4_BY_MARLIN}, {"mxfp4"}


@pytest.mark.parametrize("hardware", ["H100", "H200"])
def test_experts_in_mxfp4_run_by_marlin_on_hopper_where_the_release_has_no_others(hardware: str) -> None:
    assert experts_run("gpt-oss-120b", hardware, vllm_version="0.11") == BY_MARLIN
    assert experts_run("gpt-oss-20b", hardware, moe_backend="marlin") == BY_MARLIN
    assert experts_run("gpt-oss-120b", hardware, vllm_version="0.11", moe_backend="triton") == BY_TRITON
    for version in ("0.15", "0.19", "0.33"):
        assert experts_run("gpt-oss-120b", hardware, vllm_version=version) == BY_TRITON


@pytest.mark.parametrize(("model", "hardware"), [("gpt-oss-120b", "B200"), ("qwen3-30b-a3b", "H100")])
def test_kernels_of_other_experts_do_not_depend_on_the_release(model: str, hardware: str) -> None:
    assert experts_run(model, hardware, vllm_version="0.11") == experts_run(model, hardware)


def test_kernels_of_experts_that_are_not_known_are_named() -> None:
    notes = deployment("llama-3.1-8b", latency_model="kernels", moe_backend="flashinfer_cutlass").notes
    assert "warning: --moe-backend flashinfer_cutlass has no effect on step times of kernels, only marlin on " in str(
        notes
    )
    fitted = deployment("llama-3.1-8b", latency_model="fitted", moe_backend="marlin").notes
    assert any(
        note.startswith("warning: --moe-backend marlin has no effect on step times of fitted") for note in fitted
    )
    marlin = deployment("llama-3.1-8b", latency_model="kernels", moe_backend="marlin").notes
    assert not any("--moe-backend" in note for note in marlin)
