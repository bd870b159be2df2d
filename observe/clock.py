"""One clock for a whole run: instants are `perf_counter_ns`, which never jumps; files get Unix microseconds."""

import asyncio
import time
from dataclasses import dataclass
from time import perf_counter_ns
from typing import TypeAlias

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
