"""GET /dashboard: one page that needs nothing but the metrics page beside it."""

import re
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.fakes import TestLatency
from tests.wire.browser import Browser, opened
from tests.wire.plain_http import call, complete, open_request
from tests.wire.serving import TestServer, running_server

STEP_US = 20_000


def page_of(server: TestServer) -> str:
    return call(server, "GET", "/dashboard").body.decode()


def samples(metrics: str) -> set[str]:
    """The names of the samples on a metrics page, and of its histograms."""
    names = set(re.findall(r"^([\w:]+)\{", metrics, re.MULTILINE))
    return names | {name.removesuffix("_bucket") for name in names if name.endswith("_bucket")}


def read_by(page: str) -> set[str]:
    return set(re.findall(r'"((?:vllm:|blis_)\w+)"', page))


def test_the_dashboard_is_one_page_without_anything_from_elsewhere(server: TestServer) -> None:
    reply = call(server, "GET", "/dashboard")
    assert (reply.status, reply.headers["content-type"]) == (200, "text/html; charset=utf-8")
    assert re.findall(rb"https?:|\bsrc=|@import|url\(", reply.body) == []
    assert re.findall(rb'fetch\("([^"]*)"', reply.body) == [b"metrics"]


def test_every_metric_that_it_reads_is_on_the_metrics_page(server: TestServer) -> None:
    complete(server)
    names = read_by(page_of(server))
    assert len(names) >= 10
    assert names - samples(call(server, "GET", "/metrics").body.decode()) == set()


def test_every_metric_that_it_reads_is_one_of_vllm_except_the_lag(server: TestServer, reference: Path) -> None:
    seen = samples((reference / "golden/vllm/metrics1.txt").read_text(encoding="utf-8"))
    assert read_by(page_of(server)) - seen == {"blis_send_lag_seconds"}


@pytest.fixture
def slow_server() -> Iterator[TestServer]:
    """A step takes 20 ms of real time."""
    with running_server(TestLatency(step_us=STEP_US), speed=1.0, max_model_len=100_000) as running:
        yield running


def output(series: str) -> str:
    """Return the text of a series on the page, by JavaScript."""
    return f"document.querySelector('output[data-series=\"{series}\"]').textContent"


async def number(browser: Browser, series: str) -> float:
    return float((await browser.evaluate(output(series))).replace(",", ""))


async def test_a_browser_shows_the_load_and_its_end(slow_server: TestServer, tmp_path: Path) -> None:
    fields = {"stream": True, "ignore_eos": True, "max_tokens": 90_000}  # half an hour, however slowly a browser starts
    with ExitStack() as streams:
        for _ in range(3):
            streams.enter_context(open_request(slow_server, **fields))
        async with opened(f"{slow_server.url}/dashboard", tmp_path) as browser:
            await looks_right_under_load(browser)
            streams.close()
            await browser.wait_for(f"{output('Requests: running')} === '0'")
            assert browser.failures == []
            assert set(browser.requested) <= {f"{slow_server.url}/dashboard", f"{slow_server.url}/metrics", "data:,"}


async def looks_right_under_load(browser: Browser) -> None:
    running = "document.readyState === 'complete' && " + output("Requests: running")
    await browser.wait_for(f"{running} === '3'")
    await browser.wait_for(f"{output('Inter-token latency: p50')} !== '-'")
    assert 10 <= await number(browser, "Inter-token latency: p50") <= 25  # the bucket of 20 ms
    await browser.wait_for(f"Number({output('Tokens: output')}) > 3")
    # The page counts from when it reads to when it reads: the longer it looks, the less does a late reading matter.
    step_ms = STEP_US / 1000
    await browser.wait_for(f"Math.abs({output('Step time: mean')} - {step_ms}) <= {0.1 * step_ms}")
    assert await number(browser, "KV cache in use: in use") > 0
    assert await browser.evaluate("document.title") == "m"
    assert await browser.evaluate(DRAWN.format(place=0))


DRAWN = """
(canvas => canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data.some(each => each))(
  document.querySelectorAll("canvas")[{place}])
"""
"""Whether anything is drawn in a plot."""


async def test_a_browser_shows_when_there_are_no_figures(tmp_path: Path) -> None:
    with running_server() as server:
        async with opened(f"{server.url}/dashboard", tmp_path) as browser:
            await browser.wait_for("(document.getElementById('state') || {}).className === ''")
            await browser.evaluate("window.fetch = async () => ({ ok: false, status: 503 })")
            await browser.wait_for("document.getElementById('state').textContent === 'no figures: status 503'")
