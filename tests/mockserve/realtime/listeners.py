"""Listeners to the output of a driver, for tests."""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from blis_sim.engine.units import Micros
from mockserve.realtime.in_flight import InFlightRequest


@dataclass(slots=True)
class Listener:
    """A reply that records its calls and their times."""

    heard: list[int] = field(default_factory=list)
    instants: list[float] = field(default_factory=list)
    failure: str | None = None
    done: asyncio.Event = field(default_factory=asyncio.Event)
    on_token: Callable[[int], None] = lambda number: None
    finish_reason: str = "length"
    is_streamed: bool = False

    def token(self, number: int) -> None:
        self.instants.append(time.monotonic())
        self.heard.append(number)
        self.on_token(number)

    def tokens(self, first: int, last: int) -> None:
        for number in range(first, last + 1):
            self.token(number)

    def finish(self, num_tokens: int) -> None:
        self.token(num_tokens)
        self.done.set()

    def abort(self, num_tokens: int) -> None:
        self.finish(num_tokens)

    def fail(self, message: str, status: int) -> None:
        self.failure = message
        self.done.set()


@dataclass(slots=True)
class Logbook:
    """A recorder that keeps the flights that completed."""

    completions: list[tuple[InFlightRequest, Micros]] = field(default_factory=list)
    num_scheduled: int = 0
    num_tokens: int = 0
    gaps: dict[Micros, int] = field(default_factory=dict)

    def scheduled(self, flight: InFlightRequest, at: Micros) -> None:
        self.num_scheduled += 1

    def first_token(self, flight: InFlightRequest, latency_us: Micros) -> None:
        pass

    def step(self, num_prompt_tokens: int, num_tokens: int, gaps_us: dict[Micros, int]) -> None:
        self.num_tokens += num_tokens
        for gap, times in gaps_us.items():
            self.gaps[gap] = self.gaps.get(gap, 0) + times

    def aborted(self, flight: InFlightRequest) -> None:
        pass

    def completed(self, flight: InFlightRequest, latency_us: Micros, finish_reason: str) -> None:
        self.completions.append((flight, latency_us))
