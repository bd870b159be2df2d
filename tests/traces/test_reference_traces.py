"""Real recordings and traces of other tools load, and are written back byte for byte."""

from pathlib import Path

import pytest

from tests.odd_traces import LOADS, REFUSED
from traces import TraceError, columns_worth_writing, read_results, read_trace, write_results, write_trace


@pytest.mark.parametrize("name", LOADS)
def test_a_harmless_oddity_loads(reference: Path, name: str) -> None:
    assert len(read_trace(reference / "golden/tools/errors" / f"{name}.yaml").rows) == 5


@pytest.mark.parametrize("name", REFUSED)
def test_a_broken_trace_is_refused_in_one_line(reference: Path, name: str) -> None:
    with pytest.raises(TraceError) as raised:
        read_trace(reference / "golden/tools/errors" / f"{name}.yaml", distinct=True)
    assert f"{name}.{REFUSED[name]}" in str(raised.value)
    assert "\n" not in str(raised.value)


def test_every_odd_trace_is_expected_to_load_or_to_be_refused(reference: Path) -> None:
    names = {path.stem for path in (reference / "golden/tools/errors").glob("t*.yaml")}
    assert names == {*LOADS, *REFUSED, "t05_header_only"}


def test_swapped_columns_are_found_by_name(reference: Path) -> None:
    rows = read_trace(reference / "golden/tools/errors/t03_swapped_cols.yaml").rows
    assert [(row.request_id, row.client_id) for row in rows] == [(number, "chat") for number in range(5)]


def test_a_target_column_is_read_by_name(reference: Path) -> None:
    with_target = read_trace(reference / "golden/tools/run/s2_multiclient_prefix_slo.yaml").rows
    without = read_trace(reference / "golden/tools/run/s2_noslotarget.yaml").rows
    assert [(row.session_id, row.prefix_group, row.model) for row in with_target] == [
        (row.session_id, row.prefix_group, row.model) for row in without
    ]
    assert {row.slo_target_us for row in with_target} == {0, 120_000}


def assert_written_back(folder: Path, tmp_path: Path) -> None:
    headers = [path for path in folder.glob("*.yaml") if path.with_suffix(".csv").exists()]
    assert headers
    for path in headers:
        trace = read_trace(path)
        columns = columns_worth_writing(trace.rows, trace.header.mode)
        write_trace(tmp_path / "t.yaml", trace.header, trace.rows, columns)
        for suffix in (".yaml", ".csv"):
            # Recordings end with a blank line, and a message's last newline goes when it is read.
            expected = path.with_suffix(suffix).read_text().rstrip("\n").replace('\n",', '",')
            assert (tmp_path / f"t{suffix}").read_text().rstrip("\n") == expected, path


@pytest.mark.parametrize("folder", ["run", "replay", "real", "observe_mock"])
def test_traces_of_tables_are_written_back_byte_for_byte(reference: Path, tmp_path: Path, folder: str) -> None:
    assert_written_back(reference / "golden/tools" / folder, tmp_path)


def test_results_are_written_back_byte_for_byte(reference: Path, tmp_path: Path) -> None:
    paths = list((reference / "golden/tools/replay").glob("*.results.json"))
    assert len(paths) > 10
    for path in paths:
        write_results(tmp_path / "r.json", read_results(path))
        assert (tmp_path / "r.json").read_bytes() == path.read_bytes(), path
