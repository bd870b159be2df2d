"""`blis kernels bake`: the kernel times of a deployment as a file that other commands take."""

from collections.abc import Callable
from pathlib import Path
from typing import Any


def test_a_baked_profile_is_used_and_the_error_of_an_impossible_one_names_the_operation(
    blis: Callable[..., Any], tmp_path: Path
) -> None:
    file = str(tmp_path / "kernels.json")
    code, out, said = blis("kernels", "bake", "llama-3.1-8b", "-o", file)
    assert (code, out) == (0, "")
    assert said.endswith(" bytes\n")
    load = ("--model", "llama-3.1-8b", "--num-requests", "3", "--latency-model", "kernels")
    assert blis("run", *load, "--kernel-profile", file)[0] == 0
    code, _, said = blis("run", *load, "--tp", "2", "--kernel-profile", file)
    assert code == 2
    assert "it was baked for llama-3.1-8b on H100 with tp 1, not for llama-3.1-8b on H100 with tp 2" in said
    code, _, said = blis("kernels", "bake", "phi-4", "--hardware", "H100", "--tp", "1", "-o", file)
    assert code == 2
    assert said.count("\n") == 1
    assert "the tables of H100 have no times of HeadAttention(heads=40, kv_heads=10, head_size=128" in said
