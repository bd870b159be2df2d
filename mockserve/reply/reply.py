"""One reply to a client: its choices are submitted to the engine, awaited, and freed if the client disconnects."""

import asyncio
import time
from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from typing import Any, NamedTuple, Self, TypeAlias

from aiohttp import web

from blis_sim.engine.units import Micros
from mockserve.executor.executor import OffloadExecutor
from mockserve.http.connection import SlowReaders
from mockserve.http.headers import UNKNOWN_CALLER, Caller, StreamHeads
from mockserve.protocol.bodies import Choice, Ending, Usage
from mockserve.protocol.errors import ApiError, engine_dead, paused
from mockserve.realtime.driver import Driver, WriteCoalescer
from mockserve.realtime.in_flight import ENDED, InFlightRequest, ParentRequest, TokenReceiver
from mockserve.realtime.suspension import ClusterSuspension, Suspension
from mockserve.reply.observers import RequestObserver
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


class OpenReplies:
    """Counts open replies: a `with` block is open for a reply, and for planning that takes several turns."""

    def __init__(self) -> None:
        self.number = 0
        self._idle = asyncio.Event()

    def __enter__(self) -> None:
        self.number += 1

    def __exit__(self, *_error: object) -> None:
        self.number -= 1
        if not self.number:
            self._idle.set()

    async def wait_until_none(self, timeout_s: float) -> None:
        """Return when no reply is open, or after `timeout_s`."""
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while self.number:  # a planned reply opens as soon as its planning ends
                    self._idle.clear()
                    await self._idle.wait()


@dataclass(slots=True)
class ReplyDelivery:
    """Everything between the engines and the connection of a reply."""

    driver: Driver
    suspension: Suspension | ClusterSuspension
    open_replies: OpenReplies
    executor: OffloadExecutor
    """Threads and worker processes for work that would block the event loop."""
    wire: WriteCoalescer
    heads: StreamHeads
    slow_readers: SlowReaders
    keep_alive_s: int
    """Seconds between comments in a stream that is silent; 0 for none."""
    cache_hit_threshold: float | None = None
    """Fraction of a prompt that the KV cache must hold for an answer, where requests may set one; else None."""
    observers: Sequence[RequestObserver] = ()
    """Writers of request logs and spans."""

    async def close_observers(self) -> None:
        """Flush observers, which may take until the timeout of an OpenTelemetry collector."""
        for observer in self.observers:
            await asyncio.to_thread(observer.close)


DELIVERY = web.AppKey("delivery", ReplyDelivery)
"""The key of an application's delivery of replies."""

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

ReadyChoice: TypeAlias = tuple[TokenReceiver, PlannedPrompt, int, int, Generation, ParentRequest | None]
"""A choice that is ready for the engine: its receiver, its prompt, the prompt's number, and its number within the
prompt. Behind them come the choice, and the choices of the prompt if there are several."""


def _size_tokens(generation: Generation) -> int:
    """Return the size of a choice in memory, as a number of output tokens."""
    request = generation.request
    return CHOICE_OVERHEAD_TOKENS + request.output_tokens + request.input_tokens // PROMPT_TOKENS_PER_ANSWER_TOKEN


class _WatchedReceiver(TokenReceiver):
    """The receiver of a choice whose end is reported to `end`, with whether the choice has all of its tokens."""

    __slots__ = ("_end", "_receiver", "finish_reason", "is_streamed", "token", "tokens")

    def __init__(self, receiver: TokenReceiver, end: Callable[[bool], None]) -> None:
        self._receiver = receiver
        self._end = end
        self.token = receiver.token  # type: ignore[method-assign]
        self.tokens = receiver.tokens  # type: ignore[method-assign]
        self.finish_reason = receiver.finish_reason
        self.is_streamed = receiver.is_streamed

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
        "job", "num_choices", "num_open",
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
        self.num_choices = 0
        for prompt in job.prompts:
            self.num_choices += len(prompt.generations)
        self.num_open = self._num_unplanned = self.num_choices
        """Number of choices that have not ended."""
        self.flights: dict[str, InFlightRequest] = {}
        """Engine requests by id. Those of a long reply leave when they end."""
        self._arrived_at = arrived_at
        self._started_ns = time.time_ns() if delivery.observers else 0
        self._choices: Iterator[ReadyChoice] = iter(())
        self._open_tokens = 0
        self._moved: asyncio.Event | None = None
        """Set when a choice of a long reply has ended; None for a short reply."""
        self._leader = ""
        """Id of the first request. vLLM prepares all choices and prompts of a message, and then sends them to its
        engine one by one."""
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
            for receiver, *_ in self._choices:
                receiver.finish(0)
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
            ready: deque[ReadyChoice] = deque()
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

    async def _plan_some(self) -> deque[ReadyChoice]:
        """Return the next choices, at least one unless the reply ends earlier."""
        planning = asyncio.ensure_future(self.delivery.executor.run(True, self._next_choices))
        try:
            await asyncio.wait((planning, self.done), return_when=asyncio.FIRST_COMPLETED)
            return planning.result() if planning.done() else deque()
        finally:
            planning.cancel()

    def _next_choices(self) -> deque[ReadyChoice]:
        until_s = time.monotonic() + PLANNING_S
        found: deque[ReadyChoice] = deque()
        size_tokens = 0
        for choice in self._choices:
            found.append(choice)
            size_tokens += _size_tokens(choice[4])
            if time.monotonic() >= until_s or size_tokens >= MOST_PLANNED_TOKENS // 4:
                break
        self._num_unplanned -= len(found)
        return found

    async def _submit_some(self, ready: deque[ReadyChoice], moved: asyncio.Event) -> None:
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

    def _fits(self, choice: ReadyChoice) -> bool:
        num_open = len(self.flights)
        size_tokens = self._open_tokens + _size_tokens(choice[4])
        return not num_open or (num_open < MAX_OPEN and size_tokens <= MOST_PLANNED_TOKENS)

    def _submit(self, choice: ReadyChoice) -> int:
        """Submit a choice; return its number of prompt tokens."""
        receiver, _, _, _, generation, parent = choice
        request, caller = generation.request, self.caller
        if self._leader:
            request = request._replace(follows=self._leader)
        else:
            self._leader = request.id
        if caller is not UNKNOWN_CALLER:
            request = caller.applied_to(request)
        if self._moved is not None or self._started_ns:
            receiver = _WatchedReceiver(receiver, partial(self._choice_ended, choice, request.id))
        flight = self.delivery.driver.submit(request, receiver, self._arrived_at, parent, caller.rank)
        self.flights[request.id] = self._last = flight
        self._first = self._first or flight
        self._num_requests += 1
        self._num_reasoning_tokens += generation.answer.num_reasoning_tokens
        self._open_tokens += 0 if self._moved is None else _size_tokens(generation)
        return request.input_tokens

    def _choice_ended(self, choice: ReadyChoice, request_id: str, is_complete: bool) -> None:
        """Report a choice that has ended, and make place for another one of a long reply."""
        flight = self.flights.get(request_id)
        if flight is None:
            return
        _, prompt, prompt_number, number, generation, _ = choice
        if is_complete:
            ended = CompletedChoice(self.job, prompt_number, generation, flight, self.caller, self._started_ns)
            for observer in self.delivery.observers:
                observer.completed(ended)
        if self._moved is not None:
            del self.flights[request_id]
            flight.receiver = ENDED
            self._open_tokens -= _size_tokens(generation)
            if isinstance(prompt.generations, LazyGenerations):
                prompt.generations.forget(number)
            self._moved.set()


def _planned_choices(prompts: Sequence[PlannedPrompt], new_receiver: NewReceiver) -> Iterator[ReadyChoice]:
    """Yield every choice in order, planned when it is requested."""
    index = 0
    for prompt_number, prompt in enumerate(prompts):
        generations = prompt.generations
        parent = ParentRequest(len(generations)) if len(generations) > 1 else None
        for number in range(len(generations)):
            generation = generations.keep(number) if isinstance(generations, LazyGenerations) else generations[number]
            receiver = new_receiver(index, prompt, number, generation)
            yield receiver, prompt, prompt_number, number, generation, parent
            index += 1


# The receivers of the tokens of choices, and the choices of a reply that is no stream.


def ending_at(generation: Generation, num_tokens: int, is_stream: bool = False) -> Ending:
    """Return the planned ending, or `length` if the engine stopped earlier."""
    answer = generation.answer
    if num_tokens < len(answer.token_ids):
        return Ending("length")
    return answer.ending if answer.streamed_ending is None or not is_stream else answer.streamed_ending


def failure(message: str, status: int) -> ApiError:
    """Return the error of a refused request with `status`, else the error of a dead engine."""
    if status == HTTPStatus.INTERNAL_SERVER_ERROR:
        return engine_dead()
    return ApiError(message, status=status, kind=_KINDS.get(status, "BadRequestError"))


_KINDS: Mapping[int, str] = {
    HTTPStatus.TOO_MANY_REQUESTS: "RateLimitError",
    HTTPStatus.SERVICE_UNAVAILABLE: "ServiceUnavailableError",
}


class PlannedChoice(TokenReceiver):
    """A choice whose ending is planned: `_end_choice` gets the planned ending or the ending of an abort."""

    def __init__(self, generation: Generation) -> None:
        self._generation = generation
        reason = generation.answer.ending.finish_reason
        self.finish_reason = "stop" if reason == "tool_calls" else reason  # the engine does not know of calls

    def finish(self, num_tokens: int) -> None:
        self._end_choice(num_tokens, ending_at(self._generation, num_tokens))

    def abort(self, num_tokens: int) -> None:
        self._end_choice(num_tokens, Ending("abort"))

    @abstractmethod
    def _end_choice(self, num_tokens: int, ending: Ending) -> None:
        """End the choice after `num_tokens` tokens."""


class _End(NamedTuple):
    num_tokens: int
    ending: Ending


class EndedChoices:
    """The choices of one reply by their index, written when they are read. Choices read by index are kept."""

    def __init__(self, reply: Reply) -> None:
        self._reply = reply
        self._ends: list[_End | None] = [None] * reply.num_open
        self._kept: dict[int, Choice] = {}

    def receiver(self, index: int, _prompt: PlannedPrompt, _number: int, generation: Generation) -> "EndedChoice":
        """Return the receiver of the tokens of choice `index`."""
        return EndedChoice(self._reply, self._ends, index, generation)

    def __len__(self) -> int:
        return len(self._ends)

    def __getitem__(self, index: int) -> Choice:
        place = range(len(self))[index]
        if place not in self._kept:
            self._kept[place] = self._written(place)
        return self._kept[place]

    def __iter__(self) -> Iterator[Choice]:
        for index in range(len(self)):
            yield self._kept.get(index) or self._written(index)

    def _written(self, index: int) -> Choice:
        job, end = self._reply.job, self._ends[index]
        assert end is not None  # a reply of which a choice has failed is not written
        place, number = divmod(index, len(job.prompts[0].generations))
        prompt = job.prompts[place]
        writer = job.new_writer(prompt, prompt.generations[number])
        return writer.choice(end.num_tokens, end.ending)._replace(kv_transfer_params=job.kv_transfer_params)


class EndedChoice(PlannedChoice):
    """The receiver of a choice of a reply that is no stream: stores how the choice ended."""

    def __init__(self, reply: Reply, ends: list[_End | None], index: int, generation: Generation) -> None:
        super().__init__(generation)
        self._reply = reply
        self._ends = ends
        self._index = index

    def fail(self, message: str, status: int) -> None:
        self._reply.fail(failure(message, status))

    def _end_choice(self, num_tokens: int, ending: Ending) -> None:
        self._ends[self._index] = _End(num_tokens, ending)
        if self._reply.choice_finished(num_tokens):
            self._reply.resolve()


async def collect(
    delivery: ReplyDelivery, job: ReplyJob, arrived_at: Micros, caller: Caller = UNKNOWN_CALLER
) -> tuple[Reply, Sequence[Choice] | EndedChoices]:
    """Return all choices of a reply once they are complete, and their usage and metrics. Raises ApiError if one fails.

    The choices of a long reply are written during iteration, which must run on another thread.
    """
    reply = Reply(delivery, job, arrived_at, caller)
    ended = EndedChoices(reply)
    with delivery.open_replies:
        if delivery.suspension.rejects_new:
            raise paused()
        await reply.run(ended.receiver)
    return reply, ended if job.is_long else list(ended)
