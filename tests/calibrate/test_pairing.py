"""Every row of a recording is compared, or left out for one reason that is counted."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from calibrate.compare import Pairing, pair, pair_compat
from tests.calibrate.recordings import result, row, trace
from traces import TraceRow

_rows = st.lists(
    st.builds(
        row,
        st.integers(0, 6),
        send_us=st.integers(0, 3),
        ttft_us=st.integers(-3, 3),
        e2e_us=st.integers(-3, 3),
        status=st.sampled_from(["ok", "error", "timeout", ""]),
    ),
    max_size=12,
)


def _ids(pairing: Pairing) -> list[int]:
    assert [each.request_id for each in pairing.rows] == [each.request_id for each in pairing.results]
    return [each.request_id for each in pairing.rows]


def _paired(*rows: TraceRow, warm_up: int = 0, **header: Any) -> Pairing:
    return pair(trace(rows, **header), [result(number) for number in range(100)], warm_up)


def test_rows_and_results_meet_by_their_number() -> None:
    pairing = pair(trace([row(3), row(1), row(7)]), [result(1), result(2), result(3)], 0)
    assert _ids(pairing) == [3, 1]
    assert (pairing.num_unmatched_rows, pairing.num_unmatched_results) == (1, 1)


def test_failed_rows_are_left_out() -> None:
    pairing = _paired(row(0), row(1, status="error"), row(2, status="timeout"), row(3, status="incomplete"))
    assert (_ids(pairing), pairing.num_failed) == ([0], 3)


def test_the_other_prompts_of_a_request_are_no_requests() -> None:
    pairing = _paired(replace(row(0), is_part=True), row(1))
    assert (_ids(pairing), pairing.num_without_times, pairing.num_unmatched_rows) == ([1], 0, 0)


def test_a_request_of_several_parts_begins_with_the_first_token_and_ends_with_the_last() -> None:
    rows = [replace(row(0), is_part=True), row(1), row(2)]
    results = [result(0, ttft_us=20, e2e_us=900), result(1, ttft_us=30, e2e_us=800), result(2, ttft_us=40, e2e_us=50)]
    found = pair(trace(rows), results, 0).results
    assert [(each.ttft_us, each.e2e_us) for each in found] == [(20, 900), (40, 50)]


def test_a_reply_in_one_piece_has_its_first_token_with_its_last_on_both_sides() -> None:
    rows = [
        row(0, ttft_us=500, e2e_us=500),
        row(1, ttft_us=100, e2e_us=500),
        row(2, ttft_us=480, e2e_us=500, num_chunks=1),  # its bytes came in two reads
    ]
    found = pair(trace(rows), [result(number, ttft_us=90, e2e_us=490) for number in range(3)], 0).results
    assert [each.ttft_us for each in found] == [490, 90, 490]


def test_a_recorder_without_statuses_has_only_good_rows() -> None:
    assert _ids(_paired(row(0, status=""))) == [0]


@pytest.mark.parametrize(
    "times",
    [{"first_chunk_time_us": 0, "last_chunk_time_us": 0}, {"ttft_us": -1}, {"ttft_us": 60, "e2e_us": 50}],
    ids=["no chunk", "chunk before sending", "last chunk before the first"],
)
def test_rows_without_usable_times_are_left_out(times: dict[str, int]) -> None:
    pairing = _paired(row(0), row(1, **times))
    assert (_ids(pairing), pairing.num_without_times) == ([0], 1)


def test_a_request_sent_at_instant_zero_without_any_chunk_has_no_latency() -> None:
    assert _paired(row(0), row(1, send_us=0, ttft_us=0, e2e_us=0)).num_without_times == 1


def test_a_repeated_row_counts_once() -> None:
    pairing = _paired(row(0, ttft_us=10), row(0, ttft_us=20), row(1))
    assert (_ids(pairing), pairing.num_repeated) == ([0, 1], 1)
    assert pairing.rows[0].first_chunk_time_us == 1010


def test_the_last_of_repeated_results_counts() -> None:
    pairing = pair(trace([row(0)]), [result(0, ttft_us=1), result(0, ttft_us=2)], 0)
    assert pairing.results[0].ttft_us == 2
    assert pairing.num_repeated_results == 1


def test_warm_up_is_what_was_sent_first() -> None:
    rows = [row(5, send_us=30), row(6, send_us=10), row(7, send_us=20), row(8, send_us=40)]
    pairing = _paired(*rows, warm_up=2)
    assert (_ids(pairing), pairing.num_warm_up) == ([5, 8], 2)


def test_warm_up_does_not_depend_on_where_numbers_start() -> None:
    for first in (0, 1, 50):
        rows = [row(first + place, send_us=1000 + place) for place in range(10)]
        assert _paired(*rows, warm_up=4).num_warm_up == 4


def test_warm_up_the_recorder_left_out_is_not_taken_away_again() -> None:
    rows = [row(3 + place, send_us=1000 + place) for place in range(5)]
    assert _paired(*rows, warm_up=3, warm_up_requests=3).num_warm_up == 0
    assert _paired(*rows, warm_up=5, warm_up_requests=3).num_warm_up == 2


def test_warm_up_the_recorder_kept_is_taken_away() -> None:
    rows = [row(place, send_us=1000 + place) for place in range(5)]
    assert _ids(_paired(*rows, warm_up=3, warm_up_requests=3)) == [3, 4]


def test_rows_never_sent_are_ordered_by_their_arrival() -> None:
    rows = [row(0, send_us=5_000_000, arrival_time_us=1), row(1, send_us=0, arrival_time_us=2, status="error")]
    assert _ids(_paired(*rows, row(2, send_us=5_000_002, arrival_time_us=3), warm_up=1)) == [2]


def test_token_counts_of_the_server_go_before_those_planned() -> None:
    rows = [row(0, server_input_tokens=10, input_tokens=4), row(1, server_input_tokens=9), row(2, output_tokens=6)]
    assert _paired(*rows).num_token_mismatches == 2


@given(_rows, st.lists(st.integers(0, 9)), st.integers(0, 8), st.integers(0, 4))
def test_every_row_counts_exactly_once(rows: list[TraceRow], results: list[int], warm_up: int, left_out: int) -> None:
    pairing = pair(trace(rows, warm_up_requests=left_out), [result(number) for number in results], warm_up)
    assert pairing.num_requests == len(rows)
    assert all(pairing.comparable)
    assert len(set(_ids(pairing))) == pairing.num_matched


def test_the_original_counts_rows_without_latency_twice() -> None:
    pairing = pair_compat(trace([row(0), row(1, ttft_us=-5, status="error"), row(2)]), [result(0), result(1)], 0)
    assert (pairing.num_matched, pairing.comparable, pairing.num_requests) == (2, [True, False], 4)


def test_the_original_takes_numbers_for_warm_up() -> None:
    pairing = pair_compat(trace([row(1), row(2), row(3)]), [result(number) for number in range(5)], 3)
    assert (_ids(pairing), pairing.num_warm_up) == ([3], 2)
