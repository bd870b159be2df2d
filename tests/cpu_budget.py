"""Everyday tests are cheap: one without the mark `slow` that costs more CPU than the budget fails.

The cost of a test is the CPU time of its process and of all processes below it, from its setup to the end of its call.
Fixtures that several tests share do not count. On a busy machine the same work takes more CPU time, so a test over the
budget is judged by how long a loop takes at that moment. It runs once more before it fails: the first run of a checkout
pays for modules that nothing had imported or compiled before.

On a machine shared with others the cost of the same test varies tenfold: there `--cpu-budget-reports` only lists them.
The nightly run, which has a hundred times as many examples, has no budget.
"""

import gc
import os
import resource
import time
from collections.abc import Generator, Iterator
from typing import Any

import pytest
from _pytest.runner import runtestprotocol
from hypothesis import strategies

from tests.examples import is_nightly

BUDGET_S = 2.0
"""Twice the cost from which a test is marked `slow`."""
LOOP_TURNS = 1_000_000
LOOP_S = 0.025
"""CPU time of the loop on an idle core of the machine on which the marks were measured."""
OVER_BUDGET = "cpu_over_budget_s"
TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--cpu-budget-s", type=float, default=BUDGET_S, help="CPU seconds that a test without `slow` has")
    parser.addoption("--cpu-budget-reports", action="store_true", help="list tests over the budget, and fail none")


def pytest_configure(config: pytest.Config) -> None:
    fails = not config.getoption("cpu_budget_reports")
    config.pluginmanager.register(CpuBudget(config.getoption("cpu_budget_s"), fails), "cpu-budget")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """List the tests that were over the budget and did not fail."""
    for report in terminalreporter.getreports(""):
        for name, cost_s in report.user_properties:
            if name == OVER_BUDGET and report.when == "teardown":
                terminalreporter.write_line(f"over the CPU budget: {report.nodeid} took {cost_s:.1f} s")


class CpuBudget:
    """Measures each test, and afterwards fails it, or lists it, when it is over `budget_s`."""

    def __init__(self, budget_s: float, fails: bool) -> None:
        self._budget_s = budget_s
        self._fails = fails
        self._began_s = 0.0
        self._shared_s = 0.0
        self._cost_s = 0.0
        self._is_again = self._is_over = False
        self._garbage_began_s = 0.0
        gc.callbacks.append(self._look_for_garbage)

    def _look_for_garbage(self, phase: str, info: dict[str, int]) -> None:
        """Subtract whole collections of garbage, which go through what all tests before have left."""
        if info["generation"] < 2:
            return
        if phase == "start":
            self._garbage_began_s = time.process_time()
        else:
            self._shared_s += time.process_time() - self._garbage_began_s

    def pytest_collection(self) -> None:
        """Collect tests without looking for garbage: of a million objects hardly one is."""
        gc.disable()

    def pytest_collection_finish(self) -> None:
        """Let hypothesis build its tables of characters, which takes a second once per checkout, before any test.

        What has been collected is never looked at again for garbage, which tests would pay for.
        """
        strategies.text().validate()
        gc.freeze()
        gc.enable()

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item, nextitem: pytest.Item | None) -> bool:
        """Run a test, and again if it was over the budget; the last run is what is reported."""
        item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
        self._is_again = self._is_over = False
        reports = runtestprotocol(item, log=False, nextitem=nextitem)
        if self._is_over and all(report.passed for report in reports):
            self._is_again = True
            reports = runtestprotocol(item, log=False, nextitem=nextitem)
        for report in reports:
            item.ihook.pytest_runtest_logreport(report=report)
        item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
        return True

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: pytest.FixtureDef[Any]) -> Generator[None, object, object]:
        """Subtract what is set up once for many tests."""
        began_s = 0.0 if fixturedef.scope == "function" else cpu_s()
        try:
            return (yield)
        finally:
            if fixturedef.scope != "function":
                self._shared_s += cpu_s() - began_s

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_setup(self) -> Generator[None, None, None]:
        self._began_s, self._shared_s = cpu_s(), 0.0
        return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self) -> Generator[None, None, None]:
        try:
            return (yield)
        finally:
            self._cost_s = cpu_s() - self._began_s - self._shared_s

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_teardown(self, item: pytest.Item) -> Generator[None, None, None]:
        yield
        cost_s, self._cost_s = self._cost_s, 0.0
        if cost_s <= self._budget_s or item.get_closest_marker("slow") is not None or is_nightly():
            return
        cost_s /= max(1.0, slowness())
        self._is_over = cost_s > self._budget_s
        if not self._is_over or not self._is_again:
            return
        if self._fails:
            pytest.fail(
                f"{cost_s:.1f} s of CPU, and a test without the mark `slow` has {self._budget_s:g}", pytrace=False
            )
        item.user_properties.append((OVER_BUDGET, cost_s))


def slowness() -> float:
    """Return how many times the CPU time of an idle core this process takes for the same work now."""
    began_s = time.process_time()
    for _ in range(LOOP_TURNS):
        pass
    return (time.process_time() - began_s) / LOOP_S


def cpu_s() -> float:
    """CPU time of this process and of all below it, ended or alive, in seconds."""
    own, ended = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
    alive_s = sum(map(_cpu_of, _processes_below(os.getpid())))
    return own.ru_utime + own.ru_stime + ended.ru_utime + ended.ru_stime + alive_s


def _processes_below(process_id: int) -> Iterator[int]:
    """Yield the living processes that this one started, and theirs; none where the system does not list them."""
    try:
        threads = os.listdir(f"/proc/{process_id}/task")
    except OSError:
        return
    for thread in threads:
        for child in _words(f"/proc/{process_id}/task/{thread}/children"):
            yield int(child)
            yield from _processes_below(int(child))


def _cpu_of(process_id: int) -> float:
    """CPU time of a process and of the ended ones below it, in seconds; 0 when it has ended."""
    fields = _words(f"/proc/{process_id}/stat", after=")")
    return sum(map(int, fields[11:15])) / TICKS_PER_S


def _words(path: str, after: str = "") -> list[str]:
    """Words of a file of the kernel, none when its process has ended; the name of a process may hold blanks."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            text = file.read()
    except OSError:
        return []
    return (text.rpartition(after)[2] if after else text).split()
