"""Listeners to the output of a driver, for tests."""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from blis_sim.engine.request import Request, UniqueBlocks
from blis_sim.engine.units import Micros
from mockserve.realtime.driver import Driver
from mockserve.realtime.in_flight import InFlightRequest


class Listener(InFlightRequest):
    """A request that records its calls and their times."""

    finish_reason = "length"

    def __init__(self, on_token: Callable[[int], None] = lambda number: None) -> None:
        super().__init__(Request("", 0, 0, UniqueBlocks("")))
        self.heard: list[int] = []
        self.instants: list[float] = []
        self.failure: str | None = None
        self.done = asyncio.Event()
        self.on_token = on_token
        self.is_detached = False

    def token(self, number: int) -> None:
        if self.is_detached:
            return
        self.instants.append(time.monotonic())
        self.heard.append(number)
        self.on_token(number)

    def finish(self, num_tokens: int) -> None:
        self.token(num_tokens)
        self.done.set()

    def abort(self, num_tokens: int) -> None:
        self.finish(num_tokens)

    def fail(self, message: str, status: int) -> None:
        self.failure = message
        self.done.set()

    def detach(self) -> None:
        self.is_detached = True


def submit(
    driver: Driver,
    request: Request,
    listener: Listener,
    arrived_at: Micros | None = None,
    rank: int | None = None,
) -> Listener:
    """Submit `request` with what `listener` does of its tokens. Returns the listener."""
    listener.request = request
    driver.submit(listener, arrived_at, rank)
    return listener


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
