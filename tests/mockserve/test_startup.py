from typing import Any

import pytest

from blis_sim.engine.deployment import resolve
from mockserve.options.serve import ServeOptions
from mockserve.startup import startup_line

DEPLOYED = "H100, tp 1, 16,565 KV blocks"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({}, f"serving qwen/qwen3-14b on there ({DEPLOYED}, fitted)"),
        ({"num_instances": 3}, f"serving qwen/qwen3-14b on there (3 instances, {DEPLOYED}, fitted)"),
        ({"served_model_name": ("a", "b")}, f"serving a on there ({DEPLOYED}, fitted)"),
        ({"latency_calculator": "constant"}, "serving qwen/qwen3-14b on there (16,565 KV blocks, set times)"),
    ],
)
def test_the_first_line_says_what_is_served_and_by_what_times(given: dict[str, Any], said: str) -> None:
    options = ServeOptions(model="qwen/qwen3-14b", **given)
    assert startup_line(options, resolve(options), "there") == said
