"""Rates and percentiles between two readings of a metrics page."""

from math import inf
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from observe.errors import ResponseError
from observe.top import ALL, bucket_increase, parse_metrics_page, quantile, stats_between

TTFT = "vllm:time_to_first_token_seconds"


def page_of(
    engine: str = "0", running: int = 0, tokens: int = 0, ttft: tuple[int, int, int] = (0, 0, 0), usage: float = 0.0
) -> str:
    """A small metrics page; `ttft` counts what is at most 0.1 s, at most 0.2 s, and all."""
    labels = f'engine="{engine}",model_name="m"'
    return f"""
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{{{labels}}} {running}
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{{{labels}}} 1
# TYPE vllm:kv_cache_usage_perc gauge
vllm:kv_cache_usage_perc{{{labels}}} {usage}
# TYPE vllm:request_success_total counter
vllm:request_success_total{{{labels},finished_reason="stop"}} {tokens // 10}
vllm:request_success_total{{{labels},finished_reason="length"}} {tokens // 10}
# TYPE vllm:generation_tokens_total counter
vllm:generation_tokens_total{{{labels}}} {tokens}
# TYPE {TTFT} histogram
{TTFT}_bucket{{{labels},le="0.1"}} {ttft[0]}
{TTFT}_bucket{{{labels},le="0.2"}} {ttft[1]}
{TTFT}_bucket{{{labels},le="+Inf"}} {ttft[2]}
{TTFT}_count{{{labels}}} {ttft[2]}
{TTFT}_sum{{{labels}}} 1
"""


def test_rates_are_increases_per_second_and_gauges_are_as_they_are_now() -> None:
    before = parse_metrics_page(page_of(running=9, tokens=100))
    after = parse_metrics_page(page_of(running=3, tokens=300, usage=0.25))
    (figures,) = stats_between(before, after, 4.0).values()
    assert (figures.running, figures.waiting, figures.kv_usage_fraction) == (3, 1, 0.25)
    assert figures.output_tokens_per_s == 50
    assert figures.requests_per_s == 10  # 40 more in two reasons
    assert figures.lag is None


def test_percentiles_cover_observations_between_readings() -> None:
    before = parse_metrics_page(page_of(ttft=(1000, 1000, 1000)))
    after = parse_metrics_page(page_of(ttft=(1000, 1080, 1100)))
    (figures,) = stats_between(before, after, 1.0).values()
    assert [each.sign for each in figures.ttft] == ["", ">", ">"]
    assert [each.seconds for each in figures.ttft] == pytest.approx([0.1 + 0.1 * 50 / 80, 0.2, 0.2])


def test_a_percentile_in_the_first_bucket_is_below_its_bound() -> None:
    before = parse_metrics_page(page_of(ttft=(0, 0, 0)))
    after = parse_metrics_page(page_of(ttft=(95, 100, 100)))
    (figures,) = stats_between(before, after, 1.0).values()
    assert [str(each) for each in figures.ttft] == ["< 100.0", "< 100.0", "180.0"]


def test_errors_are_those_of_the_counter_of_replies() -> None:
    replies = "".join(
        f'http_requests_total{{handler="{handler}",method="POST",status="{status}"}} 3\n'
        for handler in ("/v1/completions", "/v1/chat/completions")
        for status in ("2xx", "4xx", "5xx")
    )
    page = parse_metrics_page(f"{page_of()}# TYPE http_requests_total counter\n{replies}")
    assert page.errors == {"4xx": 6, "5xx": 6}


def test_no_observation_has_no_percentiles() -> None:
    same = parse_metrics_page(page_of(ttft=(5, 6, 7)))
    (figures,) = stats_between(same, same, 1.0).values()
    assert (figures.ttft, figures.itl) == ((), ())


def test_a_server_that_began_anew_counts_from_zero() -> None:
    before = parse_metrics_page(page_of(tokens=5000, ttft=(90, 90, 90)))
    after = parse_metrics_page(page_of(tokens=20, ttft=(0, 4, 4)))
    (figures,) = stats_between(before, after, 2.0).values()
    assert figures.output_tokens_per_s == 10
    assert figures.ttft[0].seconds == pytest.approx(0.15)


def test_several_engines_have_a_column_each_and_one_together() -> None:
    before = parse_metrics_page(page_of("0") + page_of("1"))
    after = parse_metrics_page(
        page_of("0", running=2, tokens=10, usage=0.2) + page_of("1", running=4, tokens=30, usage=0.4)
    )
    found = stats_between(before, after, 1.0)
    assert list(found) == ["0", "1", ALL]
    assert [each.running for each in found.values()] == [2, 4, 6]
    assert [each.output_tokens_per_s for each in found.values()] == [10, 30, 40]
    assert found[ALL].kv_usage_fraction == pytest.approx(0.3)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "it holds no metrics of vLLM"),
        ("<html>\n", "it is not in Prometheus' text format"),
        ("# TYPE up gauge\nup 1\n", "it holds no metrics of vLLM"),
    ],
)
def test_a_page_of_something_else_is_refused(text: str, complaint: str) -> None:
    with pytest.raises(ResponseError, match=complaint):
        parse_metrics_page(text)


def test_metrics_that_vllm_was_seen_to_export_are_read(reference: Path) -> None:
    first, second = (
        parse_metrics_page((reference / f"golden/vllm/metrics{number}.txt").read_text(encoding="utf-8"))
        for number in (1, 2)
    )
    (figures,) = stats_between(first, second, 1.0).values()
    assert second.model_names
    assert figures.kv_usage_fraction >= 0
    assert second.engines["0"].buckets[TTFT][inf] == second.engines["0"].values[f"{TTFT}_count"] > 0


BOUNDS = (0.1, 0.5, 1.0, 2.0)


@example([1.0, 1.0, 1.0, 0.5, 0.5, 0.5], 0.5)
@given(st.lists(st.floats(0.001, 2.0), min_size=1, max_size=40), st.sampled_from((0.5, 0.9, 0.99)))
def test_a_quantile_lies_in_the_bucket_of_the_exact_one(values: list[float], fraction: float) -> None:
    buckets = {bound: float(sum(value <= bound for value in values)) for bound in (*BOUNDS, inf)}
    exact = sorted(values)[max(0, -int(-fraction * len(values) // 1) - 1)]
    upper = min(bound for bound in BOUNDS if exact <= bound)
    lower = max([0.0, *(bound for bound in BOUNDS if bound < upper)])
    assert lower <= quantile(buckets, fraction) <= upper


@given(st.lists(st.integers(0, 9), min_size=3, max_size=3), st.lists(st.integers(0, 9), min_size=3, max_size=3))
def test_counts_in_between_are_never_negative(first: list[int], more: list[int]) -> None:
    def cumulative(counts: list[int]) -> dict[float, float]:
        return {bound: float(sum(counts[: place + 1])) for place, bound in enumerate((0.1, 0.2, inf))}

    total = [a + b for a, b in zip(first, more, strict=True)]
    assert bucket_increase(cumulative(first), cumulative(total)) == cumulative(more)
    assert min(bucket_increase(cumulative(total), cumulative(first)).values()) >= 0


def test_an_engine_of_several_processes_has_gauges_from_its_first_step_on() -> None:
    """An idle server of several processes has counters, and neither running requests nor a usage of the cache."""
    counters = [line for line in page_of("1").splitlines() if "num_requests" not in line and "usage_perc" not in line]
    before = parse_metrics_page("\n".join(counters))
    idle = stats_between(before, before, 1.0)["1"]
    assert (idle.running, idle.waiting, idle.kv_usage_fraction) == (0, 0, 0)
    busy = stats_between(before, parse_metrics_page(page_of("1", running=3, tokens=20)), 1.0)["1"]
    assert (busy.running, busy.output_tokens_per_s) == (3, 20)
