"""One reply to a client: its choices are submitted to the engine, awaited, and freed if the client disconnects."""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple, Self, TypeAlias

from blis_sim.engine.request import Request
from blis_sim.engine.units import Micros
from mockserve.http.clients import UNKNOWN_CALLER, Caller
from mockserve.protocol.bodies import Usage
from mockserve.protocol.errors import ApiError
from mockserve.realtime.in_flight import ENDED, InFlightRequest, ParentRequest, TokenReceiver
from mockserve.reply.delivery import ReplyDelivery
from mockserve.reply.plan import (
    CHOICE_OVERHEAD_TOKENS,
    MOST_PLANNED_TOKENS,
    PROMPT_TOKENS_PER_ANSWER_TOKEN,
    CompletedChoice,
    Generation,
    LazyGenerations,
    PlannedPrompt,
    ReplyJob,
)

MAX_OPEN = 512
"""Maximum number of choices or prompts of one HTTP request in the engine: a step that ends more of them would delay
other requests."""

PLANNING_S = 0.05
"""Seconds of planning choices or prompts before the first of them is submitted."""

SLICE_S = 0.005
"""Seconds of submission before the event loop runs other work."""

PROMPT_TOKENS_AT_ONCE = 32_768
PAUSE_S = 0.01
"""Number of submitted prompt tokens before a pause for an engine step: a step looks up each of their blocks."""

NewReceiver: TypeAlias = Callable[[int, PlannedPrompt, int, Generation], TokenReceiver]
"""Returns the receiver of a choice's tokens. Arguments: the choice's index, its prompt, its number within the prompt,
the choice."""


def behind(request: Request, leader: str) -> Request:
    """Return a request of a message whose first request to the engine has the id `leader`; empty for none yet.

    vLLM prepares all choices and prompts of a message, and then sends them to its engine one by one.
    """
    return request._replace(follows=leader) if leader else request


class _ReadyChoice(NamedTuple):
    """One choice that is ready for the engine, number `number` of its prompt."""

    prompt: PlannedPrompt
    prompt_number: int
    number: int
    parent: ParentRequest | None
    generation: Generation
    receiver: TokenReceiver

    @property
    def size_tokens(self) -> int:
        """Size in memory, as a number of output tokens."""
        request = self.generation.request
        return CHOICE_OVERHEAD_TOKENS + request.output_tokens + request.input_tokens // PROMPT_TOKENS_PER_ANSWER_TOKEN


class _WatchedReceiver:
    """The receiver of a choice whose end is reported to `end`, with whether the choice has all of its tokens."""

    __slots__ = ("_end", "_receiver", "token", "tokens")

    def __init__(self, receiver: TokenReceiver, end: Callable[[bool], None]) -> None:
        self._receiver = receiver
        self._end = end
        self.token = receiver.token
        self.tokens = receiver.tokens

    @property
    def finish_reason(self) -> str:
        return self._receiver.finish_reason

    @property
    def is_streamed(self) -> bool:
        return self._receiver.is_streamed

    def finish(self, num_tokens: int) -> None:
        self._receiver.finish(num_tokens)
        self._end(True)

    def abort(self, num_tokens: int) -> None:
        self._receiver.abort(num_tokens)
        self._end(True)

    def fail(self, message: str, status: int) -> None:
        self._receiver.fail(message, status)
        self._end(False)


class Reply:
    """One reply to a client: its choices in the engine, and what they have used together.

    It is done when all choices are, or when one fails. All choices of a short reply are submitted at once. A long reply
    is planned in parts on a thread. Its choices are submitted one after the other, a limited number at a time. Choices
    that are still in the engine at the end of the `with` block are aborted.
    """

    __slots__ = (
        "_arrived_at", "_choices", "_first", "_last", "_leader", "_moved", "_num_reasoning_tokens", "_num_requests",
        "_num_unplanned", "_open_tokens", "_started_ns", "caller", "completion_tokens", "delivery", "done", "flights",
        "job", "num_open",
    )  # fmt: skip

    def __init__(
        self, delivery: ReplyDelivery, job: ReplyJob, arrived_at: Micros, caller: Caller = UNKNOWN_CALLER
    ) -> None:
        """`arrived_at` is the arrival of the request on the driver's clock."""
        self.delivery = delivery
        self.job = job
        self.caller = caller
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.completion_tokens = 0
        self.num_open = self._num_unplanned = job.num_choices
        """Number of choices that have not ended."""
        self.flights: dict[str, InFlightRequest] = {}
        """Engine requests by id. Those of a long reply leave when they end."""
        self._arrived_at = arrived_at
        self._started_ns = time.time_ns() if delivery.observers else 0
        self._choices: Iterator[_ReadyChoice] = iter(())
        self._open_tokens = 0
        self._moved: asyncio.Event | None = None
        """Set when a choice of a long reply has ended; None for a short reply."""
        self._leader = ""
        self._num_requests = 0
        self._first: InFlightRequest | None = None
        self._last: InFlightRequest | None = None
        self._num_reasoning_tokens = 0

    async def run(self, new_receiver: NewReceiver) -> None:
        """Submit every choice; return when the reply has ended. Raises ApiError if it fails."""
        with self:
            await self.placed(new_receiver)
            await self.ended()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.done.cancel()
        for request_id, flight in self.flights.items():
            self.delivery.driver.abort(request_id)
            flight.receiver = ENDED  # a reference cycle would keep the reply until a garbage collection

    async def placed(self, new_receiver: NewReceiver) -> None:
        """Submit a short reply; return when the engine has placed its requests.

        Raises ApiError if the engine refuses one of them before.
        """
        job = self.job
        self._choices = _planned_choices(job.prompts, new_receiver)
        if job.is_empty:
            self._num_unplanned = 0
            for choice in self._choices:
                choice.receiver.finish(0)
            return
        for observer in self.delivery.observers:
            observer.received(job)
        if job.is_long:
            self._moved = asyncio.Event()
            return
        for choice in self._choices:
            self._submit(choice)
        await self.delivery.driver.until_routed(self.flights)
        if self.done.done():
            await self.done

    async def ended(self) -> None:
        """Submit the choices of a long reply as earlier ones end; return when the reply has ended.

        Raises ApiError if the reply has failed.
        """
        if self._moved is not None:
            moved = self._moved
            self.done.add_done_callback(lambda _: moved.set())
            ready: deque[_ReadyChoice] = deque()
            while not self.done.done() and (ready or self._num_unplanned):
                ready = ready or await self._plan_some()
                await self._submit_some(ready, moved)
        await self.done

    def usage(self, is_stream: bool) -> Usage:
        """Return the usage of all choices. Cached tokens belong to the first prompt in a stream, else to the last."""
        flight = self._first if is_stream else self._last
        return self.job.accounting.usage(self.job.prompts, self.completion_tokens, flight, self._num_reasoning_tokens)

    def metrics(self, is_stream: bool) -> dict[str, Any] | None:
        """Return latencies if the reply has exactly one request."""
        return self.job.accounting.metrics(self._first if self._num_requests == 1 else None, is_stream)

    def choice_finished(self, num_tokens: int) -> bool:
        """Count one choice as finished; return whether it was the last one."""
        self.completion_tokens += num_tokens
        self.num_open -= 1
        return self.num_open == 0

    def resolve(self) -> None:
        """End the reply."""
        if not self.done.done():
            self.done.set_result(None)

    def fail(self, error: ApiError) -> None:
        """End the reply with an error; further tokens of other choices are ignored."""
        if not self.done.done():
            self.done.set_exception(error)

    async def _plan_some(self) -> deque[_ReadyChoice]:
        """Return the next choices, at least one unless the reply ends earlier."""
        planning = asyncio.ensure_future(self.delivery.executor.run(True, self._next_choices))
        try:
            await asyncio.wait((planning, self.done), return_when=asyncio.FIRST_COMPLETED)
            return planning.result() if planning.done() else deque()
        finally:
            planning.cancel()

    def _next_choices(self) -> deque[_ReadyChoice]:
        until_s = time.monotonic() + PLANNING_S
        found: deque[_ReadyChoice] = deque()
        size_tokens = 0
        for choice in self._choices:
            found.append(choice)
            size_tokens += choice.size_tokens
            if time.monotonic() >= until_s or size_tokens >= MOST_PLANNED_TOKENS // 4:
                break
        self._num_unplanned -= len(found)
        return found

    async def _submit_some(self, ready: deque[_ReadyChoice], moved: asyncio.Event) -> None:
        """Submit as many of the choices as fit, then wait until a choice has ended if some are left."""
        moved.clear()
        until_s = time.monotonic() + SLICE_S
        num_prompt_tokens = 0
        while ready and self._fits(ready[0]) and not self.done.done():
            num_prompt_tokens += self._submit(ready.popleft())
            is_much = num_prompt_tokens >= PROMPT_TOKENS_AT_ONCE
            if is_much or time.monotonic() >= until_s:
                await asyncio.sleep(PAUSE_S if is_much else 0)
                num_prompt_tokens = 0 if is_much else num_prompt_tokens
                until_s = time.monotonic() + SLICE_S
        if ready and not self.done.done():
            await moved.wait()

    def _fits(self, choice: _ReadyChoice) -> bool:
        num_open = len(self.flights)
        return not num_open or (num_open < MAX_OPEN and self._open_tokens + choice.size_tokens <= MOST_PLANNED_TOKENS)

    def _submit(self, choice: _ReadyChoice) -> int:
        """Submit a choice; return its number of prompt tokens."""
        generation, receiver = choice.generation, choice.receiver
        request = self.caller.applied_to(behind(generation.request, self._leader))
        self._leader = self._leader or request.id
        if self._moved is not None or self._started_ns:
            receiver = _WatchedReceiver(receiver, partial(self._choice_ended, choice, request.id))
        flight = self.delivery.driver.submit(request, receiver, self._arrived_at, choice.parent, self.caller.rank)
        self.flights[request.id] = self._last = flight
        self._first = self._first or flight
        self._num_requests += 1
        self._num_reasoning_tokens += generation.answer.num_reasoning_tokens
        self._open_tokens += 0 if self._moved is None else choice.size_tokens
        return request.input_tokens

    def _choice_ended(self, choice: _ReadyChoice, request_id: str, is_complete: bool) -> None:
        """Report a choice that has ended, and make place for another one of a long reply."""
        flight = self.flights.get(request_id)
        if flight is None:
            return
        if is_complete:
            generation, number = choice.generation, choice.prompt_number
            ended = CompletedChoice(self.job, number, generation, flight, self.caller, self._started_ns)
            for observer in self.delivery.observers:
                observer.completed(ended)
        if self._moved is not None:
            del self.flights[request_id]
            flight.receiver = ENDED
            self._open_tokens -= choice.size_tokens
            if isinstance(choice.prompt.generations, LazyGenerations):
                choice.prompt.generations.forget(choice.number)
            self._moved.set()


def _planned_choices(prompts: Sequence[PlannedPrompt], new_receiver: NewReceiver) -> Iterator[_ReadyChoice]:
    """Yield every choice in order, planned when it is requested."""
    index = 0
    for prompt_number, prompt in enumerate(prompts):
        generations = prompt.generations
        parent = ParentRequest(len(generations)) if len(generations) > 1 else None
        for number in range(len(generations)):
            generation = generations.keep(number) if isinstance(generations, LazyGenerations) else generations[number]
            receiver = new_receiver(index, prompt, number, generation)
            yield _ReadyChoice(prompt, prompt_number, number, parent, generation, receiver)
            index += 1
