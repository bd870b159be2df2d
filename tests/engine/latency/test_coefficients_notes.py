"""Notes before a deployment is timed with coefficients that were learned from another one."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from blis_sim.engine.deployment import notes_after, resolve
from blis_sim.engine.deployment_options import DeploymentOptions
from blis_sim.engine.latency import coefficients_file
from blis_sim.engine.latency.catalogue import read_mapping
from tests.coefficients_file import written

LEARNED_FOR = "warning: the shipped coefficients were learned for qwen3-14b on H100 with tp 1, not for "
ADVICE = "; `blis fit` fits coefficients of your own server, for --coefficients FILE"


def notes(model: str, **settings: Any) -> list[str]:
    """Return the notes on the step times of a deployment, without those on its memory."""
    options = DeploymentOptions(model=model, latency_model="fitted", max_model_len=2048, **settings)
    return list(resolve(options).notes)


@pytest.mark.parametrize("model", ["qwen3-14b", "Qwen/Qwen3-14B"])
@pytest.mark.parametrize("settings", [{}, {"hardware": "h100-sxm", "tp": 1}])
def test_the_deployment_that_was_learned_from_has_no_note(model: str, settings: dict[str, Any]) -> None:
    assert notes(model, **settings) == []


@pytest.mark.parametrize(
    ("model", "settings", "used_for"),
    [
        ("llama-3.1-8b", {}, "llama-3.1-8b on H100 with tp 1"),
        ("qwen3-14b", {"tp": 2}, "qwen3-14b on H100 with tp 2"),
        ("mixtral-8x7b", {}, "mixtral-8x7b on H100 with tp 2"),
        ("llama-3.1-8b", {"hardware": "RTXPRO6000"}, "llama-3.1-8b on RTX-PRO-6000 with tp 1"),
    ],
)
def test_another_deployment_is_named_beside_the_one_learned_from(
    model: str, settings: dict[str, Any], used_for: str
) -> None:
    assert notes(model, **settings) == [f"{LEARNED_FOR}{used_for}{ADVICE}"]


def test_a_file_is_named_and_needs_no_advice(tmp_path: Path) -> None:
    path = written(tmp_path)
    assert notes("qwen3-14b", coefficients=str(path)) == []
    assert notes("llama-3.1-8b", coefficients=str(path), hardware="A100-SXM", engine="blis") == [
        f"warning: {path} was learned for qwen3-14b on H100 with tp 1, not for llama-3.1-8b on A100-SXM with tp 1",
        f"warning: {path} was learned with --engine vllm, not with blis",
    ]


def test_a_file_of_coefficients_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[Path] = []

    def read(path: Path) -> Mapping[str, Any]:
        opened.append(path)
        return read_mapping(path)

    monkeypatch.setattr(coefficients_file, "read_mapping", read)
    path = written(tmp_path)
    assert notes("qwen3-14b", coefficients=str(path), tp=2)
    assert opened == [path]


def test_other_latency_models_have_no_such_note() -> None:
    options = DeploymentOptions(
        model="llama-3.1-8b", hardware="A100-SXM", max_model_len=2048, latency_model="trained-physics"
    )
    assert resolve(options).notes == ()


@pytest.mark.parametrize("names_file", [False, True])
def test_a_warning_on_exceeded_ranges_names_the_coefficients_used(names_file: bool, tmp_path: Path) -> None:
    coefficients = str(written(tmp_path, seen={"input_tokens": [900, 1100]})) if names_file else None
    deployment = resolve(DeploymentOptions(model="qwen3-14b", latency_model="fitted", coefficients=coefficients))
    deployment.latency.queueing_time(5000)
    (note,) = notes_after(deployment)
    assert note.startswith(
        f"warning: outside the range of {'--coefficients' if names_file else 'the shipped coefficients'}: prompts of"
    )
