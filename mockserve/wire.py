"""Between the driver and the sockets: what leaves in one wake is one write per stream, and each write is measured."""

import time
from collections.abc import Callable
from typing import Protocol

from mockserve.lateness import Lateness

PATIENCE_TURNS = 16


class Departure(Protocol):
    """A stream that has frames to send."""

    @property
    def due_s(self) -> float:
        """When the first of them was due, on the monotonic clock."""
        ...

    def leave(self) -> int:
        """Send all of them in one write. Returns how many."""
        ...


class Wire:
    """One for all connections and engines of a server.

    While a wake is under way streams keep their frames back; at its end each of them writes once, however many
    of its tokens were due.
    """

    def __init__(
        self, lateness: Lateness, is_timed: bool = True, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        """Without `is_timed` there is no instant that anything is due at, and nothing is measured."""
        self.lateness = lateness
        self._is_timed = is_timed
        self.is_held = False
        """Whether a wake is under way."""
        self.due_s = 0.0
        """When what is being handed over was due."""
        self.num_received = 0
        """How often bytes have come in, and..."""
        self._num_looked_at = 0
        """...how often they had when somebody looked, and..."""
        self._num_turns_waited = 0
        """...since when there is news at each look."""
        self._monotonic = monotonic
        self._departing: list[Departure] = []

    def hold(self) -> None:
        """Let streams keep their frames until `release`."""
        self.is_held = True

    def add(self, departure: Departure) -> None:
        """A stream has kept its first frame."""
        self._departing.append(departure)

    def release(self) -> None:
        """Let everything out, in the order in which the streams had their first frame."""
        self.is_held = False
        if not self._departing:
            return
        departing, self._departing = self._departing, []
        if not self._is_timed:
            for each in departing:
                each.leave()
            return
        monotonic, observe = self._monotonic, self.lateness.observe
        for each in departing:
            num_frames = each.leave()
            now_s = monotonic()
            observe(now_s - each.due_s, now_s, num_frames)

    def has_news(self) -> bool:
        """Whether bytes have come in since the last look, so that requests may be about to be submitted.

        Never for long: who waits for quiet has a turn at least every `PATIENCE_TURNS` looks.
        """
        if self.num_received == self._num_looked_at or self._num_turns_waited >= PATIENCE_TURNS:
            self._num_turns_waited = 0
            return False
        self._num_looked_at = self.num_received
        self._num_turns_waited += 1
        return True

    def measure(self) -> None:
        """Something was handed over that leaves by another way."""
        if self._is_timed:
            now_s = self._monotonic()
            self.lateness.observe(now_s - self.due_s, now_s)
