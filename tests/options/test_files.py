"""Files of a user are read within limits."""

import gzip
import os
import threading
from pathlib import Path

import pytest

from blis_sim.options.files import read_file, read_given
from traces import read_header, read_rows
from traces.append_file import complete_lines, open_pipes
from traces.text_file import TraceError


def test_ordinary_files_pipes_and_the_empty_device_are_read(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"abc" * 50_000)
    assert read_file(path) == b"abc" * 50_000
    assert read_file(os.devnull) == b""
    reading, writing = os.pipe()
    os.write(writing, b"through a pipe")
    os.close(writing)
    assert read_file(f"/dev/fd/{reading}") == b"through a pipe"
    os.close(reading)


@pytest.mark.parametrize("name", ["/dev/zero", "/dev/urandom", "/dev/full"])
def test_a_device_without_an_end_is_refused(name: str) -> None:
    with pytest.raises(OSError, match="expected a file, got a device"):
        read_file(name)
    with pytest.raises(TraceError, match=f"{name}: expected a file, got a device"):
        read_header(name)


def test_a_file_that_is_nothing_but_a_hole_is_refused_before_it_is_read(tmp_path: Path) -> None:
    path = tmp_path / "sparse.yaml"
    with path.open("wb") as file:
        file.truncate(3 << 30)
    with pytest.raises(TraceError, match=r"sparse\.yaml: expected a file with content, got one with holes"):
        read_header(path)
    with path.open("r+b") as file:
        file.truncate(1 << 40)
    with pytest.raises(TraceError, match=r"expected at most 4294967296 bytes, got 1099511627776"):
        read_header(path)


def test_a_small_gzip_file_does_not_unpack_to_a_large_one(tmp_path: Path) -> None:
    path = tmp_path / "bomb.csv.gz"
    path.write_bytes(gzip.compress(bytes(65 << 20), 1))
    for read in (read_rows, complete_lines):
        with pytest.raises(TraceError, match=r"bomb\.csv\.gz: expected at most \d+ bytes unpacked, got more"):
            read(path)


def test_text_is_unpacked_however_well_it_packs(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv.gz"
    text = b"1,1,1\n" * 1_000_000
    path.write_bytes(gzip.compress(text))
    assert read_given(path) == text


def test_pipes_have_a_reader_before_a_loop_begins(tmp_path: Path) -> None:
    pipe, plain = tmp_path / "pipe", tmp_path / "plain"
    os.mkfifo(pipe)
    found: list[bytes] = []
    reader = threading.Thread(target=lambda: found.append(pipe.read_bytes()))
    reader.start()
    with open_pipes([pipe, plain]):
        for piece in (b"one ", b"two"):
            with pipe.open("wb") as file:  # which does not wait, and does not end what the reader sees
                file.write(piece)
    reader.join()
    assert found == [b"one two"]
    assert not plain.exists()
