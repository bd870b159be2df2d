"""Stored responses for later requests, and responses made in the background."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any

from mockserve.protocol.bodies import Event
from mockserve.protocol.errors import ApiError
from mockserve.protocol.json_text import compact_json

UNFINISHED = ("queued", "in_progress")
MOST_RESPONSES = 10_000
MOST_BYTES = 128 << 20
"""Limit of the total size of all responses and their conversations as JSON."""


class NoEventsError(Exception):
    """The events of a response are not stored."""


@dataclass(slots=True)
class StoredResponse:
    """One response: its present JSON object, and the conversation that it answers.

    `events` is None unless it is made in the background as a stream.
    """

    body: dict[str, Any]
    messages: Sequence[dict[str, Any]]
    events: list[Event] | None = None
    task: "asyncio.Task[None] | None" = None
    report_growth: Callable[[int], None] = lambda _: None
    """Called with the number of bytes that have been added."""
    _num_bytes: int = 0
    _num_body_bytes: int = 0
    _change: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def is_unfinished(self) -> bool:
        return self.body["status"] in UNFINISHED

    def add_event(self, event: Event) -> None:
        """Append an event of a background stream."""
        assert self.events is not None
        self.events.append(event)
        self._grow(len(compact_json(event)))
        self._change.set()

    @property
    def num_bytes(self) -> int:
        """Size of the response as JSON, as far as it has been counted."""
        return self._num_bytes

    def count(self) -> None:
        """Count the size of the body and events, once."""
        if not self._num_bytes:
            self._num_body_bytes = len(compact_json(self.body))
            self._grow(self._num_body_bytes + len(compact_json(self.messages)))

    def set_body(self, body: dict[str, Any]) -> None:
        """Replace the body and count its size."""
        self.body = body
        before, self._num_body_bytes = self._num_body_bytes, len(compact_json(body))
        self._grow(self._num_body_bytes - before)

    def _grow(self, num_bytes: int) -> None:
        self._num_bytes += num_bytes
        self.report_growth(num_bytes)

    async def events_after(self, number: int | None) -> AsyncIterator[Event]:
        """Yield all events after event `number` until the last event.

        Raises NoEventsError for a response that was not made in the background as a stream.
        """
        if self.events is None:
            raise NoEventsError
        events, place = self.events, 0 if number is None else number + 1
        while True:
            while place < len(events):
                yield events[place]
                place += 1
            if self.task is None or self.task.done():
                return
            self._change.clear()
            await self._change.wait()

    def make(self, making: Coroutine[Any, Any, None]) -> None:
        """Run the coroutine `making` as the background task of the response."""
        self.task = asyncio.create_task(making, name=f"response {self.body['id']}")
        self.task.add_done_callback(lambda _: self._change.set())

    def cancel(self) -> None:
        """Cancel the background task. Raises ApiError if the response is not in progress."""
        if not self.is_unfinished:
            raise _refused_request("Cannot cancel a synchronous response.", 400)
        self.body = {**self.body, "status": "cancelled"}
        if self.task is not None:
            self.task.cancel()


class ResponseStore:
    """The latest responses of one server, up to `most` and `most_bytes`; without `is_enabled` it keeps none."""

    def __init__(self, is_enabled: bool, most: int = MOST_RESPONSES, most_bytes: int = MOST_BYTES) -> None:
        self.is_enabled = is_enabled
        self._most = most
        self._most_bytes = most_bytes
        self._num_bytes = 0
        self._responses: dict[str, StoredResponse] = {}

    def find(self, response_id: str) -> StoredResponse:
        """Return a response by id. Raises ApiError for an unknown id."""
        found = self._responses.get(response_id)
        if found is None:
            raise _refused_request(f"Response with id '{response_id}' not found.", 404)
        return found

    def keep(self, response: StoredResponse) -> None:
        """Store a response, and evict the oldest finished ones beyond the limits."""
        if not self.is_enabled:
            return
        response.count()
        if response.num_bytes > self._most_bytes:
            return
        self._forget(response.body["id"])
        if len(self._responses) >= self._most:
            self._forget_oldest()
        response.report_growth = self._grown
        self._grown(response.num_bytes)
        self._responses[response.body["id"]] = response

    def _grown(self, num_bytes: int) -> None:
        self._num_bytes += num_bytes
        while self._num_bytes > self._most_bytes and self._forget_oldest():
            pass

    def _forget_oldest(self) -> bool:
        """Evict the oldest finished response. Returns False if no response is finished."""
        oldest = next((id for id, each in self._responses.items() if not each.is_unfinished), None)
        if oldest is not None:
            self._forget(oldest)
        return oldest is not None

    def _forget(self, response_id: str) -> None:
        found = self._responses.pop(response_id, None)
        if found is not None:
            found.report_growth = lambda _: None
            self._num_bytes -= found.num_bytes

    def close(self) -> None:
        """Cancel all background tasks."""
        for each in self._responses.values():
            if each.task is not None:
                each.task.cancel()


def _refused_request(message: str, status: int) -> ApiError:
    return ApiError(message, status=status, kind="invalid_request_error", param="response_id")


def two_predecessors() -> ApiError:
    """Return the error for a response that is to follow both a stored response and given messages."""
    message = "Only one of `previous_input_messages` and `previous_response_id` can be set."
    return ApiError(message, kind="invalid_request_error", param="previous_response_id")


def no_background() -> ApiError:
    """Return the error for a background response on a server that stores no responses."""
    message = (
        "This vLLM engine does not support `store=True` and therefore does not support the background mode. To enable "
        "these features, set the environment variable `VLLM_ENABLE_RESPONSES_API_STORE=1` when launching the vLLM "
        "server."
    )
    return ApiError(message, kind="invalid_request_error", param="background")
