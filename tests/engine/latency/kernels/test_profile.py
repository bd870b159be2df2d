"""Baked profiles: what is written is read again; a file of another deployment or with mistakes is refused by name."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from blis_sim.engine.deployment import resolve
from blis_sim.engine.deployment_options import DeploymentOptions
from blis_sim.engine.errors import EngineError
from blis_sim.engine.latency.catalogue.entries import load_gpu
from blis_sim.engine.latency.catalogue.reader import default_deployment, load_model
from blis_sim.engine.latency.kernel_steps import KernelSteps
from blis_sim.engine.latency.kernels import sources
from blis_sim.engine.latency.kernels.model_operations import KernelPlacement, operations_of
from blis_sim.engine.latency.kernels.sources import PROFILES, digest_of, grids_of, read_profile, shipped_profile
from blis_sim.engine.latency.kernels.tables import are_installed
from tests.engine.latency.kernels.made_up import grids, operations, profile

H100 = load_gpu("H100")
DIGEST = digest_of(operations(), "H100")


def written(folder: Path, **changes: Any) -> Path:
    content = {**json.loads(profile(H100)), **changes}
    path = folder / "kernels.json"
    path.write_text(json.dumps({name: value for name, value in content.items() if value is not None}))
    return path


def test_a_profile_has_the_times_that_were_baked_and_names_their_source(tmp_path: Path) -> None:
    path = written(tmp_path)
    found, baked = read_profile(path, DIGEST, "here"), grids()
    for name in ("token_us", "head_us", "decode_us", "prompt_us"):
        np.testing.assert_allclose(getattr(found, name), getattr(baked, name), rtol=1e-3)
    assert (found.tokens, found.num_kernels, found.notes) == (baked.tokens, 440, ("something was repaired",))
    content = json.loads(path.read_text())
    assert content["license"].startswith("Apache-2.0")
    assert "NVIDIA" in content["copyright"]
    assert "rounded" in content["changes"]


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"kernel_profile": 7}, "kernel_profile must be 1, got 7"),
        ({"operations": "other"}, "it was baked for qwen3-14b on H100 with tp 1, not for here"),
        ({"tokens": [4, 2]}, "tokens must be 2 to 1000 ascending whole numbers, got [4, 2]"),
        ({"tokens": None}, "tokens must be 2 to 1000 ascending whole numbers, got nothing"),
        ({"head_us": [1, 2]}, "head_us must be 8 numbers from 0 to 1e+12, got [1, 2]"),
        (
            {"head_us": [1, 2, 3, 4, 5, 6, 7, -8]},
            "head_us must be 8 numbers from 0 to 1e+12, got [1, 2, 3, 4, 5, 6, 7, -8]",
        ),
        ({"head_us": "x"}, "head_us must be 8 numbers from 0 to 1e+12, got 'x'"),
        ({"decode_us": [[1], [1, 2]]}, "decode_us must be 5 x 5 numbers from 0 to 1e+12, got [[1], [1, 2]]"),
        ({"num_layers": 0}, "num_layers must be a whole number of at least 1, got 0"),
    ],
)
def test_a_file_with_a_mistake_is_refused_in_one_line(changes: dict[str, Any], problem: str, tmp_path: Path) -> None:
    path = written(tmp_path, **changes)
    with pytest.raises(EngineError) as caught:
        read_profile(path, DIGEST, "here")
    assert str(caught.value) == f"{path}: {problem}"


@pytest.mark.parametrize("name", ["llama-3.1-8b-instruct", "qwen3-14b", "gpt-oss-120b", "mixtral-8x7b-v0.1"])
def test_common_models_have_a_profile_on_their_default_gpus(name: str) -> None:
    gpu, tp = default_deployment(name) or ("", 0)
    assert shipped_profile(digest_of(operations_of(load_model(name), KernelPlacement(tp=tp)), gpu)) is not None


def test_shipped_profiles_are_small_and_complete() -> None:
    files = list(PROFILES.glob("*.json"))
    assert len(files) >= 50
    for path in files:
        content = json.loads(path.read_text())
        assert path.stat().st_size < 40_000
        found = read_profile(path, content["operations"], "")
        assert (found.token_us.sum(axis=0) > 0).all()
        assert (np.diff(found.decode_us, axis=1) >= -0.2 * found.decode_us[:, 1:]).all()


def test_a_shipped_profile_is_taken_without_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "are_installed", lambda: False)
    deployment = resolve(DeploymentOptions(model="llama-3.1-8b", latency_model="kernels", max_model_len=4096))
    assert isinstance(deployment.latency, KernelSteps)
    assert any(note.startswith("kernel times were repaired: ") for note in deployment.notes)


def test_the_missing_package_is_named_where_there_is_neither(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "are_installed", lambda: False)
    with pytest.raises(EngineError) as caught:
        grids_of(load_model("qwen3-14b"), load_gpu("H200"), KernelPlacement(tp=4))
    assert str(caught.value) == (
        "no profile of the kernels of qwen3-14b on H200 with tp 4 ships, and their tables need: "
        "pip install 'blis-mockserve[kernels]'"
    )


def test_a_gpu_that_nothing_was_measured_on_is_named() -> None:
    with pytest.raises(EngineError, match=r"^no kernels were measured on L4, only on A100-SXM, B200"):
        grids_of(load_model("qwen3-14b"), load_gpu("L4"), KernelPlacement(tp=1))


@pytest.mark.skipif(not are_installed(), reason="needs the tables of the extra kernels")
def test_shipped_profiles_equal_the_tables() -> None:
    model, placement = load_model("llama-3.1-8b"), KernelPlacement(tp=1)
    shipped = grids_of(model, H100, placement)
    baked = sources.measured_grids(operations_of(model, placement), H100)
    np.testing.assert_allclose(shipped.decode_us, baked.decode_us, rtol=1e-3)
    np.testing.assert_allclose(shipped.token_us, baked.token_us, rtol=1e-3)
