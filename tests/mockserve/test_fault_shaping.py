"""The transport that lets a reply go wrong on its way, in front of one that notes what is written."""

import asyncio

import pytest

from mockserve.faults import ShapedTransport
from mockserve.options.faults import FaultSettings

HEAD = b"HTTP/1.1 200 OK\r\n\r\n"


class Written(asyncio.Transport):
    """A transport that refuses to write when it is closed, as uvloop's does."""

    def __init__(self) -> None:
        super().__init__()
        self.pieces: list[bytes] = []
        self.is_closed = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if self.is_closed:
            raise RuntimeError("the handler is closed")
        self.pieces.append(bytes(data))

    def is_closing(self) -> bool:
        return self.is_closed


def shaped(kind: str, **settings: float) -> tuple[Written, ShapedTransport]:
    inner = Written()
    return inner, ShapedTransport(inner, kind, FaultSettings().changed(settings))


async def test_a_trickling_reply_leaves_in_pieces() -> None:
    inner, transport = shaped("trickle", trickle_bytes=4, trickle_pause_s=0.001)
    transport.write(HEAD + b"0123456789")
    transport.write(b"abcdef")
    await asyncio.wait_for(transport.drained(), 5)
    assert inner.pieces == [HEAD, b"0123", b"4567", b"89", b"abcd", b"ef"]


async def test_a_trickling_reply_is_not_cut_into_pieces_ahead() -> None:
    inner, transport = shaped("trickle", trickle_bytes=1, trickle_pause_s=60)
    transport.write(HEAD + bytes(10**7))
    assert len(transport._waiting) == 1
    transport.stop()
    assert inner.pieces == [HEAD]


async def test_pieces_without_a_pause_leave_at_once() -> None:
    inner, transport = shaped("trickle", trickle_bytes=4, trickle_pause_s=0)
    transport.write(HEAD + b"0123456789")
    assert b"".join(inner.pieces) == HEAD + b"0123456789"


@pytest.mark.parametrize("kind", ["trickle", "stall", "slow_first_token"])
async def test_a_closed_transport_gets_no_bytes(kind: str) -> None:
    settings = {"trickle_pause_s": 0.001, "stall_s": 0.001, "first_token_delay_s": 0.001, "after_events": 0}
    inner, transport = shaped(kind, **settings)
    failures: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _loop, context: failures.append(context))
    transport.write(HEAD + b"data: 0123456789")
    inner.is_closed = True
    await asyncio.wait_for(transport.drained(), 5)
    transport.write(b"more")
    await asyncio.wait_for(transport.drained(), 5)
    assert (inner.pieces, failures) == ([HEAD], [])
