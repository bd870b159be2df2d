"""Tokens never arrive before the engine's instants, and lateness does not accumulate."""

import asyncio
import itertools
import json
import math
import time

import pytest

from blis_sim.engine.units import Micros
from tests.fakes import TestLatency
from tests.wire.plain_http import chunks_of, complete, metric
from tests.wire.serving import TestServer, running_server

LATENESS_S = 0.1
"""A busy machine delays some tokens for longer, but not all of several."""


async def arrivals(server: TestServer, **fields: object) -> list[float]:
    """The monotonic instants at which the tokens of one streamed completion arrive."""
    body = json.dumps({"prompt": "hello", "ignore_eos": True, "stream": True, **fields}).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(body)}"
    reader, writer = await asyncio.open_connection(server.host, server.port)
    writer.write(head.encode() + b"\r\n\r\n" + body)
    instants: list[float] = []
    while b"[DONE]" not in (line := await reader.readline()):
        assert line, "the stream was cut"
        if line.startswith(b"data: "):
            instants.append(time.monotonic())
    writer.close()
    await writer.wait_closed()
    return instants


def ends_of_steps(server: TestServer, first: int = 0) -> list[Micros]:
    """The instants at which the engine's steps ended, from step `first` on."""
    return [int(end) for end in server.service.engines[0].driver.engine.steps.ends()[first:]]


async def test_tokens_arrive_when_their_steps_end_in_real_time() -> None:
    with running_server(TestLatency(step_us=20_000), speed=1.0) as server:
        instants = await arrivals(server, max_tokens=40)
        due = [server.service.engines[0].driver.seconds_at(end) for end in ends_of_steps(server)]
    assert len(instants) == len(due) == 40
    lateness = [instant - at for instant, at in zip(instants, due, strict=True)]
    assert min(lateness) >= 0
    assert min(lateness[:10]) < LATENESS_S
    assert min(lateness[-10:]) < LATENESS_S


@pytest.mark.parametrize("speed", [1.0, 10.0, 100.0])
async def test_a_faster_clock_scales_all_times(speed: float) -> None:
    with running_server(TestLatency(step_us=int(2_000 * speed)), speed=speed) as server:
        instants = await arrivals(server, max_tokens=100)
        due = [server.service.engines[0].driver.seconds_at(end) for end in ends_of_steps(server)]
    assert due[-1] - due[0] == pytest.approx(99 * 0.002)
    assert all(instant >= at for instant, at in zip(instants, due, strict=True))
    assert min(instant - at for instant, at in zip(instants[-10:], due[-10:], strict=True)) < LATENESS_S


async def test_overheads_delay_tokens_but_not_the_engine() -> None:
    latency = TestLatency(step_us=10_000, queueing_us=30_000, output_token_time=2_000, post_decode_time=25_000)
    with running_server(latency, speed=1.0) as server:
        before = server.service.delivery.driver.clock()
        instants = await arrivals(server, max_tokens=5)
        ends = ends_of_steps(server)
        seconds_at = server.service.engines[0].driver.seconds_at
    assert ends[0] >= before + 30_000 + 10_000
    assert [later - earlier for earlier, later in itertools.pairwise(ends)] == [10_000] * 4
    due = [seconds_at(end + 2_000) for end in ends]
    due[-1] += 0.025
    assert all(instant >= at for instant, at in zip(instants, due, strict=True))
    assert min(instant - at for instant, at in zip(instants, due, strict=True)) < LATENESS_S


async def test_many_streams_keep_their_pace_together() -> None:
    with running_server(TestLatency(step_us=25_000), speed=1.0) as server:
        streams = await asyncio.gather(*(arrivals(server, max_tokens=20) for _ in range(30)))
        due = [server.service.engines[0].driver.seconds_at(end) for end in ends_of_steps(server)]
    for instants in streams:
        assert all(instant >= at for instant, at in zip(instants, due, strict=False))
    latest = [instant - at for instants in streams for instant, at in zip(instants[-5:], due[-5:], strict=True)]
    assert min(latest) < LATENESS_S


def test_at_greatest_speed_hours_take_no_time_and_times_are_the_engines() -> None:
    with running_server(TestLatency(step_us=600_000_000), speed=math.inf) as server:
        for _ in range(2):
            reply = complete(server, max_tokens=200, ignore_eos=True, stream=True)
            assert len(chunks_of(reply.body)) == 200
        assert metric(server, "vllm:e2e_request_latency_seconds_sum") == pytest.approx(2 * 200 * 600)
        assert metric(server, "vllm:inter_token_latency_seconds_sum") == pytest.approx(2 * 199 * 600)
        assert metric(server, "blis_send_lag_seconds_count") == 0


def test_the_first_bytes_that_the_client_reads_are_counted_from_its_arrival() -> None:
    with running_server(TestLatency(step_us=50_000), speed=10.0) as server:
        complete(server, max_tokens=3, ignore_eos=True)
        assert metric(server, "vllm:time_to_first_token_seconds_sum") == pytest.approx(0.05)
        assert metric(server, "vllm:e2e_request_latency_seconds_sum") == pytest.approx(0.15)
        assert metric(server, "vllm:inter_token_latency_seconds_sum") == pytest.approx(0.1)
