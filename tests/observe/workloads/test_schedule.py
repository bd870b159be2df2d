from observe.requests import (
    PlannedRequest,
    mean_rate,
    peak_arrivals,
    plan_from_trace,
)
from traces import TraceRow


def at(*times_us: int) -> list[PlannedRequest]:
    return [PlannedRequest(at_us=each, input_tokens=1, output_tokens=1) for each in times_us]


def test_a_recording_is_planned_in_order_of_arrival_from_its_first() -> None:
    rows = [
        TraceRow(request_id=id, input_tokens=1, output_tokens=1, arrival_time_us=at_us)
        for id, at_us in enumerate([900, 500, 700])
    ]
    assert [planned.at_us for planned in plan_from_trace(rows)] == [0, 200, 400]


def test_a_recorded_prompt_is_as_long_as_the_server_counted_else_as_planned() -> None:
    rows = [
        TraceRow(request_id=0, arrival_time_us=0, output_tokens=9, server_input_tokens=50, input_tokens=40),
        TraceRow(request_id=1, arrival_time_us=1, output_tokens=0, input_tokens=40, prefix_length=10),
        TraceRow(
            request_id=2, arrival_time_us=2, output_tokens=1, input_tokens=40, prefix_length=10,
            prefix_group="g", server_input_tokens=60, session_id="s", round_index=3,
        ),
    ]  # fmt: skip
    counted, planned, grouped = plan_from_trace(rows)
    assert (counted.input_tokens, counted.output_tokens) == (50, 9)
    assert (planned.input_tokens, planned.prefix_tokens, planned.output_tokens) == (50, 0, 1)
    assert (grouped.input_tokens, grouped.prefix_tokens, grouped.prefix_group) == (50, 10, "g")
    assert (grouped.session_id, grouped.round_index) == ("s", 3)


def test_the_peak_is_the_busiest_stretch_of_time() -> None:
    assert peak_arrivals(at(0, 50, 60, 70, 200), 100) == 4
    assert peak_arrivals(at(0, 100, 200), 100) == 1


def test_the_mean_rate_is_that_of_the_gaps() -> None:
    assert mean_rate(at(0, 100_000, 200_000)) == 10
    assert mean_rate(at(5)) == 0
