"""Engine faults: an engine hangs, dies, runs out of KV cache or is slow, for a limited time or permanently."""

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Protocol

from blis_sim.engine.core import Engine
from blis_sim.engine.scheduler.interface import PauseState
from blis_sim.engine.units import Micros
from blis_sim.options import OptionError
from mockserve.engines import RankEngine
from mockserve.faults.shaping import FaultSource
from mockserve.options.faults import ENGINE_FAULTS, FaultSettings, TimedFault

_logger = logging.getLogger(__name__)


class EngineDeathError(RuntimeError):
    """Raised by an injected death of the engine."""


class FaultControl(Protocol):
    """Shows and changes faults of replies, and of engines in this or another process."""

    @property
    def active(self) -> Sequence[str]:
        """Return the engine faults in force."""
        ...

    def plan(self, faults: Sequence[TimedFault]) -> None:
        """Schedule the start of each fault. Raises OptionError for a fault that the engines do not support."""
        ...

    async def change(self, settings: FaultSettings, changes: "Changes") -> None:
        """Change fault settings, and start and end engine faults. Raises OptionError without any change."""
        ...

    def close(self) -> None:
        """Cancel all planned starts and ends."""
        ...


Changes = Mapping[str, float | bool | None]
"""Engine faults to start, with their seconds or None for no end, or to end, with False."""


class EngineFaults:
    """Starts and ends faults of the engines, or of one of them. Use it from one event loop only."""

    def __init__(self, engines: Mapping[int, RankEngine], source: FaultSource) -> None:
        self._engines = engines
        self._source = source
        self._active: dict[str, None] = {}
        self._starts: list[asyncio.TimerHandle] = []
        """Timers of faults that are planned."""
        self._ends: dict[str, asyncio.TimerHandle] = {}
        """Timers that end the active faults, by kind."""

    @property
    def active(self) -> Sequence[str]:
        """Return the engine faults in force."""
        return list(self._active)

    def plan(self, faults: Sequence[TimedFault]) -> None:
        """Schedule the start of each fault. Raises OptionError for a fault that the engines do not support."""
        loop = asyncio.get_running_loop()
        self.check(self._source.settings.rank, [fault.kind for fault in faults])
        for fault in faults:
            self._starts.append(loop.call_later(fault.after_s, self._start_planned, fault))

    def check(self, rank: int, kinds: Collection[str]) -> None:
        """Raise OptionError unless the engines of a rank support these kinds of faults; rank -1 means all."""
        for kind in kinds:
            _check(kind)
        configs = [each.driver.engine.config for each in self._of_rank(rank)] if kinds else []
        for config in configs:
            if "slow" in kinds and config.timing is not None:
                raise OptionError("an engine whose times are set cannot be slow: it takes no steps")
            if "kv_exhaustion" in kinds and config.engine != "vllm":
                raise OptionError(f"kv_exhaustion needs vLLM's scheduling, got {config.engine}")

    async def change(self, settings: FaultSettings, changes: Changes) -> None:
        """Change fault settings, and start and end engine faults. Raises OptionError without any change."""
        self.check(settings.rank, changes)
        self._source.settings = settings
        for kind, for_s in changes.items():
            if for_s is False:
                self.end(kind)
            else:
                self.start(kind, for_s)

    def start(self, kind: str, for_s: float | None = None) -> None:
        """Start a fault for `for_s` real seconds, or until `end`. Raises OptionError as `check` does."""
        self.check(self._source.settings.rank, [kind])
        if self._has_died:
            return
        _STARTS[kind](self)
        self._active[kind] = None
        self._cancel_end(kind)
        if for_s is not None:
            self._ends[kind] = asyncio.get_running_loop().call_later(for_s, self.end, kind)

    def end(self, kind: str) -> None:
        """End a fault. An engine that has died stays dead. Raises OptionError for an unknown kind."""
        _check(kind)
        self._cancel_end(kind)
        if kind in self._active and kind != "death" and not self._has_died:
            del self._active[kind]
            _ENDS[kind](self)

    def close(self) -> None:
        """Cancel all planned starts and ends."""
        for timer in (*self._starts, *self._ends.values()):
            timer.cancel()
        self._starts.clear()
        self._ends.clear()

    def _cancel_end(self, kind: str) -> None:
        timer = self._ends.pop(kind, None)
        if timer is not None:
            timer.cancel()

    def _start_planned(self, fault: TimedFault) -> None:
        try:
            self.start(fault.kind, fault.for_s)
        except OptionError as error:  # the planned rank has been removed
            _logger.warning("the engine fault %s does not happen: %s", fault.kind, error)

    @property
    def _has_died(self) -> bool:
        dead = [engine.driver.failure is not None for engine in self._engines.values()]
        return all(dead) if self._fail_alone else any(dead)

    @property
    def _fail_alone(self) -> bool:
        return all(engine.fails_alone for engine in self._engines.values())

    @property
    def _target_engines(self) -> Collection[RankEngine]:
        """The engines of the rank in the settings. Raises OptionError for an unknown rank."""
        return self._of_rank(self._source.settings.rank)

    def _of_rank(self, rank: int) -> Collection[RankEngine]:
        if rank < 0:
            return self._engines.values()
        if rank not in self._engines:
            highest = max(self._engines, default=-1)
            raise OptionError(
                f"rank {rank} is gone" if rank < highest else f"rank must be at most {highest}, got {rank}"
            )
        return [self._engines[rank]]

    def _hang(self) -> None:
        for each in self._target_engines:
            each.driver.call_engine(lambda engine, at: engine.hold(PauseState.EVERYTHING, at))

    def _resume(self) -> None:
        for each in self._engines.values():
            each.driver.call_engine(lambda engine, at: engine.hold(PauseState.NONE, at))

    def _die(self) -> None:
        for each in list(self._target_engines if self._fail_alone else self._engines.values()):
            each.driver.fail(EngineDeathError("the engine died on purpose"))

    def _exhaust(self) -> None:
        fraction = self._source.settings.kv_fraction

        def withhold(engine: Engine, at: Micros) -> None:
            free = engine.kv.num_blocks - engine.kv.num_used_blocks
            engine.shrink_cache(int(free * fraction), at)

        for each in self._target_engines:
            each.driver.call_engine(withhold)

    def _replenish(self) -> None:
        for each in self._engines.values():
            each.driver.call_engine(lambda engine, at: engine.shrink_cache(0, at))

    def _slow_down(self) -> None:
        for each in self._target_engines:
            each.latency.factor = self._source.settings.slow_factor

    def _speed_up(self) -> None:
        for each in self._engines.values():
            each.latency.factor = 1.0


_STARTS: Mapping[str, Callable[[EngineFaults], None]] = {
    "hang": EngineFaults._hang,
    "death": EngineFaults._die,
    "kv_exhaustion": EngineFaults._exhaust,
    "slow": EngineFaults._slow_down,
}
_ENDS: Mapping[str, Callable[[EngineFaults], None]] = {
    "hang": EngineFaults._resume,
    "kv_exhaustion": EngineFaults._replenish,
    "slow": EngineFaults._speed_up,
}


def _check(kind: str) -> None:
    if kind not in ENGINE_FAULTS:
        raise OptionError(f"an engine fault must be one of {', '.join(ENGINE_FAULTS)}, got {kind!r}")
