"""Rows kept by columns come back as they were, take a fraction of the room, and files are read by lines."""

import random
import tracemalloc
from dataclasses import replace
from pathlib import Path

import pytest

from traces import TraceError, TraceHeader, TraceRow, read_rows, read_trace, write_trace
from traces.packed import ROWS_AT_ONCE, PackedRows


def row(draws: random.Random, number: int) -> TraceRow:
    return TraceRow(
        request_id=number,
        tenant_id=draws.choice(["", "a", "b"]),
        session_id=f"s{draws.randint(0, 400)}",
        streaming=draws.choice([None, True, False]),
        vllm_priority=draws.choice([None, 0, 7]),
        reason_ratio=draws.choice([0.0, -0.0, 0.25]),
        input_tokens=draws.randint(0, 200_000),
        output_tokens=draws.choice([1, 300, 70_000]),
        arrival_time_us=draws.randint(-(2**40), 2**40),
        error_message=draws.choice(["", f"failed {number}"]),
    )


@pytest.mark.parametrize("size", [0, 1, 2, ROWS_AT_ONCE, 3 * ROWS_AT_ONCE + 5])
def test_packed_rows_are_those_that_were_packed(size: int) -> None:
    draws = random.Random(size)
    given = [row(draws, number) for number in range(size)]
    packed = PackedRows.of(TraceRow, given)
    assert list(packed) == [packed[place] for place in range(size)] == given
    assert list(map(repr, packed)) == list(map(repr, given))
    assert list(packed.values("session_id")) == [each.session_id for each in given]
    assert packed.distinct("output_tokens") == {each.output_tokens for each in given}
    places = draws.choices(range(size), k=size)
    assert list(packed.those(places)) == [given[place] for place in places]
    assert list(packed[1::2]) == given[1::2]
    ones = packed.with_columns(output_tokens=[1] * size)
    assert list(ones.values("output_tokens")) == [1] * size
    assert list(ones.values("input_tokens")) == [each.input_tokens for each in given]
    with pytest.raises(IndexError):
        packed[size]


def test_a_trace_takes_a_fifth_of_the_room_of_its_rows(tmp_path: Path) -> None:
    draws = random.Random(1)
    path = tmp_path / "t.yaml"
    rows = [replace(row(draws, number), error_message="") for number in range(5_000)]
    write_trace(path, TraceHeader(), rows)

    def room(*, is_packed: bool) -> int:
        tracemalloc.start()
        kept = read_trace(path, is_packed=is_packed)
        taken = tracemalloc.get_traced_memory()[0]
        tracemalloc.stop()
        assert len(kept.rows) == 5_000
        return taken

    room(is_packed=True)
    assert room(is_packed=True) < room(is_packed=False) / 5


def test_errors_of_a_file_that_is_read_by_lines_name_the_line(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    head = "request_id,input_tokens,output_tokens,arrival_time_us,error_message\n"
    body = "".join(f'{number},1,1,{number},"a\nb"\n' for number in range(3_000))
    path.write_text(f"{head}{body}3000,x,1,1,\n")
    with pytest.raises(TraceError, match="line 6002 column input_tokens"):
        read_rows(path)
    path.write_bytes(f"{head}{body}".encode() + b"3000,1,1,1,\xff\n")
    with pytest.raises(TraceError, match="line 6002: expected UTF-8 text, got the byte 0xff"):
        read_rows(path)
