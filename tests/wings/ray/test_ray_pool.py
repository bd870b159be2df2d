"""Sweeps and plans on a real Ray cluster, whose processes may be killed: the answer is that of one process."""

import json
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from blis_sim.bench import BenchError
from blis_sim.bench.plan_command import PlanOptions
from blis_sim.bench.plan_command import run as plan
from blis_sim.bench.points import compute
from blis_sim.bench.sweep_command import SweepOptions
from blis_sim.bench.sweep_command import run as sweep
from blis_sim.wings.ray.pool import ray_pool
from tests.children import descendants, words_of
from tests.frugal_ray import FRUGAL
from tests.patience import PATIENCE_S

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("ray")]

if find_spec("ray") is None:
    pytest.skip("needs the extra ray", allow_module_level=True)

LOAD = ("--model", "qwen3-14b", "--num-requests", "1000", "--prompt-tokens", "800", "--output-tokens", "60")


@pytest.fixture(autouse=True)
def _frugal(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in FRUGAL.items():
        monkeypatch.setenv(name, value)


@contextmanager
def one_worker_killed() -> Iterator[list[int]]:
    """Within the block, the first process that is seen computing a task is killed; gives its id."""
    killed: list[int] = []
    is_over = threading.Event()

    def kill() -> None:
        while not killed and not is_over.wait(0.01):
            for pid in descendants(os.getpid()):
                if f"ray::{compute.__name__}".encode() in words_of(pid):
                    os.kill(pid, signal.SIGKILL)
                    killed.append(pid)
                    return

    thread = threading.Thread(target=kill)
    thread.start()
    try:
        yield killed
    finally:
        is_over.set()
        thread.join(PATIENCE_S)


def test_a_sweep_has_the_same_bytes_when_a_worker_is_killed(tmp_path: Path) -> None:
    def swept(**options: Any) -> bytes:
        path = tmp_path / "sweep.csv"
        given: dict[str, Any] = {
            "simulation": LOAD,
            "vary": ("rate=1,4,9", "tp=1,2"),
            "output": str(path),
            "overwrite": True,
        }
        assert sweep(SweepOptions(**given, **options)) == 0
        return path.read_bytes()

    alone = swept(processes=1)
    with one_worker_killed() as killed:
        assert swept(ray=True) == alone
    assert killed


def test_a_plan_is_the_same_when_a_worker_is_killed(capsys: pytest.CaptureFixture[str]) -> None:
    def planned(**options: Any) -> dict[str, Any]:
        given: dict[str, Any] = {
            "simulation": (*LOAD, "--rate", "12"), "ttft_p99": "400ms", "itl_p99": "60ms", "gpus": ("H100",),
            "tp_sizes": (1, 2), "precisions": ("checkpoint",), "step_tokens": (0,), "shapes": ("aggregated",),
            "format": "json",
        }  # fmt: skip
        assert plan(PlanOptions(**given, **options)) == 0
        found: dict[str, Any] = json.loads(capsys.readouterr().out)
        found.pop("provenance")
        return found

    alone = planned(processes=1)
    with one_worker_killed() as killed:
        assert planned(ray=True) == alone
    assert killed


def test_a_task_that_always_dies_is_one_error() -> None:
    def die(_job: int) -> int:  # here, since a task at the level of a module would import all that its module does
        os.kill(os.getpid(), signal.SIGKILL)
        return 0

    with (
        ray_pool(None) as pool,
        pytest.raises(BenchError, match="a task of the Ray cluster is lost"),
    ):
        list(pool.each(die, [1]))
