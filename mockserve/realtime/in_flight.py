"""A request in the engine: its id, its state, and what becomes of its tokens."""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Protocol

from blis_sim.engine.request import Request
from blis_sim.engine.units import Micros

ID_BYTES = 8
IDS_AT_A_TIME = 256


def random_ids() -> Iterator[str]:
    """Return an iterator of random ids of sixteen hexadecimal digits, as vLLM's ids have.

    Random bytes for many ids are read at a time, since each read is a system call.
    """
    return chain.from_iterable(iter(_some_ids, []))


def _some_ids() -> list[str]:
    digits, width = os.urandom(ID_BYTES * IDS_AT_A_TIME).hex(), 2 * ID_BYTES
    return [digits[start : start + width] for start in range(0, len(digits), width)]


def new_id() -> str:
    """Return a random id without a prefix."""
    return os.urandom(ID_BYTES).hex()


@dataclass(slots=True)
class ParentRequest:
    """The choices of one prompt, which vLLM counts as one request."""

    number: int
    num_complete: int = 0
    longest_tokens: int = 0
    """Output tokens of the longest complete choice."""


@dataclass(slots=True, eq=False)
class InFlightRequest:
    """One request to the engine until its last token. Instants are simulated microseconds.

    A driver reports its tokens, which it ignores unless a subclass takes them. The methods are called in token order,
    at the due times. `num_tokens` counts each token once, even if the engine recomputes it after a preemption.
    """

    request: Request
    parent: ParentRequest | None = None
    """The choices of its prompt, if there are several."""
    arrived_at: Micros = 0
    queued_at: Micros = 0
    first_scheduled_at: Micros | None = None
    first_token_at: Micros | None = None
    last_token_at: Micros = 0
    num_tokens: int = 0
    turn_us: Micros = 0
    """Queueing time of the latest token in the API server process."""
    num_preemptions: int = 0
    num_cached_tokens: int = 0
    """Prompt tokens that the prefix cache held at its first admission, or that another instance has computed."""
    num_external_tokens: int = 0
    """Prompt tokens that another instance has computed."""
    first_token_latency_us: Micros = 0
    """Time from the arrival until the client receives the first token."""
    e2e_latency_us: Micros = 0
    """Time from the arrival until the client receives the last token."""

    @property
    def finish_reason(self) -> str:
        """The finish reason of the planned end."""
        return "abort"

    @property
    def is_streamed(self) -> bool:
        """Whether tokens are sent as they are generated."""
        return False

    def token(self, number: int) -> None:
        """Take all tokens of one step up to token `number`, counted from 1."""

    def tokens(self, first: int, last: int) -> None:
        """Take tokens `first` to `last`, one per step; all earlier tokens have come."""
        for number in range(first, last + 1):
            self.token(number)

    def finish(self, num_tokens: int) -> None:
        """Take the remaining tokens up to `num_tokens`, and the end."""

    def abort(self, num_tokens: int) -> None:
        """End early with `num_tokens` tokens."""

    def fail(self, message: str, status: int) -> None:
        """End with an error: the engine refused the request or failed. It may replace any call."""

    def detach(self) -> None:
        """Ignore all later calls, and keep nothing in memory that takes them."""


class FlightRecorder(Protocol):
    """Counts what happens to requests, on the engine's clock."""

    def scheduled(self, flight: InFlightRequest, at: Micros) -> None:
        """`flight` joined the running batch."""
        ...

    def first_token(self, flight: InFlightRequest, latency_us: Micros) -> None:
        """The first token of `flight` was delivered `latency_us` after its arrival."""
        ...

    def step(self, num_prompt_tokens: int, num_tokens: int, gaps_us: dict[Micros, int]) -> None:
        """A step produced `num_tokens` tokens; `gaps_us` counts the gaps to each request's previous token."""
        ...

    def aborted(self, flight: InFlightRequest) -> None:
        """The client of `flight` has disconnected."""
        ...

    def completed(self, flight: InFlightRequest, latency_us: Micros, finish_reason: str) -> None:
        """`flight` was completed, or ended by the server, `latency_us` after its arrival."""
        ...
