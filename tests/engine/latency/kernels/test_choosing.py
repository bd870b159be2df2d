"""The latency model that `auto` takes, and the notes on it."""

import re
from pathlib import Path
from typing import Any

import pytest

from blis_sim.engine.deployment import Deployment, notes_after, resolve
from blis_sim.engine.deployment_options import DeploymentOptions
from blis_sim.engine.errors import EngineError
from blis_sim.engine.latency.catalogue.entries import load_gpu
from blis_sim.engine.latency.kernels import sources
from blis_sim.engine.latency.sureness import (
    ANOTHER_GPU,
    IN_16_BITS,
    MEASURED,
    SEVERAL_H100S,
    WITH_EXPERTS,
    WITHOUT_GROUPS,
    E2eErrors,
)
from tests.engine.latency.kernels.made_up import profile

QUANTIZED = "llama-4-scout-17b-16e-instruct-fp8-dynamic"


@pytest.fixture(autouse=True)
def _without_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "are_installed", lambda: False)


def deployment(model: str, **settings: Any) -> Deployment:
    return resolve(DeploymentOptions(model=model, max_model_len=2048, **settings))


@pytest.mark.parametrize(
    ("model", "settings", "name"),
    [
        ("qwen3-14b", {}, "fitted"),  # learned for exactly this
        ("llama-3.1-8b", {}, "fitted"),  # like the server that the coefficients were learned from
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
        ("qwen3-14b", {"hardware": "A100", "tp": 1}, "fitted"),  # no profile ships
        ("qwen3-14b", {"hardware": "L4", "tp": 1, "total_kv_blocks": 900}, "fitted"),  # nothing was measured
        ("qwen3-30b-a3b", {"engine": "blis"}, "trained-physics"),
    ],
)
def test_the_model_that_was_measured_to_be_closer_is_taken(model: str, settings: dict[str, Any], name: str) -> None:
    assert deployment(model, **settings).latency_name == name


def test_one_line_states_which_errors_to_expect() -> None:
    notes = deployment(QUANTIZED).notes
    assert [note for note in notes if note.startswith("step times are those of measured kernels: ")]
    named = deployment(QUANTIZED, latency_model="kernels").notes
    assert not [note for note in named if note.startswith("step times are those")]


def test_a_profile_that_is_named_is_taken(tmp_path: Path) -> None:
    path = tmp_path / "kernels.json"
    path.write_text(profile(load_gpu("H100")))
    found = deployment("qwen3-14b", kernel_profile=str(path))
    assert found.latency_name == "kernels"
    assert "kernel times were repaired: something was repaired" in found.notes
    with pytest.raises(EngineError, match=r"it was baked for qwen3-14b on H100 with tp 1, not for qwen3-14b on H100 "):
        deployment("qwen3-14b", kernel_profile=str(path), tp=2)


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


def test_kernels_of_experts_that_are_not_known_are_named() -> None:
    notes = deployment("llama-3.1-8b", latency_model="kernels", moe_backend="flashinfer_cutlass").notes
    assert "warning: --moe-backend flashinfer_cutlass has no effect on step times of kernels, only marlin on " in str(
        notes
    )
    fitted = deployment("llama-3.1-8b", moe_backend="marlin").notes
    assert any(
        note.startswith("warning: --moe-backend marlin has no effect on step times of fitted") for note in fitted
    )
    marlin = deployment("llama-3.1-8b", latency_model="kernels", moe_backend="marlin").notes
    assert not any("--moe-backend" in note for note in marlin)


SERVERS = {
    "codellama-34b-tp2": ("codellama-34b-instruct-hf", 2),
    "llama-2-70b": ("llama-2-70b-hf", 4),
    "llama-2-7b": ("llama-2-7b-hf", 1),
    "mixtral-8x7b": ("mixtral-8x7b-v0.1", 2),
}
"""Model and tensor parallelism of the published experiments, by how their names begin."""


def errors_of_published(predictor: str) -> dict[str, float]:
    page = (Path(__file__).parents[4] / "docs" / "published.md").read_text()
    section = page.partition(f"## {predictor}\n")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| ([\w-]+-tp\d-\w+) \|.*\| ([+-][\d.]+)% \| [+-][\d.]+% \|$", section, re.MULTILINE)
    return {name: abs(float(e2e)) for name, e2e in rows}


KINDS = {
    SEVERAL_H100S: ("codellama-34b", "llama-2-70b"),
    WITHOUT_GROUPS: ("llama-2-7b-",),
    WITH_EXPERTS: ("mixtral",),
}
"""Published experiments of each kind of server, by how their names begin."""


@pytest.mark.parametrize("kind", KINDS)
def test_auto_takes_the_model_that_is_closer_in_the_mean_of_the_published_servers_of_a_kind(kind: str) -> None:
    errors = {name: errors_of_published(name) for name in ("fitted", "kernels")}
    assert len(errors["fitted"]) == len(errors["kernels"]) == 8
    names = [name for name in errors["fitted"] if name.startswith(KINDS[kind])]
    means = {predictor: sum(found[name] for name in names) / len(names) for predictor, found in errors.items()}
    for model, tp in (server for begin, server in SERVERS.items() if begin.startswith(KINDS[kind])):
        taken = deployment(model, hardware="H100", tp=tp).latency_name
        assert means[taken] == min(means.values())
        assert max(errors[taken][name] for name in names) <= 7


@pytest.mark.parametrize("kind", KINDS)
def test_errors_of_a_kind_of_server_are_means_of_the_page_of_published_experiments(kind: str) -> None:
    def mean(predictor: str) -> float:
        errors = [each for name, each in errors_of_published(predictor).items() if name.startswith(KINDS[kind])]
        return sum(errors) / len(errors) / 100

    assert vars_of(IN_16_BITS[kind]) == pytest.approx((mean("kernels"), mean("fitted")), abs=6e-4)


def test_errors_on_another_gpu_are_means_of_the_recordings_on_it() -> None:
    errors = [errors_on_another_gpu(recording) for recording in ("Llama-3.1-8B", "Qwen3-32B")]
    means = [sum(each[name] for each in errors) / 2 / 100 for name in ("kernels", "fitted")]
    assert vars_of(IN_16_BITS[ANOTHER_GPU]) == pytest.approx(means, abs=6e-4)


def vars_of(errors: E2eErrors) -> tuple[float, float]:
    return errors.kernels, errors.fitted


def errors_on_another_gpu(recording: str) -> dict[str, float]:
    page = (Path(__file__).parents[4] / "docs" / "published.md").read_text()
    rows = re.findall(rf"^\| RTXPRO6000_{recording} \| (\w+) \| [\d.]+% \| ([\d.]+)% \|", page, re.MULTILINE)
    return {name: float(e2e) for name, e2e in rows if name in ("fitted", "kernels")}


@pytest.mark.parametrize(
    ("recording", "model", "tp"), [("Llama-3.1-8B", "llama-3.1-8b", 1), ("Qwen3-32B", "qwen3-32b", 2)]
)
def test_auto_takes_the_closer_model_on_the_gpu_without_nvlink(recording: str, model: str, tp: int) -> None:
    errors = errors_on_another_gpu(recording)
    taken = deployment(model, hardware="RTX-PRO-6000", tp=tp).latency_name
    assert errors[taken] == min(errors.values()) < 10


def test_expected_errors_are_those_of_the_page_of_measured_deployments() -> None:
    page = (Path(__file__).parents[4] / "docs" / "silicon.md").read_text()
    rows = dict(re.findall(r"^\| ([\w-]+) \| \d+ (\|.*)\|$", page.partition("## kernels")[2], re.MULTILINE))
    classes = {
        "dense-fp8": "dense models in FP8",
        "dense-nvfp4": "dense models in NVFP4",
        "moe-mxfp4": "experts in MXFP4",
        "moe-fp8block": "experts in FP8 by blocks",
        "moe-nvfp4": "experts in NVFP4",
        "MLA-moe-int4": "latent attention, experts in INT4",
        "MLA-moe-nvfp4": "latent attention, experts in NVFP4",
    }
    for row, name in classes.items():
        tpot, _, ttft, _ = (float(each) for each in re.findall(r"([\d.]+)%", rows[row]))
        assert (tpot, ttft) == pytest.approx((100 * MEASURED[name].tpot, 100 * MEASURED[name].ttft))
