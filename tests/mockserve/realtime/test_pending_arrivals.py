"""A request that is prepared beside the event loop arrives at the instant at which it was received."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack

import pytest

from blis_sim.engine.core import Engine
from mockserve.metrics.counters import Lateness
from mockserve.realtime.driver import MAX_ARRIVAL_WAIT_S, MAX_PENDING_ARRIVALS, RealtimeDriver, WriteCoalescer
from tests.fakes import TestLatency, config, request
from tests.mockserve.realtime.listeners import Listener, Logbook, submit
from tests.patience import PATIENCE_S, attempts

SLOWNESS = 50
"""Real seconds per second of the driver's clock, so that a busy machine exhausts no wait."""
NewDriver = Callable[[TestLatency], RealtimeDriver]


def slow_clock() -> float:
    return time.monotonic() / SLOWNESS


@pytest.fixture
async def drive() -> AsyncIterator[NewDriver]:
    made: list[RealtimeDriver] = []

    def make(latency: TestLatency) -> RealtimeDriver:
        wire = WriteCoalescer(Lateness())
        made.append(RealtimeDriver(Engine(config(), latency), Logbook(), wire, monotonic=slow_clock))
        return made[-1]

    yield make
    for driver in made:
        driver.close()


async def heard(listener: Listener, num_tokens: int = 1) -> None:
    """Return when a listener has heard `num_tokens` more tokens."""
    has_heard, last = asyncio.Event(), len(listener.heard) + num_tokens
    listener.on_token = lambda number: has_heard.set() if number >= last else None
    await has_heard.wait()


async def running(driver: RealtimeDriver) -> Listener:
    """Return a listener of a request that has had a token."""
    listener = Listener()
    submit(driver, request("running", output_tokens=1_000_000), listener)
    await heard(listener)
    return listener


@pytest.mark.parametrize("waits", [True, False])
async def test_the_engine_does_not_pass_a_request_that_is_being_prepared(drive: NewDriver, waits: bool) -> None:
    driver = drive(TestLatency(step_us=300))
    await running(driver)
    at = driver.clock()
    if waits:
        with driver.pending_arrival(at):
            await asyncio.sleep(0.002 * SLOWNESS)
    else:
        await asyncio.sleep(0.002 * SLOWNESS)
    assert (submit(driver, request("prepared"), Listener(), at).arrived_at == at) is waits


async def test_the_engine_runs_on_after_a_request_was_prepared(drive: NewDriver) -> None:
    driver = drive(TestLatency(step_us=300))
    listener = await running(driver)
    with driver.pending_arrival(driver.clock()):
        await asyncio.sleep(0.002 * SLOWNESS)
        num_heard = len(listener.heard)
    await asyncio.wait_for(heard(listener, 5), PATIENCE_S)
    assert len(listener.heard) >= num_heard + 5


async def test_the_engine_waits_for_the_first_of_several_arrivals(drive: NewDriver) -> None:
    driver = drive(TestLatency(step_us=300))
    await running(driver)
    first = driver.clock()
    with driver.pending_arrival(first):
        await asyncio.sleep(0.001 * SLOWNESS)
        with driver.pending_arrival(driver.clock()):
            await asyncio.sleep(0.001 * SLOWNESS)
        late_us = submit(driver, request("first"), Listener(), first).arrived_at - first
        assert 0 <= late_us <= 1  # one when a step ended at that very instant


async def test_the_engine_does_not_wait_for_ever(drive: NewDriver) -> None:
    driver = drive(TestLatency(step_us=300))
    listener = await running(driver)
    with driver.pending_arrival(driver.clock()):
        began = slow_clock()
        await heard(listener, 5)
        assert slow_clock() - began > MAX_ARRIVAL_WAIT_S / 2


async def test_steps_of_preparing_a_request_share_one_wait(drive: NewDriver) -> None:
    driver = drive(TestLatency(step_us=300))
    listener = await running(driver)
    at = driver.clock()

    async def prepare() -> None:
        while len(listener.heard) < 40:
            with driver.pending_arrival(at):
                await asyncio.sleep(0.001 * SLOWNESS)

    await asyncio.wait_for(prepare(), PATIENCE_S)
    assert len(listener.heard) >= 40


async def test_the_engine_waits_for_none_of_a_flood(drive: NewDriver) -> None:
    driver = drive(TestLatency(step_us=300))
    listener = await running(driver)
    at = driver.clock()
    with ExitStack() as stack:
        for _ in range(MAX_PENDING_ARRIVALS + 1):
            stack.enter_context(driver.pending_arrival(at))
        began = slow_clock()
        await heard(listener, 5)
        assert slow_clock() - began < MAX_ARRIVAL_WAIT_S / 2


async def test_the_engine_waits_for_the_earliest_arrival_whenever_it_is_added(drive: NewDriver) -> None:
    driver = drive(TestLatency(step_us=300))
    await running(driver)
    at = driver.clock()
    with driver.pending_arrival(at + 500), driver.pending_arrival(at):
        await asyncio.sleep(0.002 * SLOWNESS)
        assert submit(driver, request("first"), Listener(), at).arrived_at == at


async def test_a_call_of_the_engine_follows_all_that_was_due(drive: NewDriver) -> None:
    driver = drive(TestLatency(step_us=300))
    await running(driver)
    with driver.pending_arrival(driver.clock()):
        await asyncio.sleep(0.002 * SLOWNESS)
        assert driver.call_engine(lambda engine, now: (engine.next_event_at() or now) >= now)


async def test_many_arrivals_at_an_idle_engine_leave_nothing(drive: NewDriver) -> None:
    driver = drive(TestLatency(step_us=300))
    for _ in range(100):
        with driver.pending_arrival(driver.clock()), driver.pending_arrival(driver.clock()):
            pass
    assert not driver._pending._arrivals


@pytest.mark.slow
async def test_tokens_of_earlier_steps_are_sent_while_the_engine_waits(drive: NewDriver) -> None:
    for _ in attempts():
        driver = drive(TestLatency(step_us=300, output_token_time=4_000))
        listener = Listener()
        submit(driver, request(output_tokens=1), listener)
        await driver.until(lambda engine: not engine.stats.num_running and bool(engine.now))
        began = slow_clock()
        with driver.pending_arrival(driver.clock()):
            await listener.done.wait()
        assert listener.heard == [1]
        if slow_clock() - began < MAX_ARRIVAL_WAIT_S:
            break
