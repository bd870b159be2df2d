"""The steps of an engine that its server logs during a load."""

import asyncio
import json
import os
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from blis_sim.cli.main import run
from blis_sim.testing import serving
from observe.errors import ObserveError
from observe.measurement import EngineLog
from tests.traces.test_steps import LINE
from traces.steps import read_steps

Observe: TypeAlias = Callable[..., Any]


async def followed(log: Path, steps: Path, text: str) -> EngineLog:
    """A log that got this text after its present end."""
    log.open("a").close()
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
    with pytest.raises(ObserveError, match="expected a file or a pipe, got a device"):
        EngineLog(Path("/dev/zero"), tmp_path / "a.steps.csv")


async def test_a_log_that_never_ends_holds_nothing_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("observe.measurement._LONGEST_END_S", 0.1)
    pipe, is_over = tmp_path / "pipe", threading.Event()
    os.mkfifo(pipe)
    made = EngineLog(pipe, tmp_path / "a.steps.csv")

    def write() -> None:
        with suppress(BrokenPipeError), pipe.open("w") as file:  # its reader may end first
            while not is_over.is_set():
                file.write(f"{LINE}\n" * 100)

    writer = threading.Thread(target=write)
    writer.start()
    reading = asyncio.ensure_future(made.keep_reading())
    await asyncio.sleep(0.2)
    reading.cancel()
    is_over.set()
    await made.end()
    writer.join()
    assert made.num_steps > 100


async def test_what_a_hostile_log_holds_is_in_no_file(tmp_path: Path) -> None:
    steps = tmp_path / "a.steps.csv"
    hostile = "Bearer PLANTED7 " + LINE + " api_key=PLANTED7\n" + "\0\xff\x1b[31m PLANTED7 Iteration(\n"
    hostile += LINE.replace("100 context tokens", "999999999 context tokens") + "\n"
    hostile += LINE.replace("10.23", "999999999.99").replace("1.2%", "999.9%") + "\n" + "Iteration(" * 100_000 + "\n"
    made = await followed(tmp_path / "vllm.log", steps, hostile)
    assert made.num_steps == len(read_steps(steps)) == 2
    assert "PLANTED" not in steps.read_text()


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
