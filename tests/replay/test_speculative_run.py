"""A run in which steps bring several tokens: latencies per token, gaps per step, and counts of drafts."""

from dataclasses import replace

from blis_sim.engine.core import Engine
from blis_sim.engine.speculation import Speculation
from replay.arrivals import Arrival
from replay.output.metrics import aggregate
from replay.simulation.simulate import Simulated, simulate
from tests.fakes import TestLatency, config, request
from tests.replay.small_traces import row

SPECULATION = Speculation(method="ngram", num_tokens=2, acceptance_rates=(1.0, 1.0))


def simulated(output_tokens: int) -> Simulated:
    """Each step takes 1000 us and after the first brings 3 tokens, but for the end."""
    limits = replace(config(engine="vllm"), speculation=SPECULATION)
    engine = Engine(limits, TestLatency(step_us=1_000), reports_steps=False)
    return simulate(engine, [Arrival(0, request(output_tokens=output_tokens), row())])


def test_the_mean_between_tokens_is_taken_over_the_tokens() -> None:
    (measured,) = simulated(8).requests
    assert (measured.ttft_us, measured.e2e_us, measured.output_tokens) == (1_000, 4_000, 8)
    assert measured.itl_mean_us == 3_000 / 7


def test_gaps_lie_between_steps_for_the_tokens_of_one_step_come_together() -> None:
    pool = simulated(8).requests.tokens.gaps()
    assert [pool.at_rank(rank) for rank in range(len(pool))] == [1_000] * 3


def test_tokens_that_come_together_are_one_chunk_of_the_recording() -> None:
    limits = replace(config(engine="vllm"), speculation=SPECULATION)
    reported: list[list[int]] = []
    engine = Engine(limits, TestLatency(step_us=1_000, output_token_time=5))
    simulate(
        engine, [Arrival(0, request(output_tokens=8), row())], on_tokens=lambda _, us: reported.append(us.tolist())
    )
    assert reported == [[1_005, 2_005, 3_005, 4_005]]


def test_the_figures_of_a_run_include_drafts() -> None:
    figures = aggregate(simulated(8))
    assert figures["total_output_tokens"] == 8
    assert list(figures.items())[-4:] == [
        ("spec_decode_num_drafts", 3),
        ("spec_decode_num_draft_tokens", 6),
        ("spec_decode_num_accepted_tokens", 6),
        ("spec_decode_num_accepted_tokens_per_pos", [3, 3]),
    ]
