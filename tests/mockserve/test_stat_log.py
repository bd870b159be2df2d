"""Log lines about throughput, in the form of vLLM's."""

import dataclasses
import logging

import pytest

from blis_sim.engine.config import EngineConfig
from blis_sim.engine.core import Engine
from blis_sim.engine.events import BatchDone
from mockserve.metrics.counters import EngineMetrics, RecentHitRate
from mockserve.metrics.page import IterationLog, MeasuredEngine, StatLog
from tests.fakes import TestLatency, request, run
from traces.steps import step_of_line

LOGGER = "mockserve.metrics.page"


@dataclasses.dataclass
class Held:
    """A driver that only holds an engine."""

    engine: Engine


def measured() -> MeasuredEngine:
    return MeasuredEngine(Held(Engine(EngineConfig(total_kv_blocks=100), TestLatency())), EngineMetrics(2048))


def logged(log: StatLog, now_s: float, caplog: pytest.LogCaptureFixture) -> list[tuple[int, str]]:
    caplog.clear()
    with caplog.at_level(logging.DEBUG, logger=LOGGER):
        log.log(now_s)
    return [(each.levelno, each.getMessage()) for each in caplog.records]


def test_a_line_has_the_throughput_since_the_line_before(caplog: pytest.LogCaptureFixture) -> None:
    engine = measured()
    log = StatLog({0: engine}, 10)
    log.log(100.0)
    engine.metrics.prompt_tokens_by_source["local_compute"] += 969
    engine.metrics.generation_tokens += 2032
    engine.metrics.recent_hit_rate.observe(200, 147)
    ((level, line),) = logged(log, 110.0, caplog)
    assert level == logging.INFO
    assert line == (
        "Engine 000: Avg prompt throughput: 96.9 tokens/s, Avg generation throughput: 203.2 tokens/s, "
        "Running: 0 reqs, Waiting: 0 reqs, GPU KV cache usage: 0.0%, Prefix cache hit rate: 73.5%"
    )


def test_an_idle_engine_has_one_more_line_and_then_none_that_is_shown(caplog: pytest.LogCaptureFixture) -> None:
    engine = measured()
    log = StatLog({0: engine}, 10)
    log.log(0.0)
    engine.metrics.generation_tokens += 5
    levels = [logged(log, at_s, caplog)[0][0] for at_s in (10.0, 20.0, 30.0)]
    assert levels == [logging.INFO, logging.INFO, logging.DEBUG]


def test_each_engine_has_a_line_and_one_that_joins_begins_with_the_next(caplog: pytest.LogCaptureFixture) -> None:
    engines = {0: measured()}
    log = StatLog(engines, 10)
    log.log(0.0)
    engines[12] = measured()
    assert [line[:11] for _, line in logged(log, 10.0, caplog)] == ["Engine 000:"]
    assert [line[:11] for _, line in logged(log, 20.0, caplog)] == ["Engine 000:", "Engine 012:"]
    del engines[0]
    assert [line[:11] for _, line in logged(log, 30.0, caplog)] == ["Engine 012:"]


def test_drafts_have_a_line_of_their_own(caplog: pytest.LogCaptureFixture) -> None:
    engine = measured()
    log = StatLog({0: engine}, 10)
    log.log(0.0)
    counters = engine.driver.engine.counters
    counters.num_drafts, counters.num_draft_tokens, counters.num_accepted_tokens = 10, 30, 15
    counters.num_accepted_per_position[:] = [9, 4, 2]
    *_, (_, line) = logged(log, 10.0, caplog)
    assert line == (
        "SpecDecoding metrics: Mean acceptance length: 2.50, Accepted throughput: 1.50 tokens/s, "
        "Drafted throughput: 3.00 tokens/s, Accepted: 15 tokens, Drafted: 30 tokens, "
        "Per-position acceptance rate: 0.900, 0.400, 0.200, Avg Draft acceptance rate: 50.0%"
    )


def test_the_hit_rate_forgets_all_but_a_thousand_requests() -> None:
    rate = RecentHitRate()
    assert rate.percent is None
    rate.observe(0, 0)
    assert rate.percent == 0
    for _ in range(500):
        rate.observe(10, 10)
    for _ in range(500):
        rate.observe(10, 0)
    assert rate.percent == 50
    for _ in range(500):
        rate.observe(10, 0)
    assert rate.percent == 0


def test_each_step_has_the_line_of_vllm(caplog: pytest.LogCaptureFixture) -> None:
    engine = Engine(EngineConfig(total_kv_blocks=101, engine="vllm"), TestLatency(decode_us=234), reports_batches=True)
    log = IterationLog(3, engine)
    with caplog.at_level(logging.INFO, logger=LOGGER):
        for event in run(engine, [(0, request("a", 100)), (1, request("b", 100))]):
            if isinstance(event, BatchDone):
                log.log(event)
    lines = [each.getMessage() for each in caplog.records]
    assert lines[2] == (
        "Engine 003: Iteration(2): 1 context requests, 100 context tokens, 1 generation requests, "
        "1 generation tokens, iteration elapsed time: 1.23 ms, GPU KV cache usage: 7.0%"
    )
    steps = [step_of_line(line) for line in lines]
    tokens = [step and (step.prefill_tokens, step.decode_tokens) for step in steps]
    assert tokens == [(100, 0), (0, 1), (100, 1), (0, 1), (0, 1)]
