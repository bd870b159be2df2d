"""Baked profiles: what is written is read again; a file of another deployment or with mistakes is refused by name."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from blis_sim.engine.errors import EngineError
from blis_sim.engine.latency.catalogue import load_gpu
from blis_sim.engine.latency.kernel_profiles import digest_of, profile_text, read_profile
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


def test_what_was_scaled_from_another_gpu_is_written_and_read(tmp_path: Path) -> None:
    scaled = replace(grids(), scaling="kernels of L4 are scaled")
    path = tmp_path / "kernels.json"
    path.write_text(profile_text(scaled, "here", DIGEST))
    assert read_profile(path, DIGEST, "here").scaling == "kernels of L4 are scaled"
    assert not read_profile(written(tmp_path), DIGEST, "here").scaling
