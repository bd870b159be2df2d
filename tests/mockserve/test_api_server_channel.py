"""Messages between processes arrive whole, in order, and together when they were sent together."""

import asyncio
import socket

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mockserve.api_servers.channel import open_channel
from tests.examples import examples
from tests.patience import PATIENCE_S

SMALL_BUFFER_BYTES = 4096
NUM_WRITES_BEFORE_WARNING = 5
"""asyncio warns when a lost connection has been written to more often."""


async def heard_of(turns: list[list[bytes]]) -> tuple[list[bytes], int]:
    """Return the messages that the other end gets when they are sent in several turns of the loop, and how often they
    left."""
    on_message: list[bytes] = []
    ended = asyncio.Event()
    ends = socket.socketpair()
    for each in ends:
        each.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SMALL_BUFFER_BYTES)
    here = await open_channel(ends[0], on_message.append, ended.set)
    there = await open_channel(ends[1], on_message.append, ended.set)
    departures: list[None] = []
    here.on_sent = lambda: departures.append(None)
    for messages in turns:
        for message in messages:
            here.send(message)
        await asyncio.sleep(0)
    here.close()
    await asyncio.wait_for(ended.wait(), PATIENCE_S)
    there.close()
    return on_message, len(departures)


@settings(max_examples=examples(30), deadline=None)
@given(st.lists(st.lists(st.binary(max_size=20_000), max_size=3), max_size=4))
def test_messages_arrive_whole_and_in_order(turns: list[list[bytes]]) -> None:
    on_message, num_departures = asyncio.run(heard_of(turns))
    assert on_message == [message for messages in turns for message in messages]
    assert num_departures == sum(bool(messages) for messages in turns)


async def test_the_closing_end_is_not_notified_and_the_other_end_is() -> None:
    here_ended, there_ended = asyncio.Event(), asyncio.Event()
    ends = socket.socketpair()
    here = await open_channel(ends[0], print, here_ended.set)
    await open_channel(ends[1], print, there_ended.set)
    here.close()
    await asyncio.wait_for(there_ended.wait(), PATIENCE_S)
    assert not here_ended.is_set()


async def test_a_message_to_a_closed_end_is_dropped(caplog: pytest.LogCaptureFixture) -> None:
    received: list[object] = []
    here_ended, there_ended = asyncio.Event(), asyncio.Event()
    ends = socket.socketpair()
    here = await open_channel(ends[0], print, here_ended.set)
    there = await open_channel(ends[1], received.append, there_ended.set)
    here.send("in time")
    await here.close_when_sent()
    for _ in range(NUM_WRITES_BEFORE_WARNING + 1):
        here.send("too late")
        await asyncio.sleep(0)
    await asyncio.wait_for(there_ended.wait(), PATIENCE_S)
    there.close()
    assert received == ["in time"]
    assert caplog.messages == []
