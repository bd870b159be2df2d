"""Outputs on a full disk: one line, exit code 2, and every file is the earlier one or absent."""

import resource
import shlex
import subprocess
import sys
from pathlib import Path
from shutil import copytree

import pytest

from blis_sim.cli.main import run
from tests.patience import PATIENCE_S

RUN = "run --model qwen/qwen3-14b --num-requests 400 --output-tokens 20 --output-tokens-stdev 0"
AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\n" + "2023-11-16 18:15:46,1,2\n" * 900
COMMANDS = {
    f"{RUN} --metrics-path out": ("out",),
    f"{RUN} --results-path out": ("out",),
    f"{RUN} --trace-output out": ("out.yaml", "out.csv"),
    f"{RUN} --record-itl --itl-output out": ("out",),
    f"{RUN} --detectors all --saturation-report out": ("out",),
    f"{RUN} --num-instances 2 --trace-level decisions --decisions-path out": ("out",),
    "convert azure a.csv -o out": ("out.yaml", "out.csv"),
    "compose --from t.yaml --from t.yaml -o out": ("out.yaml", "out.csv"),
    "calibrate t.yaml --sim-results r.json --html out": ("out",),
    "calibrate t.yaml --sim-results r.json --report out": ("out",),
    "bench latency --model qwen3-14b --num-iters 2 --num-iters-warmup 1 --output-json out.json": ("out.json",),
    "bench throughput --model qwen3-14b --num-prompts 2 --output-json out.json": ("out.json",),
}


def limited(command: str, largest_file_bytes: int) -> int:
    """The exit code of a command while no file can grow beyond a size."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (largest_file_bytes, before[1]))
    try:
        return run(shlex.split(command))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a trace, its results and a source of another program."""
    folder = tmp_path_factory.mktemp("written")
    assert run(shlex.split(f"{RUN} --trace-output {folder}/t --results-path {folder}/r.json")) == 0
    (folder / "a.csv").write_text(AZURE)
    return folder


@pytest.fixture
def here(tmp_path: Path, written: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with these files."""
    copytree(written, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    "command",
    [pytest.param(each, marks=pytest.mark.slow if each.startswith("calibrate") else ()) for each in COMMANDS],
)
def test_leaves_no_torn_file_when_the_disk_is_full(
    command: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = sorted(here.iterdir())
    largest_bytes = 100 if "json" in command else 10_000
    assert limited(command, largest_bytes) == 2
    said = capsys.readouterr().err
    (line,) = [each for each in said.splitlines() if "error: " in each]
    assert line.endswith("cannot be written, file too large")
    assert "Traceback" not in said
    assert sorted(here.iterdir()) == before
    assert run(shlex.split(command)) == 0
    whole = {name: Path(name).read_bytes() for name in COMMANDS[command]}
    assert limited(command, largest_bytes) == 2
    assert {name: Path(name).read_bytes() for name in COMMANDS[command]} == whole


def test_keeps_the_permissions_of_a_file_and_a_link_to_it(here: Path) -> None:
    Path("out").touch(mode=0o640)
    Path("out").chmod(0o640)
    Path("link").symlink_to("out")
    assert run(shlex.split(f"{RUN} --results-path link")) == 0
    assert Path("link").is_symlink()
    assert Path("out").stat().st_mode & 0o777 == 0o640
    assert Path("out").read_bytes() == Path("r.json").read_bytes()


def test_writes_to_standard_output_where_that_is_a_file(here: Path) -> None:
    command = f"{sys.executable} -m blis_sim.cli {RUN} --results-path /dev/stdout >> both"
    subprocess.run(command, shell=True, cwd=here, check=True, timeout=PATIENCE_S)
    assert Path("both").read_text().startswith("[\n")
