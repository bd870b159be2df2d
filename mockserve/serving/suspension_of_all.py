"""Pausing, sleeping and clearing caches with several instances: all of them, each by itself."""

import asyncio
from collections.abc import Callable, Sequence

from mockserve.serving.suspension import PauseMode, Suspension


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
        """Give the KV caches' memory away until the engines wake up. Raises ApiError unless all are paused and idle."""
        for each in self._members():
            each.release_kv_cache()

    def reset_prefix_cache(self, preempts_running: bool) -> bool:
        """Whether it succeeded everywhere."""
        are_reset = [each.reset_prefix_cache(preempts_running) for each in self._members()]
        return all(are_reset)

    def _all(self, holds: Callable[[Suspension], bool]) -> bool:
        members = self._members()
        return bool(members) and all(map(holds, members))
