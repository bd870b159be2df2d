"""Written rows are byte for byte the format, complete after every row, and read back the same."""

import gzip
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from blis_sim.options.option import LATEST_US, MOST_TOKENS
from tests.examples import examples
from traces import (
    TRACE_COLUMNS,
    TraceError,
    TraceHeader,
    TraceRow,
    TraceWriter,
    columns_worth_writing,
    read_rows,
    read_trace,
    write_trace,
)
from traces.rows import STATUSES

BASE = (
    "request_id,client_id,tenant_id,slo_class,session_id,round_index,prefix_group,prefix_length,streaming,input_tokens,"
    "output_tokens,text_tokens,image_tokens,audio_tokens,video_tokens,reason_ratio,model,deadline_us,"
    "server_input_tokens,arrival_time_us,send_time_us,first_chunk_time_us,last_chunk_time_us,num_chunks,status,"
    "error_message,finish_reason"
)
ON_REQUEST = ("vllm_priority", "slo_target_us", "x_request_id", "adapter", "think_time_us")
ROW = TraceRow(request_id=4, input_tokens=10, output_tokens=2, arrival_time_us=7, streaming=True, reason_ratio=0.25)

_text = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=20)
_count = st.integers(0, MOST_TOKENS)
_time = st.integers(-LATEST_US, LATEST_US)
_rows = st.builds(
    TraceRow,
    request_id=_time,
    client_id=_text,
    slo_class=_text,
    vllm_priority=st.integers(0, 9),
    streaming=st.booleans(),
    input_tokens=_count,
    output_tokens=_count,
    reason_ratio=st.floats(0, 1),
    slo_target_us=_count,
    arrival_time_us=_time,
    send_time_us=_time,
    status=st.sampled_from(["", *STATUSES]),
    error_message=st.text(st.sampled_from(' a,"\n\r\t;é'), max_size=30).map(str.strip),
    finish_reason=_text.map(str.strip),
    x_request_id=_text,
    adapter=_text,
    think_time_us=_count,
)


def test_the_base_columns_are_written_in_the_one_order(tmp_path: Path) -> None:
    with TraceWriter(tmp_path / "t.csv") as writer:
        writer.write(ROW)
    assert (tmp_path / "t.csv").read_text() == f"{BASE}\n4,,,,,0,,0,true,10,2,0,0,0,0,0.25,,0,0,7,0,0,0,0,,,\n"


def test_columns_on_request_take_their_places(tmp_path: Path) -> None:
    with TraceWriter(tmp_path / "t.csv", ON_REQUEST):
        pass
    names = (tmp_path / "t.csv").read_text().strip().split(",")
    assert names[3:5] == ["slo_class", "vllm_priority"]
    assert names[18:20] == ["deadline_us", "slo_target_us"]
    assert names[-3:] == ["x_request_id", "adapter", "think_time_us"]
    assert [name for name in names if name not in ON_REQUEST] == BASE.split(",")


def test_a_row_is_in_the_file_as_soon_as_it_is_written(tmp_path: Path) -> None:
    with TraceWriter(tmp_path / "t.csv") as writer:
        for number in range(3):
            writer.write(ROW)
            assert len(read_rows(tmp_path / "t.csv")) == number + 1


def test_only_cells_that_need_quotes_have_them(tmp_path: Path) -> None:
    row = TraceRow(request_id=1, input_tokens=1, output_tokens=1, arrival_time_us=1, client_id='a "b"', model="x y")
    with TraceWriter(tmp_path / "t.csv") as writer:
        writer.write(row)
    assert '1,"a ""b""",,' in (tmp_path / "t.csv").read_text()
    assert ",x y," in (tmp_path / "t.csv").read_text()


def test_an_unknown_column_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=r"columns written on request are vllm_priority, .*, got 'status'"):
        TraceWriter(tmp_path / "t.csv", ("status",))
    assert not (tmp_path / "t.csv").exists()


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=r"gone/t\.csv: cannot be written, no such folder"):
        TraceWriter(tmp_path / "gone" / "t.csv")


def test_undecodable_bytes_of_a_reply_do_not_lose_the_row(tmp_path: Path) -> None:
    row = TraceRow(request_id=1, input_tokens=1, output_tokens=1, arrival_time_us=1, error_message="bad \udcff")
    with TraceWriter(tmp_path / "t.csv") as writer:
        writer.write(row)
    assert read_rows(tmp_path / "t.csv")[0].error_message == r"bad \udcff"


def test_rows_may_be_gzipped(tmp_path: Path) -> None:
    with TraceWriter(tmp_path / "t.csv.gz") as writer:
        writer.write(ROW)
    assert read_rows(tmp_path / "t.csv.gz") == [ROW]
    (tmp_path / "cut.csv.gz").write_bytes(gzip.compress(BASE.encode())[:-6])
    with pytest.raises(TraceError, match=r"cut\.csv\.gz: not a complete gzip file"):
        read_rows(tmp_path / "cut.csv.gz")


@pytest.mark.slow
@settings(max_examples=examples(60), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rows=st.lists(_rows, max_size=4))
def test_rows_read_back_as_they_were_written(tmp_path: Path, rows: list[TraceRow]) -> None:
    write_trace(tmp_path / "t.yaml", TraceHeader(), rows, ON_REQUEST)
    assert read_trace(tmp_path / "t.yaml").rows == rows


def test_columns_are_worth_writing_when_a_row_has_a_value_for_them() -> None:
    def row(**fields: int | str) -> TraceRow:
        return TraceRow(request_id=0, input_tokens=1, output_tokens=1, arrival_time_us=0, **fields)  # type: ignore[arg-type]

    assert columns_worth_writing([row(slo_class="batch", vllm_priority=0)], "generated") == ()
    assert columns_worth_writing([row(slo_class="batch")], "real") == ("vllm_priority", "x_request_id")
    assert columns_worth_writing([row()], "real") == ("x_request_id",)
    reported = [row(vllm_priority=5), row(adapter="a", think_time_us=3), row(slo_target_us=9)]
    assert columns_worth_writing(reported, "replayed") == ("vllm_priority", "slo_target_us", "adapter", "think_time_us")


def test_the_table_of_columns_is_the_row_itself() -> None:
    assert [column.name for column in TRACE_COLUMNS] == list(TraceRow.__dataclass_fields__)
