"""Outputs on a full disk: one line, exit code 2, and every file is the earlier one or absent."""

import resource
import shlex
import subprocess
import sys
from functools import partial
from pathlib import Path

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


def limited(command: str, folder: Path, largest_file_bytes: int) -> tuple[int, str]:
    """The exit code and standard error of a command in a process whose files cannot grow beyond a size."""
    limit = partial(resource.setrlimit, resource.RLIMIT_FSIZE, (largest_file_bytes, largest_file_bytes))
    arguments = [sys.executable, "-m", "blis_sim.cli", *shlex.split(command)]
    done = subprocess.run(
        arguments, cwd=folder, preexec_fn=limit, capture_output=True, text=True, check=False, timeout=PATIENCE_S
    )
    return done.returncode, done.stderr


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a trace, its results and a source of another program."""
    monkeypatch.chdir(tmp_path)
    assert run(shlex.split(f"{RUN} --trace-output t --results-path r.json")) == 0
    Path("a.csv").write_text(AZURE)
    return tmp_path


@pytest.mark.slow
@pytest.mark.parametrize("command", COMMANDS)
def test_leaves_no_torn_file_when_the_disk_is_full(command: str, here: Path) -> None:
    before = sorted(here.iterdir())
    largest_bytes = 100 if "json" in command else 10_000
    code, said = limited(command, here, largest_bytes)
    assert code == 2
    (line,) = [each for each in said.splitlines() if "error: " in each]
    assert line.endswith("cannot be written, file too large")
    assert "Traceback" not in said
    assert sorted(here.iterdir()) == before
    assert run(shlex.split(command)) == 0
    whole = {name: Path(name).read_bytes() for name in COMMANDS[command]}
    assert limited(command, here, largest_bytes)[0] == 2
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
