"""Pausing, sleeping and clearing caches of engines: what trainers do between two sets of weights."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Literal, TypeAlias

from blis_sim.engine.core import Engine
from blis_sim.engine.scheduler.pause_state import PauseState
from mockserve.metrics.engine import SLEEP_STATES
from mockserve.protocol.errors import ApiError
from mockserve.realtime.interface import Driver

PauseMode: TypeAlias = Literal["abort", "wait", "keep"]

SLEEP_TAGS = frozenset({"weights", "kv_cache"})


class Suspension:
    """Levels of suspension of a server. Facts: vllm/v1/engine/core.py, `pause_generation`, `sleep`, `wake_up`."""

    def __init__(self, driver: Driver, report_sleep: Callable[[str], None] = lambda _state: None) -> None:
        """`report_sleep` is called with the name of each new state of sleep on the metrics page."""
        self._driver = driver
        self._report_sleep = report_sleep
        self._hold = PauseState.NONE
        self._asleep: set[str] = set()
        """Parts of the memory that are given away."""
        self.rejects_new = False
        """Whether requests that arrive now are turned away instead of queued."""

    @property
    def is_paused(self) -> bool:
        return self._hold is not PauseState.NONE

    @property
    def is_sleeping(self) -> bool:
        return self.is_paused or bool(self._asleep)

    async def pause(self, mode: PauseMode, clears_caches: bool) -> None:
        """Return when the engine is idle: its requests ended early, waited for, or kept until it resumes."""
        self.rejects_new = mode != "keep"
        await self._suspend(mode, clears_caches)

    def resume(self) -> None:
        """Go on with what is queued or kept."""
        self.rejects_new = False
        self._set_hold(PauseState.NONE)

    async def sleep(self, level: int, mode: PauseMode) -> None:
        """Pause; from level 1 on give memory away. Requests are queued until the engine is fully awake."""
        await self._suspend(mode, clears_caches=level >= 1)
        if level >= 1:
            self._asleep |= SLEEP_TAGS
        self._report_sleep(("", *SLEEP_STATES[1:])[level])

    def wake_up(self, tags: list[str] | None) -> bool:
        """Take back the parts named, or all of them; scheduling resumes with the last. Returns whether it has."""
        requested = None if tags is None else [tag for tag in tags if tag != "scheduling"]
        if requested is None:
            self._asleep.clear()
        elif self._asleep.issuperset(requested):
            self._asleep.difference_update(requested)
        if not self._asleep:
            self.resume()
        # As vLLM does, with the first part that is taken back.
        self._report_sleep(SLEEP_STATES[0])
        return not self._asleep

    def release_kv_cache(self) -> None:
        """Free the KV cache's memory until the engine wakes up. Raises ApiError unless it is paused and idle."""
        if not self.is_paused or not self._driver.call_engine(lambda engine, _: _is_empty(engine)):
            raise _failed_call("release_kv_cache_memory() requires a completed pause first")
        if self._asleep:
            raise _failed_call("release_kv_cache_memory() requires all executor memory to be resident")
        self.reset_prefix_cache(preempts_running=True)
        self._asleep.add("kv_cache")

    def reset_prefix_cache(self, preempts_running: bool) -> bool:
        """Whether it succeeded: without preempting it does not while anything runs."""
        return self._driver.call_engine(lambda engine, at: engine.reset_prefix_cache(at, preempts_running))

    async def _suspend(self, mode: PauseMode, clears_caches: bool) -> None:
        if mode == "abort":
            self._driver.end_early()
        hold = PauseState.EVERYTHING if mode == "keep" else PauseState.ADMISSIONS
        self._set_hold(hold)
        is_idle = _is_between_steps if mode == "keep" else _is_drained
        # Another client may resume the engine meanwhile, which then may never be idle again.
        await self._driver.until(lambda engine: self._hold is not hold or is_idle(engine))
        if clears_caches:
            self.reset_prefix_cache(preempts_running=True)

    def _set_hold(self, hold: PauseState) -> None:
        self._hold = hold
        self._driver.call_engine(lambda engine, at: engine.hold(hold, at))


def _is_drained(engine: Engine) -> bool:
    return engine.stats.num_running == 0


def _is_empty(engine: Engine) -> bool:
    return not engine.stats.num_running and not engine.stats.num_waiting


def _is_between_steps(engine: Engine) -> bool:
    return engine.next_event_at() is None


def _failed_call(message: str) -> ApiError:
    message = f"Call to release_kv_cache_memory method failed: {message}"
    return ApiError(message, status=500, kind="InternalServerError", is_unhandled=True)


class SuspensionOfAll:
    """As `Suspension`, for all instances that are there when it is called; what holds, holds of each of them.

    Nothing holds where there is no instance.
    """

    def __init__(self, members: Callable[[], Sequence[Suspension]]) -> None:
        self._members = members

    @property
    def rejects_new(self) -> bool:
        """Whether requests that arrive now are turned away instead of queued."""
        return self._all(lambda each: each.rejects_new)

    @property
    def is_paused(self) -> bool:
        return self._all(lambda each: each.is_paused)

    @property
    def is_sleeping(self) -> bool:
        return self._all(lambda each: each.is_sleeping)

    async def pause(self, mode: PauseMode, clears_caches: bool) -> None:
        """Return when all are idle."""
        await asyncio.gather(*(each.pause(mode, clears_caches) for each in self._members()))

    def resume(self) -> None:
        """Go on with what is queued or kept."""
        for each in self._members():
            each.resume()

    async def sleep(self, level: int, mode: PauseMode) -> None:
        """Pause; from level 1 on give memory away."""
        await asyncio.gather(*(each.sleep(level, mode) for each in self._members()))

    def wake_up(self, tags: list[str] | None) -> bool:
        """Take back the parts named, or all of them. Returns whether all are awake."""
        are_awake = [each.wake_up(tags) for each in self._members()]
        return all(are_awake)

    def release_kv_cache(self) -> None:
        """Free the KV caches' memory until the engines wake up. Raises ApiError unless all are paused and idle."""
        for each in self._members():
            each.release_kv_cache()

    def reset_prefix_cache(self, preempts_running: bool) -> bool:
        """Whether it succeeded everywhere."""
        are_reset = [each.reset_prefix_cache(preempts_running) for each in self._members()]
        return all(are_reset)

    def _all(self, holds: Callable[[Suspension], bool]) -> bool:
        members = self._members()
        return bool(members) and all(map(holds, members))
