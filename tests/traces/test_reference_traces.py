"""Real recordings and traces of other tools load, and are written back byte for byte."""

from pathlib import Path

import pytest

from traces import TraceError, columns_worth_writing, read_results, read_trace, write_results, write_trace

LOADS = [
    "t01_extra_trailing_col",
    "t02_unknown_middle_col",
    "t03_swapped_cols",
    "t04_missing_finish_reason",
    "t07_version_1",
    "t07_version_2",
    "t07_version_3_0",
    "t07_version_99",
    "t08_no_version",
    "t14_bool_variants",
    "t16_crlf",
    "t17_bom",
    "t18_negative_arrival",
    "t21_duplicate_id",
    "t22_reverse_order",
    "t23_unknown_status",
    "t24_blank_line",
    "t25_one_row_longer",
    "t27_negative_id",
    "t28_zero_output",
    "t29_zero_input",
    "t30_send_zero",
    "t32_neg_first_chunk",
    "t33_uppercase_header",
    "t35_think_empty",
    "t38_minimal_yaml",
    "t40_too_long_input",
]
REFUSED = {
    "t06_empty_file": "csv: the file is empty",
    "t07_version_3": "yaml key trace_version: expected a whole number, got '3'",
    "t07_version_abc": "yaml key trace_version: expected a whole number, got 'abc'",
    "t09_unknown_header_key": "yaml: unknown key 'foo'",
    "t10_empty_arrival": "csv line 3 column arrival_time_us: ",
    "t11_empty_input_tokens": "csv line 3 column input_tokens: ",
    "t12_negative_input": "csv line 3 column input_tokens: ",
    "t13_float_input": "csv line 3 column input_tokens: ",
    "t15_bool_yes": "csv line 3 column streaming: expected true or false, got 'yes'",
    "t19_deadline_before_arrival": "csv line 3 column deadline_us: ",
    "t20_reason_ratio_gt1": "csv line 3 column reason_ratio: ",
    "t26_nonnumeric_id": "csv line 3 column request_id: ",
    "t31_neg_chunks": "csv line 3 column num_chunks: ",
    "t34_no_header_row": "csv line 1: expected a header row ",
    "t36_think_negative": "csv line 2 column think_time_us: ",
    "t37_empty_yaml": "yaml: the file is empty",
    "t39_growth_typo": "yaml key session_context_growth: ",
}


@pytest.mark.parametrize("name", LOADS)
def test_a_harmless_oddity_loads(shared: Path, name: str) -> None:
    assert len(read_trace(shared / "golden/tools/errors" / f"{name}.yaml").rows) == 5


@pytest.mark.parametrize("name", REFUSED)
def test_a_broken_trace_is_refused_in_one_line(shared: Path, name: str) -> None:
    with pytest.raises(TraceError) as raised:
        read_trace(shared / "golden/tools/errors" / f"{name}.yaml")
    assert f"{name}.{REFUSED[name]}" in str(raised.value)
    assert "\n" not in str(raised.value)


def test_every_odd_trace_is_expected_to_load_or_to_be_refused(shared: Path) -> None:
    names = {path.stem for path in (shared / "golden/tools/errors").glob("t*.yaml")}
    assert names == {*LOADS, *REFUSED, "t05_header_only"}


def test_swapped_columns_are_found_by_name(shared: Path) -> None:
    rows = read_trace(shared / "golden/tools/errors/t03_swapped_cols.yaml").rows
    assert [(row.request_id, row.client_id) for row in rows] == [(number, "chat") for number in range(5)]


def test_a_target_column_is_read_by_name(shared: Path) -> None:
    with_target = read_trace(shared / "golden/tools/run/s2_multiclient_prefix_slo.yaml").rows
    without = read_trace(shared / "golden/tools/run/s2_noslotarget.yaml").rows
    assert [(row.session_id, row.prefix_group, row.model) for row in with_target] == [
        (row.session_id, row.prefix_group, row.model) for row in without
    ]
    assert {row.slo_target_us for row in with_target} == {0, 120_000}


@pytest.mark.parametrize("folder", ["run", "real", "observe_mock", "replay", "arrival"])
def test_traces_are_written_back_byte_for_byte(shared: Path, tmp_path: Path, folder: str) -> None:
    headers = [path for path in (shared / "golden/tools" / folder).glob("*.yaml") if path.with_suffix(".csv").exists()]
    assert headers
    for path in headers:
        trace = read_trace(path)
        columns = columns_worth_writing(trace.rows, trace.header.mode)
        write_trace(tmp_path / "t.yaml", trace.header, trace.rows, columns)
        for suffix in (".yaml", ".csv"):
            # Recordings end with a blank line, and a message's last newline goes when it is read.
            expected = path.with_suffix(suffix).read_text().rstrip("\n").replace('\n",', '",')
            assert (tmp_path / f"t{suffix}").read_text().rstrip("\n") == expected, path


def test_results_are_written_back_byte_for_byte(shared: Path, tmp_path: Path) -> None:
    paths = list((shared / "golden/tools/replay").glob("*.results.json"))
    assert len(paths) > 10
    for path in paths:
        write_results(tmp_path / "r.json", read_results(path))
        assert (tmp_path / "r.json").read_bytes() == path.read_bytes(), path
