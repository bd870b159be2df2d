"""The life of a server: readiness, limits on its queue, pauses and sleep, its end on a signal or a broken engine."""

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, Literal, TypeAlias

from aiohttp import web

from blis_sim.engine.core import Engine
from blis_sim.engine.scheduler.interface import PauseState
from mockserve.metrics.engine import SLEEP_STATES
from mockserve.protocol.errors import ApiError, engine_dead, mark_late, unhandled_error
from mockserve.realtime.cluster import ClusterDriver, InstanceDriver
from mockserve.realtime.driver import Driver

HEALTH_PATH = "/ping"
"""Path of the POST request that a stopping server still answers, with "not ready"."""

ENGINE_CHECK_INTERVAL_S = 5.0
"""Interval at which vLLM's server checks its engine. A reply with status 500 ends the server at once."""


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


def too_busy(limit: str) -> ApiError:
    """Return the error for a request above a limit."""
    if limit == "max_unfinished":
        return ApiError("Too many requests are waiting, retry later.", status=429, kind="RateLimitError")
    reason = {
        "max_num_queued_reqs": "The engine is currently busy and cannot accept new requests.",
        "max_num_queued_tokens": "The engine has reached its prefill token backlog limit.",
    }[limit]
    message = f"{reason} Please try again later or on a different instance."
    return ApiError(message, status=503, kind="Service Unavailable")


async def engine_death(lives: Sequence[Lifecycle]) -> BaseException:
    """Return the error of the first broken engine, when the server must end because of it."""
    deaths = [asyncio.ensure_future(each.death_reported.wait()) for each in lives]
    try:
        while True:
            failures = [each.driver.failure for each in lives]
            found = next((failure for failure in failures if failure is not None), None)
            if found is not None:
                return found
            await asyncio.wait(deaths, timeout=ENGINE_CHECK_INTERVAL_S, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for each in deaths:
            each.cancel()
            with suppress(asyncio.CancelledError):
                await each


PauseMode: TypeAlias = Literal["abort", "wait", "keep"]

SLEEP_TAGS = frozenset({"weights", "kv_cache"})


class Suspension:
    """Levels of suspension of a server. Facts: vllm/v1/engine/core.py, `pause_generation`, `sleep`, `wake_up`."""

    def __init__(self, driver: Driver, report_sleep: Callable[[str], None] = lambda _state: None) -> None:
        """`report_sleep` is called with the name of each new state of sleep on the metrics page."""
        self._driver = driver
        self._report_sleep = report_sleep
        self._pause_state = PauseState.NONE
        self._asleep: set[str] = set()
        """Released parts of the memory."""
        self.rejects_new = False
        """Whether new requests are rejected instead of queued."""

    @property
    def is_paused(self) -> bool:
        return self._pause_state is not PauseState.NONE

    @property
    def is_sleeping(self) -> bool:
        return self.is_paused or bool(self._asleep)

    async def pause(self, mode: PauseMode, clears_caches: bool) -> None:
        """Pause the engine and return when it is idle. By `mode`, running requests are aborted, awaited or kept."""
        self.rejects_new = mode != "keep"
        await self._suspend(mode, clears_caches)

    def resume(self) -> None:
        """Resume scheduling of queued and kept requests."""
        self.rejects_new = False
        self._set_pause_state(PauseState.NONE)

    async def sleep(self, level: int, mode: PauseMode) -> None:
        """Pause, and release memory from level 1 on. Requests are queued until the engine is fully awake."""
        await self._suspend(mode, clears_caches=level >= 1)
        if level >= 1:
            self._asleep |= SLEEP_TAGS
        self._report_sleep(("", *SLEEP_STATES[1:])[level])

    def wake_up(self, tags: list[str] | None) -> bool:
        """Restore the named memory parts, or all. Scheduling resumes with the last part. Returns whether it resumed."""
        requested = None if tags is None else [tag for tag in tags if tag != "scheduling"]
        if requested is None:
            self._asleep.clear()
        elif self._asleep.issuperset(requested):
            self._asleep.difference_update(requested)
        if not self._asleep:
            self.resume()
        # As in vLLM, the first restored part ends the pause.
        self._report_sleep(SLEEP_STATES[0])
        return not self._asleep

    def release_kv_cache(self) -> None:
        """Release the KV cache's memory until the engine wakes up. Raises ApiError unless it is paused and idle."""
        if not self.is_paused or not self._driver.call_engine(lambda engine, _: _is_empty(engine)):
            raise _failed_call("release_kv_cache_memory() requires a completed pause first")
        if self._asleep:
            raise _failed_call("release_kv_cache_memory() requires all executor memory to be resident")
        self.reset_prefix_cache(preempts_running=True)
        self._asleep.add("kv_cache")

    def reset_prefix_cache(self, preempts_running: bool) -> bool:
        """Clear the prefix cache. Returns False, without clearing, if requests run and are not preempted."""
        return self._driver.call_engine(lambda engine, at: engine.reset_prefix_cache(at, preempts_running))

    async def _suspend(self, mode: PauseMode, clears_caches: bool) -> None:
        if mode == "abort":
            self._driver.end_early()
        hold = PauseState.EVERYTHING if mode == "keep" else PauseState.ADMISSIONS
        self._set_pause_state(hold)
        is_idle = _is_between_steps if mode == "keep" else _is_drained
        # Another client may resume the engine meanwhile; a resumed engine may never be idle again.
        await self._driver.until(lambda engine: self._pause_state is not hold or is_idle(engine))
        if clears_caches:
            self.reset_prefix_cache(preempts_running=True)

    def _set_pause_state(self, hold: PauseState) -> None:
        self._pause_state = hold
        self._driver.call_engine(lambda engine, at: engine.hold(hold, at))


def _is_drained(engine: Engine) -> bool:
    return engine.stats.num_running == 0


def _is_empty(engine: Engine) -> bool:
    return not engine.stats.num_running and not engine.stats.num_waiting


def _is_between_steps(engine: Engine) -> bool:
    return engine.next_event_at() is None


def _failed_call(message: str) -> ApiError:
    message = f"Call to release_kv_cache_memory method failed: {message}"
    return unhandled_error(message)


class ClusterSuspension:
    """Applies each call to the `Suspension` of every present instance; a property is true if it is true for all.

    Every property is false while there is no instance.
    """

    def __init__(self, members: Callable[[], Sequence[Suspension]]) -> None:
        self._members = members

    @property
    def rejects_new(self) -> bool:
        """Whether new requests are rejected instead of queued."""
        return self._all(lambda each: each.rejects_new)

    @property
    def is_paused(self) -> bool:
        return self._all(lambda each: each.is_paused)

    @property
    def is_sleeping(self) -> bool:
        return self._all(lambda each: each.is_sleeping)

    async def pause(self, mode: PauseMode, clears_caches: bool) -> None:
        """Pause all engines and return when all are idle."""
        await asyncio.gather(*(each.pause(mode, clears_caches) for each in self._members()))

    def resume(self) -> None:
        """Resume scheduling of queued and kept requests."""
        for each in self._members():
            each.resume()

    async def sleep(self, level: int, mode: PauseMode) -> None:
        """Pause all engines, and release memory from level 1 on."""
        await asyncio.gather(*(each.sleep(level, mode) for each in self._members()))

    def wake_up(self, tags: list[str] | None) -> bool:
        """Restore the named memory parts, or all. Returns whether all engines are awake."""
        are_awake = [each.wake_up(tags) for each in self._members()]
        return all(are_awake)

    def release_kv_cache(self) -> None:
        """Release the KV caches' memory until the engines wake up. Raises ApiError unless all are paused and idle."""
        for each in self._members():
            each.release_kv_cache()

    def reset_prefix_cache(self, preempts_running: bool) -> bool:
        """Clear all prefix caches. Returns whether all were cleared."""
        are_reset = [each.reset_prefix_cache(preempts_running) for each in self._members()]
        return all(are_reset)

    def _all(self, holds: Callable[[Suspension], bool]) -> bool:
        members = self._members()
        return bool(members) and all(map(holds, members))
