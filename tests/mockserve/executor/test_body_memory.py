"""The memory that large bodies may take together."""

import asyncio

from mockserve.executor.memory import MemoryBudget


async def test_gives_room_in_the_order_of_asking() -> None:
    room, order = MemoryBudget(100), list[str]()

    async def acquire(name: str, num_bytes: int) -> None:
        await room.acquire(num_bytes)
        order.append(name)

    first, second, third = (asyncio.ensure_future(acquire(*each)) for each in (("a", 60), ("b", 70), ("c", 10)))
    await asyncio.sleep(0)
    assert order == ["a"]
    room.release(60)
    await asyncio.gather(first, second, third)
    assert order == ["a", "b", "c"]


async def test_a_body_larger_than_all_room_comes_alone() -> None:
    room = MemoryBudget(100)
    await room.acquire(500)
    waiting = asyncio.ensure_future(room.acquire(1))
    await asyncio.sleep(0)
    assert not waiting.done()
    room.release(500)
    await waiting


async def test_a_caller_that_leaves_takes_no_room() -> None:
    room = MemoryBudget(100)
    await room.acquire(100)
    leaving, staying = asyncio.ensure_future(room.acquire(50)), asyncio.ensure_future(room.acquire(60))
    await asyncio.sleep(0)
    leaving.cancel()
    room.release(100)
    await staying
    await asyncio.wait_for(room.acquire(40), 1)
