"""The watch for steps that beat the peak rates of the GPU counts the same steps however they are timed."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pytest

from blis_sim.engine.batch_shape import BatchShape, decodes
from blis_sim.engine.latency.model import FewDecodesTimer, LatencyModel
from blis_sim.engine.latency.wrapped import TOLERANCE, PeakWatch, StepPeaks
from blis_sim.engine.units import Micros

PEAKS = StepPeaks(token_us=1.0, head_us=3.0, pair_us=0.5, weights_us=40.0, kv_us=0.25)


@dataclass(slots=True)
class Constant(LatencyModel):
    """Every step takes `time_us`."""

    time_us: Micros

    def step_time(self, shape: BatchShape) -> Micros:
        return self.time_us

    def decode_times(self, shape: BatchShape, steps: int) -> npt.NDArray[np.int64]:
        return np.full(steps, self.time_us, np.int64)

    def few_decodes_timer(self) -> FewDecodesTimer | None:
        return lambda _sequences, _context, steps: [self.time_us] * steps


@pytest.mark.parametrize("time_us", [20, 45, 120])
@pytest.mark.parametrize(
    "shape",
    [BatchShape(2, 10, 60, 4, 20, 90), BatchShape(1, 3, 9, 0, 0, 9, 7, 300), decodes(5, 20), decodes(30, 8)],
    ids=["prompts", "mixed", "few decodes", "many decodes"],
)
def test_a_step_is_counted_when_it_takes_less_than_the_peaks_allow(time_us: Micros, shape: BatchShape) -> None:
    watch = PeakWatch(Constant(time_us), PEAKS, "constant")
    assert watch.step_time(shape) == time_us
    is_too_fast = time_us < TOLERANCE * PEAKS.step_us(shape)
    assert watch.num_too_fast == is_too_fast
    assert (watch.worst_tokens == shape.num_tokens) == is_too_fast


@pytest.mark.parametrize("time_us", [20, 45, 120])
@pytest.mark.parametrize(("sequences", "context"), [(5, 20), (30, 8), (2, 400)])
def test_a_run_of_decodes_counts_once_in_a_list_and_in_an_array(time_us: Micros, sequences: int, context: int) -> None:
    in_array, in_list = (PeakWatch(Constant(time_us), PEAKS, "constant") for _ in range(2))
    times_of_few = in_list.few_decodes_timer()
    assert times_of_few is not None
    assert times_of_few(sequences, context, 4) == in_array.decode_times(decodes(sequences, context), 4).tolist()
    is_too_fast = time_us < TOLERANCE * PEAKS.step_us(decodes(sequences, context))
    assert (in_list.num_too_fast, in_array.num_too_fast) == (is_too_fast, is_too_fast)
    assert in_list.worst_ratio == in_array.worst_ratio
