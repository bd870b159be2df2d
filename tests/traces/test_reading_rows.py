"""Rows are read by the names of their columns, and what cannot be read is named exactly."""

import gc
from pathlib import Path

import pytest

from traces import TRACE_COLUMNS, TraceError, TraceRow, read_rows, read_trace

NEEDED = "request_id,input_tokens,output_tokens,arrival_time_us"
LAYOUT_22 = (
    "request_id,client_id,tenant_id,slo_class,session_id,round_index,prefix_group,streaming,input_tokens,output_tokens,"
    "text_tokens,image_tokens,audio_tokens,video_tokens,reason_ratio,arrival_time_us,send_time_us,first_chunk_time_us,"
    "last_chunk_time_us,num_chunks,status,error_message"
)


def _rows(folder: Path, text: str | bytes) -> list[TraceRow]:
    path = folder / "t.csv"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return list(read_rows(path))


def _error(folder: Path, text: str | bytes) -> str:
    with pytest.raises(TraceError) as raised:
        _rows(folder, text)
    assert "\n" not in str(raised.value)
    return str(raised.value).replace(str(folder) + "/", "")


def test_the_needed_columns_are_enough_and_the_rest_is_empty(tmp_path: Path) -> None:
    rows = _rows(tmp_path, f"{NEEDED}\n3,100,20,5000\n")
    assert rows == [TraceRow(request_id=3, input_tokens=100, output_tokens=20, arrival_time_us=5000, streaming=None)]
    assert rows[0].vllm_priority is None


def test_columns_may_stand_in_any_order_among_unknown_ones(tmp_path: Path) -> None:
    rows = _rows(tmp_path, "note,arrival_time_us,input_tokens,zebra,request_id,output_tokens\nx,5000,100,y,3,20\n")
    assert rows == [TraceRow(request_id=3, input_tokens=100, output_tokens=20, arrival_time_us=5000, streaming=None)]


def test_a_target_column_does_not_shift_the_columns_left_of_it(tmp_path: Path) -> None:
    head = (
        "request_id,session_id,prefix_group,input_tokens,output_tokens,model,deadline_us,slo_target_us,arrival_time_us"
    )
    (row,) = _rows(tmp_path, f"{head}\n1,s1,sys,10,2,m,900,120,5\n")
    assert (row.session_id, row.prefix_group, row.model) == ("s1", "sys", "m")
    assert (row.deadline_us, row.slo_target_us, row.arrival_time_us) == (900, 120, 5)


def test_the_oldest_layout_of_22_columns_loads(tmp_path: Path) -> None:
    (row,) = _rows(tmp_path, f"{LAYOUT_22}\n7,c,t,batch,s,2,g,true,10,20,1,2,3,4,0.5,100,101,102,103,5,ok,\n")
    assert (row.request_id, row.streaming, row.reason_ratio, row.num_chunks, row.status) == (7, True, 0.5, 5, "ok")
    assert (row.prefix_length, row.model, row.finish_reason) == (0, "", "")


@pytest.mark.parametrize(
    "text",
    [
        f"{NEEDED}\r\n1,2,3,4\r\n",
        f"\ufeff{NEEDED}\n1,2,3,4\n",
        f"\n{NEEDED}\n\n1,2,3,4\n   \n\n",
        f"{NEEDED.upper()}\n1,2,3,4\n",
        " request_id , input_tokens,output_tokens,arrival_time_us\n 1, 2,3 , 4\n",
        f'{NEEDED}\n"1","2","3","4"',
    ],
    ids=["crlf", "byte order mark", "blank lines", "upper case", "spaces", "quotes, no last newline"],
)
def test_harmless_differences_load(tmp_path: Path, text: str) -> None:
    expected = TraceRow(request_id=1, input_tokens=2, output_tokens=3, arrival_time_us=4, streaming=None)
    assert _rows(tmp_path, text) == [expected]


def test_an_empty_optional_cell_takes_its_default(tmp_path: Path) -> None:
    first, second = _rows(
        tmp_path,
        f"{NEEDED},think_time_us,vllm_priority,reason_ratio,streaming\n1,2,3,4,,,,\n2,2,3,4,9,0,.25,t\n",
    )
    assert (first.think_time_us, first.vllm_priority, first.reason_ratio, first.streaming) == (0, None, 0.0, None)
    assert (second.think_time_us, second.vllm_priority, second.reason_ratio, second.streaming) == (9, 0, 0.25, True)


@pytest.mark.parametrize("spelling", ["1", "t", "T", "TRUE", "true", "True"])
def test_all_spellings_of_true_are_read(tmp_path: Path, spelling: str) -> None:
    assert _rows(tmp_path, f"{NEEDED},streaming\n1,2,3,4,{spelling}\n")[0].streaming is True


def test_a_message_over_several_lines_is_one_cell_and_later_lines_count_on(tmp_path: Path) -> None:
    head = f"{NEEDED},error_message\n"
    (row,) = _rows(tmp_path, f'{head}1,2,3,4,"  a, ""b""\nc\n "\n')
    assert row.error_message == 'a, "b"\nc'
    assert "t.csv line 4 column" in _error(tmp_path, f'{head}1,2,3,4,"a\nb"\nx,2,3,4,\n')


def test_a_cell_may_be_longer_than_the_csv_modules_limit(tmp_path: Path) -> None:
    assert len(_rows(tmp_path, f"{NEEDED},error_message\n1,2,3,4,{'x' * 300_000}\n")[0].error_message) == 300_000


def test_a_header_alone_gives_no_rows(tmp_path: Path) -> None:
    assert _rows(tmp_path, NEEDED + "\n") == []


def test_rows_beyond_one_batch_keep_their_order_and_line_numbers(tmp_path: Path) -> None:
    lines = [f"{number},1,1,{number}" for number in range(5000)]
    assert [row.request_id for row in _rows(tmp_path, "\n".join([NEEDED, *lines]))] == list(range(5000))
    lines[4321] = "4321,1,,1"
    expected = "t.csv line 4323 column output_tokens: expected a whole number between 0 and 100000000, got ''"
    assert _error(tmp_path, "\n".join([NEEDED, *lines])) == expected


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ("1,10.5,3,4", "line 2 column input_tokens: expected a whole number between 0 and 100000000, got '10.5'"),
        ("1,,3,4", "line 2 column input_tokens: expected a whole number between 0 and 100000000, got ''"),
        ("1,-3,3,4", "line 2 column input_tokens: expected a whole number between 0 and 100000000, got '-3'"),
        (
            "abc,2,3,4",
            "line 2 column request_id: expected a whole number, got 'abc'",
        ),
        (
            "1,2,3,",
            f"line 2 column arrival_time_us: expected a whole number between {-(2**53)} and {2**53}, got ''",
        ),
        ("1,1_0,3,4", "line 2 column input_tokens: expected a whole number between 0 and 100000000, got '1_0'"),
        ("1,٣,3,4", "line 2 column input_tokens: expected a whole number between 0 and 100000000, got '٣'"),
        (
            f"1,{2**63},3,4",
            "line 2 column input_tokens: expected a whole number between 0 and 100000000, got '9223372036854775808'",
        ),
        ("1,2,3", "line 2: expected 4 cells as in the header, got 3"),
        ("1,2,3,4,", "line 2: expected 4 cells as in the header, got 5"),
        ("1,2,3,4\n2,2,2,3,4", "line 3: expected 4 cells as in the header, got 5"),
        ('1,"2"x,3,4', "line 2: expected comma-separated cells, ',' expected after '\"'"),
        ('1,"2,3,4', "line 2: expected comma-separated cells, unexpected end of data"),
    ],
)
def test_a_bad_row_is_named(tmp_path: Path, row: str, said: str) -> None:
    assert _error(tmp_path, f"{NEEDED}\n{row}") == f"t.csv {said}"


@pytest.mark.parametrize("ratio", ["1.5", "-0.1", "nan", "inf", "x"])
def test_a_ratio_outside_its_bounds_is_refused(tmp_path: Path, ratio: str) -> None:
    said = _error(tmp_path, f"{NEEDED},reason_ratio\n9,2,3,4,0.5\n1,2,3,4,{ratio}\n")
    assert said == f"t.csv line 3 column reason_ratio: expected a number between 0 and 1, got '{ratio}'"


@pytest.mark.parametrize("status", ["OK", "done", "0"])
def test_an_unknown_status_is_refused(tmp_path: Path, status: str) -> None:
    said = _error(tmp_path, f"{NEEDED},status\n9,2,3,4,ok\n1,2,3,4,{status}\n")
    assert (
        said == f"t.csv line 3 column status: expected ok or error or timeout or incomplete or nothing, got '{status}'"
    )


def test_a_deadline_before_the_arrival_is_refused(tmp_path: Path) -> None:
    said = _error(tmp_path, f"{NEEDED},deadline_us\n1,2,3,0,100\n2,2,3,400,0\n3,2,3,400,100\n")
    assert said == "t.csv line 4 column deadline_us: expected 0 or at least the arrival time 400, got '100'"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "t.csv: the file is empty, expected a first line naming the columns"),
        ("\n \n", "t.csv: the file is empty, expected a first line naming the columns"),
        ("0,chat,5\n", "t.csv line 1: expected a header row with the columns request_id, input_tokens, output_tokens"),
        (
            "request_id,input_tokens,output_tokens\n",
            "t.csv line 1: the column arrival_time_us is missing, found request",
        ),
        (f"{NEEDED},Input_Tokens\n", "t.csv line 1: the column input_tokens appears twice"),
        (NEEDED.encode() + b"\n1,2,\xff,4\n", "t.csv line 2: expected UTF-8 text, got the byte 0xff"),
        (b"\xef\xbb\xbf" + NEEDED.encode() + b"\n1,2,\xe9,4\n", "t.csv line 2: expected UTF-8 text, got the byte 0xe9"),
    ],
)
def test_a_file_that_is_no_trace_is_named(tmp_path: Path, text: str | bytes, said: str) -> None:
    assert _error(tmp_path, text).startswith(said)


def test_a_long_cell_is_shown_in_part(tmp_path: Path) -> None:
    assert len(_error(tmp_path, f"{NEEDED}\n{'x' * 5000},2,3,4\n")) < 200


def test_rows_are_found_beside_the_header(tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text("trace_version: 3\n")
    (tmp_path / "run.csv").write_text(f"{NEEDED}\n1,2,3,4\n")
    trace = read_trace(tmp_path / "run.yaml")
    assert (trace.data_path, len(trace.rows)) == (tmp_path / "run.csv", 1)


def test_missing_rows_beside_the_header_are_an_error(tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text("trace_version: 3\n")
    with pytest.raises(TraceError, match=r"run\.yaml: no data file beside it, tried run\.csv and run\.csv\.gz;"):
        read_trace(tmp_path / "run.yaml")


@pytest.mark.parametrize(("name", "said"), [("none.csv", "no such file"), ("a/b.csv", "no such folder")])
def test_a_missing_file_is_named(tmp_path: Path, name: str, said: str) -> None:
    with pytest.raises(TraceError, match=f"{name}: {said}$"):
        read_rows(tmp_path / name)


def test_a_folder_in_place_of_a_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="expected a file, got a folder"):
        read_rows(tmp_path)


def test_every_column_has_a_help_text() -> None:
    assert all(column.help for column in TRACE_COLUMNS)
    assert [column.name for column in TRACE_COLUMNS if column.required] == NEEDED.split(",")


def test_the_search_for_cycles_goes_on_after_reading(tmp_path: Path) -> None:
    _rows(tmp_path, f"{NEEDED}\n1,2,3,4\n")
    assert gc.isenabled()
    _error(tmp_path, f"{NEEDED}\n1,2,3,x\n")
    assert gc.isenabled()
