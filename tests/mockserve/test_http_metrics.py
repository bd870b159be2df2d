"""Requests as the instrumentation of vLLM counts them."""

import pytest

from mockserve.metrics.server import HttpMetrics


@pytest.mark.parametrize(
    ("path", "is_counted"),
    [("/v1/models", True), ("/v1/load_lora_adapter", False), ("/v1/unload_lora_adapter", True), ("/health", False)],
)
def test_paths_that_contain_one_that_is_not_counted_are_not_counted_either(path: str, is_counted: bool) -> None:
    metrics = HttpMetrics()
    metrics.observe(path, "POST", 200, 1, 1, 0.1)
    (requests, *_) = metrics.collect()
    assert bool(requests.samples) is is_counted
