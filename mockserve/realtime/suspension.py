"""Pauses and sleep of engines."""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Collection, Sequence
from typing import Literal, TypeAlias

from blis_sim.engine.core import Engine
from blis_sim.engine.scheduler.interface import PauseState
from blis_sim.engine.units import Micros
from blis_sim.options.interruptions import ABORT, RESET
from mockserve.metrics.counters import SLEEP_STATES
from mockserve.protocol.errors import ApiError, unhandled_error
from mockserve.realtime.driver import Driver

PauseMode: TypeAlias = Literal["abort", "wait", "keep"]

_HISTORY = 1000
"""Interruptions that are kept."""
SLEEP_TAGS = frozenset({"weights", "kv_cache"})


class Suspension:
    """Levels of suspension of a server. Facts: vllm/v1/engine/core.py, `pause_generation`, `sleep`, `wake_up`."""

    def __init__(
        self,
        driver: Driver,
        report_sleep: Callable[[str], None] = lambda _state: None,
        report_reset: Callable[[Engine], None] = lambda _engine: None,
    ) -> None:
        """`report_sleep` is called with the name of each new state of sleep on the metrics page.

        `report_reset` is called with each engine whose prefix cache has been cleared.
        """
        self._driver = driver
        self._report_sleep = report_sleep
        self._report_reset = report_reset
        self._pause_state = PauseState.NONE
        self._asleep: set[str] = set()
        """Released parts of the memory."""
        self.rejects_new = False
        """Whether new requests are rejected instead of queued."""
        self.history: deque[tuple[int, str]] = deque(maxlen=_HISTORY)
        """The latest interruptions: when, in microseconds of the Unix epoch, and the new state, `ABORT` or `RESET`."""

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
        if not self.is_paused or not self._driver.call_engine(
            lambda engine, _: not engine.stats.num_running and not engine.stats.num_waiting
        ):
            raise _failed_call("release_kv_cache_memory() requires a completed pause first")
        if self._asleep:
            raise _failed_call("release_kv_cache_memory() requires all executor memory to be resident")
        self.reset_prefix_cache(preempts_running=True)
        self._asleep.add("kv_cache")

    def reset_prefix_cache(self, preempts_running: bool) -> bool:
        """Clear the prefix cache. Returns False, without clearing, if requests run and are not preempted."""

        def reset(engine: Engine, at: Micros) -> bool:
            is_reset = engine.reset_prefix_cache(at, preempts_running)
            if is_reset:
                self._report_reset(engine)
            return is_reset

        is_reset = self._driver.call_engine(reset)
        if is_reset:
            self._record_change(RESET)
        return is_reset

    async def _suspend(self, mode: PauseMode, clears_caches: bool) -> None:
        if mode == "abort":
            self._driver.end_early()
            self._record_change(ABORT)
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
        self._record_change(hold.name.lower())

    def _record_change(self, kind: str) -> None:
        self.history.append((time.time_ns() // 1000, kind))


def _is_drained(engine: Engine) -> bool:
    return engine.stats.num_running == 0


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
    def history(self) -> Collection[tuple[int, str]]:
        """The latest interruptions of the first instance; calls here reach all."""
        return next((each.history for each in self._members()), ())

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
