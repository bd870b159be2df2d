"""Between the driver and the sockets: what leaves in one wake is one write per stream, and each write is measured."""

import asyncio
import time
from collections.abc import Callable
from typing import Protocol

from mockserve.metrics.histogram import Lateness

PATIENCE_TURNS = 16
HEADS_WAIT_S = 0.1
"""How long at least a stream's head waits for an event where events are due at once."""


class Departure(Protocol):
    """A stream that has frames to send."""

    @property
    def due_s(self) -> float:
        """When the first of them was due, on the monotonic clock."""
        ...

    def leave(self) -> int:
        """Send all of them in one write. Returns how many."""
        ...


class Headed(Protocol):
    """A stream whose head may still be there."""

    def send_head(self) -> None:
        """Send it, unless it has left."""
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
        self._new: list[Headed] = []
        """Streams whose heads may still be there, and..."""
        self._waiting: list[Headed] = []
        """...those that were new at the look before."""

    def hold(self) -> None:
        """Let streams keep their frames until `release`."""
        self.is_held = True

    def add(self, departure: Departure) -> None:
        """A stream has kept its first frame."""
        self._departing.append(departure)

    def send_head_soon(self, stream: Headed) -> None:
        """Let the head of a new stream wait for its first event, which leaves with it if it is due now.

        It waits for a wake in the next turn; where nothing is timed, for as long as wakes may wait for quiet.
        """
        if self._is_timed:
            loop = asyncio.get_running_loop()
            loop.call_soon(loop.call_soon, stream.send_head)
            return
        if not self._new and not self._waiting:
            asyncio.get_running_loop().call_later(HEADS_WAIT_S, self._send_heads)
        self._new.append(stream)

    def _send_heads(self) -> None:
        late, self._waiting, self._new = self._waiting, self._new, []
        if self._waiting:
            asyncio.get_running_loop().call_later(HEADS_WAIT_S, self._send_heads)
        for each in late:
            each.send_head()

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
