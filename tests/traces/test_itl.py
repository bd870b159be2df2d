"""Token times per request, plain and gzipped."""

from pathlib import Path

import pytest

from traces import ItlWriter, TraceError, read_itl

HEAD = "request_id,chunk_index,timestamp_us\n"


@pytest.mark.parametrize("name", ["t.itl.csv", "t.itl.csv.gz"])
def test_written_chunk_times_read_back(tmp_path: Path, name: str) -> None:
    with ItlWriter(tmp_path / name) as writer:
        writer.write(7, [100, 120, 125])
        writer.write(2, [])
        writer.write(3, [50])
    assert read_itl(tmp_path / name) == {7: [100, 120, 125], 3: [50]}
    assert list(read_itl(tmp_path / name)) == [7, 3]


def test_the_file_is_plain_lines(tmp_path: Path) -> None:
    with ItlWriter(tmp_path / "t.csv") as writer:
        writer.write(7, [100, 120])
        assert (tmp_path / "t.csv").read_text() == f"{HEAD}7,0,100\n7,1,120\n"


def test_chunks_are_ordered_by_their_index_not_by_their_line(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text(f"{HEAD}5,10,300\n5,2,200\n4,0,9\n5,0,100\n")
    assert read_itl(tmp_path / "t.csv") == {5: [100, 200, 300], 4: [9]}


def test_a_header_alone_gives_nothing(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text(HEAD)
    assert read_itl(tmp_path / "t.csv") == {}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            f"{HEAD}1,0,-5\n",
            "line 2 column timestamp_us: expected a whole number between 0 and 9007199254740992, got '-5'",
        ),
        (
            f"{HEAD}1,x,5\n",
            "line 2 column chunk_index: expected a whole number of at least 0, got 'x'",
        ),
        ("request_id,timestamp_us\n1,2\n", "line 1: the column chunk_index is missing, found request_id, timestamp_us"),
    ],
)
def test_a_bad_file_is_named(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "t.csv").write_text(text)
    with pytest.raises(TraceError) as raised:
        read_itl(tmp_path / "t.csv")
    assert str(raised.value) == f"{tmp_path}/t.csv {said}"
