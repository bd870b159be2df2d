"""Submission of requests to the engine: choices of a large reply one after the other, and prefill-only prompts."""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import NamedTuple, TypeAlias

from blis_sim.engine.request import Request
from blis_sim.engine.units import Micros
from mockserve.in_flight_request import ENDED_REPLY, InFlightRequest, ParentRequest, Reply, new_parent
from mockserve.protocol.errors import ApiError, internal_error, paused
from mockserve.replies.choice_writer import Generation, Generations, LazyGenerations, PlannedPrompt
from mockserve.replies.choices import failure
from mockserve.replies.reply_set import CompletedChoice, ReplySet
from mockserve.serving.planner import (
    CHOICE_OVERHEAD_TOKENS,
    MOST_PLANNED_TOKENS,
    PROMPT_TOKENS_PER_ANSWER_TOKEN,
    Planner,
    RequestContext,
)
from mockserve.serving.service import ReplyDelivery
from mockserve.transport.clients import UNKNOWN_CALLER, Caller

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

NewReply: TypeAlias = Callable[[int, PlannedPrompt, int, Generation], Reply]
"""Returns the receiver of a choice's tokens. Arguments: the choice's index, its prompt, its number within the prompt,
the choice."""


def behind(request: Request, leader: str) -> Request:
    """Return a request of a message whose first request to the engine has the id `leader`; empty for none yet.

    vLLM prepares all choices and prompts of a message, and then sends them to its engine one by one.
    """
    return request._replace(follows=leader) if leader else request


class _Place(NamedTuple):
    """A choice that is not planned yet."""

    choice: int
    prompt: PlannedPrompt
    prompt_number: int
    number: int
    parent: ParentRequest


class _Planned(NamedTuple):
    """One choice that is ready for the engine."""

    place: _Place
    generation: Generation
    reply: Reply

    @property
    def size_tokens(self) -> int:
        """Size in memory, as a number of output tokens."""
        request = self.generation.request
        return CHOICE_OVERHEAD_TOKENS + request.output_tokens + request.input_tokens // PROMPT_TOKENS_PER_ANSWER_TOKEN


class _SubmittedChoice:
    """A choice in the engine: passes tokens on, and reports its end to let another choice start."""

    __slots__ = ("_end", "_reply", "token", "tokens")

    def __init__(self, reply: Reply, end: Callable[[], None]) -> None:
        self._reply = reply
        self._end = end
        self.token = reply.token
        self.tokens = reply.tokens

    @property
    def finish_reason(self) -> str:
        return self._reply.finish_reason

    @property
    def is_streamed(self) -> bool:
        return self._reply.is_streamed

    def finish(self, num_tokens: int) -> None:
        self._reply.finish(num_tokens)
        self._end()

    def abort(self, num_tokens: int) -> None:
        self._reply.abort(num_tokens)
        self._end()

    def fail(self, message: str, status: int) -> None:
        self._reply.fail(message, status)
        self._end()


class _ChoiceSubmitter:
    """Submits the choices of one reply, a limited number at a time."""

    def __init__(self, delivery: ReplyDelivery, replies: ReplySet, new_reply: NewReply, arrived_at: Micros) -> None:
        self._delivery = delivery
        self._replies = replies
        self._new_reply = new_reply
        self._arrived_at = arrived_at
        self._started_ns = time.time_ns()
        self._places = _places(replies)
        self._open: dict[str, InFlightRequest] = {}
        self._open_tokens = 0
        self._moved = asyncio.Event()
        self._leader = ""

    async def submit_all(self) -> None:
        """Return when every choice is in the engine, or the reply has ended."""
        planned: deque[_Planned] = deque()
        done = self._replies.done
        num_prompt_tokens = 0
        while not done.done():
            if not planned:
                planned = await self._delivery.aside.run(True, self._plan_some)
                if not planned:
                    return
            until_s = time.monotonic() + SLICE_S
            while planned and self._fits(planned[0]) and not done.done():
                num_prompt_tokens += self._submit(planned.popleft())
                is_much = num_prompt_tokens >= PROMPT_TOKENS_AT_ONCE
                if is_much or time.monotonic() >= until_s:
                    await asyncio.sleep(PAUSE_S if is_much else 0)
                    num_prompt_tokens = 0 if is_much else num_prompt_tokens
                    until_s = time.monotonic() + SLICE_S
            if planned:
                await self._wait_for_end()

    def free(self) -> None:
        """Abort the requests of the batch that are still in the engine."""
        for request_id, flight in self._open.items():
            self._delivery.driver.abort(request_id)
            flight.reply = ENDED_REPLY
        self._open.clear()

    def _plan_some(self) -> deque[_Planned]:
        """Plan the next choices, at least one unless all have been planned."""
        until_s = time.monotonic() + PLANNING_S
        found: deque[_Planned] = deque()
        size_tokens = 0
        for place in self._places:
            generation = _kept(place.prompt.generations, place.number)
            planned = _Planned(place, generation, self._new_reply(place.choice, place.prompt, place.number, generation))
            found.append(planned)
            size_tokens += planned.size_tokens
            if time.monotonic() >= until_s or size_tokens >= MOST_PLANNED_TOKENS // 4:
                break
        return found

    def _fits(self, planned: _Planned) -> bool:
        fits = len(self._open) < MAX_OPEN and self._open_tokens + planned.size_tokens <= MOST_PLANNED_TOKENS
        return fits or not self._open

    async def _wait_for_end(self) -> None:
        """Return when a choice, or the reply, has ended."""
        self._moved.clear()
        await self._moved.wait()

    def _submit(self, planned: _Planned) -> int:
        """Submit a choice; return its number of prompt tokens."""
        place, generation, reply = planned
        caller = self._replies.caller
        request = caller.applied_to(behind(generation.request, self._leader))
        self._leader = self._leader or request.id

        def end() -> None:
            flight = self._open.pop(request.id, None)
            if flight is not None:
                flight.reply = ENDED_REPLY
                if flight.e2e_latency_us:
                    job, prompt_number = self._replies.job, place.prompt_number
                    choice = CompletedChoice(job, prompt_number, generation, flight, caller, self._started_ns)
                    for observer in self._delivery.observers:
                        observer.completed(choice)
            self._open_tokens -= planned.size_tokens
            if isinstance(place.prompt.generations, LazyGenerations):
                place.prompt.generations.forget(place.number)
            self._moved.set()

        in_turn = _SubmittedChoice(reply, end)
        flight = self._delivery.driver.submit(request, in_turn, self._arrived_at, place.parent, caller.rank)
        self._open[request.id] = flight
        self._open_tokens += planned.size_tokens
        self._replies.add_next(flight, generation.answer.num_reasoning_tokens)
        return request.input_tokens


async def run_choices_in_turn(
    delivery: ReplyDelivery, replies: ReplySet, new_reply: NewReply, arrived_at: Micros
) -> None:
    """Submit the choices one after the other and wait for the last one. Requests still in the engine are aborted at the
    end."""
    for observer in delivery.observers:
        observer.received(replies.job)
    turns = _ChoiceSubmitter(delivery, replies, new_reply, arrived_at)
    submitting = asyncio.ensure_future(turns.submit_all())
    try:
        await asyncio.wait((submitting, replies.done), return_when=asyncio.FIRST_COMPLETED)
        if submitting.done():
            submitting.result()
        await replies.done
    finally:
        submitting.cancel()
        turns.free()
        replies.done.cancel()
        replies.release()


def _kept(generations: Generations, number: int) -> Generation:
    return generations.keep(number) if isinstance(generations, LazyGenerations) else generations[number]


def _places(replies: ReplySet) -> Iterator[_Place]:
    """Yield every choice in order."""
    index = 0
    for prompt_number, prompt in enumerate(replies.job.prompts):
        parent = new_parent(len(prompt.generations))
        for number in range(len(prompt.generations)):
            yield _Place(index, prompt, prompt_number, number, parent)
            index += 1


PROMPTS_AT_ONCE = 256
"""Number of prompts that become engine requests at a time."""

LONG_TOKENS = 20_000
"""Number of tokens from which hashing their blocks takes milliseconds."""


class _Batch:
    """The prompts of one HTTP request."""

    def __init__(self, num_requests: int, note: Callable[[InFlightRequest], None] | None = None) -> None:
        """`note` is called with each prefilled request."""
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.open: set[str] = set()
        """Ids of the requests in the engine."""
        self._flights: dict[str, InFlightRequest] = {}
        self._note = note
        self._num_left = num_requests
        self._moved = asyncio.Event()
        self.leader = ""
        """Id of the first request; empty before it."""

    async def moved(self) -> None:
        """Return when a request has ended."""
        self._moved.clear()
        await self._moved.wait()

    def submitted(self, flight: InFlightRequest) -> None:
        """Keep a request that is in the engine, if prefilled requests are reported to `note`."""
        if self._note is not None:
            self._flights[flight.request.id] = flight

    def request_ended(self, request_id: str) -> None:
        self.open.discard(request_id)
        if self._note is not None and (flight := self._flights.pop(request_id, None)) is not None:
            self._note(flight)
        self._moved.set()
        self._num_left -= 1
        if not self._num_left and not self.done.done():
            self.done.set_result(None)

    def fail(self, error: ApiError) -> None:
        self._moved.set()
        if not self.done.done():
            self.done.set_exception(error)


class _Prefill:
    """One prompt. Its only token marks the end of prefill."""

    is_streamed = False

    def __init__(self, batch: _Batch, request_id: str, finish_reason: str) -> None:
        self._batch = batch
        self._request_id = request_id
        self.finish_reason = finish_reason

    def token(self, number: int) -> None:
        pass

    def tokens(self, first: int, last: int) -> None:
        pass

    def finish(self, num_tokens: int) -> None:
        self._batch.request_ended(self._request_id)

    def abort(self, num_tokens: int) -> None:
        self._batch.fail(internal_error("Failed to generate results for all prompts"))

    def fail(self, message: str, status: int) -> None:
        self._batch.fail(failure(message, status))


async def prefill(
    delivery: ReplyDelivery,
    planner: Planner,
    prompts: Sequence[Sequence[int]],
    num_tokens: int,
    request_context: RequestContext,
    arrived_at: Micros,
    finish_reason: str = "stop",
    caller: Caller = UNKNOWN_CALLER,
) -> None:
    """Prefill all prompts. Requests still in the engine are aborted at the end.

    Of many prompts only some are in the engine at a time. `num_tokens` is the total length of the prompts. Metrics
    count the requests under `finish_reason`; spans are children of the span of `caller`. Raises ApiError when the
    engine refuses a prompt.
    """
    if delivery.suspension.rejects_new:
        raise paused()
    observers, started_ns = delivery.observers, time.time_ns()

    def note(flight: InFlightRequest) -> None:
        for observer in observers:
            observer.prefilled(flight, caller, started_ns)

    batch = _Batch(len(prompts), note if observers else None)
    try:
        with delivery.open_replies:
            await _submit_all(
                delivery, planner, batch, prompts, num_tokens > LONG_TOKENS, request_context, arrived_at, finish_reason
            )
            await batch.done
    finally:
        batch.done.cancel()
        for request_id in batch.open:
            delivery.driver.abort(request_id)


async def _submit_all(
    delivery: ReplyDelivery,
    planner: Planner,
    batch: _Batch,
    prompts: Sequence[Sequence[int]],
    is_long: bool,
    request_context: RequestContext,
    arrived_at: Micros,
    finish_reason: str,
) -> None:
    until_s = time.monotonic() + SLICE_S
    num_planned = 0
    while num_planned < len(prompts):
        some = partial(_some_requests, planner, prompts, num_planned, request_context)
        requests = await delivery.aside.run(len(prompts) > PROMPTS_AT_ONCE, some) if is_long else some()
        num_planned += len(requests)
        for request in requests:
            while len(batch.open) >= MAX_OPEN and not batch.done.done():
                await batch.moved()
            if batch.done.done():
                return
            following = behind(request, batch.leader)
            batch.leader = batch.leader or request.id
            batch.open.add(request.id)
            batch.submitted(delivery.driver.submit(following, _Prefill(batch, request.id, finish_reason), arrived_at))
            if time.monotonic() >= until_s:
                await asyncio.sleep(0)
                until_s = time.monotonic() + SLICE_S


def _some_requests(
    planner: Planner, prompts: Sequence[Sequence[int]], first: int, request_context: RequestContext
) -> list[Request]:
    """Return engine requests for the next prompts, at least one of them."""
    until_s = time.monotonic() + PLANNING_S
    found: list[Request] = []
    for index in range(first, min(len(prompts), first + PROMPTS_AT_ONCE)):
        found.append(planner.prefill_request(prompts[index], request_context))
        if time.monotonic() >= until_s:
            break
    return found
