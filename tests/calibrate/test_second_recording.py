"""A second recording in the place of a simulation."""

import pytest

from calibrate.calibration import results_of_recording
from calibrate.compare import CalibrateError
from tests.calibrate.recordings import row, trace


def test_requests_due_at_the_same_instant_belong_together_whatever_their_numbers() -> None:
    first = trace([row(0, arrival_time_us=10), row(1, arrival_time_us=20)])
    second = trace([row(0, arrival_time_us=20, ttft_us=70), row(1, arrival_time_us=10, ttft_us=80)])
    found = {each.request_id: each.ttft_us for each in results_of_recording(first, second, {})}
    assert found == {0: 80, 1: 70}


def test_several_at_one_instant_pair_up_by_length() -> None:
    first = trace([row(0, arrival_time_us=10, input_tokens=50), row(1, arrival_time_us=10, input_tokens=5)])
    second = trace([row(7, arrival_time_us=10, input_tokens=6), row(8, arrival_time_us=10, input_tokens=49)])
    found = {each.request_id: each.input_tokens for each in results_of_recording(first, second, {})}
    assert found == {0: 49, 1: 6}


def test_requests_that_failed_in_the_second_run_predict_nothing() -> None:
    first = trace([row(0, arrival_time_us=10), row(1, arrival_time_us=20)])
    second = trace([row(0, arrival_time_us=10, status="error"), row(1, arrival_time_us=20)])
    assert [each.request_id for each in results_of_recording(first, second, {})] == [1]


def test_time_between_tokens_comes_from_token_times_or_else_from_both_ends() -> None:
    recording = trace([row(0, arrival_time_us=10, output_tokens=5, ttft_us=50, e2e_us=150)])
    (by_ends,) = results_of_recording(recording, recording, {})
    assert by_ends.itl_mean_us == 25
    (by_chunks,) = results_of_recording(recording, recording, {0: [0, 10, 20, 30, 40]})
    assert by_chunks.itl_mean_us == 10


def test_a_recording_in_which_everything_failed_is_refused() -> None:
    with pytest.raises(CalibrateError, match=r"no row of t\.csv can be compared: none was answered, with its times"):
        results_of_recording(trace([row(0)]), trace([row(0, status="error")]), {})


def test_recordings_of_different_workloads_are_refused() -> None:
    with pytest.raises(CalibrateError, match=r"t\.csv is no recording of the same workload as t\.csv"):
        results_of_recording(trace([row(0, arrival_time_us=10)]), trace([row(0, arrival_time_us=11)]), {})
