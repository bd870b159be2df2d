"""The process that reads what has passed a tap: the one that passes bytes on decodes none of them."""

import fcntl
import logging
import marshal
import os
import signal
import sys
import time
from contextlib import suppress
from typing import BinaryIO

from blis_sim.wings.tap.forwarding import Piece
from blis_sim.wings.tap.recording import LinkRecorder

_logger = logging.getLogger(__name__)

EACH_S = 0.1
"""How long bytes wait to be handed over with others."""
MOST_UNREAD_BYTES = 1 << 26
"""Bytes that may wait for the process that reads them; more end the recording."""
PIPE_BYTES = 1 << 20
"""Bytes that a pipe may hold on Linux without a privilege."""
NICENESS = 10


class Handover:
    """A pipe to a process of its own, which records."""

    def __init__(self, recorder: LinkRecorder) -> None:
        """Start the process. This one has no use of the recorder any more."""
        reading, self._pipe = os.pipe()
        self._process = os.fork()
        if not self._process:
            os.close(self._pipe)
            _record(recorder, os.fdopen(reading, "rb", 1 << 16))
        os.close(reading)
        os.set_blocking(self._pipe, False)
        if sys.platform == "linux":
            with suppress(OSError):  # a user's pipes have a bound together
                fcntl.fcntl(self._pipe, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
        self._pieces: list[tuple[object, ...]] = []
        self._num_bytes = 0
        self._packed = b""
        self._due_s = 0.0
        self._is_over = False

    @property
    def is_behind(self) -> bool:
        """Whether bytes wait to be handed over."""
        return bool(self._pieces or self._packed)

    def put(self, piece: Piece) -> None:
        """Take bytes that have passed."""
        if not self._is_over:
            self._pieces.append(tuple(piece))
            self._num_bytes += len(piece.data)

    def hand_over(self) -> None:
        """Hand over what has come, if it is time or a part is left."""
        now_s = time.monotonic()
        if self._num_bytes > MOST_UNREAD_BYTES:
            self._end("the recorder is behind by too much")
            return
        if not self._packed:
            if now_s < self._due_s or not self._pieces:
                return
            self._due_s = now_s + EACH_S
            self._packed = marshal.dumps(self._pieces)
            self._pieces, self._num_bytes = [], 0
        try:
            self._packed = self._packed[os.write(self._pipe, self._packed) :]
        except BlockingIOError:
            pass
        except OSError as error:
            self._end(error.strerror or "the recorder has ended")

    def _end(self, why: str) -> None:
        self._is_over, self._pieces, self._packed, self._num_bytes = True, [], b"", 0
        _logger.error("nothing more is recorded: %s", why)

    def close(self) -> bool:
        """Hand over the rest, and wait until it is written. Returns whether all is recorded."""
        os.set_blocking(self._pipe, True)
        while self.is_behind and not self._is_over:
            self._due_s = 0.0
            self.hand_over()
        os.close(self._pipe)
        _, status = os.waitpid(self._process, 0)
        return not (self._is_over or status)


def _record(recorder: LinkRecorder, pipe: BinaryIO) -> None:
    """Record until the pipe ends, and end the process."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    os.nice(NICENESS)
    code = 1
    try:
        try:
            with suppress(EOFError):
                while True:
                    recorder.take([Piece(*each) for each in marshal.load(pipe)])
        finally:
            recorder.close()
        _logger.info("steps recorded: %d, messages not readable: %d", recorder.num_steps, recorder.num_unreadable)
        code = int(recorder.problem is not None)
    except Exception:
        _logger.exception("nothing more is recorded")
    finally:
        os._exit(code)
