"""A cap on requests in flight shows in when requests were sent."""

from dataclasses import replace
from pathlib import Path

import pytest

from tests.capped import capped_rows
from traces import TraceRow, read_trace
from traces.client_cap import client_cap_of


@pytest.mark.parametrize("cap", [1, 3, 8])
def test_a_cap_is_seen_with_its_size(cap: int) -> None:
    found = client_cap_of(capped_rows(60, cap))
    assert found is not None
    assert found.max_concurrency == cap
    assert found.num_requests == 60
    assert 0 < found.num_late < 60
    assert found.longest_wait_us > 50_000


def test_places_that_become_free_together_are_taken_one_after_the_other() -> None:
    at_once = capped_rows(60, 20, due_every_us=0)
    found = client_cap_of(
        [replace(each, send_time_us=each.send_time_us + each.request_id % 20 * 40) for each in at_once]
    )
    assert found is not None
    assert found.max_concurrency == 20


def test_replies_that_are_stamped_a_little_late_do_not_make_the_cap_larger() -> None:
    rows = capped_rows(60, 20, due_every_us=0)
    found = client_cap_of([replace(each, last_chunk_time_us=each.last_chunk_time_us + 300) for each in rows])
    assert found is not None
    assert found.max_concurrency == 20


def test_the_effect_of_a_cap_is_one_sentence() -> None:
    found = str(client_cap_of(capped_rows(60, 4)))
    assert found.startswith(
        "56 of 60 requests were sent late (up to 0.8 s), when 4 were in flight. The client had a cap"
    )


def test_a_cap_that_was_never_reached_is_not_seen() -> None:
    assert client_cap_of(capped_rows(60, 11)) is None


def test_a_client_that_is_late_by_itself_has_no_cap() -> None:
    in_time = capped_rows(60, 60)
    late = [_shifted(each, 80_000 if each.request_id % 7 == 3 else 0) for each in in_time]
    assert client_cap_of(late) is None


def test_rounds_of_a_conversation_wait_for_replies_without_a_cap() -> None:
    assert client_cap_of(capped_rows(60, 3, round_index=1)) is None


def test_requests_without_an_answer_are_not_counted() -> None:
    rows = capped_rows(60, 4)
    failed = [replace(each, status="error", last_chunk_time_us=0, first_chunk_time_us=0) for each in rows]
    assert client_cap_of(failed) is None
    assert client_cap_of([]) is None
    found = client_cap_of([failed[place] if place == 30 else each for place, each in enumerate(rows)])
    assert found is not None
    assert found.max_concurrency == 4


@pytest.mark.slow
def test_real_recordings_far_from_saturation_have_none(shared: Path) -> None:
    saturated = {"w5_sweep_agg24", "w7_sweep_agg18"}
    headers = sorted((shared / "real" / "train").glob("*/trace.yaml"))
    assert len(headers) > len(saturated)
    for header in headers:
        if header.parent.name not in saturated:
            assert client_cap_of(read_trace(header).rows) is None


def _shifted(row: TraceRow, later_us: int) -> TraceRow:
    return replace(
        row,
        send_time_us=row.send_time_us + later_us,
        first_chunk_time_us=row.first_chunk_time_us + later_us,
        last_chunk_time_us=row.last_chunk_time_us + later_us,
    )
