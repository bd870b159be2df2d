"""An engine that hangs, dies, has no KV cache left or is slow, for a while or for good."""

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence

from blis_options import OptionError
from engine.core import Engine
from engine.scheduler.hold import Hold
from engine.units import Micros
from mockserve.engines.build import RankEngine
from mockserve.faults.draw import FaultSource
from mockserve.options.fault_kinds import ENGINE_FAULTS
from mockserve.options.faults import TimedFault


class EngineDeathError(RuntimeError):
    """The engine was made to die."""


class EngineFaults:
    """Starts and ends what goes wrong with the engines, or with one of them. Use it from one event loop only."""

    def __init__(self, engines: Mapping[int, RankEngine], source: FaultSource) -> None:
        self._engines = engines
        self._source = source
        self._active: dict[str, None] = {}
        self._timers: set[asyncio.TimerHandle] = set()

    @property
    def active(self) -> Sequence[str]:
        """What is wrong at present."""
        return list(self._active)

    def plan(self, faults: Sequence[TimedFault]) -> None:
        """Let each start when its time has come."""
        loop = asyncio.get_running_loop()
        for fault in faults:
            self._timers.add(loop.call_later(fault.after_s, self.start, fault.kind, fault.for_s))

    def start(self, kind: str, for_s: float | None = None) -> None:
        """Let something go wrong, for so many real seconds or until it is ended.

        Raises OptionError for another kind, and EngineError for an engine that cannot have this one.
        """
        _check(kind)
        if self._has_died:
            return
        _STARTS[kind](self)
        self._active[kind] = None
        if for_s is not None:
            self._timers.add(asyncio.get_running_loop().call_later(for_s, self.end, kind))

    def end(self, kind: str) -> None:
        """Let it be well again. The dead stay dead. Raises OptionError for a kind that there is not."""
        _check(kind)
        if kind in self._active and kind != "death" and not self._has_died:
            del self._active[kind]
            _ENDS[kind](self)

    def close(self) -> None:
        """Let nothing more happen."""
        for timer in self._timers:
            timer.cancel()
        self._timers.clear()

    @property
    def _has_died(self) -> bool:
        dead = [engine.driver.failure is not None for engine in self._engines.values()]
        return all(dead) if self._die_alone else any(dead)

    @property
    def _die_alone(self) -> bool:
        return all(engine.dies_alone for engine in self._engines.values())

    @property
    def _chosen(self) -> Collection[RankEngine]:
        """The engines that something is to happen to. Raises OptionError when there is no such rank."""
        rank = self._source.settings.rank
        if rank < 0:
            return self._engines.values()
        if rank not in self._engines:
            highest = max(self._engines, default=-1)
            raise OptionError(
                f"rank {rank} is gone" if rank < highest else f"rank must be at most {highest}, got {rank}"
            )
        return [self._engines[rank]]

    def _hang(self) -> None:
        for each in self._chosen:
            each.driver.interfere(lambda engine, at: engine.hold(Hold.EVERYTHING, at))

    def _go_on(self) -> None:
        for each in self._engines.values():
            each.driver.interfere(lambda engine, at: engine.hold(Hold.NONE, at))

    def _die(self) -> None:
        for each in list(self._chosen if self._die_alone else self._engines.values()):
            each.driver.fail(EngineDeathError("the engine died on purpose"))

    def _exhaust(self) -> None:
        fraction = self._source.settings.kv_fraction

        def withhold(engine: Engine, at: Micros) -> None:
            free = engine.kv.num_blocks - engine.kv.num_used_blocks
            engine.withhold_blocks(int(free * fraction), at)

        for each in self._chosen:
            each.driver.interfere(withhold)

    def _replenish(self) -> None:
        for each in self._engines.values():
            each.driver.interfere(lambda engine, at: engine.withhold_blocks(0, at))

    def _slow_down(self) -> None:
        for each in self._chosen:
            if each.driver.engine.config.timing is not None:
                raise OptionError("an engine whose times are set cannot be slow: it takes no steps")
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
    "hang": EngineFaults._go_on,
    "kv_exhaustion": EngineFaults._replenish,
    "slow": EngineFaults._speed_up,
}


def _check(kind: str) -> None:
    if kind not in ENGINE_FAULTS:
        raise OptionError(f"an engine fault must be one of {', '.join(ENGINE_FAULTS)}, got {kind!r}")
