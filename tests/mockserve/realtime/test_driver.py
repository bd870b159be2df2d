"""The real-time driver with a real engine: instants are the engine's own, frames are ordered, late and never early."""

import asyncio
import math
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import replace

import pytest

from blis_sim.engine.core import Engine
from blis_sim.engine.events import Finished
from blis_sim.engine.request import Request
from blis_sim.engine.simulation import run_virtual
from blis_sim.engine.speculation import Speculation
from blis_sim.engine.units import Micros
from mockserve.metrics.counters import Lateness
from mockserve.realtime.driver import RealtimeDriver, WriteCoalescer
from tests.fakes import TestLatency, config, request
from tests.mockserve.realtime.listeners import Listener, Logbook, submit


@pytest.fixture
async def drive() -> AsyncIterator[Callable[..., RealtimeDriver]]:
    """Makes drivers and closes them."""
    made: list[RealtimeDriver] = []

    def make(
        latency: TestLatency, speed: float = 1.0, logbook: Logbook | None = None, **limits: int | str
    ) -> RealtimeDriver:
        engine = Engine(config(**limits), latency)  # type: ignore[arg-type]
        made.append(RealtimeDriver(engine, logbook or Logbook(), WriteCoalescer(Lateness()), speed))
        return made[-1]

    yield make
    for driver in made:
        driver.close()


@pytest.mark.parametrize("scheduling", ["blis", "vllm"])
async def test_a_served_run_replayed_in_virtual_time_has_identical_instants(
    drive: Callable[..., RealtimeDriver], scheduling: str
) -> None:
    latency = TestLatency(step_us=3_000, prefill_token_us=70, decode_us=400, queueing_us=900, output_token_time=250)
    limits: dict[str, int | str] = {
        "total_kv_blocks": 24,
        "max_num_seqs": 6,
        "max_num_batched_tokens": 32,
        "engine": scheduling,
    }
    logbook = Logbook()
    driver = drive(latency, 50.0, logbook, **limits)
    requests = [request(f"r{n}", input_tokens=5 + 7 * n % 40, output_tokens=3 + 11 * n % 30) for n in range(30)]
    listeners = []
    for number, each in enumerate(requests):
        listeners.append(Listener())
        submit(driver, each, listeners[-1])
        if number >= 15:  # however slow the machine is, the others are there together
            await asyncio.sleep(0.0002)
    await asyncio.gather(*(listener.done.wait() for listener in listeners))

    flights = {flight.request.id: flight for flight, _ in logbook.completions}
    arrivals = [(flights[each.id].arrived_at, each) for each in requests]
    engine = Engine(config(**limits), latency)  # type: ignore[arg-type]
    ends = {event.sequence.request.id: event for event in run_virtual(engine, arrivals) if isinstance(event, Finished)}
    assert {name: flight.last_token_at for name, flight in flights.items()} == {
        name: event.at for name, event in ends.items()
    }
    assert any(flight.num_preemptions for flight in flights.values())
    for each, listener in zip(requests, listeners, strict=True):
        assert listener.heard == list(range(1, each.output_tokens + 1))


async def test_frames_are_never_early_whatever_they_wait_for(drive: Callable[..., RealtimeDriver]) -> None:
    latency = TestLatency(step_us=4_000, output_token_time=1_500, post_decode_time=9_000)
    driver = drive(latency)
    listeners = [Listener() for _ in range(5)]
    for number, listener in enumerate(listeners):
        submit(driver, request(f"r{number}", output_tokens=10), listener)
    await asyncio.gather(*(listener.done.wait() for listener in listeners))
    ends = driver.engine.steps.ends()
    for listener in listeners:
        due = [driver.seconds_at(int(ends[number - 1]) + number * 1_500) for number in range(1, 11)]
        due[-1] += 0.009
        assert listener.heard == list(range(1, 11))
        assert all(instant >= at for instant, at in zip(listener.instants, due, strict=True))


@pytest.mark.parametrize("wrong", [3, 10], ids=["in the middle", "at the end"])
@pytest.mark.parametrize("step_us", [1, 4_000], ids=["behind", "in time"])
async def test_a_reply_that_cannot_be_written_ends_no_other_reply(
    drive: Callable[..., RealtimeDriver], wrong: int, step_us: int
) -> None:
    def raises(number: int) -> None:
        if number == wrong:
            raise KeyError("a field that is missing")

    driver = drive(TestLatency(step_us=step_us))
    broken, other = Listener(on_token=raises), Listener()
    submit(driver, request("broken", output_tokens=10), broken)
    submit(driver, request("other", output_tokens=20), other)
    await asyncio.gather(broken.done.wait(), other.done.wait())

    assert broken.failure == "the reply could not be written"
    assert broken.heard == list(range(1, wrong + 1))
    assert (other.failure, other.heard) == (None, list(range(1, 21)))


async def test_being_late_once_delays_nothing_that_comes_after(drive: Callable[..., RealtimeDriver]) -> None:
    driver = drive(TestLatency(step_us=10_000))
    stall = Listener(on_token=lambda number: time.sleep(0.3) if number == 3 else None)
    submit(driver, request(output_tokens=60), stall)
    await stall.done.wait()
    due = [driver.seconds_at(int(end)) for end in driver.engine.steps.ends()]
    lateness = [instant - at for instant, at in zip(stall.instants, due, strict=True)]
    assert lateness[3] > 0.25
    assert min(lateness) >= 0
    assert min(lateness[-10:]) < 0.15, "what came after was late by as much"
    assert driver.wire.lateness.histogram.count == 1, "a whole reply leaves once"


async def test_a_driver_that_is_behind_goes_on_serving_the_loop(drive: Callable[..., RealtimeDriver]) -> None:
    driver = drive(TestLatency(step_us=1), total_kv_blocks=20_000)
    listener = Listener(on_token=lambda number: time.sleep(0.0001))
    submit(driver, request(output_tokens=5_000), listener)
    num_turns = 0
    while not listener.done.is_set():
        await asyncio.sleep(0)
        num_turns += 1
    assert num_turns > 10


class CountingDriver(RealtimeDriver):
    """Counts the wakes that find something due."""

    num_wakes = 0

    def _catch_up(self, due_at: Micros | None, due_until: Micros, runs_until: Micros) -> Micros | None:
        self.num_wakes += 1
        return super()._catch_up(due_at, due_until, runs_until)


async def test_a_step_and_the_delivery_of_its_token_take_one_wake() -> None:
    latency = TestLatency(step_us=5_000, output_token_time=1_000)
    engine = Engine(config(engine="vllm"), latency)
    driver, listener = CountingDriver(engine, Logbook(), WriteCoalescer(Lateness())), Listener()
    submit(driver, request(output_tokens=20), listener)
    await listener.done.wait()
    driver.close()
    assert listener.heard == list(range(1, 21))
    due = [driver.seconds_at(int(end) + 1_000) for end in engine.steps.ends()]
    assert all(instant >= at for instant, at in zip(listener.instants, due, strict=True))
    assert driver.num_wakes <= 24, "one for each step, one for the arrival, two for the first step, and one to spare"


async def test_tokens_of_a_batch_that_shrinks_are_in_time(drive: Callable[..., RealtimeDriver]) -> None:
    """A token is due the sooner the fewer tokens its step has, so requests that leave bring the others' forward."""
    driver = drive(TestLatency(step_us=400_000, output_sequence_time=25_000), max_num_seqs=64)
    begun, kept = asyncio.Event(), Listener(on_token=lambda number: begun.set())
    submit(driver, request("kept", output_tokens=4), kept)
    for number in range(15):
        submit(driver, request(f"r{number}", output_tokens=50), Listener())
    await begun.wait()
    for number in range(15):
        driver.abort(f"r{number}")
    await kept.done.wait()
    due = [driver.seconds_at(int(end) + 25_000) for end in driver.engine.steps.ends()]
    late_s = [instant - at for instant, at in zip(kept.instants, due, strict=True)]
    assert min(late_s) >= 0
    assert max(late_s[2:]) < 0.2, "tokens waited as if the others were still there"


async def test_a_large_batch_is_computed_before_its_tokens_are_due(drive: Callable[..., RealtimeDriver]) -> None:
    """The step of many tokens takes so long that tokens which wait for it would be late."""
    driver = drive(TestLatency(step_us=20_000, output_sequence_time=5_000), max_num_seqs=64)
    done_until: list[Micros] = []
    first = Listener(on_token=lambda number: done_until.append(driver.engine.now or 0))
    submit(driver, request("first", output_tokens=20), first)
    for number in range(39):
        submit(driver, request(f"r{number}", output_tokens=20), Listener())
    await first.done.wait()
    ahead_us = [at - int(end) for at, end in zip(done_until, driver.engine.steps.ends(), strict=False)]
    assert min(ahead_us[1:8]) > 100_000, "the engine waited until 200 ms after each step"


async def test_an_aborted_request_gets_nothing_more_and_leaves_the_engine(
    drive: Callable[..., RealtimeDriver],
) -> None:
    driver = drive(TestLatency(step_us=2_000))
    under_way = asyncio.Event()
    leaving, staying = Listener(on_token=lambda number: under_way.set()), Listener()
    submit(driver, request("a", output_tokens=2000), leaving)
    submit(driver, request("b", output_tokens=20), staying)
    await under_way.wait()
    driver.abort("a")
    heard = len(leaving.heard)
    await staying.done.wait()
    assert len(leaving.heard) == heard
    assert driver.engine.stats.num_running == 0
    assert driver.engine.stats.kv_blocks_used == 0
    driver.abort("a")
    driver.abort("never heard of")


async def test_a_clock_that_jumps_lets_no_time_pass_but_the_engines(drive: Callable[..., RealtimeDriver]) -> None:
    logbook = Logbook()
    latency = TestLatency(step_us=3_600_000_000, queueing_us=500, output_token_time=70)
    driver = drive(latency, math.inf, logbook, engine="vllm")
    listeners = [Listener() for _ in range(3)]
    for number, listener in enumerate(listeners):
        submit(driver, request(f"r{number}", output_tokens=100), listener)
    await asyncio.gather(*(listener.done.wait() for listener in listeners))
    assert [listener.heard for listener in listeners] == [list(range(1, 101))] * 3
    assert {latency_us for _, latency_us in logbook.completions} == {100 * 3_600_000_000 + 500 + 70}
    assert logbook.gaps == {3_600_000_000: 297}
    assert driver.clock() >= 100 * 3_600_000_000, "a later request arrives after that"


async def test_a_clock_that_jumps_waits_for_requests_that_are_coming_in(
    drive: Callable[..., RealtimeDriver],
) -> None:
    logbook = Logbook()
    driver = drive(TestLatency(step_us=1_000_000), math.inf, logbook, engine="vllm")
    first, second = Listener(), Listener()
    submit(driver, request("a", output_tokens=10), first)
    driver.wire.num_received += 1
    asyncio.get_running_loop().call_soon(lambda: submit(driver, request("b", output_tokens=10), second))
    await asyncio.gather(first.done.wait(), second.done.wait())
    assert max(flight.arrived_at for flight, _ in logbook.completions) < 1_000_000, "before the first step"


async def test_tokens_of_many_steps_that_are_due_come_one_by_one_and_are_counted(
    drive: Callable[..., RealtimeDriver],
) -> None:
    logbook = Logbook()
    driver = drive(TestLatency(step_us=10), 1.0, logbook, engine="vllm")
    listeners = [Listener(on_token=lambda number: time.sleep(0.001) if number == 3 else None) for _ in range(3)]
    for number, listener in enumerate(listeners):
        submit(driver, request(f"r{number}", output_tokens=300), listener)
    await asyncio.gather(*(listener.done.wait() for listener in listeners))
    assert [listener.heard for listener in listeners] == [list(range(1, 301))] * 3
    assert logbook.num_tokens == 900
    assert logbook.gaps == {10: 897}


async def test_a_request_that_can_never_be_served_is_refused_with_the_reason(
    drive: Callable[..., RealtimeDriver],
) -> None:
    driver = drive(TestLatency(), total_kv_blocks=2)
    listener = Listener()
    submit(driver, request(input_tokens=100), listener)
    await listener.done.wait()
    assert listener.failure is not None
    assert "the cache has 2" in listener.failure


async def test_an_arrival_just_past_is_stamped_with_its_own_instant(drive: Callable[..., RealtimeDriver]) -> None:
    logbook = Logbook()
    driver = drive(TestLatency(step_us=5_000), logbook=logbook)
    arrived_at = driver.clock()
    time.sleep(0.002)  # noqa: ASYNC251 (as long as it takes to read a request)
    listener = Listener()
    submit(driver, request(output_tokens=1), listener, arrived_at)
    await listener.done.wait()
    ((flight, latency_us),) = logbook.completions
    assert flight.arrived_at == arrived_at
    assert latency_us == 5_000


async def test_every_token_is_recorded_once_with_the_gap_before_it(drive: Callable[..., RealtimeDriver]) -> None:
    logbook = Logbook()
    driver = drive(TestLatency(step_us=1_000), 10.0, logbook)
    listeners = [Listener() for _ in range(3)]
    for number, listener in enumerate(listeners):
        submit(driver, request(f"r{number}", output_tokens=50), listener)
    await asyncio.gather(*(listener.done.wait() for listener in listeners))
    assert logbook.num_tokens == 150
    assert logbook.num_scheduled == 3
    assert logbook.gaps == {1_000: 147}


async def test_tokens_of_one_step_are_handed_over_together_and_counted_one_by_one() -> None:
    speculation = Speculation(method="ngram", num_tokens=3, acceptance_rates=(1.0, 1.0, 0.0))
    limits = replace(config(engine="vllm"), speculation=speculation)
    logbook, listener = Logbook(), Listener()
    driver = RealtimeDriver(Engine(limits, TestLatency(step_us=1_000)), logbook, WriteCoalescer(Lateness()), speed=10.0)
    submit(driver, request(output_tokens=9), listener)
    await listener.done.wait()
    driver.close()
    assert listener.heard == [1, 4, 7, 9]
    assert logbook.num_tokens == 9
    assert logbook.gaps == {1_000: 3}, "one gap per step, as vLLM counts them"


async def test_a_served_run_accepts_the_drafts_that_its_replay_accepts() -> None:
    speculation = Speculation(method="eagle", num_tokens=3, acceptance_rates=(0.7, 0.7, 0.7))
    limits = replace(config(total_kv_blocks=40, engine="vllm"), speculation=speculation)
    latency, logbook = TestLatency(step_us=3_000, prefill_token_us=70), Logbook()
    driver = RealtimeDriver(Engine(limits, latency), logbook, WriteCoalescer(Lateness()), speed=50.0)
    listeners = [Listener() for _ in range(12)]
    for number, listener in enumerate(listeners):
        submit(driver, request(f"{number}", output_tokens=20 + number), listener)
        await asyncio.sleep(0.0002)
    await asyncio.gather(*(listener.done.wait() for listener in listeners))
    driver.close()
    flights = sorted((flight for flight, _ in logbook.completions), key=lambda flight: int(flight.request.id))
    # Replayed requests have other names.
    arrivals = [(flight.arrived_at, flight.request._replace(id=f"replayed {flight.request.id}")) for flight in flights]
    engine = Engine(limits, latency)
    ends = [event.at for event in run_virtual(engine, arrivals) if isinstance(event, Finished)]
    assert sorted(flight.last_token_at for flight in flights) == sorted(ends)
    assert engine.counters.num_accepted_per_position == driver.engine.counters.num_accepted_per_position
    assert 0 < engine.counters.num_accepted_tokens < engine.counters.num_draft_tokens


class BrokenLatency(TestLatency):
    """Raises once two requests decode."""

    def step_time(self, shape: object) -> Micros:
        if getattr(shape, "decode_requests", 0) == 2:
            raise ArithmeticError("out of numbers")
        return self.step_us


async def test_an_engine_that_breaks_fails_waiting_and_later_requests(
    drive: Callable[..., RealtimeDriver],
) -> None:
    unhandled: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: unhandled.append(context["exception"]))
    driver = drive(BrokenLatency(step_us=2_000, output_token_time=500_000))
    first, second = Listener(), Listener()
    arrived_at = driver.clock()
    submit(driver, _ask("a"), first, arrived_at)
    submit(driver, _ask("b"), second, arrived_at)
    await asyncio.gather(first.done.wait(), second.done.wait())
    assert first.failure == second.failure == "out of numbers"
    assert isinstance(driver.failure, ArithmeticError)
    assert unhandled == [driver.failure]
    with pytest.raises(RuntimeError, match="the engine has failed"):
        submit(driver, _ask("c"), Listener())
    driver.abort("a")


def _ask(name: str) -> Request:
    return request(name, output_tokens=10)
