"""A client that sends bytes as they are, and returns how the exchange ended."""

import asyncio
import re
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum

PIECE_PAUSE_S = 0.03
"""Longer than the server waits for the rest of a request that it could answer on its fast path."""
MOST_REPLY_BYTES = 16 * 2**20
KEPT_REPLY_BYTES = 2000
QUIET_S = 0.15
"""Seconds that an incomplete message may remain without an answer before the client hangs up."""

_STATUS = re.compile(rb"HTTP/1\.[01] (\d{3})[ \r]")
_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
_CHUNKED = re.compile(rb"\r\ntransfer-encoding: *chunked", re.IGNORECASE)


class Outcome(StrEnum):
    """End of an exchange."""

    ANSWERED = "answered"
    CUT = "reply longer than the client reads"
    UNFINISHED = "reply not finished in time"
    SILENT = "no answer in time"
    CLOSED = "connection closed without a whole answer"
    WAITING = "message incomplete and unanswered"


@dataclass(frozen=True, slots=True)
class Exchange:
    """One request with its answer. Instants are of the monotonic clock."""

    outcome: Outcome
    status: int | None
    reply: bytes
    started_s: float
    ended_s: float


class _ClosedError(Exception):
    """The server hung up before the answer was whole."""


async def exchange(
    host: str, port: int, pieces: Sequence[bytes], patience_s: float, is_complete: bool = True, sends_head: bool = False
) -> Exchange:
    """Send pieces on a new connection and read the first answer; `sends_head`: a HEAD is answered."""
    started_s = time.monotonic()
    found = _Reply()
    try:
        reader, writer = await asyncio.open_connection(host, port, limit=MOST_REPLY_BYTES)
    except OSError:
        return Exchange(Outcome.CLOSED, None, b"", started_s, time.monotonic())
    try:
        async with asyncio.timeout(patience_s if is_complete else QUIET_S):
            sending = asyncio.create_task(_send(writer, pieces))
            try:
                outcome = await found.read(reader, sends_head)
            finally:
                sending.cancel()
    except TimeoutError:
        outcome = Outcome.UNFINISHED if found.status else Outcome.SILENT if is_complete else Outcome.WAITING
    except (_ClosedError, OSError, asyncio.IncompleteReadError):
        outcome = Outcome.CLOSED
    finally:
        writer.transport.abort()
        with suppress(OSError):
            await writer.wait_closed()
    return Exchange(outcome, found.status, bytes(found.kept), started_s, time.monotonic())


async def _send(writer: asyncio.StreamWriter, pieces: Sequence[bytes]) -> None:
    with suppress(OSError):  # bytes that the server sends before it hangs up are read all the same
        for number, piece in enumerate(pieces):
            if number:
                await asyncio.sleep(PIECE_PAUSE_S)
            writer.write(piece)
            await writer.drain()


class _Reply:
    """One HTTP answer as it is read."""

    def __init__(self) -> None:
        self.status: int | None = None
        self.kept = bytearray()
        self._num_bytes = 0

    async def read(self, reader: asyncio.StreamReader, sends_head: bool) -> Outcome:
        head = await self._head(reader)
        if sends_head or self.status in (204, 304):
            return Outcome.ANSWERED
        if _CHUNKED.search(head):
            return await self._chunks(reader)
        length = _LENGTH.search(head)
        if length is not None:
            left = int(length[1])
            while left and self._num_bytes < MOST_REPLY_BYTES:
                left -= await self._keep(reader, min(left, 65536))
            return Outcome.CUT if left else Outcome.ANSWERED
        while data := await reader.read(65536):
            self.kept += data[: KEPT_REPLY_BYTES - len(self.kept)]
        return Outcome.ANSWERED

    async def _head(self, reader: asyncio.StreamReader) -> bytes:
        """The head of the first answer that is final."""
        while True:
            head = await reader.readuntil(b"\r\n\r\n")
            found = _STATUS.match(head)
            if found is None:
                raise _ClosedError
            if int(found[1]) >= 200:
                self.status = int(found[1])
                return head

    async def _chunks(self, reader: asyncio.StreamReader) -> Outcome:
        while self._num_bytes < MOST_REPLY_BYTES:
            size = int((await reader.readline()).partition(b";")[0] or b"z", 16)
            left = size
            while left:
                left -= await self._keep(reader, min(left, 65536))
            if not (await reader.readline()).endswith(b"\n"):
                raise _ClosedError
            if not size:
                return Outcome.ANSWERED
        return Outcome.CUT

    async def _keep(self, reader: asyncio.StreamReader, most: int) -> int:
        data = await reader.read(most)
        if not data:
            raise _ClosedError
        self._num_bytes += len(data)
        self.kept += data[: max(KEPT_REPLY_BYTES - len(self.kept), 0)]
        return len(data)
