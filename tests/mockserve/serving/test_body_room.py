"""The memory that large bodies may take together."""

import asyncio

from mockserve.serving.aside import Room


async def test_gives_room_in_the_order_of_asking() -> None:
    room, order = Room(100), list[str]()

    async def take(name: str, num_bytes: int) -> None:
        await room.take(num_bytes)
        order.append(name)

    first, second, third = (asyncio.ensure_future(take(*each)) for each in (("a", 60), ("b", 70), ("c", 10)))
    await asyncio.sleep(0)
    assert order == ["a"]
    room.give_back(60)
    await asyncio.gather(first, second, third)
    assert order == ["a", "b", "c"]


async def test_a_body_larger_than_all_room_comes_alone() -> None:
    room = Room(100)
    await room.take(500)
    waiting = asyncio.ensure_future(room.take(1))
    await asyncio.sleep(0)
    assert not waiting.done()
    room.give_back(500)
    await waiting


async def test_a_caller_that_leaves_takes_no_room() -> None:
    room = Room(100)
    await room.take(100)
    leaving, staying = asyncio.ensure_future(room.take(50)), asyncio.ensure_future(room.take(60))
    await asyncio.sleep(0)
    leaving.cancel()
    room.give_back(100)
    await staying
    await asyncio.wait_for(room.take(40), 1)
