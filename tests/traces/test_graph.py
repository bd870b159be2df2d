"""Rows that name other rows: which names are refused, and what becomes of them when rows move or are left out."""

from dataclasses import replace
from pathlib import Path

import pytest

from tests.replay.small_traces import row, trace
from traces import TraceError, TraceRow, read_trace
from traces.compose import merge_traces
from traces.graph import context_of, ids_in, renumbered, restricted_to


def test_parents_and_contexts_come_back_from_disk(tmp_path: Path) -> None:
    rows = [row(4), row(0, parents="4"), row(7, parents="4 0", context_of="0", context_tokens=9)]
    assert trace(tmp_path, rows).rows == rows


def test_columns_of_a_graph_are_written_for_a_graph_only(tmp_path: Path) -> None:
    trace(tmp_path, [row(0), row(1)])
    assert "parents" not in (tmp_path / "trace.csv").read_text()


def test_the_context_is_that_of_the_first_parent_unless_it_is_named() -> None:
    assert context_of(row(9, parents="3 4")) == 3
    assert context_of(row(9, parents="3 4", context_of="4")) == 4
    assert context_of(row(9)) is None


@pytest.mark.parametrize(
    ("name", "cell", "message"),
    [
        ("parents", "5", "column parents: expected request ids of other rows with a blank between them, got '5'"),
        ("parents", "1", "column parents: expected request ids of other rows"),
        ("parents", "0;1", "column parents: expected request ids of other rows"),
        ("parents", "9" * 5000, "column parents: expected request ids of other rows"),
        ("context_of", "0 2", "column context_of: expected the request id of another row, got '0 2'"),
        ("context_of", "x", "column context_of: expected the request id of another row, got 'x'"),
    ],
)
def test_names_of_no_other_row_are_refused(tmp_path: Path, name: str, cell: str, message: str) -> None:
    with pytest.raises(TraceError, match=f"trace.csv line 3 {message}"):
        trace(tmp_path, [row(0), replace(row(1), **{name: cell}), row(2)])  # type: ignore[arg-type]


def test_requests_that_wait_for_each_other_are_refused(tmp_path: Path) -> None:
    rows = [row(0), row(1, parents="2"), row(2, parents="0 3"), row(3, context_of="1")]
    with pytest.raises(TraceError, match=r"line 3 column parents: expected requests that do not wait .* in a circle"):
        trace(tmp_path, rows)


def test_ids_that_others_name_are_not_repeated(tmp_path: Path) -> None:
    (tmp_path / "t.yaml").write_text("mode: generated\n")
    lines = ["request_id,input_tokens,output_tokens,arrival_time_us,parents", "0,1,1,0,", "0,1,1,0,", "1,1,1,0,0"]
    (tmp_path / "t.csv").write_text("\n".join(lines) + "\n")
    with pytest.raises(TraceError, match="line 3 column request_id"):
        read_trace(tmp_path / "t.yaml")


def test_a_row_that_is_left_out_hands_on_what_it_waits_for_and_what_it_repeats() -> None:
    rows = [
        row(0, input_tokens=100),
        row(1, parents="0", context_tokens=60),
        row(2, parents="1", context_tokens=90),
        row(3, parents="2 0", context_of="2", context_tokens=80),
    ]
    kept = restricted_to(rows, [rows[0], rows[3]])
    assert [(each.request_id, ids_in(each.parents), context_of(each), each.context_tokens) for each in kept] == [
        (0, (), None, 0),
        (3, (0,), 0, 60),
    ]


def test_ids_follow_their_rows_when_traces_are_composed(tmp_path: Path) -> None:
    def some(folder: str, start_us: int, *more: TraceRow) -> Path:
        (tmp_path / folder).mkdir()
        rows = [row(5, start_us), row(2, start_us + 10, parents="5", context_of="5", context_tokens=4), *more]
        trace(tmp_path / folder, rows)
        return tmp_path / folder / "trace.yaml"

    first, second = some("a", 0), some("b", 100, row(3, 105))
    _, rows, _ = merge_traces([read_trace(first), read_trace(second)])
    assert [(each.request_id, each.parents, each.context_of) for each in rows] == [
        (0, "", ""),
        (1, "", ""),
        (2, "", ""),
        (3, "0", "0"),
        (4, "1", "1"),
    ]


def test_a_name_without_a_row_is_dropped_with_its_context() -> None:
    found = renumbered(row(3, parents="1 2", context_of="1", context_tokens=8), 0, {2: 9})
    assert (found.request_id, found.parents, found.context_of, found.context_tokens) == (0, "9", "", 0)
