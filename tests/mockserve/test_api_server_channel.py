"""Calls between processes arrive whole, in order, and together when they were made together."""

import asyncio
import socket
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from blis_sim.options import OptionError
from mockserve.api_servers.channel import Channel, open_channel
from tests.examples import examples
from tests.patience import PATIENCE_S

SMALL_BUFFER_BYTES = 4096
NUM_WRITES_BEFORE_WARNING = 5
"""asyncio warns when a lost connection has been written to more often."""


@dataclass
class Receiver:
    """Takes the calls of the other end."""

    taken: list[bytes] = field(default_factory=list)

    def take(self, message: bytes) -> None:
        self.taken.append(message)

    async def doubled(self, number: int) -> int:
        if number < 0:
            raise OptionError(f"number must be at least 0, got {number}")
        return 2 * number


@dataclass
class Ends:
    """The two ends of a connection."""

    here: Channel
    there: Channel
    receiver: Receiver
    here_ended: asyncio.Event
    there_ended: asyncio.Event

    async def close(self) -> None:
        self.here.close()
        await asyncio.wait_for(self.there_ended.wait(), PATIENCE_S)
        self.there.close()


async def connected() -> Ends:
    ends = socket.socketpair()
    for each in ends:
        each.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SMALL_BUFFER_BYTES)
    here_ended, there_ended, receiver = asyncio.Event(), asyncio.Event(), Receiver()
    here = await open_channel(ends[0], None, here_ended.set)
    return Ends(here, await open_channel(ends[1], receiver, there_ended.set), receiver, here_ended, there_ended)


async def taken_of(turns: list[list[bytes]]) -> list[bytes]:
    """Return the calls that the other end takes when they are made in several turns of the loop."""
    ends = await connected()
    for messages in turns:
        for message in messages:
            ends.here.call(Receiver.take, message)
        assert len(ends.here.waiting) == len(messages)
        await asyncio.sleep(0)
        assert not ends.here.waiting
    await ends.close()
    return ends.receiver.taken


@settings(max_examples=examples(30), deadline=None)
@given(st.lists(st.lists(st.binary(max_size=20_000), max_size=3), max_size=4))
def test_calls_arrive_whole_and_in_order(turns: list[list[bytes]]) -> None:
    assert asyncio.run(taken_of(turns)) == [message for messages in turns for message in messages]


async def test_the_closing_end_is_not_notified_and_the_other_end_is() -> None:
    ends = await connected()
    await ends.close()
    assert not ends.here_ended.is_set()


async def test_a_call_of_a_closed_end_is_dropped(caplog: pytest.LogCaptureFixture) -> None:
    ends = await connected()
    ends.here.call(Receiver.take, b"in time")
    await ends.here.close_when_sent()
    for _ in range(NUM_WRITES_BEFORE_WARNING + 1):
        ends.here.call(Receiver.take, b"too late")
        await asyncio.sleep(0)
    await asyncio.wait_for(ends.there_ended.wait(), PATIENCE_S)
    ends.there.close()
    assert ends.receiver.taken == [b"in time"]
    assert caplog.messages == []


async def test_questions_get_their_own_answers_and_errors() -> None:
    ends = await connected()
    assert await asyncio.gather(*(ends.here.ask(Receiver.doubled, number) for number in range(3))) == [0, 2, 4]
    with pytest.raises(OptionError, match="must be at least 0, got -1"):
        await ends.here.ask(Receiver.doubled, -1)
    await ends.close()


async def test_a_question_ends_with_the_connection() -> None:
    ends = await connected()
    ends.there.receiver = None
    asked = asyncio.ensure_future(ends.here.ask(Receiver.doubled, 1))
    await asyncio.sleep(0)
    ends.there.close()
    with pytest.raises(ConnectionResetError):
        await asyncio.wait_for(asked, PATIENCE_S)
    with pytest.raises(ConnectionResetError):
        await ends.here.ask(Receiver.doubled, 1)
