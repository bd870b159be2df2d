"""Malformed and odd traces: each either loads or is refused in one clear line, never with a traceback."""

from pathlib import Path

import pytest

from blis_cli.main import run

HARMLESS = {
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
}


def test_every_edge_file_loads_or_is_refused_in_one_line(
    shared: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    headers = sorted((shared / "golden" / "tools" / "errors").glob("t*.yaml"))
    assert len(headers) > 30
    for header in headers:
        code = run(["replay", str(header), "--model", "qwen/qwen3-14b", "--results-path", str(tmp_path / "r.json")])
        said = capsys.readouterr()
        if header.stem in HARMLESS:
            assert code == 0, f"{header.name}: {said.err}"
        elif code != 0:
            assert code == 2, f"{header.name} ended with {code}"
            assert said.err.count("\n") == 1, f"{header.name}: {said.err}"
            assert said.out == ""
