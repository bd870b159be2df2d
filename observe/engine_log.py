"""The log of a server, read while it grows: the steps that its lines tell of become a part of the recording."""

import asyncio
import os
import stat
import time
from contextlib import suppress
from pathlib import Path

from observe.errors import ObserveError, print_message, warn
from traces.steps import StepWriter, step_of_line

_INTERVAL_S = 0.5
_SETTLE_S = 1.0
"""The last lines come this long after the last reply at most."""
_LONGEST_END_S = 5.0
_PIECE_BYTES = 1 << 16
_PAUSE_S = 0.01
"""Between two pieces, so that a log that never ends leaves the time to the load."""
_LONGEST_LINE = 1 << 16
"""No line about a step is longer; of a longer line the rest is dropped."""


class EngineLog:
    """Follows a log from its present end on, and writes the steps in it to a file of steps.

    A file that cannot be written any more ends the recording of steps, with a warning. Raises ObserveError where the
    log cannot be opened, and TraceError where the file of steps cannot be made.
    """

    def __init__(self, log: Path, steps: Path, *, resume: bool = False) -> None:
        self._log = log
        try:
            self._descriptor = os.open(log, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except OSError as error:
            raise ObserveError(f"--engine-log {log}: {(error.strerror or str(error)).lower()}") from error
        mode = os.fstat(self._descriptor).st_mode
        if not (stat.S_ISREG(mode) or stat.S_ISFIFO(mode)):
            os.close(self._descriptor)
            kind = "a folder" if stat.S_ISDIR(mode) else "a device"
            raise ObserveError(f"--engine-log {log}: expected a file or a pipe, got {kind}")
        with suppress(OSError):  # a pipe has no end to go to
            os.lseek(self._descriptor, 0, os.SEEK_END)
        self._writer = StepWriter(steps, resume=resume)
        self._path = steps
        self._begun = b""
        """The last line so far, which has not ended."""
        self._has_failed = False
        self.num_steps = 0

    async def keep_reading(self) -> None:
        """Take in what is new every half second, until cancelled."""
        while True:
            is_more = self._read_piece()
            await asyncio.sleep(_PAUSE_S if is_more else _INTERVAL_S)

    async def end(self) -> None:
        """Take in what is still to come, but not for ever, close both files and say what was found."""
        await asyncio.sleep(_SETTLE_S)
        until_s = time.monotonic() + _LONGEST_END_S
        while self._read_piece() and time.monotonic() < until_s:
            pass  # no load is measured any more
        os.close(self._descriptor)
        self._writer.close()
        if self.num_steps:
            print_message(f"{self.num_steps} steps of the engine are in {self._path}")
        else:
            warn(
                f"{self._log} told of no step during the load: "
                "start the server with --enable-logging-iteration-details, as in `vllm serve MODEL ... 2>&1 | tee FILE`"
            )

    def _read_piece(self) -> bool:
        """Take in a piece of the log; return whether there was any."""
        try:
            piece = os.read(self._descriptor, _PIECE_BYTES)
        except OSError:  # a pipe with nothing in it at present
            return False
        *lines, self._begun = (self._begun + piece).split(b"\n")
        self._begun = self._begun[:_LONGEST_LINE]
        found = map(step_of_line, (line.decode("utf-8", "replace") for line in lines if b"Iteration(" in line))
        steps = [step for step in found if step is not None]
        self.num_steps += len(steps)
        if steps and not self._has_failed:
            try:
                self._writer.write(steps)
            except OSError as error:
                self._has_failed = True
                warn(f"steps are recorded no more: {self._path}: {(error.strerror or str(error)).lower()}")
        return bool(piece)
