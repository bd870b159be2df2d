"""Runs that never end are distinguished from those that preempt a lot."""

import pytest

from blis_sim.engine.core import Engine
from blis_sim.engine.errors import EngineError
from blis_sim.engine.request import Request, UniqueBlocks
from blis_sim.engine.simulation import run_virtual
from tests.fakes import TestLatency, config

PROMPTS = (30, 25, 19)


def turn_and_turn_about(preemption_policy: str) -> Engine:
    """Three equal requests that are admitted chunk by chunk and need more blocks together than there are."""
    settings = {
        "engine": "vllm",
        "preemption_policy": preemption_policy,
        "priority_policy": "constant",
        "long_prefill_token_threshold": 3,
        "reserve_full_prompt": False,
        "enable_prefix_caching": False,
    }
    return Engine(config(total_kv_blocks=40, block_size_tokens=1, max_model_len=39, **settings), TestLatency())


def arrivals() -> list[tuple[int, Request]]:
    return [(0, Request(f"r{n}", num_tokens, 8, UniqueBlocks(f"r{n}"), 8)) for n, num_tokens in enumerate(PROMPTS)]


@pytest.mark.slow
def test_requests_that_take_blocks_from_each_other_for_ever_are_an_error() -> None:
    engine = turn_and_turn_about("priority")
    with pytest.raises(
        EngineError, match=r"^the run does not end: 3 requests were preempted \d+ times since one ended"
    ):
        list(run_virtual(engine, arrivals()))


@pytest.mark.slow
def test_requests_that_take_blocks_from_each_other_until_the_horizon_are_no_error() -> None:
    engine = turn_and_turn_about("priority")
    list(run_virtual(engine, arrivals(), horizon_us=100_000_000))
    assert engine.counters.num_preemptions > 0
    assert len(engine.live) == len(PROMPTS)


def test_preemptions_that_let_requests_end_are_no_error() -> None:
    engine = turn_and_turn_about("fcfs")
    list(run_virtual(engine, arrivals()))
    assert engine.counters.num_preemptions > 0
    assert not engine.live
