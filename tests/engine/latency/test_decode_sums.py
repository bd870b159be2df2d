"""Kept sums of decode times: differences of them are the model's times of steps in a row."""

from hypothesis import given
from hypothesis import strategies as st

from blis_sim.engine.batch_shape import decodes
from blis_sim.engine.latency.decode_sums import (
    LONGEST_STEP_US,
    MAX_RUNS,
    MAX_SEQUENCES,
    MIN_LOOKUPS,
    STEPS_PER_RUN,
    DecodeSums,
    Run,
)
from blis_sim.engine.latency.model import LatencyModel
from blis_sim.engine.latency.trained_physics import TrainedPhysics
from blis_sim.engine.latency.wrapped import PhaseShifted
from blis_sim.engine.specs import GpuSpec, ModelSpec
from tests.fakes import TestLatency

UNEVEN = PhaseShifted(TestLatency(step_us=9_000, decode_us=70, figure_us=1), phase=3)
"""No two steps of it take the same time."""


def asked_for_often(
    kept: DecodeSums, num_sequences: int, context: int, latency: LatencyModel = UNEVEN
) -> "tuple[Run | None, int]":
    """Return the run that is found when it has been looked for often enough."""
    for _ in range(MIN_LOOKUPS):
        kept.find(latency.decode_times, num_sequences, context)
    return kept.find(latency.decode_times, num_sequences, context)


def test_a_run_that_is_rarely_looked_up_is_not_kept() -> None:
    kept = DecodeSums()
    assert [kept.find(UNEVEN.decode_times, 1, 7)[0] is None for _ in range(MIN_LOOKUPS + 2)] == [True] * MIN_LOOKUPS + [
        False
    ] * 2


@given(asked=st.lists(st.tuples(st.integers(1, MAX_SEQUENCES), st.integers(0, 9_000)), min_size=1, max_size=5))
def test_differences_of_sums_are_the_times_of_steps_in_a_row(asked: list[tuple[int, int]]) -> None:
    kept = DecodeSums()
    for num_sequences, context in asked:
        run, step = asked_for_often(kept, num_sequences, context)
        assert run is not None
        assert len(run) == STEPS_PER_RUN + 1
        times = UNEVEN.decode_times(decodes(num_sequences, context), STEPS_PER_RUN - step)
        assert [end - start for start, end in zip(run[step:], run[step + 1 :], strict=False)] == times.tolist()


def test_a_forgotten_run_is_found_again() -> None:
    kept = DecodeSums()
    first, _ = asked_for_often(kept, 1, 7)
    for number in range(1, MAX_RUNS + 1):
        kept.find(UNEVEN.decode_times, 1, number * STEPS_PER_RUN)
    again, _ = asked_for_often(kept, 1, 7)
    assert first is not None
    assert again is not None
    assert again is not first
    assert again[0] == first[0]


def test_no_run_of_many_sequences_nor_of_none_is_kept() -> None:
    assert asked_for_often(DecodeSums(), MAX_SEQUENCES + 1, 7)[0] is None
    assert asked_for_often(DecodeSums(), 0, 0)[0] is None


def test_steps_so_long_that_their_sum_might_not_fit_are_not_kept() -> None:
    assert asked_for_often(DecodeSums(), 1, 7, TestLatency(step_us=LONGEST_STEP_US))[0] is not None
    assert asked_for_often(DecodeSums(), 1, 7, TestLatency(step_us=LONGEST_STEP_US + 1))[0] is None


def test_instances_that_share_a_latency_model_share_its_sums() -> None:
    model = ModelSpec(
        name="m", num_layers=2, hidden_size=8, num_heads=4, num_kv_heads=2, vocab_size=9, intermediate_size=16
    )
    latency = TrainedPhysics(model, GpuSpec(name="g", tflops=1.0, bandwidth_tb_s=1.0), 1, (0.0, 0.0, 0.0), (1.0,) * 10)
    assert latency.decode_sums is latency.decode_sums
    assert UNEVEN.decode_sums is not UNEVEN.decode_sums
