"""A request on its way through the engine: its id, its state, the receiver of its tokens."""

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Protocol

from blis_sim.engine.request import Request
from blis_sim.engine.units import Micros

ID_BYTES = 8
IDS_AT_A_TIME = 256


def random_ids() -> Iterator[str]:
    """Sixteen hexadecimal digits each, as vLLM's ids have, without end.

    Random bytes for many of them are read at a time, since each read is a call of the kernel.
    """
    while True:
        digits = os.urandom(ID_BYTES * IDS_AT_A_TIME).hex()
        width = 2 * ID_BYTES
        yield from (digits[start : start + width] for start in range(0, len(digits), width))


def new_id() -> str:
    """Return a random id without a prefix."""
    return os.urandom(ID_BYTES).hex()


def unix_time() -> int:
    """Seconds since 1970, for the `created` fields."""
    return int(time.time())


class Reply(Protocol):
    """The receiver of a request's tokens. The methods are called in the order of the tokens, when their time has come.

    `finish` brings all that `token` has not brought; `fail` may come instead of any.
    """

    @property
    def finish_reason(self) -> str:
        """The finish reason of the planned end."""
        ...

    @property
    def is_streamed(self) -> bool:
        """Whether tokens are sent as they come."""
        ...

    def token(self, number: int) -> None:
        """Token `number`, counted from 1, is due, and with it all before that have not come: one step brought them."""
        ...

    def tokens(self, first: int, last: int) -> None:
        """Tokens `first` to `last` are due, each of which a step of its own brought; none before them is left."""
        ...

    def finish(self, num_tokens: int) -> None:
        """The last of `num_tokens` tokens is due, and with it the end."""
        ...

    def abort(self, num_tokens: int) -> None:
        """The server ends it here, with the tokens it has."""
        ...

    def fail(self, message: str, status: int) -> None:
        """End the reply with an error: the engine refused the request, or broke."""
        ...


class EndedReply:
    """Takes the place of a reply that has ended, so that the request does not keep the reply in memory."""

    finish_reason = "abort"
    is_streamed = False

    def token(self, number: int) -> None:
        """Drop a token that comes after the end."""

    def tokens(self, first: int, last: int) -> None:
        """Drop tokens that come after the end."""

    def finish(self, num_tokens: int) -> None:
        """Ignore a second end."""

    def abort(self, num_tokens: int) -> None:
        """Ignore a second end."""

    def fail(self, message: str, status: int) -> None:
        """Ignore a second end."""


ENDED_REPLY = EndedReply()


@dataclass(slots=True)
class Siblings:
    """The choices of one prompt, which vLLM counts as one request."""

    number: int
    num_open: int
    """Choices that are not complete."""
    longest_tokens: int = 0
    """Output tokens of the longest complete one."""


def new_siblings(number: int) -> Siblings:
    """`number` choices, none of them complete."""
    return Siblings(number, number)


@dataclass(slots=True)
class InFlightRequest:
    """One request between submission and its last token. Instants are simulated microseconds.

    `num_tokens` counts each token once, also when the engine computes it anew after a preemption.
    """

    request: Request
    reply: Reply
    arrived_at: Micros
    queued_at: Micros
    first_scheduled_at: Micros | None = None
    first_token_at: Micros | None = None
    last_token_at: Micros = 0
    num_tokens: int = 0
    turn_us: Micros = 0
    """Wait of the latest token for its turn in the API server process."""
    num_preemptions: int = 0
    num_cached_tokens: int = 0
    """Prompt tokens that the prefix cache held at its first admission, or that another instance has computed."""
    num_external_tokens: int = 0
    """Prompt tokens that another instance has computed."""
    first_token_latency_us: Micros = 0
    """Time from the arrival to the instant at which the client gets the first token."""
    e2e_latency_us: Micros = 0
    """Time from the arrival to the instant at which the client gets the last token."""
    siblings: Siblings = field(default_factory=lambda: new_siblings(1))

    @property
    def num_computed_prompt_tokens(self) -> int:
        """Prompt tokens that had to be computed here."""
        return self.request.input_tokens - self.num_cached_tokens


class FlightRecorder(Protocol):
    """Counts what happens to requests, on the engine's clock."""

    def scheduled(self, flight: InFlightRequest, at: Micros) -> None:
        """`flight` joined the running batch."""
        ...

    def first_token(self, flight: InFlightRequest, latency_us: Micros) -> None:
        """The first token of `flight` came out, so long after its arrival."""
        ...

    def step(self, num_prompt_tokens: int, num_tokens: int, gaps_us: dict[Micros, int]) -> None:
        """A step produced `num_tokens` tokens; `gaps_us` counts the gaps to each request's token before."""
        ...

    def aborted(self, flight: InFlightRequest) -> None:
        """The client of `flight` has gone."""
        ...

    def completed(self, flight: InFlightRequest, latency_us: Micros, finish_reason: str) -> None:
        """`flight` had its last token, so long after its arrival, or was ended by the server."""
        ...
