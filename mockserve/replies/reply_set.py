"""One HTTP reply: the job that describes it, and all of its choices with what they have cost together."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from mockserve.connections.caller import ANYBODY, Caller
from mockserve.flight import NOBODY, Flight
from mockserve.protocol.asked.wanted import Delivery
from mockserve.protocol.bodies import Bodies, Usage
from mockserve.protocol.errors import ApiError
from mockserve.replies.accounting import Accounting
from mockserve.replies.choice_writer import NewWriter
from mockserve.replies.frames import CHAT_ERRORS, EventTemplates, StreamErrors
from mockserve.replies.generation import PlannedPrompt

AT_THE_END = 0
"""A stream interval: nothing is sent before all of a choice is there."""


class ReplyJob(NamedTuple):
    """A reply to write: its choices prompt by prompt, how each looks, and what is reported beside them.

    `stream_interval` is how many tokens an event waits for after the first.
    """

    bodies: Bodies
    new_writer: NewWriter
    delivery: Delivery
    prompts: Sequence[PlannedPrompt]
    accounting: Accounting = Accounting()
    stream_interval: int = 1
    templates: EventTemplates | None = None
    """Where events of usual formats have their templates from; without it each stream makes its own."""
    errors: StreamErrors = CHAT_ERRORS
    num_announced: int | None = None
    """Choices that a stream opens, where that is not the number of those that follow."""
    is_empty: bool = False
    """Whether no token is wanted, so that the engine is not asked."""
    kv_transfer_params: Mapping[str, Any] | None = None
    """What the end of a choice tells a later server about the blocks it left."""

    is_long: bool = False
    """Whether the choices are submitted in turn and the reply is written on another thread."""

    @property
    def num_choices(self) -> int:
        return sum(len(prompt.generations) for prompt in self.prompts)


class ReplySet:
    """The choices of one HTTP reply: it is done when each of them is, or when one fails."""

    def __init__(self, job: ReplyJob, caller: Caller = ANYBODY) -> None:
        self.job = job
        self.caller = caller
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.completion_tokens = 0
        self._flights: list[Flight] = []
        self._num_open = job.num_choices
        self._num_reasoning_tokens: int | None = None
        """Of the choices so far, where they are planned in turn."""

    def add_flight(self, flight: Flight) -> None:
        """One of the requests that the engine has for this reply, in the order of the choices."""
        self._flights.append(flight)

    def add_in_turn(self, flight: Flight, num_reasoning_tokens: int) -> None:
        """One of many requests, which are not all there at once: of those the first and the last are kept."""
        self._flights[1:] = [flight] if self._flights else []
        self._flights = self._flights or [flight]
        self._num_reasoning_tokens = (self._num_reasoning_tokens or 0) + num_reasoning_tokens

    def let_go(self) -> None:
        """The reply has ended. Its requests hold it no longer: in a circle they would wait for the collector."""
        for flight in self._flights:
            flight.reply = NOBODY

    def usage(self, is_stream: bool) -> Usage:
        """What all choices have cost. The first prompt's cached tokens stand for all in a stream, else the last's."""
        flight = (self._flights[0] if is_stream else self._flights[-1]) if self._flights else None
        return self.job.accounting.usage(self.job.prompts, self.completion_tokens, flight, self._num_reasoning_tokens)

    def metrics(self, is_stream: bool) -> dict[str, Any] | None:
        """Latencies, if there is one request that they can be those of."""
        alone = self._flights[0] if len(self._flights) == 1 else None
        return self.job.accounting.metrics(alone, is_stream)

    def choice_finished(self, num_tokens: int) -> bool:
        """Count one choice as finished; whether it was the last one."""
        self.completion_tokens += num_tokens
        self._num_open -= 1
        return self._num_open == 0

    def resolve(self) -> None:
        if not self.done.done():
            self.done.set_result(None)

    def fail(self, error: ApiError) -> None:
        """End the reply with an error; what other choices still bring is ignored."""
        if not self.done.done():
            self.done.set_exception(error)
