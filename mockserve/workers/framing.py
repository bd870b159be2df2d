"""How jobs and results lie on the socket between a server and its worker: a head of eight bytes, then a pickle."""

import socket
import struct

_HEAD = struct.Struct("<Q")
_LAST = 1 << 63
"""Marks the last reply of a worker, which ends itself after it."""

READY = _HEAD.pack(0)
"""What a worker sends when it can take jobs."""


def frame(data: bytes, is_last: bool = False) -> bytes:
    """`data` with its head."""
    return _HEAD.pack(len(data) | (_LAST if is_last else 0)) + data


def size_of(head: bytes) -> tuple[int, bool]:
    """How many bytes follow a head, and whether they are the last."""
    (value,) = _HEAD.unpack(head)
    return value & ~_LAST, bool(value & _LAST)


def read_exactly(end: socket.socket, num_bytes: int) -> bytes:
    """The next bytes of a blocking socket. Raises EOFError when it closes before they have come."""
    received = bytearray(num_bytes)
    view, at = memoryview(received), 0
    while at < num_bytes:
        count = end.recv_into(view[at:])
        if not count:
            raise EOFError
        at += count
    return bytes(received)
