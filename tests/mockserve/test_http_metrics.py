"""Requests as the instrumentation of vLLM counts them."""

import pytest

from mockserve.metrics.counters import counted_path


@pytest.mark.parametrize("path", ["/v1/models", "/v1/unload_lora_adapter"])
def test_a_request_counts_under_the_path_of_its_route(path: str) -> None:
    assert counted_path(path, path) == path


@pytest.mark.parametrize("path", ["/v1/load_lora_adapter", "/health"])
def test_paths_that_contain_one_that_is_not_counted_are_not_counted_either(path: str) -> None:
    assert counted_path(path, path) is None


@pytest.mark.parametrize("path", ["/health", "/ping", "/version", "/x/load"])
def test_without_a_route_the_path_of_the_request_decides(path: str) -> None:
    assert counted_path(None, path) is None
    assert counted_path(None, "/v1/chat/completions") == "none"
