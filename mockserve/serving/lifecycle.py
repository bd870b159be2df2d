"""The life of a server: readiness, limits on its queue, pauses and sleep, its end on a signal or a broken engine."""

import asyncio
from collections.abc import Coroutine, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any

from aiohttp import web

from mockserve.protocol.errors import ApiError, engine_dead, mark_late, too_busy
from mockserve.realtime.cluster import ClusterDriver, InstanceDriver
from mockserve.realtime.driver import Driver
from mockserve.reply.reply import OpenReplies

HEALTH_PATH = "/ping"
"""Path of the POST request that a stopping server still answers, with "not ready"."""

ENGINE_CHECK_INTERVAL_S = 5.0
"""Interval at which vLLM's server checks its engine. A reply with status 500 ends the server at once."""


@dataclass(slots=True)
class Lifecycle:
    """The state of one server between its start and its end."""

    driver: Driver
    shutdown_timeout_s: float
    """The longest wait for open replies after a signal."""
    open_replies: OpenReplies = field(default_factory=OpenReplies)
    """Replies to the model routes."""
    is_stopping: bool = False
    """Set by a signal: open replies may finish, new requests are refused."""
    death_reported: asyncio.Event = field(default_factory=asyncio.Event)
    """Set once the status of a reply has reported the death of the engine."""

    @property
    def is_ready(self) -> bool:
        """Whether requests can be answered."""
        driver = self.driver
        is_closed = isinstance(driver, ClusterDriver | InstanceDriver) and not driver.takes_requests
        return not self.is_stopping and driver.failure is None and not is_closed

    def refuse_while_stopping(self, request: web.Request) -> None:
        """Raise ApiError for new work while the server stops."""
        if self.is_stopping and request.method == "POST" and not request.path.endswith(HEALTH_PATH):
            raise ApiError("The server is shutting down.", status=503, kind="ServiceUnavailableError")

    async def drain(self, at_once: asyncio.Event) -> None:
        """Return when no reply is open, when the shutdown timeout has passed, or when `at_once` is set."""
        self.is_stopping = True
        await first_of(self.open_replies.wait_until_none(self.shutdown_timeout_s), at_once.wait())


async def first_of(*waits: Coroutine[Any, Any, object]) -> None:
    """Return when one of several waits has ended, and cancel the others."""
    tasks = [asyncio.ensure_future(each) for each in waits]
    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in tasks:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


@dataclass(frozen=True, slots=True)
class QueueLimits:
    """Limits of the queue; None is no limit."""

    max_num_queued_reqs: int | None = None
    max_num_queued_tokens: int | None = None
    max_unfinished: int | None = None
    """Maximum of running and waiting requests, a limit that vLLM does not have."""

    @property
    def limits_anything(self) -> bool:
        return not self.max_num_queued_reqs is self.max_num_queued_tokens is self.max_unfinished is None

    def exceeded_limit(self, num_unfinished: int, num_new: int, num_waiting_tokens: int) -> str | None:
        """Return the name of the limit that `num_new` more requests would exceed; None if no limit is exceeded."""
        if self.max_num_queued_reqs is not None and num_unfinished + num_new > self.max_num_queued_reqs:
            return "max_num_queued_reqs"
        if self.max_num_queued_tokens is not None and num_waiting_tokens >= self.max_num_queued_tokens:
            return "max_num_queued_tokens"
        if self.max_unfinished is not None and num_unfinished + num_new > self.max_unfinished:
            return "max_unfinished"
        return None


@dataclass(slots=True)
class RequestQueue:
    """Checks the limits of the engine's queue for new requests, and counts rejections by limit."""

    driver: Driver
    limits: QueueLimits
    rejections: dict[str, int]
    limits_anything: bool = field(init=False)

    def __post_init__(self) -> None:
        self.limits_anything = self.limits.limits_anything

    def check(self, num_new: int) -> None:
        """Raise ApiError when the engine is dead or `num_new` more requests exceed a limit."""
        if self.driver.failure is not None:
            raise engine_dead()
        self._check_limits(num_new)

    def check_each(self, prompt_lengths: Iterable[int], num_choices: int = 1) -> None:
        """Raise ApiError when one of several prompts exceeds a limit together with those before it.

        vLLM checks each prompt again when the engine takes it, which is after the head of a stream.
        """
        if not self.limits.limits_anything:
            return
        num_earlier = num_earlier_tokens = 0
        for length in prompt_lengths:
            try:
                self._check_limits(num_choices, num_earlier, num_earlier_tokens)
            except ApiError as error:
                if error.status == HTTPStatus.SERVICE_UNAVAILABLE:
                    mark_late(error)
                raise
            num_earlier += num_choices
            num_earlier_tokens += num_choices * length

    def _check_limits(self, num_new: int, num_earlier: int = 0, num_earlier_tokens: int = 0) -> None:
        """Raise ApiError if `num_new` requests exceed a limit after earlier ones that are not in the engine yet."""
        if not self.limits.limits_anything:
            return
        driver = self.driver
        num_unfinished = driver.num_unfinished_requests + num_earlier
        limit = self.limits.exceeded_limit(num_unfinished, num_new, driver.num_waiting_tokens + num_earlier_tokens)
        if limit is not None:
            if limit in self.rejections:
                self.rejections[limit] += 1
            raise too_busy(limit)


async def engine_death(lifecycles: Sequence[Lifecycle]) -> BaseException:
    """Return the error of the first broken engine, when the server must end because of it."""
    deaths = [asyncio.ensure_future(each.death_reported.wait()) for each in lifecycles]
    try:
        while True:
            failures = [each.driver.failure for each in lifecycles]
            found = next((failure for failure in failures if failure is not None), None)
            if found is not None:
                return found
            await asyncio.wait(deaths, timeout=ENGINE_CHECK_INTERVAL_S, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for each in deaths:
            each.cancel()
            with suppress(asyncio.CancelledError):
                await each
