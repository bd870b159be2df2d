"""Long work beside the event loop."""

import asyncio
import gc
import threading
import time

import pytest

from mockserve.serving.aside import Aside


async def test_the_loop_goes_on_during_python_code() -> None:
    aside = Aside()
    until_s = time.monotonic() + 0.5

    def compute() -> int:
        count = 0
        while time.monotonic() < until_s:
            count += 1
        return count

    working = asyncio.ensure_future(aside.run(False, compute))
    longest_s, last_s = 0.0, time.monotonic()
    while not working.done():
        await asyncio.sleep(0.001)
        now_s = time.monotonic()
        longest_s, last_s = max(longest_s, now_s - last_s), now_s
    assert await working > 0
    assert longest_s < 0.1
    aside.close()


async def test_an_exception_reaches_the_caller() -> None:
    aside = Aside()
    with pytest.raises(ZeroDivisionError):
        await aside.run(True, lambda: 1 // 0)
    aside.close()


async def test_long_work_does_not_wait_for_huge_work() -> None:
    aside, may_end = Aside(), threading.Event()
    huge = asyncio.ensure_future(aside.run(True, may_end.wait, 10))
    assert await aside.run(False, lambda: 7) == 7
    assert not huge.done()
    may_end.set()
    assert await huge
    aside.close()


async def test_work_whose_caller_has_left_is_dropped() -> None:
    aside, may_end, done = Aside(), threading.Event(), list[str]()
    first = asyncio.ensure_future(aside.run(True, may_end.wait, 10))
    second = asyncio.ensure_future(aside.run(True, done.append, "second"))
    third = asyncio.ensure_future(aside.run(True, done.append, "third"))
    await asyncio.sleep(0)
    second.cancel()
    await asyncio.sleep(0)
    may_end.set()
    await asyncio.gather(first, third)
    assert done == ["third"]
    aside.close()


async def test_the_collector_rests_meanwhile() -> None:
    aside = Aside()
    assert not await aside.run(False, gc.isenabled)
    assert gc.isenabled()
    aside.close()
