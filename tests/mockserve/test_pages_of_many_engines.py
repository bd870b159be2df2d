"""A metrics page of many engines: values of one instant, written on a thread, shared by the scrapes that wait."""

import asyncio
from collections.abc import Callable
from functools import partial
from threading import get_ident

import pytest

from blis_sim.engine.deployment import resolve
from blis_sim.engine.deployment_options import DeploymentOptions
from blis_sim.options import options_from
from mockserve.engines import build_engines, source_of
from mockserve.http.connection import SlowReaders
from mockserve.metrics.counters import Lateness
from mockserve.metrics.page import MetricsSource
from mockserve.options.environment import ServerEnvironment
from mockserve.options.serve import ServeOptions
from mockserve.realtime.driver import WriteCoalescer

NAMES = ("vllm:e2e_request_latency_seconds_count",)


async def source(dp: int) -> MetricsSource:
    """The metrics of a server with so many engines."""
    options = options_from(ServeOptions, model="qwen/qwen3-14b", hardware="H100", tp=1, dp=dp)
    deployment = resolve(DeploymentOptions(model="qwen/qwen3-14b", hardware="H100", tp=1))
    wire = WriteCoalescer(Lateness())
    ranks = build_engines(options, deployment, ServerEnvironment(), wire)
    return source_of(options, deployment, ranks, wire.lateness, SlowReaders(1024))


def completed(metrics: MetricsSource) -> None:
    for engine in metrics.engines.values():
        engine.metrics.e2e_s.observe(1.0)


class Threads:
    """Writes pages on threads, each after `before` was called, and counts them."""

    def __init__(self, before: Callable[[], None] = lambda: None) -> None:
        self.num_pages = 0
        self.began = asyncio.Event()
        self.idents: set[int] = set()
        self._before = before

    async def write(self, function: Callable[..., bytes], *arguments: object) -> bytes:
        self.num_pages += 1
        self.began.set()
        self._before()

        def work() -> bytes:
            self.idents.add(get_ident())
            return function(*arguments)

        return await asyncio.to_thread(work)


async def test_a_page_has_the_values_of_one_instant() -> None:
    metrics = await source(3)
    completed(metrics)
    threads = Threads(before=partial(completed, metrics))
    page = await metrics.page(NAMES, in_thread=threads.write)
    assert page.count(b"} 1.0\n") == 3, "what is observed while the page is written is on the next one"
    assert threads.idents == threads.idents - {get_ident()} != set()
    assert metrics.exposition(NAMES) == page.replace(b"} 1.0\n", b"} 2.0\n")


async def test_scrapes_that_wait_share_a_page_that_begins_after_them() -> None:
    metrics, threads = await source(3), Threads()
    scrapes = [asyncio.create_task(metrics.page(NAMES, in_thread=threads.write)) for _ in range(5)]
    await threads.began.wait()
    completed(metrics)
    later = [asyncio.create_task(metrics.page(NAMES, in_thread=threads.write)) for _ in range(5)]
    pages = await asyncio.gather(*scrapes, *later)
    assert threads.num_pages == 2
    assert [page.count(b"} 1.0\n") for page in pages] == [0] * 5 + [3] * 5


@pytest.mark.parametrize("dp", [1, 2])
async def test_the_page_of_few_engines_is_written_at_once(dp: int) -> None:
    metrics, threads = await source(dp), Threads()
    assert (await metrics.page(NAMES, in_thread=threads.write)).count(b"} 0.0\n") == dp
    assert threads.num_pages == 0
