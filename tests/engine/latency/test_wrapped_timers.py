"""Functions of wrapped latency models that cost less to call give what the models give."""

from dataclasses import dataclass

from blis_sim.engine.batch_shape import BatchShape
from blis_sim.engine.latency.wrapped import AddedTime, PeakWatch, RangeWatch, StepPeaks, WrappedLatency
from blis_sim.engine.units import Micros
from tests.fakes import TestLatency


@dataclass(slots=True)
class Idles(WrappedLatency):
    """A model whose first step after an idle time takes longer."""

    def idle_start_time(self, idle_us: Micros) -> Micros:
        return idle_us // 2


def test_a_wrapper_without_idle_starts_of_its_own_has_those_of_its_model() -> None:
    assert AddedTime(TestLatency(), 5).idle_start_timer() is None
    starter = AddedTime(Idles(TestLatency()), 5).idle_start_timer()
    assert starter is not None
    assert starter(10) == 5


def test_queueing_times_come_from_the_innermost_model_that_sets_them() -> None:
    model = TestLatency()
    assert AddedTime(AddedTime(model, 5), 5).queueing_timer() == model.queueing_time
    watch = RangeWatch(model, {})
    assert AddedTime(watch, 5).queueing_timer() == watch.queueing_time


def test_a_watched_step_takes_as_long_and_is_noted_through_either_function() -> None:
    peaks = StepPeaks(token_us=1e6, head_us=0.0, pair_us=0.0, weights_us=0.0, kv_us=0.0)
    watch, shape = PeakWatch(TestLatency(), peaks, "test"), BatchShape(1, 10, 100, 0, 0, 100)
    assert watch.step_timer()(shape) == watch.step_time(shape) == TestLatency().step_time(shape)
    assert watch.num_too_fast == 2
    assert watch.worst_tokens == 10


def test_decodes_without_shapes_are_noted_as_those_with_shapes() -> None:
    seen = {"num_tokens": 0, "decode_requests": 0, "decode_context_tokens": 0}
    by_shape, by_numbers = RangeWatch(TestLatency(), seen), RangeWatch(TestLatency(), seen)
    decode_time = by_numbers.decode_timer()
    for prompt, sequences, context in ((0, 3, 40), (9, 1, 5), (0, 2, 90), (0, 12, 30)):
        shape = BatchShape(int(prompt > 0), prompt, prompt**2, 0, 0, prompt**2, sequences, context)
        expected = by_shape.step_time(shape)
        assert (by_numbers.step_time(shape) if prompt else decode_time(sequences, context)) == expected
        assert by_numbers.exceeded() == by_shape.exceeded() != []
