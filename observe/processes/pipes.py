"""Python objects through pipes, between a run and the processes that send for it."""

import asyncio
import pickle
import struct
from typing import Any, BinaryIO

_SIZE = struct.Struct(">Q")


def packed(value: Any) -> bytes:
    """The bytes that `receive` makes the value of."""
    data = pickle.dumps(value)
    return _SIZE.pack(len(data)) + data


def read_packed(stream: BinaryIO) -> Any:
    """Wait for the next value. Raises EOFError at the end."""
    head = stream.read(_SIZE.size)
    if len(head) < _SIZE.size:
        raise EOFError
    return pickle.loads(stream.read(_SIZE.unpack(head)[0]))


async def receive(stream: asyncio.StreamReader) -> Any:
    """The next value; None when there are no more."""
    try:
        (size,) = _SIZE.unpack(await stream.readexactly(_SIZE.size))
        return pickle.loads(await stream.readexactly(size))
    except asyncio.IncompleteReadError:
        return None
