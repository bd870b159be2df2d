"""A prefix cache that holds prompts which were sent before the run is a warning."""

from collections.abc import Callable
from typing import Any, TypeAlias

import pytest

from observe.requests import PlannedRequest
from observe.server import MetricsReading, shared_share, warn_of_warm_cache

Observe: TypeAlias = Callable[..., Any]


def reading(queries: float, hits: float) -> MetricsReading:
    samples = {"vllm:prefix_cache_queries_total": queries, "vllm:prefix_cache_hits_total": hits}
    return MetricsReading(0, samples)


@pytest.mark.parametrize(
    ("before", "after", "expected", "is_warned"),
    [
        (reading(0, 0), reading(1000, 900), 0.0, True),
        (reading(0, 0), reading(1000, 900), 0.8, False),
        (reading(500, 500), reading(1500, 600), 0.0, False),
        (reading(0, 0), reading(0, 0), 0.0, False),
        (None, reading(1000, 900), 0.0, False),
        (reading(0, 0), None, 0.0, False),
    ],
)
def test_hits_beyond_what_requests_share_are_warned_of(
    before: MetricsReading | None,
    after: MetricsReading | None,
    expected: float,
    is_warned: bool,
    capsys: pytest.CaptureFixture[str],
) -> None:
    warn_of_warm_cache(before, after, expected, seed=42)
    assert ("An earlier run with --seed 42 has sent these prompts" in capsys.readouterr().err) == is_warned


def test_shared_prefixes_and_contexts_are_expected_in_the_cache() -> None:
    plan = [PlannedRequest(at_us=0, input_tokens=60, output_tokens=1, prefix_tokens=40, context_tokens=10)] * 2
    assert shared_share(plan) == 0.5
    assert shared_share([]) == 0


@pytest.mark.slow
def test_a_run_warns_of_a_server_whose_cache_is_warm(observe: Observe) -> None:
    run = observe(model="ok", num_requests=4)  # a server that finds half of every prompt
    assert "warning: the server's prefix cache held 50% of the prompt tokens" in run.messages
    run = observe(model="ok", num_requests=4, prefix_tokens=2000, overwrite=True)
    assert "prefix cache" not in run.messages
