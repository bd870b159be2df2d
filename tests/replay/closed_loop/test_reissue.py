"""Replay by schedule and cap: when each request is sent, worked out by hand for steps of 1 ms."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from blis_sim.engine.core import Engine
from replay.arrivals import Arrival
from replay.simulation.simulate import Simulated, simulate, simulate_reissued
from tests.examples import examples
from tests.fakes import TestLatency, config, request
from tests.replay.small_traces import row

MS = 1_000
LATENCY = TestLatency(step_us=MS)


def due(*instants_us: int, output_tokens: int = 3) -> list[Arrival]:
    return [
        Arrival(at, request(f"r{number}", output_tokens=output_tokens), row(number))
        for number, at in enumerate(instants_us)
    ]


def reissued(arrivals: list[Arrival], cap: int, horizon_us: int | None = None, **latency: int) -> Simulated:
    engine = Engine(config(engine="vllm", async_scheduling=False), TestLatency(step_us=MS, **latency))
    return simulate_reissued(engine, arrivals, cap, horizon_us)


def sent(run: Simulated) -> list[tuple[str, int]]:
    return [(each.id, each.arrived_at) for each in run.requests]


def test_requests_under_the_cap_are_sent_when_they_are_due() -> None:
    assert sent(reissued(due(0, 500, 20_000), cap=2)) == [("r0", 0), ("r1", 500), ("r2", 20_000)]


def test_a_request_beyond_the_cap_is_sent_when_a_reply_has_come() -> None:
    assert sent(reissued(due(0, 500), cap=1)) == [("r0", 0), ("r1", 3 * MS + 1)]


def test_the_reply_has_come_when_its_last_token_has_reached_the_client() -> None:
    run = reissued(due(0, 500), cap=1, output_token_time=40, post_decode_time=300)
    assert sent(run)[1] == ("r1", 3 * MS + 340 + 1)


def test_the_line_keeps_its_order() -> None:
    run = reissued(due(0, 1, 2, 3), cap=1)
    assert [request_id for request_id, _ in sent(run)] == ["r0", "r1", "r2", "r3"]


def test_latencies_count_from_the_sending() -> None:
    run = reissued(due(0, 500), cap=1)
    assert [each.e2e_us for each in run.requests] == [3 * MS, 3 * MS]


def test_without_a_cap_all_is_as_in_an_open_loop() -> None:
    arrivals = due(0, 100, 100, 2_000, 2_050, 9_000)
    open_loop = simulate(Engine(config(engine="vllm", async_scheduling=False), LATENCY), arrivals)
    assert list(reissued(arrivals, cap=0).requests) == list(open_loop.requests)


def test_the_horizon_leaves_the_line_unsent() -> None:
    run = reissued(due(0, 500), cap=1, horizon_us=2 * MS)
    assert [each.outcome for each in run.requests] == [None]
    assert sent(run) == [("r0", 0)]


@settings(max_examples=examples(60))
@given(
    instants=st.lists(st.integers(0, 20).map(lambda grid: grid * 500), min_size=1, max_size=12),
    cap=st.integers(1, 4),
    output_us=st.sampled_from([0, 40]),
)
def test_never_more_are_in_flight_than_the_cap_allows_and_no_request_waits_without_need(
    instants: list[int], cap: int, output_us: int
) -> None:
    run = reissued(due(*sorted(instants)), cap, output_token_time=output_us)
    spans = [(each.arrived_at, each.arrived_at + (each.e2e_us or 0)) for each in run.requests]
    due_at = {f"r{number}": at for number, at in enumerate(sorted(instants))}
    for start, _ in spans:
        assert sum(begin <= start < end for begin, end in spans) <= cap
    assert len(spans) == len(instants)
    for each in run.requests:
        if each.arrived_at > due_at[each.id]:
            assert any(end + 1 == each.arrived_at for _, end in spans)


@pytest.mark.parametrize("cap", [1, 3])
def test_every_request_is_answered(cap: int) -> None:
    record = reissued(due(*range(0, 4_000, 200)), cap).requests
    assert len(record) == 20
    assert record.is_completed.all()
