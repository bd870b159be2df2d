"""Waits of the host and of the API server process, in a served run and in a replayed one."""

import asyncio
from pathlib import Path

from blis_sim.engine.core import Engine
from blis_sim.engine.latency.catalogue import load_gpu
from blis_sim.engine.latency.catalogue_reader import load_model
from blis_sim.engine.latency.fitted import Fitted, RequestCoefficients, StepCoefficients
from blis_sim.options import options_from
from mockserve.engines import deployment_of
from mockserve.metrics.counters import Lateness
from mockserve.options.serve import ServeOptions
from mockserve.realtime.driver import RealtimeDriver, WriteCoalescer
from replay.arrivals import Arrival
from replay.simulation.simulate import simulate
from tests.coefficients_file import CONTENT, written
from tests.fakes import config, request
from tests.mockserve.realtime.listeners import Listener, Logbook, submit
from tests.replay.small_traces import row

STEP = StepCoefficients(**CONTENT["step"], idle_start_us=2_500.0)
REQUEST = RequestCoefficients(**CONTENT["request"], output_turn_us=700.0)
LATENCY = Fitted(load_model("qwen3-14b"), load_gpu("H100"), 1, STEP, REQUEST, growth_requests=2)
LIMITS = {"engine": "vllm", "max_num_seqs": 12, "total_kv_blocks": 100_000}


async def test_a_served_run_has_the_latencies_of_a_replayed_one() -> None:
    logbook = Logbook()
    engine = Engine(config(**LIMITS), LATENCY)  # type: ignore[arg-type]
    driver = RealtimeDriver(engine, logbook, WriteCoalescer(Lateness()), 20.0)
    requests = [request(f"r{n}", input_tokens=50 + 170 * n % 900, output_tokens=3 + 11 * n % 30) for n in range(30)]
    listeners = [Listener() for _ in requests]
    for number, (each, listener) in enumerate(zip(requests, listeners, strict=True)):
        submit(driver, each, listener)
        if number > 15:
            await asyncio.sleep(0.001)
    await asyncio.gather(*(listener.done.wait() for listener in listeners))
    driver.close()
    flights = {flight.request.id: flight for flight, _ in logbook.completions}
    arrivals = [Arrival(flights[each.id].arrived_at, each, row(place)) for place, each in enumerate(requests)]
    replayed = simulate(Engine(config(**LIMITS), LATENCY), arrivals).requests  # type: ignore[arg-type]
    assert [flights[each.id].first_token_latency_us for each in replayed] == [each.ttft_us for each in replayed]
    assert [flights[each.id].e2e_latency_us for each in replayed] == [each.e2e_us for each in replayed]


def test_api_server_processes_of_a_server_share_its_tokens(tmp_path: Path) -> None:
    file = written(tmp_path, request={**CONTENT["request"], "output_turn_us": 30.0})
    settings = {"model": "qwen/qwen3-14b", "hardware": "H100", "tp": 1, "engine": "vllm", "latency_model": "fitted"}
    turns = [
        deployment_of(
            options_from(ServeOptions, **settings, coefficients=str(file), api_server_count=count)
        ).latency.output_turn_us
        for count in (1, 3)
    ]
    assert turns == [30.0, 10.0]
