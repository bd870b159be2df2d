"""The commands of the page about the engine core, with a frontend of this test in the place of vLLM's."""

import asyncio
import shlex
import sys
from asyncio.subprocess import PIPE, Process
from pathlib import Path

import pytest

from tests.docs.pages import PROJECT, fences
from tests.ports import reserved_port
from tests.wings.engine_core.frontend import Frontend, request

PAGE = "engine-core.md"
ENDS_S = 60.0


async def _started(command: str, folder: Path) -> Process:
    program, *arguments = shlex.split(command)
    assert program == "blis"
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "blis_sim.cli", *arguments), cwd=folder, stdout=PIPE, stderr=PIPE, env=None
    )


async def _ended(process: Process) -> str:
    """Stop a process if it runs. Returns what it printed and logged."""
    if process.returncode is None:
        process.terminate()
    printed, logged = await asyncio.wait_for(process.communicate(), ENDS_S)
    return (printed + logged).decode()


@pytest.mark.slow
async def test_the_commands_of_the_page_work_together(frontend: Frontend, tmp_path: Path) -> None:
    page = PROJECT / "docs" / PAGE
    genuine, engine, tap, genuine_engine, check, *further = (
        each.text for fence in fences(page) for each in fence.commands
    )
    assert genuine.startswith("vllm serve ")
    assert genuine_engine.startswith("vllm serve ")
    convert, calibrate = further
    names = [str(number) for number in range(1, 5)]
    with reserved_port() as port:
        tapping = await _started(tap.replace("29550", str(frontend.port)).replace("29551", str(port)), tmp_path)
        ours = engine.replace("./model", "qwen/qwen3-14b").replace("29550", str(port))
        serving = await _started(f"{ours} --enable-logging-iteration-details", tmp_path)
        await frontend.meet()
        await frontend.complete(*(request(name, [int(name)] * 99, 9) for name in names))
        await frontend.until(lambda: all(map(frontend.has_ended, names)))
        await asyncio.sleep(0.5)
        assert "ready: rank 0" in await _ended(serving)
        assert "steps recorded" in await _ended(tapping)
    checking = await _started(check, tmp_path)
    printed, _ = await asyncio.wait_for(checking.communicate(), ENDS_S)
    assert b"steps, all composed alike" in printed
    assert "4 requests written to real.yaml" in await _ran(convert, tmp_path)
    assert "Steps of the engine are timed within 0.0" in await _ran(calibrate, tmp_path)


async def _ran(command: str, folder: Path) -> str:
    process = await _started(command, folder)
    printed, logged = await asyncio.wait_for(process.communicate(), ENDS_S)
    return (printed + logged).decode()
