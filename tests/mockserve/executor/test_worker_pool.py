"""Worker processes: what they do, what ends them, and that nothing of them is left."""

import asyncio
import gc
import os
import signal
import socket
import subprocess
import sys
import time
import weakref
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path

import pytest

from mockserve.executor.executor import (
    OverLimitError,
    PoolBusyError,
    WorkerKilledError,
    WorkerNotReadyError,
    WorkerPool,
)
from mockserve.executor.worker import MIB, WorkerLimits
from tests.patience import PATIENCE_S, wait_until

ENDLESS = "[0 for _ in iter(int, 1) if 0]"
HUNGRY = "[b'x' * 1000 for _ in iter(int, 1)]"


@pytest.fixture
async def pool() -> AsyncIterator[WorkerPool]:
    made = WorkerPool(num_workers=1, most_waiting=1, preloaded=("json",))
    yield made
    made.close()
    assert made.pids == []


def is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def opened_by(pid: int) -> list[str]:
    return [os.readlink(each) for each in Path(f"/proc/{pid}/fd").iterdir()]


async def test_starts_no_process_before_the_first_job(pool: WorkerPool) -> None:
    assert pool.pids == []
    assert await pool.run(max, 1, 2) == 2
    (pid,) = pool.pids
    assert await pool.run(os.getpid) == pid


async def test_raises_what_a_job_raises(pool: WorkerPool) -> None:
    with pytest.raises(ValueError, match="invalid literal"):
        await pool.run(int, "x")
    assert await pool.run(int, "1") == 1


@pytest.mark.slow
@pytest.mark.parametrize("hostile", [ENDLESS, HUNGRY])
async def test_ends_and_replaces_a_worker_over_its_limits(pool: WorkerPool, hostile: str) -> None:
    pid = await pool.run(os.getpid)
    began_s = time.process_time()
    with pytest.raises(OverLimitError):
        await pool.run(eval, hostile)
    assert time.process_time() - began_s < 1
    assert await pool.run(os.getpid) != pid
    await asyncio.to_thread(wait_until, lambda: not is_alive(pid))


async def test_a_starved_job_ends_when_its_time_is_up() -> None:
    pool = WorkerPool(limits=WorkerLimits(wall_s=1.0))
    try:
        with pytest.raises(OverLimitError):
            await pool.run(time.sleep, PATIENCE_S)
    finally:
        pool.close()


async def test_a_worker_that_has_grown_ends_after_its_job(pool: WorkerPool) -> None:
    pid = await pool.run(os.getpid)
    assert await pool.run(eval, f"len(bytearray({40 * MIB}))") == 40 * MIB
    assert await pool.run(os.getpid) != pid


async def test_refuses_jobs_when_too_many_wait(pool: WorkerPool) -> None:
    await pool.run(max, 1, 2)
    running = [asyncio.create_task(pool.run(time.sleep, PATIENCE_S)) for _ in range(2)]
    await has_begun(pool)
    with pytest.raises(PoolBusyError):
        await pool.run(max, 1, 2)
    for task in running:
        task.cancel()
    await asyncio.gather(*running, return_exceptions=True)
    assert await pool.run(max, 1, 2) == 2


async def test_a_cancelled_job_ends_with_its_worker(pool: WorkerPool) -> None:
    pid = await pool.run(os.getpid)
    running = asyncio.create_task(pool.run(time.sleep, PATIENCE_S))
    waiting = asyncio.create_task(pool.run(time.sleep, PATIENCE_S))
    await has_begun(pool)
    for task in (waiting, running):
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    await asyncio.to_thread(wait_until, lambda: not is_alive(pid))
    assert await pool.run(max, 1, 2) == 2


async def test_a_job_in_progress_ends_when_the_pool_is_closed() -> None:
    pool = WorkerPool(num_workers=1)
    running = asyncio.create_task(pool.run(time.sleep, PATIENCE_S))
    await has_begun(pool)
    pool.close()
    with pytest.raises(OverLimitError):
        await asyncio.wait_for(running, PATIENCE_S)


async def test_an_idle_worker_that_was_killed_is_not_used_again(pool: WorkerPool) -> None:
    pid = await pool.run(os.getpid)
    os.kill(pid, signal.SIGKILL)
    await asyncio.to_thread(wait_until, lambda: not is_alive(pid))
    assert await pool.run(max, 1, 2) == 2


async def has_begun(pool: WorkerPool) -> None:
    """Return when a job runs, and all tasks that were made have had their first turn."""
    await asyncio.to_thread(wait_until, lambda: pool.num_running)


async def kill_worker_in(pool: WorkerPool) -> int:
    """Kill the process of the pool once it has a job."""
    await has_begun(pool)
    (pid,) = pool.pids
    os.kill(pid, signal.SIGKILL)
    await asyncio.to_thread(wait_until, lambda: not is_alive(pid))
    return pid


async def test_a_job_whose_worker_is_killed_in_the_middle_is_done_by_another(pool: WorkerPool) -> None:
    await pool.run(max, 1, 2)
    job = asyncio.ensure_future(pool.run(eval, "__import__('time').sleep(1) or __import__('os').getpid()"))
    pid = await kill_worker_in(pool)
    assert await job != pid


async def test_a_job_whose_workers_are_killed_twice_is_not_over_its_limits(pool: WorkerPool) -> None:
    with pytest.raises(WorkerKilledError, match="ended with status -9 in the middle of a job"):
        await pool.run(eval, "__import__('os').kill(__import__('os').getpid(), 9)")
    assert await pool.run(max, 1, 2) == 2


@pytest.mark.parametrize("crash", ["abort()", "kill(__import__('os').getpid(), 11)"])
async def test_a_job_that_crashes_its_process_is_over_its_limits(pool: WorkerPool, crash: str) -> None:
    with pytest.raises(OverLimitError):
        await pool.run(eval, f"__import__('os').{crash}")
    assert await pool.run(max, 1, 2) == 2


@pytest.mark.parametrize("kind", ["BaseException", "SystemExit", "KeyboardInterrupt"])
async def test_a_panic_is_an_error_of_the_job_and_ends_its_worker(pool: WorkerPool, kind: str) -> None:
    pid = await pool.run(os.getpid)
    with pytest.raises(RuntimeError, match=f"{kind}: panicked"):
        await pool.run(exec, f"raise {kind}('panicked')")
    assert await pool.run(os.getpid) != pid


async def test_a_job_whose_worker_is_killed_before_it_is_ready_is_done_by_another(pool: WorkerPool) -> None:
    job = asyncio.ensure_future(pool.run(max, 1, 2))
    for _ in range(5):
        await asyncio.sleep(0)
    (pid,) = pool.pids
    os.kill(pid, signal.SIGKILL)
    assert await job == 2
    assert await pool.run(os.getpid) != pid


async def test_a_job_fails_when_two_workers_in_a_row_cannot_start() -> None:
    unable = WorkerPool(preloaded=("there_is_no_such_module",))
    with pytest.raises(WorkerNotReadyError, match="ended with status 1 before it was ready"):
        await unable.run(max, 1, 2)
    unable.close()


async def test_arguments_of_a_failed_job_are_freed_without_the_collector(pool: WorkerPool) -> None:
    given = {1, 2}
    seen = weakref.ref(given)
    gc.disable()
    try:
        with suppress(TypeError):
            await pool.run(int, given)
        del given
        assert seen() is None
    finally:
        gc.enable()


async def test_a_worker_inherits_no_socket(pool: WorkerPool) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        os.set_inheritable(listener.fileno(), True)
        pid = await pool.run(os.getpid)
        opened = opened_by(pid)
        assert [each for each in opened if each != os.devnull and "socket" not in each] == []
        assert len([each for each in opened if "socket" in each]) == 1


PARENT = """
import asyncio, os, sys, time
from mockserve.executor.executor import WorkerPool

async def main():
    pool = WorkerPool(num_workers=2)
    await pool.run(max, 1, 2)
    asyncio.create_task(pool.run(eval, {hostile!r}))
    await asyncio.sleep(0.3)
    asyncio.create_task(pool.run(time.sleep, 60))
    while len(pool.pids) < 2:
        await asyncio.sleep(0.01)
    print(*pool.pids, flush=True)
    await asyncio.sleep(60)

asyncio.run(main())
"""


def test_workers_end_with_a_server_that_is_killed() -> None:
    program = PARENT.format(hostile=ENDLESS)
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        pids = [int(each) for each in server.stdout.readline().split()]
        assert len(pids) == 2
        assert all(map(is_alive, pids))
        server.kill()
        wait_until(lambda: not any(map(is_alive, pids)))
