"""Whatever a file holds, reading it gives its content or one line saying why not."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.examples import examples
from traces import TRACE_COLUMNS, TraceError, dump_json, read_header, read_itl, read_results, read_rows

HEADS = [b"request_id,input_tokens,output_tokens,arrival_time_us,reason_ratio,streaming\n", b"", b"\xef\xbb\xbf"]
_pieces = st.sampled_from(
    [b",", b"\n", b'"', b"\r\n", b"1", b"-2", b"3.5", b"true", b"nan", b"1e400", b"\xff", b"\0", b" "]
)
_json = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**60), 2**60) | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["request_id", "ttft_us", "e2e_us", "model", "x"]), inner, max_size=4)
    ),
    max_leaves=12,
)
_keys = ["trace_version", "mode", "server", "network", "measured_rtt_ms", "goodput_slo_targets", "a", "kv_offload"]
_yaml = st.dictionaries(
    st.sampled_from(_keys),
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.dates(),
        lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from([*_keys, "ttft_ms"]), inner),
        max_leaves=6,
    ),
    max_size=3,
)
_quick = settings(
    max_examples=examples(150), suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None
)


def _read(read: Callable[[Path], Any], path: Path, content: bytes) -> None:
    path.write_bytes(content)
    said = str(path)
    try:
        read(path)
    except TraceError as error:
        said = str(error)
    assert said.startswith(str(path))
    assert "\n" not in said


@_quick
@given(head=st.sampled_from(HEADS), pieces=st.lists(_pieces, max_size=30))
def test_any_rows_load_or_are_refused_in_one_line(tmp_path: Path, head: bytes, pieces: list[bytes]) -> None:
    _read(read_rows, tmp_path / "f", head + b"".join(pieces))
    _read(read_itl, tmp_path / "f", b"request_id,chunk_index,timestamp_us\n" + b"".join(pieces))


@_quick
@given(cells=st.dictionaries(st.sampled_from([column.name for column in TRACE_COLUMNS]), st.text(max_size=6)))
def test_any_cell_of_any_column_loads_or_is_refused_in_one_line(tmp_path: Path, cells: dict[str, str]) -> None:
    known = {"request_id": "1", "input_tokens": "2", "output_tokens": "3", "arrival_time_us": "4"} | cells
    quoted = ['"' + cell.replace('"', '""') + '"' for cell in known.values()]
    _read(read_rows, tmp_path / "f", f"{','.join(known)}\n{','.join(quoted)}\n".encode())


@_quick
@given(value=_json)
def test_any_results_load_or_are_refused_in_one_line(tmp_path: Path, value: Any) -> None:
    try:
        text = dump_json(value)
    except ValueError:
        return
    _read(read_results, tmp_path / "f", text.encode())


@_quick
@given(value=_yaml)
def test_any_header_loads_or_is_refused_in_one_line(tmp_path: Path, value: Any) -> None:
    _read(read_header, tmp_path / "f", yaml.safe_dump(value).encode())


@pytest.mark.parametrize(
    "content", [b"", b"\0", b"\xff\xfe", b"%", b"- 1\n- 2", b"a: *b", b"? [1]\n: 2", b"2026-13-45", b"{" * 2000]
)
def test_any_bytes_load_or_are_refused_in_one_line(tmp_path: Path, content: bytes) -> None:
    for read in (read_header, read_rows, read_results, read_itl):
        _read(read, tmp_path / "f", content)
