"""`blis` as a process of its own: what it loads, what it prints, how it ends."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

PROJECT = Path(__file__).resolve().parents[2]

LOADED_BY_HELP = """
import sys
from blis_cli.main import run
code = run(["--help"])
sys.stderr.write(" ".join(sorted({name.partition(".")[0] for name in sys.modules})))
sys.exit(code)
"""


def python(*arguments: str, stdout: int = subprocess.PIPE) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments], cwd=PROJECT, stdout=stdout, stderr=subprocess.PIPE, text=True, check=False
    )


def test_help_loads_neither_a_command_nor_what_commands_need() -> None:
    process = python("-W", "error", "-c", LOADED_BY_HELP)
    loaded = set(process.stderr.split())
    assert process.returncode == 0
    assert {"typer", "blis_cli", "blis_options"} <= loaded
    ours = {"engine", "traces", "replay", "calibrate", "observe", "mockserve"}
    others = {"aiohttp", "matplotlib", "numpy", "orjson", "prometheus_client", "rich", "scipy", "uvloop", "yaml"}
    assert loaded & (ours | others | {"asyncio"}) == set()


@pytest.mark.parametrize("arguments", [["--help"], ["replay", "--help"], ["--version"]])
def test_output_that_nobody_reads_to_the_end_is_no_error(arguments: list[str]) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    try:
        process = python("-m", "blis_cli", *arguments, stdout=writing)
    finally:
        os.close(writing)
    assert process.stderr == ""
    assert process.returncode in (0, 1)


def test_a_mistake_ends_the_process_with_code_2_and_one_line() -> None:
    process = python("-W", "error", "-m", "blis_cli", "replay", "absent.yaml", "--model", "qwen/qwen3-14b")
    assert (process.returncode, process.stdout) == (2, "")
    assert process.stderr == "blis replay: error: absent.yaml: no such file\n"


def test_the_console_script_is_the_same_program() -> None:
    script = Path(sys.executable).with_name("blis")
    if not script.is_file():
        pytest.skip("the project is not installed beside this interpreter")
    said = subprocess.run([script, "--version"], capture_output=True, text=True, check=True).stdout
    assert said == python("-m", "blis_cli", "--version").stdout
