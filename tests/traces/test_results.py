"""Results of a simulation: exact when written, forgiving about what does not matter when read."""

from pathlib import Path

import pytest

from traces import ResultRow, TraceError, read_results, write_results


def _read(folder: Path, text: str) -> list[ResultRow]:
    (folder / "r.json").write_text(text)
    return read_results(folder / "r.json")


def test_results_keep_their_order_and_leave_out_what_is_empty(tmp_path: Path) -> None:
    rows = [
        ResultRow(-1, 1, 2, 3, 4, itl_mean_us=0.0),
        ResultRow(5, 1000.0, 2000.5, 10, 2, "batch", "m", 12.25, 7),
    ]
    write_results(tmp_path / "r.json", iter(rows))
    assert (tmp_path / "r.json").read_text() == (
        '[\n  {\n    "request_id": -1,\n    "ttft_us": 1,\n    "e2e_us": 2,\n    "input_tokens": 3,\n'
        '    "output_tokens": 4\n  },\n  {\n    "request_id": 5,\n    "ttft_us": 1000,\n    "e2e_us": 2000.5,\n'
        '    "input_tokens": 10,\n    "output_tokens": 2,\n    "slo_class": "batch",\n    "model": "m",\n'
        '    "itl_mean_us": 12.25,\n    "sent_at_us": 7\n  }\n]'
    )
    assert [row.request_id for row in read_results(tmp_path / "r.json")] == [-1, 5]


def test_no_results_are_an_empty_array(tmp_path: Path) -> None:
    write_results(tmp_path / "r.json", [])
    assert (tmp_path / "r.json").read_text() == "[]"
    assert read_results(tmp_path / "r.json") == []


def test_whole_floats_and_unknown_keys_are_accepted(tmp_path: Path) -> None:
    text = '[{"request_id": 1.0, "ttft_us": 1.5, "e2e_us": 2, "input_tokens": 3.0, "output_tokens": 4, "x": []}]'
    assert _read(tmp_path, text) == [ResultRow(1, 1.5, 2, 3, 4)]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"a":1}', ": expected a JSON array of results, got an object"),
        ("5", ": expected a JSON array of results, got a number"),
        ("[5]", " item 0: expected an object with request_id and latencies, got a number"),
        ('[{"request_id":1}]', " item 0 key ttft_us: expected a number of at least 0, but the key is missing"),
        ('[{"request_id":"1"}]', " item 0 key request_id: expected a whole number, got '1'"),
        ('[{"request_id":1.5}]', " item 0 key request_id: expected a whole number, got 1.5"),
        ('[{"request_id":1,"ttft_us":-1}]', " item 0 key ttft_us: expected a number of at least 0, got -1"),
        (
            '[{"request_id":1,"ttft_us":1,"e2e_us":true}]',
            " item 0 key e2e_us: expected a number of at least 0, got True",
        ),
        (
            '[{"request_id":1,"ttft_us":1,"e2e_us":2,"output_tokens":-2}]',
            " item 0 key output_tokens: expected a whole number of at least 0, got -2",
        ),
        ('[{"request_id":1,"ttft_us":1,"e2e_us":2,"model":3}]', " item 0 key model: expected text, got 3"),
        ("", " line 1: expected JSON, "),
        ("[\n1,\n", " line 3: expected JSON, "),
    ],
)
def test_a_bad_file_is_named(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(TraceError) as raised:
        _read(tmp_path, text)
    assert str(raised.value).startswith(f"{tmp_path}/r.json{said}")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs the device that is always full")
def test_a_full_disk_is_named() -> None:
    with pytest.raises(TraceError, match="/dev/full: cannot be written, no space left on device"):
        write_results("/dev/full", [ResultRow(1, 1, 2, 3, 4)])
