"""The steps of an engine that its server logs during a load."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from blis_sim.cli.main import run
from blis_sim.testing import serving
from observe.engine_log import EngineLog
from observe.errors import ObserveError
from tests.traces.test_steps import LINE
from traces.steps import read_steps

Observe: TypeAlias = Callable[..., Any]


async def followed(log: Path, steps: Path, text: str) -> EngineLog:
    """A log that got this text after its present end."""
    made = EngineLog(log, steps)
    with log.open("a") as file:
        file.write(text)
    await made.end()
    return made


async def test_steps_logged_before_the_load_are_not_recorded(tmp_path: Path) -> None:
    log, steps = tmp_path / "vllm.log", tmp_path / "a.steps.csv"
    log.write_text(f"{LINE}\n" * 3)
    later = LINE.replace("Iteration(7)", "Iteration(8)")
    await followed(log, steps, f"other\n{later}\n" + "x" * 200_000 + f"\n{later}")
    assert [step.step for step in read_steps(steps)] == [8]  # the last line has not ended


async def test_a_pipe_is_followed_too(tmp_path: Path) -> None:
    pipe, steps = tmp_path / "pipe", tmp_path / "a.steps.csv"
    os.mkfifo(pipe)
    made = EngineLog(pipe, steps)
    with pipe.open("w") as file:
        file.write(f"{LINE}\n")
        file.flush()
        await made.end()
    assert made.num_steps == 1


def test_a_log_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(ObserveError, match="missing: no such file"):
        EngineLog(tmp_path / "missing", tmp_path / "a.steps.csv")
    with pytest.raises(ObserveError, match="expected a file or a pipe, got a folder"):
        EngineLog(tmp_path, tmp_path / "a.steps.csv")


def test_a_log_without_steps_is_a_warning(observe: Observe, tmp_path: Path) -> None:
    log = tmp_path / "vllm.log"
    log.write_text("INFO: started\n")
    run = observe(model="ok", engine_log=str(log))
    assert run.code == 0
    assert "told of no step during the load: start the server with --enable-logging-iteration-details" in run.messages


@pytest.mark.slow
def test_steps_of_our_own_server_are_recorded_and_timed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    prefix, flags = tmp_path / "a", ("--port", "0", "--hardware", "H100", "--enable-logging-iteration-details")
    with serving(["-m", "blis_sim.cli", "serve", "qwen/qwen3-14b", *flags]) as server:
        log = f"/proc/{server.process.pid}/fd/1"
        load = ("--rate", "20", "--num-requests", "20", "--prompt-tokens", "200", "--output-tokens", "20")
        recorded = ("--engine-log", log, "--scrape-metrics", "-o", str(prefix))
        assert run(["observe", "--url", server.url, *load, *recorded]) == 0
    steps = read_steps(f"{prefix}.steps.csv")
    assert sum(step.prefill_requests for step in steps) == 20
    assert sum(step.decode_tokens for step in steps) == 20 * 19
    assert run(["calibrate", f"{prefix}.yaml", "--report", str(tmp_path / "report.json")]) == 0
    assert "Steps of the engine are timed within" in capsys.readouterr().out
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["steps"]["all"]["mape"] < 0.01
    assert report["throughput"]["num_steps"]["percent_error"] < 0.3  # a busy machine sends late
    assert report["throughput"]["num_steps"]["real"] == len(steps)
