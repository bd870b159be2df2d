"""A request alone in the engine takes exactly its own steps."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from blis_sim.engine.core import Engine
from blis_sim.engine.latency.blackbox import Blackbox
from replay.arrivals import Arrival
from replay.simulation.record import RequestRecord
from replay.simulation.simulate import simulate
from tests.examples import examples
from tests.fakes import TestLatency, config, request
from traces import TraceRow

_times = st.integers(0, 5_000)
_latencies = st.builds(
    TestLatency,
    step_us=st.integers(1, 5_000),
    prefill_token_us=_times,
    decode_us=_times,
    queueing_us=_times,
    output_token_time=_times,
    post_decode_time=_times,
)
_prompts = st.integers(1, 200)
_outputs = st.integers(1, 20)


def lone(latency: TestLatency | Blackbox, prompt: int, output: int, **settings: int | str) -> RequestRecord:
    row = TraceRow(request_id=0, input_tokens=prompt, output_tokens=output, arrival_time_us=0)
    engine = Engine(config(1_000, 16, **settings), latency)
    return simulate(engine, [Arrival(777, request("a", prompt, output), row)]).requests[0]


@settings(max_examples=examples(40), deadline=None)
@given(_latencies, _prompts, _outputs, st.integers(1, 250))
def test_ttft_is_queueing_and_prefill_in_chunks_and_one_output_overhead(
    latency: TestLatency, prompt: int, output: int, budget: int
) -> None:
    measured = lone(latency, prompt, output, max_num_batched_tokens=budget)
    chunks = -(-prompt // budget)
    prefill_us = chunks * latency.step_us + prompt * latency.prefill_token_us
    assert measured.ttft_us == latency.queueing_us + prefill_us + latency.output_token_time


@settings(max_examples=examples(40), deadline=None)
@given(_latencies, _prompts, _outputs)
def test_each_further_token_costs_a_decode_step_and_an_output_overhead(
    latency: TestLatency, prompt: int, output: int
) -> None:
    measured = lone(latency, prompt, output)
    assert measured.ttft_us is not None
    gap_us = latency.step_us + latency.decode_us + latency.output_token_time
    assert measured.e2e_us == measured.ttft_us + (output - 1) * gap_us + latency.post_decode_time
    assert measured.itl_mean_us == (gap_us if output > 1 else 0)


@pytest.mark.parametrize("async_scheduling", [True, False])
@settings(max_examples=examples(40), deadline=None)
@given(latency=_latencies, prompt=_prompts, output=_outputs)
def test_with_vllm_scheduling_output_overheads_overlap_the_steps(
    async_scheduling: bool, latency: TestLatency, prompt: int, output: int
) -> None:
    measured = lone(latency, prompt, output, engine="vllm", async_scheduling=async_scheduling)
    assert measured.ttft_us is not None
    gap_us = latency.step_us + latency.decode_us
    assert measured.e2e_us == measured.ttft_us + (output - 1) * gap_us + latency.post_decode_time


@settings(max_examples=examples(40), deadline=None)
@given(
    alpha=st.tuples(_times, st.integers(0, 50), _times).map(lambda each: tuple(map(float, each))),
    beta=st.tuples(st.integers(1, 20_000), _times, _times).map(lambda each: tuple(map(float, each))),
    prompt=_prompts,
    output=_outputs,
)
def test_with_a_linear_model_latencies_are_linear_in_the_lengths(
    alpha: tuple[float, ...], beta: tuple[float, ...], prompt: int, output: int
) -> None:
    measured = lone(Blackbox(alpha, beta), prompt, output)
    ttft_us = alpha[0] + alpha[1] * prompt + beta[0] + beta[1] * prompt + alpha[2]
    assert measured.ttft_us == ttft_us
    assert measured.e2e_us == ttft_us + (output - 1) * (beta[0] + beta[2] + alpha[2])
