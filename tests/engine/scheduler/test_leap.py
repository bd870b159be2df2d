"""Many decode-only steps at once are those that would have been taken one by one."""

from hypothesis import given
from hypothesis import strategies as st

from blis_sim.engine.batch_shape import decodes
from blis_sim.engine.config import EngineConfig
from blis_sim.engine.context import EngineContext
from blis_sim.engine.latency.decode_sums import MAX_SEQUENCES, MIN_LOOKUPS
from blis_sim.engine.scheduler.batch import MultiStep
from tests.fakes import TestLatency

AT = 5_000


@given(
    latency=st.builds(TestLatency, step_us=st.integers(1, 50), figure_us=st.sampled_from([0, 1])),
    num_sequences=st.sampled_from([1, 3, MAX_SEQUENCES + 1]),
    context=st.integers(0, 2_000),
    within_us=st.integers(0, 40_000),
    most=st.sampled_from([1, 4, 30, 90]),
    num_before=st.sampled_from([0, MIN_LOOKUPS]),
)
def test_a_leap_takes_the_steps_that_start_in_time(
    latency: TestLatency, num_sequences: int, context: int, within_us: int, most: int, num_before: int
) -> None:
    engine_context = EngineContext(EngineConfig(1000), latency)
    leaper = MultiStep(engine_context)
    for _ in range(num_before):
        leaper.take(AT, AT, num_sequences, context, 1)
    first = len(engine_context.steps)
    count, started_at, ends_at = leaper.take(AT, AT + within_us, num_sequences, context, most)
    starts = [AT]
    for step in range(most):
        starts.append(starts[-1] + latency.step_time(decodes(num_sequences, context + step * num_sequences)))
    in_time = sum(start <= AT + within_us for start in starts[:most])
    assert 1 <= count <= in_time
    assert (started_at, ends_at) == (starts[count - 1], starts[count])
    assert engine_context.steps.ends()[first:].tolist() == starts[1 : count + 1]
    assert [engine_context.steps.start(first + index) for index in range(count)] == starts[:count]
    if num_sequences > MAX_SEQUENCES or not num_before:
        assert count == in_time
