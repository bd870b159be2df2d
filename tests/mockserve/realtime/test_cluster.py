"""A cluster in real time decides and ends as the same cluster in virtual time."""

import asyncio
import math
from typing import Any

import pytest

from blis_sim.engine.cluster.assembly import build_cluster
from blis_sim.engine.cluster.cluster import Cluster
from blis_sim.engine.cluster.instance import InstanceState
from blis_sim.engine.cluster.options import ClusterOptions
from blis_sim.engine.core import Engine
from blis_sim.engine.deployment import resolve
from blis_sim.engine.events import Finished
from blis_sim.engine.request import PrefixGroupBlocks, Request
from blis_sim.engine.simulation import run_virtual
from blis_sim.engine.units import Micros
from blis_sim.options import options_from
from mockserve.metrics.counters import Lateness
from mockserve.realtime.cluster import ClusterDriver, InstanceDriver
from mockserve.realtime.driver import EngineFailedError, EngineOutput, WriteCoalescer
from tests.fakes import TestLatency, config, request
from tests.mockserve.realtime.listeners import Listener, Logbook, submit
from tests.patience import PATIENCE_S

LATENCY = TestLatency(step_us=3_000, prefill_token_us=70, decode_us=400, queueing_us=900, output_token_time=250)
LIMITS: dict[str, Any] = {
    "total_kv_blocks": 32,
    "max_num_seqs": 6,
    "max_num_batched_tokens": 32,
    "engine": "vllm",
    "max_model_len": 96,
}


def built(num_instances: int = 3, **settings: Any) -> Cluster:
    options = options_from(
        ClusterOptions, model="qwen/qwen3-14b", hardware="H100", tp=1, num_instances=num_instances, **settings
    )
    return build_cluster(options, resolve(options.deployment), lambda _: Engine(config(**LIMITS), LATENCY))


def driven(cluster: Cluster, speed: float = 50.0) -> tuple[ClusterDriver, list[Logbook]]:
    """A driver, with a counter for each instance."""
    logbooks = [Logbook() for _ in cluster.instances]
    outputs = [EngineOutput(engine, each) for engine, each in zip(cluster.instances, logbooks, strict=True)]
    return ClusterDriver(cluster, dict(enumerate(outputs)), WriteCoalescer(Lateness()), speed), logbooks


def workload(number: int) -> list[Request]:
    """Some share a beginning, some do not; their lengths vary."""
    return [
        request(
            f"r{n}",
            input_tokens=9 + 7 * n % 40,
            output_tokens=3 + 11 * n % 30,
            blocks=PrefixGroupBlocks(f"r{n}", f"g{n % 4}", 2),
        )
        for n in range(number)
    ]


async def served(driver: ClusterDriver, requests: list[Request]) -> list[Listener]:
    """Let them arrive one after the other and wait for all of them."""
    listeners, flights = [], []
    for each in requests:
        listeners.append(Listener())
        flights.append(submit(driver, each, listeners[-1]))
        await asyncio.sleep(0.0003)
    await asyncio.gather(*(listener.done.wait() for listener in listeners))
    for each, listener in zip(requests, listeners, strict=True):
        assert listener.heard == ([] if listener.failure else list(range(1, each.output_tokens + 1)))
    return flights


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"routing_policy": "weighted"},
        {"routing_policy": "weighted", "snapshot_refresh_interval": 5_000, "cache_signal_delay": 0},
        {"routing_policy": "least-loaded", "admission_latency": 700, "routing_latency": 300},
        {"admission_policy": "token-bucket", "token_bucket_capacity": 300.0, "token_bucket_refill_rate": 900.0},
        {"flow_control": True, "saturation_detector": "concurrency", "max_concurrency": 4},
        {"prefill_instances": 1, "decode_instances": 2, "pd_decider": "always", "routing_policy": "least-loaded"},
    ],
)
async def test_a_served_run_replayed_in_virtual_time_has_identical_instants(settings: dict[str, Any]) -> None:
    requests = workload(40)
    cluster = built(**settings)
    driver, logbooks = driven(cluster)
    flights = await served(driver, requests)
    driver.close()
    counted = {flight.request.id: number for number, each in enumerate(logbooks) for flight, _ in each.completions}
    replayed = built(**settings)
    arrivals = [(flight.arrived_at, flight.request) for flight in flights]
    ends = [event for event in run_virtual(replayed, arrivals) if isinstance(event, Finished)]
    answered = {event.sequence.request.id: event for event in ends if event.sequence.instance >= 0}
    assert counted == {name: event.sequence.instance for name, event in answered.items()}
    assert {flight.request.id: flight.last_token_at for flight in flights if flight.num_tokens} == {
        name: event.at for name, event in answered.items()
    }
    assert len({*counted.values()}) > 1


async def test_a_request_that_names_an_instance_is_neither_admitted_nor_routed() -> None:
    cluster = built(admission_policy="reject-all")
    driver, logbooks = driven(cluster)
    alone = InstanceDriver(driver, 2, cluster.instances[2])
    direct, routed = Listener(), Listener()
    submit(alone, request("a"), direct)
    submit(driver, request("b"), routed)
    await asyncio.gather(direct.done.wait(), routed.done.wait())
    assert direct.heard == [1, 2, 3]
    assert routed.failure == "the request was rejected: the cluster does not admit it"
    assert [len(each.completions) for each in logbooks] == [0, 0, 1]
    driver.close()


async def test_waiting_to_be_routed_ends_with_the_request() -> None:
    driver, _ = driven(built(admission_policy="reject-all"))
    listener = Listener()
    submit(driver, request("a"), listener)
    await asyncio.wait_for(driver.until_routed(["a"]), PATIENCE_S)
    assert listener.done.is_set()
    await driver.until_routed(["a", "never heard of"])
    driver.close()


async def test_actions_on_one_instance_leave_the_others_alone() -> None:
    cluster = built(num_instances=2)
    driver, _ = driven(cluster, speed=0.1)
    listeners = [Listener(), Listener()]
    for number, listener in enumerate(listeners):
        submit(driver, request(f"r{number}", output_tokens=80), listener)
    await driver.until_routed(["r0", "r1"])
    first, second = (InstanceDriver(driver, number, cluster.instances[number]) for number in range(2))
    assert (first.request_ids, second.request_ids) == ({"r0"}, {"r1"})
    assert (first.num_unfinished_requests, driver.num_unfinished_requests) == (1, 2)
    assert first.end_early(["r1"]) == 0
    assert first.end_early() == 1
    assert (first.num_unfinished_requests, second.num_unfinished_requests) == (0, 1)
    second.fail(RuntimeError("broken"))
    await asyncio.wait_for(listeners[1].done.wait(), PATIENCE_S)
    assert listeners[1].failure == "the request was failed: "
    assert isinstance(second.failure, EngineFailedError)
    with pytest.raises(EngineFailedError):
        submit(second, request("r3"), Listener())
    await asyncio.wait_for(second.until(lambda _: False), PATIENCE_S)  # it is removed then
    for driver_of_rank in (second, InstanceDriver(driver, 1, second.engine, rank=0)):
        with pytest.raises(EngineFailedError):
            driver_of_rank.call_engine(lambda engine, _: engine.stats)
    assert (first.failure, driver.failure, first.takes_requests, second.takes_requests) == (None, None, True, False)
    driver.close()


async def test_instances_come_and_go_at_once_or_later() -> None:
    cluster = built(num_instances=1)
    logbooks = [Logbook() for _ in range(3)]
    outputs = {0: EngineOutput(cluster.instances[0], logbooks[0])}
    removed: list[tuple[int, InstanceState]] = []
    driver = ClusterDriver(cluster, outputs, WriteCoalescer(Lateness()), 50.0)
    driver.on_removed = lambda number, life: removed.append((number, life))

    async def add(after_us: Micros) -> None:
        engine = Engine(config(**LIMITS), LATENCY)
        outputs[len(outputs)] = EngineOutput(engine, logbooks[len(outputs)])
        await driver.add(engine, after_us)

    await add(0)
    await add(3_600_000_000)
    assert [driver.instance_state(number) for number in range(3)] == [
        InstanceState.READY,
        InstanceState.READY,
        InstanceState.LOADING,
    ]
    await driver.drain(0)
    await served(driver, workload(6))
    assert [len(each.completions) for each in logbooks] == [0, 6, 0]
    driver.kill(1)
    await driver.until_killed(1)
    assert not driver.takes_requests
    assert removed == [(0, InstanceState.DRAINING), (1, InstanceState.KILLED)]
    assert (list(outputs), [driver.instance_state(number) for number in range(3)]) == (
        [2],
        [None, None, InstanceState.LOADING],
    )
    assert driver.engine is outputs[2].engine
    driver.close()


async def test_a_clock_that_jumps_drives_a_cluster() -> None:
    driver, logbooks = driven(built(), math.inf)
    await served(driver, workload(12))
    assert [len(each.completions) for each in logbooks] == [4, 4, 4]
    driver.close()
