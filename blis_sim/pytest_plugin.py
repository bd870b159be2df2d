"""The pytest plugin: `blis_server` is a mock vLLM server on a free port, started once, with a fresh view for each test.

pytest finds the plugin by its entry point. Its flags come from the ini setting `blis_flags`, from `--blis-flags`, or
from a fixture `blis_flags` of the user's own.
"""

import shlex
from collections.abc import Generator, Iterator, Sequence
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from blis_sim.testing import Server

DEFAULT_FLAGS = "qwen/qwen3-14b --speed max"
"""Flags of `blis serve` without any others: a small model that answers as fast as the machine can."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add `--blis-flags` and the ini setting of the same meaning."""
    text = "Flags of blis serve for the fixture blis_server"
    parser.addini("blis_flags", f"{text} (default: {DEFAULT_FLAGS}).", default=DEFAULT_FLAGS)
    parser.getgroup("blis").addoption("--blis-flags", help=f"{text}, instead of the ini setting.")


@pytest.fixture(scope="session")
def blis_flags(request: pytest.FixtureRequest) -> Sequence[str]:
    """The words of the server's command line. A fixture of the same name in a conftest.py takes its place."""
    given = request.config.getoption("--blis-flags") or request.config.getini("blis_flags")
    return shlex.split(str(given))


@pytest.fixture(scope="session")
def blis_session_server(blis_flags: Sequence[str]) -> Iterator["Server"]:
    """The server that all tests share."""
    from blis_sim.testing import server

    with server(*blis_flags) as running:
        yield running


@pytest.fixture
def blis_server(blis_session_server: "Server") -> Iterator["Server"]:
    """The shared server without faults and set replies, whose counts, requests and log begin with the test."""
    blis_session_server.clear_faults()
    blis_session_server.clear_replies()
    blis_session_server.mark()
    yield blis_session_server
    blis_session_server.clear_faults()
    blis_session_server.clear_replies()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Show the server's log with a test that has failed."""
    report = yield
    running = getattr(item, "funcargs", {}).get("blis_server")
    if running is not None and report.when == "call" and report.failed:
        report.sections.append(("Log of blis serve", running.log))
    return report
