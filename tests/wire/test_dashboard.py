"""GET /dashboard: a page that loads the server's metrics only."""

import re
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.fakes import TestLatency
from tests.patience import PATIENCE_S
from tests.wire.browser import Browser, opened
from tests.wire.plain_http import call, complete, open_request
from tests.wire.serving import TestServer, running_server

STEP_US = 20_000


def figures_of(server: TestServer) -> Any:
    return call(server, "GET", "/dashboard/figures").json


def test_the_dashboard_page_loads_nothing_from_other_hosts(server: TestServer) -> None:
    reply = call(server, "GET", "/dashboard")
    assert (reply.status, reply.headers["content-type"]) == (200, "text/html; charset=utf-8")
    assert re.findall(rb"https?:|\bsrc=|@import|url\(", reply.body) == []
    assert re.findall(rb'fetch\("([^"]*)"', reply.body) == [b"dashboard/figures"]


def test_every_figure_that_the_page_shows_is_in_the_reply(server: TestServer) -> None:
    complete(server)
    page = call(server, "GET", "/dashboard").body.decode()
    names = set(re.findall(r'"([a-z]\w+(?:_per_s|_ms|_percent))"', page)) | {"running", "waiting"}
    shown = eventually(lambda: figures_of(server), lambda found: found["figures"]["at"])
    series, (engine,) = shown["figures"]["series"], shown["figures"]["engines"]
    expanded = {f"{name}_{each}_ms" for name in re.findall(r'PERCENTILES\("(\w+)"\)', page) for each in PERCENTILES}
    assert len(names) >= 9
    assert names | expanded <= {*series, *engine}
    assert all(len(values) == len(shown["figures"]["at"]) for values in series.values())


PERCENTILES = ("p50", "p90", "p99")


def eventually(read: Callable[[], Any], holds: Callable[[Any], Any]) -> Any:
    """Read until what was read holds."""
    deadline = time.monotonic() + PATIENCE_S
    while not holds(found := read()):
        assert time.monotonic() < deadline, found
        time.sleep(0.05)
    return found


def test_settings_faults_and_errors_are_in_the_reply() -> None:
    with running_server(num_instances=3, fault_rates=("rate_limit=1.0",), speed=50.0) as server:
        assert complete(server).status == 429
        found = figures_of(server)
        assert found["server"] == {
            "model": "m", "gpu": "H100", "tp": 1, "dp": 1, "engine": "vllm", "latency_model": "fitted", "speed": 50.0,
            "faults": {"rate_limit": 1.0}, "engine_faults": [],
        }  # fmt: skip
        eventually(lambda: figures_of(server)["figures"]["errors_by_status"], lambda errors: errors == {"429": 1})
        assert figures_of(server)["figures"]["num_engines"] == 3


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
            await browser.send("Page.reload")
            await browser.wait_for(f"{LOADED} && latest.figures.at.length > 3")  # seconds before the reload are there
            streams.close()
            await browser.wait_for(f"{output('Requests: running')} === '0'")
            assert browser.failures == []
            assert set(browser.requested) <= {f"{slow_server.url}/dashboard{each}" for each in ("", "/figures")} | {
                "data:,"
            }


async def looks_right_under_load(browser: Browser) -> None:
    running = f"{LOADED} && " + output("Requests: running")
    await browser.wait_for(f"{running} === '3'")
    await browser.wait_for(f"{output('Inter-token latency: p50')} !== '-'")
    assert await number(browser, "Inter-token latency: p50") == pytest.approx(STEP_US / 1000, rel=0.02)
    await browser.wait_for(f"Number({output('Tokens: output')}) > 3")
    # Steps are counted from look to look: the more looks there are, the less does a late one matter.
    step_ms = STEP_US / 1000
    await browser.wait_for(f"Math.abs({output('Step time: mean')} - {step_ms}) <= {0.1 * step_ms}")
    assert await number(browser, "KV cache in use: in use") > 0
    assert await browser.evaluate("document.title") == "m"
    assert await browser.evaluate(DRAWN.format(place=0))


LOADED = "document.readyState === 'complete' && typeof latest !== 'undefined' && latest"

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
