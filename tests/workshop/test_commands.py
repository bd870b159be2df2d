"""Every command of the workshop runs, or says in one line what it needs that is not there."""

import ast
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import fork_server
from tests.architecture.project import PROJECT

WORKSHOP = PROJECT / "workshop"
NOWHERE = "http://127.0.0.1:9"
BOTH_NOWHERE = ("--genuine", NOWHERE, "--ours", NOWHERE)
UNBOUNDED = ("--gap-p99-ms", "1e9", "--gap-worst-ms", "1e9", "--health-ms", "1e9", "--memory-mb", "1e9")
RUNS: dict[str, tuple[str, ...]] = {
    "workshop.attack": ("--only", "WebSocket", "--seconds", "0.5", *UNBOUNDED),
    "workshop.attack.drawn": ("--setups", "plain", "--count", "2", *UNBOUNDED),
    "workshop.attack.files": ("--count", "5"),
    "workshop.attack.interrupts": ("--instants", "1", "--only", "run"),
    "workshop.attack.stalls": ("--only", "n of 10", "--seconds", "1", "--quiet-s", "0.2", *UNBOUNDED),
    "workshop.attack.watcher": ("127.0.0.1", "9", "samples", "--seconds", "0.2"),
    "workshop.cache_day": ("--minutes", "0.05", "--rate", "20"),
    "workshop.coverage": ("--kinds", "1", "--recordings", "2", "--requests", "30", "--draws", "2"),
    "workshop.deployments": ("gpt-oss-120b", "--seconds", "2", "--any-grade"),
    "workshop.endpoints": ("--count", "2", "--seconds", "1"),
    "workshop.engine_cost": ("--requests", "20", "--only", "requests"),
    "workshop.operators_held_out": ("mlp.csv",),
    "workshop.kernels_left_out": ("--deployments", "1", "--gpu", "H200"),
    "workshop.proxy_latency": ("--rate", "50", "--seconds", "1"),
    "workshop.served_kinds": ("one engine", "--speed", "1", "--requests", "3", "--tries", "1", "--any-error"),
    "workshop.reply_calls": (),
    "workshop.server": ("--only", "admission", "--repetitions", "1", "--share", "0.001"),
    "workshop.server_scale": ("killed", "--streams", "5"),
    "workshop.step_laws": ("--models", "qwen3-14b", "--gpus", "H100,B200"),
}
"""Commands that exit with 0, with the smallest arguments that let them do their work."""

MISSING: dict[str, tuple[tuple[str, ...], str]] = {
    "workshop.accuracy": (("nowhere",), "nowhere/server_config.json: no such file or folder"),
    "workshop.classes": (("nowhere.csv", "nowhere.csv"), "nowhere.csv: no such file or folder"),
    "workshop.fleet_ladder": (("nowhere.csv",), "nowhere.csv: no such file or folder"),
    "workshop.errors": (("nowhere", "nowhere.csv"), "nowhere.csv: no such file or folder"),
    "workshop.kernels_host": (("nowhere",), "nowhere/server_config.json: no such file or folder"),
    "workshop.left_out": (("nowhere",), "nowhere/server_config.json: no such file or folder"),
    "workshop.looks": (("nowhere",), "npm install --prefix nowhere axe-core playwright-core"),
    "workshop.points": (("nowhere.csv", "--rows", "rows.csv"), "nowhere.csv: no such file or folder"),
    "workshop.published": (("nowhere",), "nowhere/experiments: no such file or folder"),
    "workshop.silicon": (("nowhere.csv",), "nowhere.csv: no such file or folder"),
    "workshop.kernel_tables": (("nowhere",), "needs the Python package aiconfigurator_core"),
    "workshop.kernel_tables_check": ((), "needs the Python package aiconfigurator_core"),
    "workshop.router": (("--count", "20"), "has no sglang-router: pip install sglang-router"),
    "workshop.server_load.client": ((), "usage: client PORT CASE"),
    "workshop.vllm_oracle": (("--seeds", "1"), "needs the Python package vllm"),
    "workshop.vllm_oracle.balancing": (("--seeds", "1"), "needs the Python package vllm"),
    "workshop.vllm_oracle.offloading": (("--seeds", "1"), "needs the Python package vllm"),
    "workshop.vllm_oracle.equal_words": (
        ("--genuine", NOWHERE, "--model", "nowhere", "--answers", "a.json"),
        f"cannot reach {NOWHERE}",
    ),
    "workshop.vllm_oracle.engine_core": (BOTH_NOWHERE, f"cannot reach {NOWHERE}"),
    "workshop.vllm_oracle.engine_events": (("--url", NOWHERE, "--events", "1"), f"cannot reach {NOWHERE}"),
    "workshop.vllm_oracle.mutated_requests": (BOTH_NOWHERE, f"cannot reach {NOWHERE}"),
    "workshop.vllm_oracle.route_search": (BOTH_NOWHERE, f"cannot reach {NOWHERE}"),
    "workshop.vllm_oracle.speech_search": (BOTH_NOWHERE, f"cannot reach {NOWHERE}"),
    "workshop.vllm_oracle.streams": (("--python", "nowhere", "--stand-in", "."), "nowhere: no such file or folder"),
    "workshop.vllm_oracle.structured": (BOTH_NOWHERE, "cannot reach the server"),
    "workshop.vllm_oracle.tapped_steps": (("--url", NOWHERE), f"cannot reach {NOWHERE}"),
    "workshop.vllm_oracle.wire_search": (("--genuine", NOWHERE, "--model", "nowhere"), f"cannot reach {NOWHERE}"),
    "workshop.vllm_oracle.wire_search.shapes": (
        ("--genuine", NOWHERE, "--model", "nowhere"),
        f"cannot reach {NOWHERE}",
    ),
    "workshop.vllm_oracle.wire_search.folder": ((), "usage: folder BASE OUT"),
    "workshop.vllm_oracle.openapi_tables": ((), "usage: openapi_tables PLAIN DEV "),
    "workshop.vllm_oracle.response_items": ((), "usage: response_items FILE"),
}
"""Commands that need a genuine vLLM, recordings, a library or files, and what they say without."""

ENDLESS: dict[str, tuple[tuple[str, ...], str]] = {
    "workshop.attack.hostile_upstream": ((), "serving hostile replies on http://127.0.0.1:"),
    "workshop.server_load.reference": (("--port", "0"), "serving on http://127.0.0.1:"),
}
"""Commands that run until they are stopped, and their first words."""

ELSEWHERE = {
    "workshop.attack.soak": "tests/wire/test_soak.py",
    "workshop.day": "tests/observe/proxy/test_a_day.py",
    "workshop.long_functions": "Makefile",
    "workshop.plans_served": "tests/bench/test_plan_served.py",
    "workshop.startup": "tests/cli/test_startup_benchmark.py",
}
"""Commands that a test of their own runs to their end, or `make check` does."""


def commands() -> Iterator[str]:
    """The modules of the workshop that do something when they are run."""
    for file in sorted(WORKSHOP.rglob("*.py")):
        tests = [each.test for each in ast.parse(file.read_text(encoding="utf-8")).body if isinstance(each, ast.If)]
        if file.name == "__main__.py" or any("__main__" in ast.unparse(each) for each in tests):
            yield ".".join(file.relative_to(PROJECT).with_suffix("").parts).removesuffix(".__main__")


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(PROJECT)}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with the files that some of the commands read."""
    from blis_sim.engine.latency.operators import MLP_OPERATORS

    names = ["num_tensor_parallel_workers", "num_tokens", *(f"time_stats.{each}.median" for each in MLP_OPERATORS)]
    cells = ["0.5", *[""] * (len(MLP_OPERATORS) - 1)]
    lines = [",".join(names), *(",".join(["1", str(n), *cells]) for n in range(1, 20))]
    (tmp_path / "mlp.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return tmp_path


def run(module: str, arguments: tuple[str, ...], folder: Path) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", module, *arguments]
    return fork_server.run(command, cwd=folder, env=environment(), capture_output=True, text=True)


def test_every_command_of_the_workshop_is_run_here() -> None:
    assert sorted([*RUNS, *MISSING, *ENDLESS, *ELSEWHERE]) == sorted(commands())
    for command, file in ELSEWHERE.items():
        assert command in (PROJECT / file).read_text(encoding="utf-8")


@pytest.mark.slow
@pytest.mark.parametrize("module", RUNS)
def test_runs_to_its_end(module: str, folder: Path) -> None:
    done = run(module, RUNS[module], folder)
    assert (done.returncode, "Traceback" in done.stderr) == (0, False), done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("module", MISSING)
def test_says_in_one_line_what_is_missing(module: str, folder: Path) -> None:
    arguments, said = MISSING[module]
    done = run(module, arguments, folder)
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1), done.stderr
    assert said in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("module", ENDLESS)
def test_runs_until_it_is_stopped(module: str, folder: Path) -> None:
    arguments, said = ENDLESS[module]
    command = [sys.executable, "-m", module, *arguments]
    with fork_server.Popen(command, cwd=folder, env=environment(), stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        assert said in process.stderr.readline()
        process.send_signal(signal.SIGTERM)
        assert process.wait() in (0, -signal.SIGTERM)
