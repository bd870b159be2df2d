"""Long work beside the event loop."""

import asyncio
import gc
import threading
import time
import weakref
from contextlib import suppress

import pytest

from mockserve.executor.executor import OffloadExecutor, WorkerPool
from mockserve.executor.worker import Job
from mockserve.protocol.errors import ApiError
from tests.patience import PATIENCE_S, attempts


def busy() -> int:
    """Count for half a second."""
    until_s, count = time.monotonic() + 0.5, 0
    while time.monotonic() < until_s:
        count += 1
    return count


async def longest_pause_s(working: "asyncio.Future[int]") -> float:
    """Return the longest time between two turns of the loop during some work."""
    longest_s, last_s = 0.0, time.monotonic()
    while not working.done():
        await asyncio.sleep(0.001)
        now_s = time.monotonic()
        longest_s, last_s = max(longest_s, now_s - last_s), now_s
    return longest_s


@pytest.mark.slow
async def test_the_loop_goes_on_during_python_code() -> None:
    executor = OffloadExecutor()
    for _ in attempts():
        working = asyncio.ensure_future(executor.run(False, busy))
        pause_s = await longest_pause_s(working)
        assert await working > 0
        if pause_s < 0.1:
            break
    executor.close()


async def test_an_exception_reaches_the_caller() -> None:
    executor = OffloadExecutor()
    with pytest.raises(ZeroDivisionError):
        await executor.run(True, lambda: 1 // 0)
    executor.close()


class _Large:
    """Stands for the values of a large body."""


@pytest.mark.parametrize("error", [ValueError("wrong"), ApiError("refused")])
async def test_objects_of_failed_work_are_freed_without_the_collector(error: Exception) -> None:
    def fail(_values: _Large) -> None:
        raise error

    executor, values = OffloadExecutor(), _Large()
    loop, is_freed = asyncio.get_running_loop(), asyncio.Event()
    seen = weakref.ref(values, lambda _: loop.call_soon_threadsafe(is_freed.set))
    gc.disable()
    try:
        with suppress(ValueError, ApiError):
            await executor.run(True, fail, values)
        del values
        error.__traceback__ = None
        async with asyncio.timeout(PATIENCE_S):  # the thread releases the error after the loop has it
            await is_freed.wait()
        assert seen() is None
    finally:
        gc.enable()
        executor.close()


async def test_a_demand_is_refused_with_503_when_no_worker_process_can_start(caplog: pytest.LogCaptureFixture) -> None:
    executor = OffloadExecutor(pool=WorkerPool(preloaded=("there_is_no_such_module",)))
    with pytest.raises(ApiError, match="No process could be started") as found:
        await executor.done(Job(max, (1, 2), is_small=False))
    assert found.value.status == 503
    (record,) = caplog.records
    assert record.exc_info is None
    assert record.getMessage() == "a worker process ended with status 1 before it was ready"
    executor.close()


async def test_a_demand_is_refused_with_503_when_its_worker_processes_are_killed(
    caplog: pytest.LogCaptureFixture,
) -> None:
    executor = OffloadExecutor(pool=WorkerPool())
    with pytest.raises(ApiError, match="The process for the request was killed") as found:
        await executor.done(Job(eval, ("__import__('os').kill(__import__('os').getpid(), 9)",), is_small=False))
    assert found.value.status == 503
    assert [each.getMessage() for each in caplog.records] == [
        "a worker process ended with status -9 in the middle of a job"
    ]
    executor.close()


async def test_long_work_does_not_wait_for_huge_work() -> None:
    executor, may_end = OffloadExecutor(), threading.Event()
    huge = asyncio.ensure_future(executor.run(True, may_end.wait, 10))
    assert await executor.run(False, lambda: 7) == 7
    assert not huge.done()
    may_end.set()
    assert await huge
    executor.close()


async def test_work_whose_caller_has_left_is_dropped() -> None:
    executor, may_end, done = OffloadExecutor(), threading.Event(), list[str]()
    first = asyncio.ensure_future(executor.run(True, may_end.wait, 10))
    second = asyncio.ensure_future(executor.run(True, done.append, "second"))
    third = asyncio.ensure_future(executor.run(True, done.append, "third"))
    await asyncio.sleep(0)
    second.cancel()
    await asyncio.sleep(0)
    may_end.set()
    await asyncio.gather(first, third)
    assert done == ["third"]
    executor.close()


async def test_the_collector_rests_meanwhile() -> None:
    executor = OffloadExecutor()
    assert not await executor.run(False, gc.isenabled)
    assert gc.isenabled()
    executor.close()
