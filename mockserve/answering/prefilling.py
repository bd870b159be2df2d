"""Prompts that only have to be read: each is done when its prefill is, and nothing is generated."""

import asyncio
import time
from collections.abc import Sequence
from functools import partial

from blis_sim.engine.request import Request
from blis_sim.engine.units import Micros
from mockserve.protocol.errors import ApiError, internal_error, paused
from mockserve.replies.collected import failure
from mockserve.serving.planner import Planner, Terms
from mockserve.serving.service import Service

MOST_OPEN = 512
"""Prompts of one HTTP request that are in the engine at a time. A step that ends more would hold up others."""

PROMPTS_AT_ONCE = 256
"""Prompts that become requests to the engine at a time."""

LONG_TOKENS = 20_000
"""To name the blocks of more tokens takes milliseconds."""

PLANNING_S = 0.05
"""How long prompts are turned into requests before the first of them goes to the engine."""

SLICE_S = 0.005
"""How long the event loop submits prompts before others have a turn."""


class _Batch:
    """The prompts of one HTTP request."""

    def __init__(self, num_requests: int) -> None:
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.open: set[str] = set()
        """Ids of those in the engine."""
        self._num_left = num_requests
        self._moved = asyncio.Event()

    async def moved(self) -> None:
        """Return when a request has ended."""
        self._moved.clear()
        await self._moved.wait()

    def one_done(self, request_id: str) -> None:
        self.open.discard(request_id)
        self._moved.set()
        self._num_left -= 1
        if not self._num_left and not self.done.done():
            self.done.set_result(None)

    def fail(self, error: ApiError) -> None:
        self._moved.set()
        if not self.done.done():
            self.done.set_exception(error)


class _Prefill:
    """One prompt. Its only token stands for the end of prefill."""

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
        self._batch.one_done(self._request_id)

    def abort(self, num_tokens: int) -> None:
        self._batch.fail(internal_error("Failed to generate results for all prompts"))

    def fail(self, message: str, status: int) -> None:
        self._batch.fail(failure(message, status))


async def prefill(
    service: Service,
    prompts: Sequence[Sequence[int]],
    num_tokens: int,
    terms: Terms,
    arrived_at: Micros,
    finish_reason: str = "stop",
) -> None:
    """Return when the engine has read all prompts. Whatever ends the wait, what is still in the engine is freed.

    Of many prompts some are in the engine at a time. `num_tokens` is the length of all prompts together. The metrics
    page counts the requests under `finish_reason`.

    Raises ApiError when the engine refuses a prompt.
    """
    if service.suspension.rejects_new:
        raise paused()
    batch = _Batch(len(prompts))
    try:
        with service.answering:
            await _submit_all(service, batch, prompts, num_tokens > LONG_TOKENS, terms, arrived_at, finish_reason)
            await batch.done
    finally:
        batch.done.cancel()
        for request_id in batch.open:
            service.driver.abort(request_id)


async def _submit_all(
    service: Service,
    batch: _Batch,
    prompts: Sequence[Sequence[int]],
    is_long: bool,
    terms: Terms,
    arrived_at: Micros,
    finish_reason: str,
) -> None:
    until_s = time.monotonic() + SLICE_S
    num_planned = 0
    while num_planned < len(prompts):
        some = partial(_some_requests, service.planner, prompts, num_planned, terms)
        requests = await service.aside.run(len(prompts) > PROMPTS_AT_ONCE, some) if is_long else some()
        num_planned += len(requests)
        for request in requests:
            while len(batch.open) >= MOST_OPEN and not batch.done.done():
                await batch.moved()
            if batch.done.done():
                return
            batch.open.add(request.id)
            service.driver.submit(request, _Prefill(batch, request.id, finish_reason), arrived_at)
            if time.monotonic() >= until_s:
                await asyncio.sleep(0)
                until_s = time.monotonic() + SLICE_S


def _some_requests(planner: Planner, prompts: Sequence[Sequence[int]], first: int, terms: Terms) -> list[Request]:
    """What the engine is asked for the next prompts, at least one of them."""
    until_s = time.monotonic() + PLANNING_S
    found: list[Request] = []
    for index in range(first, min(len(prompts), first + PROMPTS_AT_ONCE)):
        found.append(planner.prompt_only(prompts[index], terms))
        if time.monotonic() >= until_s:
            break
    return found
