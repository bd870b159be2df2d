"""From rows to requests: arrival, length, shared prefix, and the rows that are left out."""

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from blis_sim.engine.speculation import Speculation
from replay.arrivals import Arrivals, arrivals_of
from tests.fakes import config
from tests.replay.small_traces import row, trace
from traces import Trace, TraceHeader, TraceRow

LIMITS = config(block_size_tokens=4)
HEAD = Speculation(method="eagle", num_tokens=1, acceptance_rates=(0.5,))
MODEL = "Qwen/Qwen3-14B"
EPOCH_US = 1_781_000_000_000_000


def arrivals(folder: Path, *rows: TraceRow, mode: str = "generated", include_failed: bool = False) -> Arrivals:
    return arrivals_of(trace(folder, rows, mode), MODEL, LIMITS, include_failed)


def ids(found: Arrivals) -> list[int]:
    return [row.request_id for _, row in recorded(found)]


def recorded(found: Arrivals) -> list[tuple[int, TraceRow]]:
    """When each row arrives."""
    return [(arrival.at, arrival.row) for arrival in found.arrivals if isinstance(arrival.row, TraceRow)]


def test_a_request_arrives_when_it_was_sent(tmp_path: Path) -> None:
    found = arrivals(tmp_path, row(0, 0, send_time_us=5), row(1, 100, send_time_us=130))
    assert [arrival.at for arrival in found.arrivals] == [0, 125]


def test_a_request_that_was_never_sent_arrives_when_it_was_due(tmp_path: Path) -> None:
    assert [arrival.at for arrival in arrivals(tmp_path, row(0, 70), row(1, 90)).arrivals] == [70, 90]


def test_a_recording_on_the_epoch_clock_is_shifted_onto_the_clock_of_its_arrivals(tmp_path: Path) -> None:
    found = arrivals(
        tmp_path, row(0, 20_000, send_time_us=EPOCH_US + 20_150), row(1, 50_000, send_time_us=EPOCH_US + 50_400)
    )
    assert [arrival.at for arrival in found.arrivals] == [20_000, 50_250]


def test_the_shift_leaves_deadlines_alone_for_they_are_on_the_clock_of_arrivals(tmp_path: Path) -> None:
    found = arrivals(tmp_path, row(0, 20_000, send_time_us=EPOCH_US, deadline_us=900_000))
    assert found.arrivals[0].request.deadline_us == 900_000


def test_parts_of_a_request_follow_the_first_of_them(tmp_path: Path) -> None:
    """An idle engine starts a step with the first; the others join the step after that."""
    parts = [row(0, 10, is_part=True), row(1, 10, is_part=True), row(2, 10), row(3, 10), row(4, 20, is_part=True)]
    found = arrivals(tmp_path, *parts, row(5, 30))
    assert [arrival.request.follows for arrival in found.arrivals] == ["", "request_0", "request_0", "", "", ""]


def test_requests_come_in_the_order_they_arrive_whatever_the_order_of_rows(tmp_path: Path) -> None:
    assert ids(arrivals(tmp_path, row(2, 300), row(0, 100), row(1, 200))) == [0, 1, 2]


def test_requests_that_arrive_together_keep_the_order_of_rows(tmp_path: Path) -> None:
    assert ids(arrivals(tmp_path, row(5, 100), row(3, 100), row(4, 100))) == [5, 3, 4]


def test_lengths_budget_and_class_are_those_of_the_row(tmp_path: Path) -> None:
    found = arrivals(tmp_path, row(7, 0, input_tokens=12, output_tokens=5, slo_class="batch"))
    request = found.arrivals[0].request
    assert (request.id, request.input_tokens, request.output_tokens) == ("request_7", 12, 5)
    assert (request.max_output_tokens, request.slo_class) == (5, "batch")


@pytest.mark.parametrize(
    ("engine", "slo_class", "priority", "expected"),
    [("vllm", "batch", 7, 7), ("vllm", "", 7, 7), ("vllm", "batch", 0, None), ("blis", "batch", 7, None)],
)
def test_a_priority_that_was_sent_counts_for_vllm_and_the_class_alone_for_blis(
    tmp_path: Path, engine: str, slo_class: str, priority: int, expected: int | None
) -> None:
    sent = trace(tmp_path, [row(slo_class=slo_class, vllm_priority=priority)])
    found = arrivals_of(sent, MODEL, config(engine=engine, block_size_tokens=4), False)
    assert found.arrivals[0].request.priority == expected


def test_the_prompt_is_as_long_as_the_server_counted_it(tmp_path: Path) -> None:
    found = arrivals(tmp_path, row(input_tokens=10, server_input_tokens=17))
    assert found.arrivals[0].request.input_tokens == 17


@pytest.mark.parametrize(("engine", "expected"), [("vllm", 17), ("blis", 18)])
def test_a_prompt_with_a_shared_prefix_is_as_long_as_the_server_counted_it_but_for_blis(
    tmp_path: Path, engine: str, expected: int
) -> None:
    recording = trace(tmp_path, [row(input_tokens=10, server_input_tokens=17, prefix_group="g", prefix_length=8)])
    found = arrivals_of(recording, MODEL, config(engine=engine))
    assert found.arrivals[0].request.input_tokens == expected


def test_the_first_row_of_a_group_decides_how_long_its_prefix_is(tmp_path: Path) -> None:
    found = arrivals(
        tmp_path,
        row(0, 0, prefix_group="g", prefix_length=8),
        row(1, 1, prefix_group="g", prefix_length=40),
        row(2, 2, prefix_group="h", prefix_length=20),
    )
    assert [arrival.request.input_tokens for arrival in found.arrivals] == [18, 18, 30]


def shared_blocks(found: Arrivals) -> int:
    """How many leading blocks the first two requests have in common."""
    one, other = (arrival.request.blocks for arrival in found.arrivals[:2])
    return next(index for index in range(100) if one.identity(index) != other.identity(index))


def test_requests_of_a_group_share_the_full_blocks_of_their_prefix(tmp_path: Path) -> None:
    rows = [row(number, prefix_group="g", prefix_length=11) for number in range(2)]
    assert shared_blocks(arrivals(tmp_path, *rows)) == 2


def test_requests_of_different_groups_share_nothing(tmp_path: Path) -> None:
    rows = [row(number, prefix_group=group, prefix_length=11) for number, group in enumerate("gh")]
    assert shared_blocks(arrivals(tmp_path, *rows)) == 0


def test_requests_without_a_group_share_nothing(tmp_path: Path) -> None:
    assert shared_blocks(arrivals(tmp_path, row(0), row(1))) == 0


@pytest.mark.parametrize("status", ["error", "timeout"])
def test_failed_rows_of_a_recording_are_left_out(tmp_path: Path, status: str) -> None:
    found = arrivals(tmp_path, row(0, status="ok"), row(1, status=status), mode="real")
    assert (ids(found), found.num_failed_left_out) == ([0], 1)


@pytest.mark.parametrize("status", ["", "ok", "incomplete"])
def test_other_rows_of_a_recording_are_kept(tmp_path: Path, status: str) -> None:
    found = arrivals(tmp_path, row(0, status=status), mode="real")
    assert (ids(found), found.num_failed_left_out) == ([0], 0)


def test_failed_rows_are_kept_when_asked_for(tmp_path: Path) -> None:
    found = arrivals(tmp_path, row(0, status="error"), mode="real", include_failed=True)
    assert (ids(found), found.num_failed_left_out) == ([0], 0)


@pytest.mark.parametrize("mode", ["generated", "replayed", ""])
def test_only_a_recording_has_failed_rows(tmp_path: Path, mode: str) -> None:
    assert ids(arrivals(tmp_path, row(0, status="error"), mode=mode)) == [0]


def test_rows_of_another_model_are_left_out(tmp_path: Path) -> None:
    found = arrivals(tmp_path, row(0, model="other"), row(1, model=MODEL))
    assert (ids(found), found.num_other_models_left_out) == ([1], 1)


@pytest.mark.parametrize("model", ["", "qwen/qwen3-14b", "QWEN/QWEN3-14B"])
def test_a_row_without_a_model_or_with_another_spelling_of_it_is_served(tmp_path: Path, model: str) -> None:
    assert ids(arrivals(tmp_path, row(0, model=model))) == [0]


def test_a_failed_row_of_another_model_is_counted_once(tmp_path: Path) -> None:
    found = arrivals(tmp_path, row(0, model="other", status="error"), mode="real")
    assert (found.num_failed_left_out, found.num_other_models_left_out) == (1, 0)


def test_rows_left_out_do_not_move_the_clock(tmp_path: Path) -> None:
    failed = row(0, 10, send_time_us=EPOCH_US, status="error")
    sent = row(1, 500, send_time_us=EPOCH_US + 700)
    assert arrivals(tmp_path, failed, sent, mode="real").arrivals[0].at == 500


def test_rows_with_the_same_id_are_requests_of_their_own(tmp_path: Path) -> None:
    found = arrivals(tmp_path, row(3), row(3), row(4), row(3))
    assert [arrival.request.id for arrival in found.arrivals] == [
        "request_3",
        "request_3#2",
        "request_4",
        "request_3#3",
    ]
    assert shared_blocks(found) == 0


def test_a_trace_without_rows_has_no_arrivals(tmp_path: Path) -> None:
    assert arrivals(tmp_path).arrivals == []


_rows = st.lists(
    st.builds(row, st.integers(0, 9), st.integers(0, 10**9), send_time_us=st.just(0) | st.integers(1, 2**60)),
    min_size=1,
    max_size=8,
)


@given(_rows)
def test_sent_requests_keep_their_gaps_and_begin_at_the_first_arrival(rows: list[TraceRow]) -> None:
    found = arrivals_of(Trace(TraceHeader(), rows, Path("t.yaml"), Path("t.csv")), MODEL, LIMITS)
    sent = [(at, row) for at, row in recorded(found) if row.send_time_us > 0]
    if sent:
        first_at, _ = sent[0]
        assert first_at == min(row.arrival_time_us for _, row in sent)
        first_send = min(row.send_time_us for _, row in sent)
        gaps = sorted(row.send_time_us - first_send for _, row in sent)
        assert [at - first_at for at, _ in sent] == gaps
    assert len({arrival.request.id for arrival in found.arrivals}) == len(rows)


@given(_rows)
def test_unsent_requests_come_at_their_scheduled_arrival(rows: list[TraceRow]) -> None:
    found = arrivals_of(Trace(TraceHeader(), rows, Path("t.yaml"), Path("t.csv")), MODEL, LIMITS)
    unsent = [(at, row.arrival_time_us) for at, row in recorded(found) if row.send_time_us == 0]
    assert len(unsent) == sum(row.send_time_us == 0 for row in rows)
    assert all(at == arrival_time_us for at, arrival_time_us in unsent)


@pytest.mark.parametrize(("prefix_tokens", "plain", "ahead"), [(7, 1, 1), (8, 2, 1), (9, 2, 2)])
def test_with_a_drafter_that_reads_ahead_a_block_is_shared_when_the_token_after_it_is(
    tmp_path: Path, prefix_tokens: int, plain: int, ahead: int
) -> None:
    written = trace(tmp_path, [row(0, 0, prefix_group="g", prefix_length=prefix_tokens)], "generated")
    limits = replace(LIMITS, engine="vllm", speculation=HEAD)
    shared = [arrivals_of(written, MODEL, each).arrivals[0].request.blocks.num_shareable for each in (LIMITS, limits)]
    assert shared == [plain, ahead]
