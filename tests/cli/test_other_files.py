"""A file of another kind than the one to be written stays as it is, under its own name and behind a link."""

import shlex
from pathlib import Path
from shutil import copytree

import pytest

from blis_sim.cli.main import run

RUN = "run --model qwen/qwen3-14b --num-requests 3"
REPLAY = "replay t.yaml --model qwen/qwen3-14b"
LOAD = "observe --url http://localhost:1 --rate 1 --num-requests 1"
NOTES = "name: my notes\n- of mine: 1\n"
COMMANDS = {
    f"{RUN} --trace-output out": "out.yaml",
    f"{RUN} --trace-output ./out": "out.csv",
    f"{RUN} --results-path out": "out",
    f"{RUN} --metrics-path out": "out",
    f"{RUN} --detectors all --saturation-report out": "out",
    f"{RUN} --trace-level decisions --decisions-path out": "out",
    f"{RUN} --record-itl --itl-output out.csv": "out.csv",
    f"{RUN} --record-itl --trace-output out": "out.itl.csv",
    f"{REPLAY} --trace-output out": "out.csv",
    f"{REPLAY} --results-path out": "out",
    "calibrate t.yaml --sim-results r.json --report out": "out",
    "calibrate t.yaml --sim-results r.json --html out": "out",
    "calibrate t.yaml --sim-results r.json --plots .": "itl-load.png",
    "fit t.yaml --model qwen/qwen3-14b -o out": "out",
    "convert preset chatbot -o out": "out",
    "convert azure a.csv -o out": "out.yaml",
    "convert azure a.csv --output out": "out.csv",
    "convert azure a.csv --output ./out": "out.itl.csv",
    "compose --from t.yaml --from t.yaml -o out": "out.yaml",
    "compose --from t.yaml --from t.yaml -o ./out": "out.csv",
    "compose --from w.yaml --from w.yaml -o out": "out",
    f"sweep {RUN} --vary max_num_seqs=1,2 -o out.csv --overwrite": "out.csv",
    f"sweep {RUN} --vary max_num_seqs=1,2 -o new.csv --plot out.svg": "out.svg",
    f"sweep {RUN} --vary max_num_seqs=1,2 -o new.csv --parquet out": "out",
    f"bench tune {RUN} --vary max_num_seqs=1,2 --ttft-p99 9999ms -o out.csv": "out.csv",
    "bench throughput --model qwen3-14b --num-prompts 2 --output-json out": "out",
    "bench latency --model qwen3-14b --output-json out": "out",
    "bench serve --save-result --result-filename out.json --overwrite": "out.json",
    "bench serve --append-result --result-filename out.json": "out.json",
    "bench serve --plot out.svg": "out.svg",
    f"{LOAD} -o out": "out.yaml",
    f"{LOAD} -o ./out": "out.csv",
    f"{LOAD} --output out": "out.itl.csv",
    f"{LOAD} --output ./out": "out.metrics.jsonl",
    f"{LOAD} --overwrite -o out": "out.csv.gz",
    f"{LOAD} --trace-header out --trace-data new.csv": "out",
    f"{LOAD} -o new --plot out.svg": "out.svg",
}


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a trace, its results, a spec and a source of another program."""
    folder = tmp_path_factory.mktemp("written")
    assert run(shlex.split(f"{RUN} --trace-output {folder}/t --results-path {folder}/r.json")) == 0
    assert run(shlex.split(f"convert preset chatbot -o {folder}/w.yaml")) == 0
    (folder / "a.csv").write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46,1,2\n")
    return folder


@pytest.fixture
def here(written: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with these files."""
    folder = copytree(written, tmp_path / "here")
    monkeypatch.chdir(folder)
    return folder


@pytest.mark.parametrize("is_linked", [False, True])
@pytest.mark.parametrize(
    "command", [pytest.param(each, marks=pytest.mark.slow) if "--plots" in each else each for each in COMMANDS]
)
def test_no_command_writes_over_a_file_of_another_kind(
    command: str, is_linked: bool, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kept = here / COMMANDS[command]
    if is_linked:
        kept.symlink_to(here.parent / "elsewhere")
        kept = here.parent / "elsewhere"
    kept.write_text(NOTES)
    before = sorted(here.iterdir())
    assert run(shlex.split(command)) == 2
    said = capsys.readouterr().err
    assert "would write over" in said
    assert "which does not hold" in said
    assert said.count("\n") == 1
    assert kept.read_text() == NOTES
    assert sorted(here.iterdir()) == before


@pytest.mark.parametrize(
    "command",
    [
        f"{RUN} --trace-output out --record-itl --results-path r.json --metrics-path m.json --num-instances 2"
        " --detectors all --saturation-report s.json --trace-level decisions --decisions-path d.json",
        pytest.param(
            "calibrate t.yaml --sim-results r.json --report c.json --html page.html --plots pictures",
            marks=pytest.mark.slow,
        ),
        "calibrate t.yaml --sim-results r.json --report c.json --compat",
        "convert preset chatbot -o spec",
        "convert azure a.csv -o azure",
        "compose --from t.yaml --from t.yaml -o both",
        "compose --from w.yaml --from w.yaml -o both.yaml",
        pytest.param(
            f"sweep {RUN} --vary max_num_seqs=1,2 -o sweep.csv --plot p.svg --overwrite --processes 1",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            f"bench tune {RUN} --vary max_num_seqs=1,2 --ttft-p99 9999ms -o tune.csv --plot p.png --processes 1",
            marks=pytest.mark.slow,
        ),
        "bench throughput --model qwen3-14b --num-prompts 2 --output-json t.json",
        "bench latency --model qwen3-14b --num-iters 1 --output-json l.json",
    ],
)
def test_every_command_writes_over_its_own_files(command: str, here: Path) -> None:
    assert run(shlex.split(command)) == 0
    assert run(shlex.split(command)) == 0
