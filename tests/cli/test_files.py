"""An input of a command, or a file that belongs to it, is refused as its output: one line, and no byte of it
changes."""

import shlex
from pathlib import Path

import pytest

from blis_sim.cli.main import run

FILES = ("t.yaml", "t.csv", "t.itl.csv", "t.metrics.jsonl", "results.json", "data.json", "w.yaml", "config.json")
REPLAY = "replay t.yaml --model qwen/qwen3-14b"
LOAD = "observe --url http://localhost:1"


@pytest.mark.parametrize(
    "command",
    [
        f"{REPLAY} --results-path t.csv",
        f"{REPLAY} --trace-output t",
        f"{REPLAY} --record-itl --itl-output t.itl.csv",
        f"{REPLAY} --metrics-path t.metrics.jsonl",
        f"{REPLAY} --record-itl --trace-output new --results-path new.itl.csv",
        f"{REPLAY} --trace-data results.json --results-path t.csv",
        f"{REPLAY} --hardware-config config.json --metrics-path config.json",
        "run --model qwen/qwen3-14b --workload-spec w.yaml --trace-output w",
        "run --model qwen/qwen3-14b --trace-output new --record-itl --results-path new.itl.csv",
        "calibrate t.yaml --sim-results results.json --report results.json",
        "calibrate t.yaml --sim-results results.json --report t.itl.csv",
        "fit t.yaml --model qwen/qwen3-14b -o t.itl.csv",
        "fit t.yaml --model qwen/qwen3-14b -o hard.csv",
        "compose --from linked.yaml --from w.yaml -o t",
        "convert azure t.csv -o t",
        "convert azure hard.csv -o t",
        "convert vllm-bench t.itl.csv -o t",
        "bench serve --dataset-name sharegpt --dataset-path data.json --save-result --result-filename data.json",
        "bench serve --dataset-name custom --dataset-path data.json --append-result --result-filename ./data.json",
        "bench throughput --model x --dataset-name custom --dataset-path data.json --output-json data.json",
        f"sweep {REPLAY} --vary max_num_seqs=1,2 -o t.itl.csv --overwrite",
        f"{LOAD} --trace t.yaml -o ../here/t",
        f"{LOAD} --trace t.yaml --trace-header new.yaml --trace-data hard.csv",
        f"{LOAD} --workload-spec w.yaml -o w",
        f"{LOAD} --rate 1 --num-requests 1 --prompts data.json --trace-header new.yaml --trace-data data.json",
    ],
)
def test_no_command_writes_over_what_it_reads(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    for name in FILES:
        Path(name).write_text("precious")
    Path("hard.csv").hardlink_to("t.csv")
    Path("linked.yaml").write_text("precious")
    Path("linked.csv").symlink_to("t.csv")
    assert run(shlex.split(command)) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert " would write over " in said or " would both write " in said
    assert {Path(name).read_text() for name in FILES} == {"precious"}
    assert not list(Path().glob("new*"))
