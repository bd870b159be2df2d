"""One clock for a whole run, and the event loop of a load client with its open files and early stop."""

import asyncio
import json
import resource
import signal
import sys
import threading
import time
from collections.abc import Coroutine, Mapping
from dataclasses import dataclass
from time import perf_counter_ns
from types import TracebackType
from typing import Any, Self, TypeAlias, TypeVar

# One clock for a whole run: instants are `perf_counter_ns`, which never jumps; files get Unix microseconds.

Nanos: TypeAlias = int
"""An instant of the performance counter, in nanoseconds."""

_SPIN_NS = 2_000_000


@dataclass(frozen=True, slots=True)
class Clock:
    """The pair of readings that ties the performance counter to the time of day."""

    epoch_ns: int
    counter_ns: Nanos

    def epoch_us(self, instant: Nanos) -> int:
        """Unix time in microseconds; 0, which means "never", stays 0."""
        return (self.epoch_ns + instant - self.counter_ns) // 1000 if instant else 0


def start_clock() -> Clock:
    """Read both clocks at the same instant: of a few tries, the one that was interrupted least."""
    tries = []
    for _ in range(8):
        before = perf_counter_ns()
        epoch = time.time_ns()
        after = perf_counter_ns()
        tries.append((after - before, Clock(epoch, (before + after) // 2)))
    return min(tries, key=lambda each: each[0])[1]


async def sleep_until(instant: Nanos) -> None:
    """Return at `instant`, within microseconds; at once when it has passed.

    Event-loop timers fire up to a millisecond late, so the last two are spent looking at the clock while other
    callbacks run.
    """
    early = instant - perf_counter_ns() - _SPIN_NS
    if early > 0:
        await asyncio.sleep(early / 1e9)
    while perf_counter_ns() < instant:  # noqa: ASYNC110 - the clock signals no event
        await asyncio.sleep(0)


# The event loop of a load client, its open files, an early stop, and the command line of a further process.

Result = TypeVar("Result")


def run_loop(work: Coroutine[object, object, Result]) -> Result:
    """Run to the end on the fastest loop there is."""
    try:
        import uvloop
    except ImportError:  # uvloop is optional and not available on every platform
        return asyncio.run(work)
    return uvloop.run(work)


def allow_many_connections() -> None:
    """Each request in flight has a connection; the usual limit of open files is 1024."""
    most = 1 << 20
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = most if hard == resource.RLIM_INFINITY else min(hard, most)
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))


_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Interrupt:
    """While open, Ctrl-C and SIGTERM cancel the current task, once; a second one ends the process at once.

    `signal` is the one that came, None if none did. `stop` does the same for any other reason.
    """

    def __init__(self) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._task = task
        self._loop = asyncio.get_running_loop()
        self._stopped = False
        self._before: dict[signal.Signals, Any] = {}
        self.signal: signal.Signals | None = None

    @property
    def exit_code(self) -> int | None:
        """The exit code that shells expect of a process ended by a signal."""
        return None if self.signal is None else 128 + self.signal

    def stop(self) -> None:
        """Cancel the task, if that has not been done."""
        if not self._stopped:
            self._stopped = True
            self._task.cancel()

    def consume_cancellation(self) -> bool:
        """Return whether a cancellation that was just caught came from this interrupt, and mark it as handled."""
        if self._stopped:
            self._task.uncancel()
        return self._stopped

    async def run_to_completion(self, work: Coroutine[object, object, Result]) -> Result:
        """Return the result of the work; a cancellation in the meantime does not stop the work and counts as
        handled."""
        task = asyncio.ensure_future(work)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            if not self.consume_cancellation():
                raise
            return await task

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for each in _SIGNALS:
                self._before[each] = signal.getsignal(each) or signal.SIG_DFL
                self._loop.add_signal_handler(each, self._on_signal, each)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._restore_handlers(self._before)

    def _on_signal(self, which: signal.Signals) -> None:
        self.signal = which
        # Python's default handler of Ctrl-C would raise an exception inside the callback that runs at that moment.
        self._restore_handlers(dict.fromkeys(self._before, signal.SIG_DFL))
        self.stop()

    def _restore_handlers(self, handlers: Mapping[signal.Signals, Any]) -> None:
        for each, handler in handlers.items():
            self._loop.remove_signal_handler(each)
            signal.signal(each, handler)


_PROGRAM = (
    "import json, runpy, sys; sys.path[:] = json.loads(sys.argv.pop(1)); "
    "runpy.run_module(sys.argv.pop(1), run_name='__main__', alter_sys=True)"
)


def command_of(module: str) -> list[str]:
    """The command line that runs a module, which finds others where this process does.

    `python -m` would look into the working folder first, where users may have an `observe` of their own.
    """
    return [sys.executable, "-P", "-c", _PROGRAM, json.dumps(sys.path), module]
