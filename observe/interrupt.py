"""Stopping a run early without losing what it has measured."""

import asyncio
import signal
import threading
from collections.abc import Coroutine
from types import TracebackType
from typing import Self, TypeVar

Result = TypeVar("Result")

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Interrupt:
    """While open, Ctrl-C and SIGTERM cancel the current task, once; a second one acts as if nobody listened.

    `signal` is the one that came, None if none did. `stop` does the same for any other reason.
    """

    def __init__(self) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._task = task
        self._loop = asyncio.get_running_loop()
        self._stopped = False
        self.signal: signal.Signals | None = None

    @property
    def exit_code(self) -> int | None:
        """What a shell expects of a process that a signal ended."""
        return None if self.signal is None else 128 + self.signal

    def stop(self) -> None:
        """Cancel the task, if that has not been done."""
        if not self._stopped:
            self._stopped = True
            self._task.cancel()

    def taken(self) -> bool:
        """Whether a cancellation that was just caught came from here; it then counts as dealt with."""
        if self._stopped:
            self._task.uncancel()
        return self._stopped

    async def see_through(self, work: Coroutine[object, object, Result]) -> Result:
        """What the work gives; it goes on where the cancellation comes meanwhile, which then counts as dealt with."""
        task = asyncio.ensure_future(work)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            if not self.taken():
                raise
            return await task

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for each in _SIGNALS:
                self._loop.add_signal_handler(each, self._came, each)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._remove()

    def _came(self, which: signal.Signals) -> None:
        self.signal = which
        self._remove()
        self.stop()

    def _remove(self) -> None:
        if threading.current_thread() is threading.main_thread():
            for each in _SIGNALS:
                self._loop.remove_signal_handler(each)
