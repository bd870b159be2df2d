"""Submission of requests that need only the prefill, as poolers do."""

import asyncio
import time
from collections.abc import Callable, Sequence
from functools import partial

from blis_sim.engine.request import Request
from blis_sim.engine.units import Micros
from mockserve.http.headers import UNKNOWN_CALLER, Caller
from mockserve.kv_events.naming import Scope
from mockserve.protocol.errors import ApiError, internal_error, paused
from mockserve.realtime.in_flight import InFlightRequest
from mockserve.reply.reply import MAX_OPEN, PLANNING_S, SLICE_S, ReplyDelivery, failure
from mockserve.serving.planner import Planner

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
        self._note = note
        self._num_left = num_requests
        self._moved = asyncio.Event()
        self.leader = ""
        """Id of the first request; empty before it."""

    async def moved(self) -> None:
        """Return when a request has ended."""
        self._moved.clear()
        await self._moved.wait()

    def request_ended(self, flight: InFlightRequest) -> None:
        self.open.discard(flight.request.id)
        if self._note is not None:
            self._note(flight)
        self._moved.set()
        self._num_left -= 1
        if not self._num_left and not self.done.done():
            self.done.set_result(None)

    def fail(self, error: ApiError) -> None:
        self._moved.set()
        if not self.done.done():
            self.done.set_exception(error)


class _Prefill(InFlightRequest):
    """One prompt. Its only token marks the end of prefill."""

    __slots__ = ("_batch", "finish_reason")

    finish_reason: str

    def __init__(self, request: Request, batch: _Batch, finish_reason: str) -> None:
        super().__init__(request)
        self._batch = batch
        self.finish_reason = finish_reason

    def finish(self, num_tokens: int) -> None:
        self._batch.request_ended(self)

    def abort(self, num_tokens: int) -> None:
        self._batch.fail(internal_error("Failed to generate results for all prompts"))

    def fail(self, message: str, status: int) -> None:
        self._batch.fail(failure(message, status))


async def prefill(
    delivery: ReplyDelivery,
    planner: Planner,
    prompts: Sequence[Sequence[int]],
    num_tokens: int,
    draft: Request,
    scope: Scope,
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
                delivery, planner, batch, prompts, num_tokens > LONG_TOKENS, draft, scope, arrived_at, finish_reason
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
    draft: Request,
    scope: Scope,
    arrived_at: Micros,
    finish_reason: str,
) -> None:
    until_s = time.monotonic() + SLICE_S
    num_planned = 0
    while num_planned < len(prompts):
        some = partial(_some_requests, planner, prompts, num_planned, draft, scope)
        requests = await delivery.executor.run(len(prompts) > PROMPTS_AT_ONCE, some) if is_long else some()
        num_planned += len(requests)
        for request in requests:
            while len(batch.open) >= MAX_OPEN and not batch.done.done():
                await batch.moved()
            if batch.done.done():
                return
            following = request._replace(follows=batch.leader) if batch.leader else request
            batch.leader = batch.leader or request.id
            batch.open.add(request.id)
            delivery.driver.submit(_Prefill(following, batch, finish_reason), arrived_at)
            if time.monotonic() >= until_s:
                await asyncio.sleep(0)
                until_s = time.monotonic() + SLICE_S


def _some_requests(
    planner: Planner, prompts: Sequence[Sequence[int]], first: int, draft: Request, scope: Scope
) -> list[Request]:
    """Return engine requests for the next prompts, at least one of them."""
    until_s = time.monotonic() + PLANNING_S
    found: list[Request] = []
    for index in range(first, min(len(prompts), first + PROMPTS_AT_ONCE)):
        found.append(planner.prefill_request(prompts[index], draft, scope))
        if time.monotonic() >= until_s:
            break
    return found
