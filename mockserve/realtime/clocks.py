"""What a driver takes for the time: the wall clock, scaled, or the engine's own instants, one right after the other."""

import math
from collections.abc import Callable
from typing import Protocol

from blis_sim.engine.simulation import Simulation
from blis_sim.engine.units import Micros

FOREVER: Micros = 2**62
"""Later than anything an engine has due."""


class Clock(Protocol):
    """Simulated instants and readings of the monotonic clock. Readings are in seconds."""

    def now(self) -> Micros:
        """The present instant."""
        ...

    def due_until(self) -> Micros:
        """What is due by this instant may be done now."""
        ...

    def instant_at(self, reading_s: float) -> Micros:
        """The instant at which the monotonic clock reads `reading_s`."""
        ...

    def seconds_at(self, at: Micros) -> float:
        """The reading at an instant, which may be ahead."""
        ...


class PacedClock:
    """So many simulated microseconds pass in each real second."""

    def __init__(self, us_per_s: float, monotonic: Callable[[], float], origin_s: float) -> None:
        """`origin_s` is the reading at the simulated instant 0."""
        self._us_per_s = us_per_s
        self._monotonic = monotonic
        self._origin_s = origin_s

    def now(self) -> Micros:
        return self.instant_at(self._monotonic())

    def due_until(self) -> Micros:
        return self.now()

    def instant_at(self, reading_s: float) -> Micros:
        return int((reading_s - self._origin_s) * self._us_per_s)

    def seconds_at(self, at: Micros) -> float:
        return self._origin_s + at / self._us_per_s


class JumpingClock:
    """It stands still until the engine does something, and then reads what the engine has come to."""

    def __init__(self, simulation: Simulation, monotonic: Callable[[], float]) -> None:
        self._simulation = simulation
        self._monotonic = monotonic

    def now(self) -> Micros:
        return self._simulation.now or 0

    def due_until(self) -> Micros:
        return FOREVER

    def instant_at(self, reading_s: float) -> Micros:
        return self.now()

    def seconds_at(self, at: Micros) -> float:
        """Whatever happens is due at once."""
        return self._monotonic()


def clock_of(simulation: Simulation, speed: float, monotonic: Callable[[], float], origin_s: float | None) -> Clock:
    """The clock for `speed` simulated seconds per real second; infinity lets it jump.

    `origin_s` is the reading at the simulated instant 0, by default the present one.
    """
    if math.isinf(speed):
        return JumpingClock(simulation, monotonic)
    return PacedClock(speed * 1e6, monotonic, monotonic() if origin_s is None else origin_s)
