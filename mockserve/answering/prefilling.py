"""Prompts that only have to be read: each is done when its prefill is, and nothing is generated."""

import asyncio
from collections.abc import Sequence

from engine.request import Request
from engine.units import Micros
from mockserve.protocol.errors import ApiError, internal_error, paused
from mockserve.replies.endings import failure
from mockserve.serving.service import Service


class _Batch:
    """The prompts of one HTTP request."""

    def __init__(self, num_requests: int) -> None:
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._num_open = num_requests

    def one_done(self) -> None:
        self._num_open -= 1
        if not self._num_open and not self.done.done():
            self.done.set_result(None)

    def fail(self, error: ApiError) -> None:
        if not self.done.done():
            self.done.set_exception(error)


class _Prefill:
    """One prompt. Its only token stands for the end of prefill."""

    is_streamed = False

    def __init__(self, batch: _Batch, finish_reason: str) -> None:
        self._batch = batch
        self.finish_reason = finish_reason

    def token(self, number: int) -> None:
        pass

    def tokens(self, first: int, last: int) -> None:
        pass

    def finish(self, num_tokens: int) -> None:
        self._batch.one_done()

    def abort(self, num_tokens: int) -> None:
        self._batch.fail(internal_error("Failed to generate results for all prompts"))

    def fail(self, message: str, status: int) -> None:
        self._batch.fail(failure(message, status))


async def prefill(
    service: Service, requests: Sequence[Request], arrived_at: Micros, finish_reason: str = "stop"
) -> None:
    """Return when the engine has read all prompts. Whatever ends the wait, what is still in the engine is freed.

    The metrics page counts the requests under `finish_reason`.

    Raises ApiError when it refuses one.
    """
    if service.suspension.rejects_new:
        raise paused()
    batch = _Batch(len(requests))
    try:
        with service.answering:
            for request in requests:
                service.driver.submit(request, _Prefill(batch, finish_reason), arrived_at)
            await batch.done
    finally:
        batch.done.cancel()
        for request in requests:
            service.driver.abort(request.id)
