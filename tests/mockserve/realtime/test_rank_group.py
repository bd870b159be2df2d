"""Data-parallel ranks in real time take the steps that they take in virtual time."""

import asyncio
from typing import Any

import pytest

from blis_sim.engine.core import Engine
from blis_sim.engine.data_parallel import RankGroup, new_ranks
from blis_sim.engine.events import Finished
from blis_sim.engine.request import PrefixGroupBlocks, Request
from blis_sim.engine.simulation import run_virtual
from blis_sim.engine.units import Micros
from mockserve.metrics.counters import Lateness
from mockserve.realtime.cluster import RankDriver, RankGroupDriver
from mockserve.realtime.driver import EngineOutput, WriteCoalescer
from tests.fakes import TestLatency, config, request
from tests.mockserve.realtime.listeners import Listener, Logbook, submit

LATENCY = TestLatency(step_us=3_000, prefill_token_us=70, decode_us=400, queueing_us=900, output_token_time=250)
LIMITS: dict[str, Any] = {
    "total_kv_blocks": 40,
    "max_num_seqs": 6,
    "max_num_batched_tokens": 32,
    "engine": "vllm",
    "max_model_len": 96,
}


def driven(group: RankGroup, speed: float = 50.0) -> tuple[RankGroupDriver, list[Logbook]]:
    logbooks = [Logbook() for _ in group.instances]
    outputs = [EngineOutput(engine, each) for engine, each in zip(group.instances, logbooks, strict=True)]
    return RankGroupDriver(group, dict(enumerate(outputs)), WriteCoalescer(Lateness()), speed), logbooks


def workload(number: int) -> list[Request]:
    return [
        request(f"r{n}", 9 + 7 * n % 40, 3 + 11 * n % 30, PrefixGroupBlocks(f"r{n}", f"g{n % 4}", 2))
        for n in range(number)
    ]


async def served(driver: RankGroupDriver, requests: list[Request]) -> list[Listener]:
    listeners, flights = [], []
    for each in requests:
        listeners.append(Listener())
        flights.append(submit(driver, each, listeners[-1]))
        await asyncio.sleep(0.0003)
    await asyncio.gather(*(listener.done.wait() for listener in listeners))
    for each, listener in zip(requests, listeners, strict=True):
        assert listener.heard == list(range(1, each.output_tokens + 1))
    return flights


@pytest.mark.parametrize("shares_experts", [True, False])
@pytest.mark.parametrize("is_async", [True, False])
async def test_a_served_run_replayed_in_virtual_time_has_identical_instants(
    is_async: bool, shares_experts: bool
) -> None:
    def ranks() -> RankGroup:
        return new_ranks(config(**LIMITS, async_scheduling=is_async), LATENCY, 3, shares_experts=shares_experts)

    driver, logbooks = driven(ranks())
    flights = await served(driver, workload(40))
    driver.close()
    counted = {flight.request.id: rank for rank, each in enumerate(logbooks) for flight, _ in each.completions}
    arrivals = [(flight.arrived_at, flight.request) for flight in flights]
    events = list(run_virtual(ranks(), arrivals))
    ends = {event.sequence.request.id: event for event in events if isinstance(event, Finished)}
    assert counted == {name: event.sequence.instance for name, event in ends.items()}
    assert {flight.request.id: flight.last_token_at for flight in flights} == {
        name: event.at for name, event in ends.items()
    }
    assert {*counted.values()} == {0, 1, 2}


@pytest.mark.parametrize("shares_experts", [True, False])
async def test_a_rank_is_acted_on_alone_and_fails_with_all_others(shares_experts: bool) -> None:
    driver, _ = driven(new_ranks(config(**LIMITS), LATENCY, 2, shares_experts=shares_experts))
    first, second = (RankDriver(driver, number, engine) for number, engine in enumerate(driver.group.instances))
    acted: list[Engine] = []

    def act(engine: Engine, _at: Micros) -> bool:
        acted.append(engine)
        return True

    assert second.call_engine(act)
    assert acted == [second.engine]
    assert driver.call_engine(act)
    assert acted == [second.engine, first.engine, second.engine]
    listener = Listener()
    submit(driver, request("a", 9, 3), listener, rank=1)
    first.fail(RuntimeError("broken"))
    await listener.done.wait()
    assert str(second.failure) == "broken"
    assert listener.failure is not None
