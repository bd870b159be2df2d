"""A client that sends bytes as they are, and returns how the exchange ended."""

import http.client
import socket
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from enum import StrEnum

PIECE_PAUSE_S = 0.03
"""Longer than the server waits for the rest of a request that it could answer on its fast path."""
MOST_REPLY_BYTES = 16 * 2**20
KEPT_REPLY_BYTES = 2000
QUIET_S = 0.15
"""Seconds that an incomplete message may remain without an answer before the client hangs up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """An HTTP request before it is serialised, so that any part of it can be made hostile."""

    method: str
    path: str
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=lambda: {"Content-Type": "application/json"})
    version: str = "HTTP/1.1"

    def with_headers(self, **headers: str | None) -> "Message":
        """A copy with further headers; underscores in a name stand for dashes, and None removes a header."""
        merged = {**self.headers, **{name.replace("_", "-"): value for name, value in headers.items()}}
        return replace(self, headers={name: value for name, value in merged.items() if value is not None})

    def serialised(self, further_lines: Sequence[bytes] = (), adds_length: bool = True) -> bytes:
        """The bytes to send; `further_lines` are header lines that need not be well-formed."""
        lines = [f"{self.method} {self.path} {self.version}".encode("utf-8", "surrogateescape"), b"Host: localhost"]
        lines += [f"{name}: {value}".encode("utf-8", "surrogateescape") for name, value in self.headers.items()]
        if adds_length:
            lines.append(b"Content-Length: %d" % len(self.body))
        return b"\r\n".join((*lines, *further_lines, b"", self.body))


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
    """One request with its answer."""

    outcome: Outcome
    status: int | None
    reply: bytes
    took_s: float


def exchange(host: str, port: int, pieces: Sequence[bytes], patience_s: float, is_complete: bool = True) -> Exchange:
    """Send pieces on a new connection, and read the first answer while they are sent."""
    began_s = time.monotonic()
    until_s = began_s + (patience_s if is_complete else QUIET_S)
    status, kept = None, bytearray()
    try:
        with socket.create_connection((host, port), patience_s) as connection, ThreadPoolExecutor(1) as sender:
            sender.submit(_send, connection, pieces)
            method = pieces[0].partition(b" ")[0].decode("latin-1")
            try:
                with http.client.HTTPResponse(connection, method=method) as reply:
                    connection.settimeout(max(until_s - time.monotonic(), 0.001))
                    reply.begin()
                    status = reply.status
                    outcome = _read(connection, reply, kept, until_s)
            finally:
                with suppress(OSError):  # ends the sender, too
                    connection.shutdown(socket.SHUT_RDWR)
    except TimeoutError:
        outcome = Outcome.UNFINISHED if status else Outcome.SILENT if is_complete else Outcome.WAITING
    except (OSError, http.client.HTTPException, ValueError):
        outcome = Outcome.CLOSED
    return Exchange(outcome, status, bytes(kept), time.monotonic() - began_s)


def _send(connection: socket.socket, pieces: Sequence[bytes]) -> None:
    with suppress(OSError):  # bytes that the server sends before it hangs up are read all the same
        for number, piece in enumerate(pieces):
            if number:
                time.sleep(PIECE_PAUSE_S)
            connection.sendall(piece)


def _read(connection: socket.socket, reply: http.client.HTTPResponse, kept: bytearray, until_s: float) -> Outcome:
    """Read to the end of an answer; the first bytes of it are kept."""
    num_bytes = 0
    while num_bytes < MOST_REPLY_BYTES:
        connection.settimeout(max(until_s - time.monotonic(), 0.001))
        data = reply.read1(65536)
        if not data:
            return Outcome.CLOSED if reply.length else Outcome.ANSWERED
        num_bytes += len(data)
        kept += data[: KEPT_REPLY_BYTES - len(kept)]
    return Outcome.CUT
