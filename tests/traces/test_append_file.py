"""A recording whose writer was killed at any byte has every row that was whole by then."""

import os
import resource
import signal
from pathlib import Path
from random import Random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.examples import examples
from traces import ItlWriter, JsonLinesWriter, TraceError, TraceRow, TraceWriter, read_cut_itl, read_cut_rows, read_rows
from traces.append_file import exclusive_writer, open_with_header

_rows = st.lists(
    st.builds(
        TraceRow,
        streaming=st.booleans(),
        request_id=st.integers(0, 99),
        input_tokens=st.just(1),
        output_tokens=st.just(2),
        arrival_time_us=st.just(3),
        error_message=st.text(st.sampled_from('a,"\n\ré'), max_size=12).map(str.strip),
        x_request_id=st.text(st.sampled_from('b"\n, '), max_size=6),
    ),
    max_size=4,
)


@given(rows=_rows, suffix=st.sampled_from([".csv", ".csv.gz"]), data=st.data())
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=examples(60))
def test_cut_at_any_byte_a_file_has_a_first_part_of_its_rows(
    rows: list[TraceRow], suffix: str, data: st.DataObject, tmp_path: Path
) -> None:
    path = tmp_path / f"t{suffix}"
    ends = []
    with TraceWriter(path, {"x_request_id"}) as writer:
        for row in rows:
            writer.write(row)
            ends.append(path.stat().st_size)
    cut = data.draw(st.integers(0, path.stat().st_size))
    path.write_bytes(path.read_bytes()[:cut])
    num_whole = sum(end <= cut for end in ends)
    found = read_cut_rows(path)
    assert found == rows[: len(found)]
    assert len(found) >= num_whole


@pytest.mark.parametrize("suffix", [".csv", ".csv.gz"])
def test_a_piece_for_which_there_is_no_room_leaves_no_part_of_itself(suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"t{suffix}"
    large = TraceRow(
        streaming=True, request_id=1, input_tokens=1, output_tokens=1, arrival_time_us=0, error_message=_noise(20_000)
    )
    small = TraceRow(streaming=True, request_id=2, input_tokens=1, output_tokens=1, arrival_time_us=0)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    with TraceWriter(path) as writer:
        try:
            resource.setrlimit(resource.RLIMIT_FSIZE, (4000, before[1]))
            with pytest.raises(OSError, match="File too large"):
                writer.write(large)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
            signal.signal(signal.SIGXFSZ, ignored)
        writer.write(small)
    assert read_rows(path) == [small]


def test_kept_rows_and_chunks_stand_before_the_new_ones(tmp_path: Path) -> None:
    first = TraceRow(streaming=True, request_id=1, input_tokens=1, output_tokens=1, arrival_time_us=0)
    second = TraceRow(streaming=True, request_id=2, input_tokens=1, output_tokens=1, arrival_time_us=0)
    with TraceWriter(tmp_path / "t.csv", (), [first]) as rows, ItlWriter(tmp_path / "t.itl.csv", {1: [5, 6]}) as itl:
        rows.write(second)
        itl.write(2, [7])
    assert read_rows(tmp_path / "t.csv") == [first, second]
    assert read_cut_itl(tmp_path / "t.itl.csv") == {1: [5, 6], 2: [7]}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["t.csv", "t.itl.csv"]


def test_lines_of_json_go_on_behind_those_that_were_whole(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    earlier = '{"a": "a quote \\" and \u2028"}\n{"b": 1}\n'
    path.write_text(earlier + '{"cut', encoding="utf-8")
    writer = JsonLinesWriter(path, resume=True)
    writer.write("{}")
    writer.close()
    assert path.read_text(encoding="utf-8") == earlier + "{}\n"


def test_a_link_to_kept_rows_stays_a_link(tmp_path: Path) -> None:
    there = tmp_path / "elsewhere" / "t.csv"
    there.parent.mkdir()
    TraceWriter(there).close()
    (tmp_path / "t.csv").symlink_to(there)
    TraceWriter(
        tmp_path / "t.csv",
        (),
        [TraceRow(streaming=True, request_id=1, input_tokens=1, output_tokens=1, arrival_time_us=0)],
    ).close()
    assert (tmp_path / "t.csv").is_symlink()
    assert len(read_rows(there)) == 1


def test_a_pipe_keeps_its_place(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    os.mkfifo(path)
    reading = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    open_with_header(path, "a", ["1\n"], is_exclusive=True).close()
    assert os.read(reading, 100) == b"a\n1\n"
    os.close(reading)
    assert path.is_fifo()


def test_only_one_of_several_writers_opens_a_file(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    with (
        exclusive_writer(path),
        pytest.raises(TraceError, match=r"t\.csv: another process is writing it"),
        exclusive_writer(path),
    ):
        pass
    assert not path.exists()
    file = open_with_header(path, "a", ["1\n"], is_exclusive=True)
    file.write("2\n")
    for kept in ([], ["1\n"]):
        with pytest.raises(TraceError, match=r"t\.csv: another process is writing it"):
            open_with_header(path, "a", kept, is_exclusive=True)
    file.close()
    assert path.read_text() == "a\n1\n2\n"
    open_with_header(path, "a", ["3\n"], is_exclusive=True).close()
    assert path.read_text() == "a\n3\n"


def test_a_file_that_is_no_gzip_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "t.csv.gz").write_text("request_id\n")
    with pytest.raises(TraceError, match=r"t\.csv\.gz: not a gzip file"):
        read_cut_rows(tmp_path / "t.csv.gz")


def _noise(length: int) -> str:
    """Text that does not compress."""
    return "".join(Random(1).choices("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789", k=length))
