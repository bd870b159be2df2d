"""The figures of several processes: added up, even if a process is missing."""

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial

import orjson

from blis_sim.engine.deployment import resolve
from blis_sim.engine.deployment_options import DeploymentOptions
from blis_sim.options import options_from
from mockserve.api_servers.engine_process import MetricsGatherer
from mockserve.engines import build_engines, source_of
from mockserve.http.connection import SlowReaders
from mockserve.metrics.counters import LATENESS_BUCKETS_S, Histogram, HttpMetrics, Lateness, ToolParsing
from mockserve.metrics.page import InThread, ProcessCounts
from mockserve.options.environment import ServerEnvironment
from mockserve.options.serve import ServeOptions
from mockserve.realtime.driver import WriteCoalescer


def gatherer(dp: int = 1, in_thread: InThread = asyncio.to_thread) -> MetricsGatherer:
    options = options_from(
        ServeOptions,
        model="qwen/qwen3-14b",
        hardware="H100",
        tp=1,
        dp=dp,
        api_server_count=2,
        tool_call_parser="hermes",
    )
    deployment = resolve(DeploymentOptions(model="qwen/qwen3-14b", hardware="H100", tp=1))
    wire = WriteCoalescer(Lateness())
    ranks = build_engines(options, deployment, ServerEnvironment(), wire)
    return MetricsGatherer(source_of(options, deployment, ranks, wire.lateness, SlowReaders(1024)), in_thread)


def counts(num_requests: int) -> ProcessCounts:
    """Figures of a process that has answered so many requests, cut as many streams and refused as many."""
    http, lag_s = HttpMetrics(), Histogram(LATENESS_BUCKETS_S)
    tool_parsing = ToolParsing()
    tool_parsing.used("responses", num_requests, 0, is_stream=True)
    for _ in range(num_requests):
        http.observe("/v1/completions", "POST", 200, 10, 100, 0.5)
        lag_s.observe(0.002)
    return ProcessCounts(http, {"max_num_queued_reqs": num_requests}, lag_s, num_requests, tool_parsing)


def answering(*found: ProcessCounts) -> dict[int, Callable[[], Awaitable[ProcessCounts]]]:
    """Questions to processes that answer at once."""

    async def answer(each: ProcessCounts) -> ProcessCounts:
        return each

    return {place: partial(answer, each) for place, each in enumerate(found)}


async def test_counts_of_all_processes_are_added_up() -> None:
    page = (await gatherer().page(answering(counts(1), counts(2)))).decode()
    for line in (
        'http_requests_total{handler="/v1/completions",method="POST",status="2xx"} 3.0',
        'http_request_size_bytes_sum{handler="/v1/completions"} 30.0',
        "http_request_duration_highr_seconds_sum 1.5",
        'http_request_duration_seconds_count{handler="/v1/completions",method="POST"} 3.0',
        'vllm:admission_rejections_total{model_name="qwen/qwen3-14b",reason="max_num_queued_reqs"} 3.0',
        'blis_send_lag_seconds_bucket{le="0.0025"} 3.0',
        "blis_slow_readers_cut_total 3.0",
        'vllm:tool_call_parser_invocations_total{mode="streaming",model_name="qwen/qwen3-14b",outcome="tool_call",'
        'request_type="responses"} 3.0',
    ):
        assert line in page.splitlines()


async def test_a_process_that_ends_while_asked_counts_with_its_last_figures() -> None:
    together = gatherer()
    await together.page(answering(counts(2), counts(2)))

    async def end() -> ProcessCounts:
        raise ConnectionResetError

    page = await together.page({**answering(counts(5)), 1: end}, ("blis_slow_readers_cut_total",))
    assert b"blis_slow_readers_cut_total 7.0" in page


async def test_figures_over_time_count_errors_of_all_processes() -> None:
    both = counts(1), counts(1)
    for each in both:
        each.http.observe("/v1/completions", "POST", 429, 1, 1, 0.1)
    found = orjson.loads(await gatherer().page(answering(*both), is_history=True))
    assert found["errors_by_status"] == {"429": 2}


async def test_a_page_of_many_engines_is_written_on_a_thread_and_one_after_the_other() -> None:
    num_writing, most_writing, written = 0, 0, asyncio.Event()

    async def in_thread(write: Callable[..., bytes], *arguments: object) -> bytes:
        nonlocal num_writing, most_writing
        num_writing += 1
        most_writing = max(most_writing, num_writing)
        page = await asyncio.to_thread(write, *arguments)
        num_writing -= 1
        written.set()
        return page

    together = gatherer(3, in_thread)
    pages = await asyncio.gather(*(together.page(answering(counts(1), counts(1))) for _ in range(4)))
    assert written.is_set()
    assert most_writing == 1
    assert [page.count(b'vllm:prompt_tokens_total{engine="') for page in pages] == [3] * 4


async def test_the_page_of_one_engine_needs_no_thread() -> None:
    async def in_thread(_write: Callable[..., bytes], *_arguments: object) -> bytes:
        raise AssertionError

    together = gatherer(1, in_thread)
    assert b"blis_slow_readers_cut_total" in await together.page({})
